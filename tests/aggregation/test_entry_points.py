"""Lists, stacks, state dicts, packed states and streams: one mean, the same rules for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedbench import aggregation
from fedbench.aggregation import RULES, FlatLayout, StreamingMean
from fedbench.errors import NonFiniteError

Rows = list[np.ndarray[Any, Any]]


def of_list(rows: Rows, weights: Any = None, nonfinite: str = "raise") -> Any:
    return aggregation.mean(rows, weights, nonfinite=nonfinite)


def of_stack(rows: Rows, weights: Any = None, nonfinite: str = "raise") -> Any:
    stack = np.stack(rows) if rows else np.empty((0, 3), np.float32)
    return aggregation.mean(stack, weights, nonfinite=nonfinite)


def of_states(rows: Rows, weights: Any = None, nonfinite: str = "raise") -> Any:
    return aggregation.mean([{"w": row} for row in rows], weights, nonfinite=nonfinite)["w"]


def of_packed(rows: Rows, weights: Any = None, nonfinite: str = "raise") -> Any:
    layout = FlatLayout.from_state({"w": rows[0] if rows else np.zeros(3, np.float32)})
    flat = [layout.pack({"w": row}) for row in rows]
    return layout.unpack(aggregation.mean(flat, weights, nonfinite=nonfinite))["w"]


def streamed(rows: Rows, weights: Any = None, nonfinite: str = "raise") -> Any:
    total = StreamingMean(rows[0] if rows else np.zeros(3, np.float32), nonfinite=nonfinite)
    for row, weight in zip(rows, [1] * len(rows) if weights is None else weights, strict=True):
        total.add(row, weight)
    return total.result()


def streamed_at_once(rows: Rows, weights: Any = None, nonfinite: str = "raise") -> Any:
    total = StreamingMean(rows[0] if rows else np.zeros(3, np.float32), nonfinite=nonfinite)
    total.add_many(rows, weights)
    return total.result()


@pytest.fixture(params=[of_list, of_stack, of_states, of_packed, streamed, streamed_at_once])
def mean_of(request) -> Callable[..., Any]:
    return request.param


def test_all_entry_points_agree(mean_of) -> None:
    rng = np.random.default_rng(0)
    rows = [rng.standard_normal(1000).astype(np.float32) for _ in range(9)]
    weights = rng.integers(1, 500, 9).tolist()
    assert mean_of(rows, weights).tobytes() == of_list(rows, weights).tobytes()


def test_no_weight_at_all_is_an_error(mean_of) -> None:
    rows = [np.float32([1, 2, 3])] * 2
    with pytest.raises(ValueError, match="positive"):
        mean_of(rows, [0, 0])
    with pytest.raises(ValueError, match=r"at least one client|update of positive weight"):
        mean_of([])


def test_an_update_of_weight_zero_is_checked_and_contributes_nothing(mean_of) -> None:
    good = np.float32([1, 2, 3])
    assert mean_of([good, good * 1000], [2, 0]).tolist() == [1, 2, 3]
    with pytest.raises(NonFiniteError):
        mean_of([good, good * np.float32(np.nan)], [2, 0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_bad_client_of_a_hundred(mean_of, bad: float) -> None:
    rows = [np.full(3, k, np.float32) for k in range(100)]
    rows[37] = np.float32([0, bad, 0])
    with pytest.raises(NonFiniteError):
        mean_of(rows)
    others = [row for k, row in enumerate(rows) if k != 37]
    with pytest.warns(RuntimeWarning, match="left out"):
        result = mean_of(rows, nonfinite="drop")
    assert result.tobytes() == of_list(others).tobytes()


def test_large_halves_do_not_overflow(mean_of) -> None:
    result = mean_of([np.full(3, 60000, np.float16)] * 3, [1000] * 3)
    assert result.dtype == np.float16
    assert result.tolist() == [60000] * 3


def test_one_client_is_copied_and_nothing_is_written(mean_of) -> None:
    row = np.float32([1, -0.0, 3])
    before = row.tobytes()
    result = mean_of([row])
    assert result.tolist() == [1, 0, 3]
    assert not np.shares_memory(result, row)
    assert row.tobytes() == before


def test_foreign_byte_order_and_read_only_arrays(mean_of) -> None:
    foreign = [np.array([k, 2, 3], ">f4") for k in (1, 3)]
    native = [row.astype(np.float32) for row in foreign]
    for rows in (foreign, native):
        for row in rows:
            row.flags.writeable = False
        assert mean_of(rows).tolist() == [2, 2, 3]


@pytest.mark.parametrize("rule", list(RULES))
def test_every_rule_is_documented_in_full(rule: str) -> None:
    text = RULES.load(rule).__doc__ or ""
    for part in ("breakdown point:", "time", "memory", "determinism", "references", "examples"):
        assert part in text.lower(), part
    assert ".. [1]" in text
    assert ">>> " in text
