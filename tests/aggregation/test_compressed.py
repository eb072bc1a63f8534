"""Sparse and quantised updates against their dense counterparts."""

from __future__ import annotations

import tracemalloc
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbench import aggregation
from fedbench.aggregation import QuantizedUpdate, SparseUpdate
from fedbench.errors import LayoutError, NonFiniteError
from tests.aggregation import inputs
from tests.aggregation.exact import round_bits
from tests.aggregation.robust_reference import permutations


def sparse(rows: list[Any], index_dtype: str, seed: int) -> tuple[list[Any], list[Any]]:
    """Random coordinates of the rows, shuffled, and the dense rows with only these."""
    rng = np.random.default_rng(seed)
    updates, dense = [], []
    for row in rows:
        kept = np.flatnonzero(rng.random(row.size) < 0.4).astype(index_dtype)
        rng.shuffle(kept)
        updates.append(SparseUpdate(kept, row[kept], row.size))
        full = np.zeros_like(row)
        full[kept] = row[kept]
        dense.append(full)
    return updates, dense


@given(
    st.sampled_from(inputs.CLASSES),
    st.sampled_from(("float32", "float64", "float16")),
    st.sampled_from(("int32", "int64")),
    st.sampled_from(inputs.WEIGHTS),
    st.integers(1, 6),
    st.integers(0, 9000),
    st.integers(0, 2**32),
)
def test_sparse_mean_has_the_bits_of_the_dense_mean(
    kind: str, dtype: str, index: str, weighting: str, clients: int, size: int, seed: int
) -> None:
    updates, dense = sparse(inputs.rows(kind, clients, size, dtype, seed), index, seed)
    weights = inputs.weights(weighting, clients, seed)
    expected = aggregation.mean(dense, weights).tobytes()
    assert aggregation.sparse_mean(updates, weights).tobytes() == expected
    for order in permutations(clients, 2, seed):
        again = aggregation.sparse_mean([updates[k] for k in order], [weights[k] for k in order])
        assert again.tobytes() == expected
    population = aggregation.sparse_mean(updates, weights, total_weight=1e6)
    assert population.tobytes() == aggregation.mean(dense, weights, total_weight=1e6).tobytes()


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(width=32, allow_nan=False,
       allow_infinity=False)), max_size=12))  # fmt: skip
def test_duplicate_indices_add_exactly(pairs: list[tuple[int, float]]) -> None:
    update = SparseUpdate(
        np.array([i for i, _ in pairs], np.int64), np.array([v for _, v in pairs], np.float32), 5
    )
    result = aggregation.sparse_mean(
        [update, SparseUpdate(np.empty(0, np.int64), np.empty(0, np.float32), 5)]
    )
    for i in range(5):
        exact = sum((Fraction(v) for j, v in pairs if j == i), Fraction(0)) / 2
        assert result.view(np.uint32)[i] == round_bits(exact, "float32")


def test_torch_and_out() -> None:
    a = SparseUpdate(torch.tensor([3, 1]), torch.tensor([2.0, 4.0], dtype=torch.bfloat16), 5)
    out = torch.full((5,), 9.0, dtype=torch.bfloat16)
    assert aggregation.sparse_mean([a, a], out=out) is out
    assert out.tolist() == [0, 4, 0, 2, 0]
    with pytest.raises(ValueError, match="out must have shape"):
        aggregation.sparse_mean([a], out=out[:4])


def test_no_dense_copies() -> None:
    size, clients = 4_000_000, 20
    rng = np.random.default_rng(0)
    updates = [
        SparseUpdate(rng.integers(0, size, 1000).astype(np.int32), np.ones(1000, np.float32), size)
        for _ in range(clients)
    ]
    out = np.empty(size, np.float32)
    tracemalloc.start()
    aggregation.sparse_mean(updates, out=out)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000
    assert abs(out.sum() * clients - clients * 1000) < 1


def test_sparse_nonfinite_policies() -> None:
    def client(value: float) -> SparseUpdate:
        return SparseUpdate(np.int32([1]), np.float32([value]), 3)

    updates = [client(1.0), client(np.nan), client(3.0)]
    with pytest.raises(NonFiniteError, match="client 1"):
        aggregation.sparse_mean(updates)
    through = aggregation.sparse_mean(updates, nonfinite="propagate")
    assert np.isnan(through[1])
    assert through[0] == 0
    with pytest.warns(RuntimeWarning, match=r"client\(s\) 1 of 3") as caught:
        dropped = aggregation.sparse_mean(updates, [1, 5, 1], nonfinite="drop")
    assert caught[0].filename == __file__
    assert dropped[1] == 2
    with pytest.raises(NonFiniteError, match="must leave some weight"):
        aggregation.sparse_mean(updates, [0, 1, 0], nonfinite="drop")


def test_wrong_sparse_updates() -> None:
    good = SparseUpdate(np.int32([0, 2]), np.float32([1, 2]), 3)
    with pytest.raises(
        ValueError, match="indices must be from 0 to 2, got 3 at position 1 of client 1"
    ):
        aggregation.sparse_mean([good, SparseUpdate(np.int32([0, 3]), np.float32([1, 2]), 3)])
    with pytest.raises(ValueError, match="got -1 at position 0 of client 0"):
        aggregation.sparse_mean([SparseUpdate(np.int64([-1]), np.float32([1]), 3)])
    with pytest.raises(ValueError, match="at least one client"):
        aggregation.sparse_mean([])
    with pytest.raises(TypeError, match="sequence of SparseUpdate, got SparseUpdate"):
        aggregation.sparse_mean(good)
    with pytest.raises(TypeError, match=r"updates\[0\] must be a SparseUpdate, got ndarray"):
        aggregation.sparse_mean([np.ones(3)])
    with pytest.raises(TypeError, match=r"updates\[0\]\.indices must be int32 or int64"):
        aggregation.sparse_mean([SparseUpdate(np.uint8([1]), np.float32([1]), 3)])
    with pytest.raises(LayoutError, match="one length"):
        aggregation.sparse_mean([SparseUpdate(np.int32([1]), np.float32([1, 2]), 3)])
    with pytest.raises(LayoutError, match=r"updates\[1\] must have size 3 like"):
        aggregation.sparse_mean([good, SparseUpdate(np.int32([0]), np.float32([1]), 4)])


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=30), st.data())
def test_top_k_keeps_the_largest_and_the_first_of_equal_ones(
    values: list[int], data: st.DataObject
) -> None:
    k = data.draw(st.integers(0, len(values)))
    expected = sorted(sorted(range(len(values)), key=lambda i: (-abs(values[i]), i))[:k])
    kept = aggregation.top_k(np.array(values, np.float32), k)
    assert kept.indices.tolist() == expected
    assert kept.values.tolist() == [values[i] for i in expected]
    kept = aggregation.top_k(torch.tensor(values, dtype=torch.bfloat16), k)
    assert kept.indices.tolist() == expected
    assert kept.values.dtype == torch.bfloat16


def test_top_k_refuses() -> None:
    with pytest.raises(ValueError, match="k must be from 0 to 3, got 4"):
        aggregation.top_k(np.ones(3), 4)
    with pytest.raises(NonFiniteError, match="NaN"):
        aggregation.top_k(np.float32([1, np.nan]), 1)
    with pytest.raises(TypeError, match="floating dtype"):
        aggregation.top_k(np.int8([1]), 1)


@given(
    st.integers(1, 6), st.integers(0, 300), st.sampled_from(inputs.WEIGHTS), st.integers(0, 2**32)
)
def test_quantized_mean_is_rounded_once(clients: int, size: int, weighting: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    updates = [
        QuantizedUpdate(
            rng.integers(-127, 128, size).astype(np.int8),
            float(np.float32(rng.choice([0.0, 1.0, 0.5, rng.random()]))),
        )
        for _ in range(clients)
    ]
    weights = inputs.weights(weighting, clients, seed)
    total = float(sum(Fraction(w) for w in weights))
    result = aggregation.quantized_mean(updates, weights, total_weight=total)
    for i in range(size):
        exact = sum(
            (
                Fraction(w * u.scale) * int(u.values[i])
                for w, u in zip(weights, updates, strict=True)
            ),
            Fraction(0),
        ) / Fraction(total)
        assert result.view(np.uint32)[i] == round_bits(exact, "float32")
    plain = aggregation.quantized_mean(updates)
    again = aggregation.quantized_mean(updates[::-1])
    assert plain.tobytes() == again.tobytes()


def test_quantize_to_nearest_and_stochastically() -> None:
    row = np.random.default_rng(0).standard_normal((4, 500)).astype(np.float32)
    nearest = aggregation.quantize(row)
    assert nearest.values.shape == (4, 500)
    assert np.abs(nearest.values * nearest.scale - row).max() <= nearest.scale / 2 * (1 + 1e-5)
    rng = np.random.default_rng(1)
    draws = [aggregation.quantize(row, rng) for _ in range(400)]
    average = np.mean([d.values.astype(float) for d in draws], axis=0) * draws[0].scale
    # A mean of 400 draws with standard deviation of at most half a step, over 2000 coordinates.
    assert np.abs(average - row).max() < 5 * nearest.scale / 2 / 20
    assert len({d.values.tobytes() for d in draws}) > 1
    repeated = aggregation.quantize(row, np.random.default_rng(1))
    assert repeated.values.tobytes() == draws[0].values.tobytes()
    tensor = aggregation.quantize(torch.from_numpy(row))
    assert torch.equal(tensor.values, torch.from_numpy(nearest.values))
    assert aggregation.quantize(np.zeros(3)).scale == 0
    assert aggregation.quantize(np.zeros(0)).values.size == 0


def test_wrong_quantized_updates() -> None:
    good = QuantizedUpdate(np.int8([1]), 1.0)
    with pytest.raises(
        ValueError, match=r"scale must be finite and not negative, got -1\.0 from client 1"
    ):
        aggregation.quantized_mean([good, QuantizedUpdate(np.int8([1]), -1.0)])
    with pytest.raises(TypeError, match="values must be int8, got float32"):
        aggregation.quantized_mean([QuantizedUpdate(np.float32([1]), 1.0)])
    with pytest.raises(
        LayoutError,
        match=r"updates\[1\]\.values must be a numpy int8 \(1,\) array .* got numpy int8 \(2,\)",
    ):
        aggregation.quantized_mean([good, QuantizedUpdate(np.int8([1, 2]), 1.0)])
    with pytest.raises(ValueError, match="at least one client"):
        aggregation.quantized_mean([])
    with pytest.raises(NonFiniteError, match="finite to be quantised, got inf at flat index 1"):
        aggregation.quantize(np.float32([0, np.inf]))
    for scale in (None, "1", 1j, np.ones(2)):
        with pytest.raises(TypeError, match=r"updates\[1\]\.scale must be one real number"):
            aggregation.quantized_mean([good, QuantizedUpdate(np.int8([1]), scale)])
    with pytest.raises(TypeError, match=r"got uint8\. A FlatLayout of entries of several dtypes"):
        aggregation.quantize(np.zeros(3, np.uint8))
    with pytest.raises(TypeError, match=r"rng must be a numpy\.random\.Generator, got int"):
        aggregation.quantize(np.float32([1]), rng=0)


@pytest.mark.parametrize(
    ("pairs", "weights", "total"),
    [
        ([(0, 1.0), (100, 1.3 * 2**-20)], [1.0, 2.0**-1060], 2.0**-1060),
        ([(1, 5e-324)], [1.0], 5e-324),
        ([(1, 5e-324)], [5.0], 5e-324),
        ([(1, 5e-324)], [3.0], 1e-310),
        ([(1, 5e-324)], [0.75], 5e-324),
        ([(127, 1e150), (-127, 1e150), (1, 1.0)], [1e100, 1e100, 1.0], 1.0),
        ([(127, 1e300)], [1e300], 1e-300),
        ([(3, 2.0**100), (5, 2.0**-140)], [5e-324, 7.0], None),
        ([(3, 2.0**127), (-3, 2.0**127), (1, 2.0**-140)], [1e308, 1e308, 1e308], None),
    ],
)
def test_coefficients_beyond_the_range_of_float64(
    pairs: list[tuple[int, float]], weights: list[float], total: float | None
) -> None:
    updates = [QuantizedUpdate(np.int8([value]), scale) for value, scale in pairs]
    divisor = sum(map(Fraction, weights)) if total is None else Fraction(total)
    exact = sum(
        Fraction(weight) * Fraction(scale) * value
        for weight, (value, scale) in zip(weights, pairs, strict=True)
    )
    result = aggregation.quantized_mean(updates, weights, total_weight=total)
    assert int(result.view(np.uint32)[0]) == round_bits(exact / divisor, "float32")


def test_compressed_updates_are_equal_to_themselves_only() -> None:
    update = aggregation.top_k(np.float32([1, 2]), 1)
    assert update != aggregation.top_k(np.float32([1, 2]), 1)
    assert len({update, update, aggregation.quantize(np.float32([1, 2]))}) == 2


def test_all_zero_scales_give_zero() -> None:
    zero = QuantizedUpdate(torch.tensor([5, -5], dtype=torch.int8), 0.0)
    assert aggregation.quantized_mean([zero, zero]).tolist() == [0, 0]
