"""Krum, Multi-Krum, Bulyan and nearest-neighbour mixing against exact arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbench import aggregation
from fedbench.aggregation._distances import PairDistances, smallest
from fedbench.aggregation._updates import collect
from fedbench.errors import NonFiniteError
from tests.aggregation import inputs
from tests.aggregation.robust_reference import (
    around_median_bits,
    krum_order,
    mean_bits,
    permutations,
    sort_keys,
    squared_distances,
)

DTYPES = ("float32", "float64", "float16")


def hard_rows(kind: str, clients: int, size: int, dtype: str, seed: int) -> list[Any]:
    """Rows with ties: some clients are copies, some lie on a small grid."""
    rng = np.random.default_rng(seed)
    if kind == "grid":
        return list(rng.integers(0, 3, (clients, size)).astype(dtype))
    rows = inputs.rows(kind, clients, size, dtype, seed)
    for k in rng.integers(0, clients, clients // 3):
        rows[k] = rows[int(rng.integers(0, clients))].copy()
    return rows


KINDS = st.sampled_from(("grid", "normal", "cancelling", "any_bits", "subnormal", "ties"))


@given(KINDS, st.sampled_from(DTYPES), st.integers(3, 9), st.integers(1, 6), st.integers(0, 2**32))
def test_krum_and_multi_krum(kind: str, dtype: str, clients: int, size: int, seed: int) -> None:
    rows = hard_rows(kind, clients, size, dtype, seed)
    byzantine = seed % ((clients - 3) // 2 + 1)
    everyone = list(range(clients))
    order = krum_order(rows, byzantine, dtype, everyone, clients - byzantine - 2)
    result = aggregation.krum(rows, num_byzantine=byzantine)
    assert result.tobytes() == rows[order[0]].tobytes()
    for selected in (1, clients - byzantine - 2, clients):
        result = aggregation.multi_krum(rows, num_byzantine=byzantine, num_selected=selected)
        expected = mean_bits([rows[k] for k in order[:selected]], dtype)
        np.testing.assert_array_equal(result.view(expected.dtype), expected)


@given(KINDS, st.integers(3, 13), st.integers(1, 5), st.integers(0, 2**32))
def test_bulyan(kind: str, clients: int, size: int, seed: int) -> None:
    rows = hard_rows(kind, clients, size, "float32", seed)
    byzantine = (clients - 3) // 4
    left, selected = list(range(clients)), []
    while len(selected) < clients - 2 * byzantine:
        near = max(1, len(left) - byzantine - 2)
        selected.append(krum_order(rows, byzantine, "float32", left, near)[0])
        left.remove(selected[-1])
    expected = around_median_bits([rows[k] for k in selected], clients - 4 * byzantine, "float32")
    result = aggregation.bulyan(rows, num_byzantine=byzantine)
    np.testing.assert_array_equal(result.view(np.uint32), expected)


@given(KINDS, st.integers(1, 9), st.integers(1, 5), st.integers(0, 2**32))
def test_nearest_neighbor_mixing(kind: str, clients: int, size: int, seed: int) -> None:
    rows = hard_rows(kind, clients, size, "float32", seed)
    byzantine = (clients - 1) // 2
    distances = squared_distances(rows, "float32")
    keys = [sort_keys(row, "float32") for row in rows]
    mixed = aggregation.nearest_neighbor_mixing(rows, num_byzantine=byzantine)
    for i, result in enumerate(mixed):
        nearest = sorted(range(clients), key=lambda j: (distances[i][j], keys[j]))
        expected = mean_bits([rows[j] for j in nearest[: clients - byzantine]], "float32")
        np.testing.assert_array_equal(result.view(np.uint32), expected)


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        ("krum", {"num_byzantine": 2}),
        ("multi_krum", {"num_byzantine": 2}),
        ("bulyan", {"num_byzantine": 2}),
    ],
)
def test_the_order_of_clients_changes_no_bit(rule: str, options: dict[str, Any]) -> None:
    rows = inputs.rows("normal", 11, 5000, "float32", 1)
    rows[3] = rows[7].copy()
    rows[4] = -rows[7]  # a score equal to its mirror's up to rounding
    expected = aggregation.RULES.load(rule)(rows, **options).tobytes()
    for order in permutations(11, 8, 2):
        again = aggregation.RULES.load(rule)([rows[k] for k in order], **options)
        assert again.tobytes() == expected


def test_near_ties_that_float64_cannot_see() -> None:
    """Two clients whose exact scores differ by 2^-120; BLAS sees equal numbers."""
    tiny = 2.0**-60
    center, step = np.zeros(2), np.ones(2)
    rows = [center, np.array([1.0, tiny]), np.array([-1.0, 0.0]), 40 * step, -40 * step]
    result = aggregation.krum(rows, num_byzantine=1)
    assert result.tobytes() == center.tobytes()
    pair = [np.array([1.0, tiny]), np.array([1.0, 0.0]), np.zeros(2)]
    distances = PairDistances(collect(pair))
    assert distances.low[0, 2] <= distances.high[1, 2]
    assert distances.exact(0, 2) - distances.exact(1, 2) == 2 ** (2148 - 120)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", inputs.CLASSES)
def test_the_filter_bounds_contain_the_exact_distance(kind: str, dtype: str) -> None:
    rows = inputs.rows(kind, 6, 300, dtype, 5)
    exact = squared_distances(rows, dtype)
    if dtype == "bfloat16":
        updates: Any = [torch.from_numpy(r.view(np.int16)).view(torch.bfloat16) for r in rows]
    else:
        updates = rows
    distances = PairDistances(collect(updates))
    for i in range(6):
        for j in range(6):
            assert distances.exact(i, j) == exact[i][j] * 2**2148
            assert float(distances.low[i, j]) <= exact[i][j] or distances.low[i, j] == 0
            high = distances.high[i, j]
            assert np.isinf(high) or exact[i][j] <= high


@given(st.lists(st.integers(0, 5), min_size=1, max_size=9), st.data())
def test_smallest_decides_exactly(exact: list[int], data: st.DataObject) -> None:
    width = data.draw(st.integers(0, 4))
    low = np.array([e - data.draw(st.integers(0, width)) for e in exact], dtype=float)
    high = np.array([e + data.draw(st.integers(0, width)) for e in exact], dtype=float)
    count = data.draw(st.integers(1, len(exact)))
    chosen = smallest(low, high, lambda i: exact[i], lambda i, j: i - j, count)
    assert chosen == sorted(sorted(range(len(exact)), key=lambda i: (exact[i], i))[:count])


def test_state_dicts_keep_integers_of_the_selected() -> None:
    rng = np.random.default_rng(0)
    states = [
        {"w": torch.from_numpy(rng.standard_normal(6)), "n": torch.tensor(10 * k)} for k in range(7)
    ]
    result = aggregation.krum(states, num_byzantine=2)
    chosen = next(s for s in states if torch.equal(s["w"], result["w"]))
    assert torch.equal(result["n"], chosen["n"])
    assert result["n"].data_ptr() != chosen["n"].data_ptr()


def test_a_client_that_is_not_finite_is_never_preferred() -> None:
    rows = inputs.rows("normal", 7, 20, "float32", 0)
    rows[0][3] = np.nan
    rows[1][3] = np.inf
    for rule in ("krum", "multi_krum"):
        call = aggregation.RULES.load(rule)
        with pytest.raises(NonFiniteError, match="client 0"):
            call(rows, num_byzantine=1)
        assert np.isfinite(call(rows, num_byzantine=2, nonfinite="propagate")).all()
        with pytest.warns(RuntimeWarning, match=r"client\(s\) 0, 1 of 7"):
            dropped = call(rows, num_byzantine=1, nonfinite="drop")
        assert dropped.tobytes() == call(rows[2:], num_byzantine=1).tobytes()
    every = [np.float32([np.nan])] * 3
    assert np.isnan(aggregation.krum(every, num_byzantine=0, nonfinite="propagate"))


@pytest.mark.parametrize("rule", ["krum", "multi_krum", "bulyan"])
def test_identical_clients(rule: str) -> None:
    row = np.float32([1.5, -2, 0.1])
    result = aggregation.RULES.load(rule)([row] * 7, num_byzantine=1)
    np.testing.assert_array_equal(result, row)


@pytest.mark.parametrize(
    ("rule", "clients", "byzantine", "message"),
    [
        ("krum", 1, 0, "at least 3 clients for Krum, got 1"),
        ("krum", 6, 2, "from 0 to 1, got 2. Krum needs at least 2 f [+] 3"),
        ("multi_krum", 4, 1, "from 0 to 0, got 1"),
        ("bulyan", 10, 2, "from 0 to 1, got 2. Bulyan needs at least 4 f [+] 3"),
        ("bulyan", 2, 0, "at least 3 clients for Bulyan"),
        ("krum", 5, -1, "from 0 to 1, got -1"),
    ],
)
def test_too_many_byzantine_clients(rule: str, clients: int, byzantine: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        aggregation.RULES.load(rule)([np.ones(2)] * clients, num_byzantine=byzantine)


def test_num_selected_is_checked() -> None:
    with pytest.raises(ValueError, match="num_selected must be from 1 to 5, got 0"):
        aggregation.multi_krum([np.ones(2)] * 5, num_byzantine=1, num_selected=0)
