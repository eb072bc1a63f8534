"""Means of state dicts that do not all have the same entries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedbench import aggregation
from fedbench.errors import LayoutError, NonFiniteError

FULL = {"base": np.float32([1, 2]), "head": np.float32([10])}
HEAD = {"head": np.float32([20])}
LORA = {"lora": np.float32([5]), "head": np.float32([60])}


def per_key(updates: Any, weights: Any = None, **options: Any) -> dict[str, Any]:
    return aggregation.mean(updates, weights, partial="per_key", **options)


def test_differing_entries_are_an_error_that_lists_the_names() -> None:
    with pytest.raises(LayoutError, match=r"updates\[1\].*missing 'base'"):
        aggregation.mean([FULL, HEAD])
    with pytest.raises(LayoutError, match=r"updates\[1\].*missing 'base' and unexpected 'lora'"):
        aggregation.mean([FULL, LORA])
    with pytest.raises(LayoutError, match="missing 'base'"):
        aggregation.StreamingMean(FULL).add(HEAD)


def test_each_entry_is_averaged_over_the_clients_that_sent_it() -> None:
    result = per_key([FULL, HEAD, LORA], [1, 2, 1])
    assert list(result) == ["base", "head", "lora"]
    assert {name: value.tolist() for name, value in result.items()} == {
        "base": [1, 2],
        "head": [27.5],
        "lora": [5],
    }
    assert not np.shares_memory(result["base"], FULL["base"])


@pytest.mark.parametrize("seed", range(20))
def test_each_entry_has_the_bits_of_the_mean_of_its_senders(seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = [f"layer{i}" for i in range(6)]
    sent = rng.random((8, 6)) < 0.6
    sent[0] = True
    updates = [
        {n: rng.standard_normal(7).astype(np.float32) for n, s in zip(names, row, strict=True) if s}
        for row in sent
    ]
    weights = rng.integers(1, 50, 8)
    result = per_key(updates, weights)
    for i, name in enumerate(names):
        senders = np.flatnonzero(sent[:, i])
        expected = aggregation.mean([updates[k][name] for k in senders], weights[senders])
        assert result[name].tobytes() == expected.tobytes()


def test_full_updates_give_the_ordinary_mean() -> None:
    states = [{"w": torch.randn(3, 2), "n": torch.tensor(k), "e": torch.empty(0)} for k in range(4)]
    one, other = per_key(states, [1, 2, 3, 4]), aggregation.mean(states, [1, 2, 3, 4])
    assert list(one) == list(other)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert per_key([{}, {}]) == {}


def test_integer_entries_are_combined_over_their_senders() -> None:
    states = [{"n": np.int64(7)}, {}, {"n": np.int64(9)}]
    assert int(per_key(states)["n"]) == 9
    assert int(per_key(states, integers="sum")["n"]) == 16


def test_errors_name_the_clients_as_the_caller_numbers_them() -> None:
    bad = {"lora": np.float32([np.nan])}
    with pytest.raises(NonFiniteError, match="client 2 in entry 'lora'"):
        per_key([FULL, HEAD, bad])
    with pytest.raises(LayoutError, match=r"updates\[2\]\['head'\] must have shape \(1,\)"):
        per_key([HEAD, {}, {"head": np.float32([1, 2])}])
    with pytest.raises(TypeError, match=r"updates\[1\] must be a mapping"):
        per_key([HEAD, np.float32([1])])
    with pytest.raises(ValueError, match="positive sum over the clients that sent 'lora'"):
        per_key([FULL, LORA], [1, 0])
    with pytest.raises(ValueError, match="at least one client's update, got none"):
        per_key([])
    with pytest.raises(TypeError, match="sequence of state dicts with partial='per_key', got dict"):
        per_key(FULL)


def test_dropped_clients_lose_all_their_entries() -> None:
    bad = {"base": np.float32([np.inf, 0]), "head": np.float32([1000])}
    with pytest.warns(RuntimeWarning, match=r"left out client\(s\) 1 of 3") as caught:
        result = per_key([FULL, bad, HEAD], nonfinite="drop")
    assert caught[0].filename == __file__
    assert result["base"].tolist() == [1, 2]
    assert result["head"].tolist() == [15]
    with (
        pytest.warns(RuntimeWarning, match="left out"),
        pytest.raises(NonFiniteError, match="every client that sent 'base'"),
    ):
        per_key([bad, HEAD], nonfinite="drop")
    assert np.isinf(per_key([FULL, bad], nonfinite="propagate")["base"][0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"out": {}}, "out must be None with partial='per_key'"),
        ({"total_weight": 2.0}, "total_weight must be None with partial='per_key'"),
    ],
)
def test_options_that_decide_for_all_entries_are_refused(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        per_key([HEAD], **options)
    with pytest.raises(ValueError, match="partial must be 'raise' or 'per_key', got 'skip'"):
        aggregation.mean([HEAD], partial="skip")
