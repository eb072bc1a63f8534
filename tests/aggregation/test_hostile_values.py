"""Values at the ends of the floating-point range, and arguments that no formula can take."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbench import aggregation
from fedbench.aggregation import QuantizedUpdate
from tests.aggregation.exact import round_bits
from tests.aggregation.robust_reference import permutations

OUTLIERS = [(dtype, 10.0**e) for dtype in ("float32", "float64") for e in (6, 12, 20, 38)]
OUTLIERS += [("float64", 1e100), ("float64", 1e155), ("float64", 1e200), ("float64", 1e300)]


def with_outlier(dtype: str, value: float, clients: int = 10, size: int = 25) -> list[Any]:
    rng = np.random.default_rng(3)
    rows = [(1 + 0.1 * rng.standard_normal(size)).astype(dtype) for _ in range(clients - 1)]
    return [*rows, np.full(size, value, dtype)]


@pytest.mark.parametrize(("dtype", "value"), OUTLIERS)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("weights", [None, [1, 2, 3, 1, 2, 3, 1, 2, 3, 8]])
def test_the_geometric_median_stays_with_the_honest(
    dtype: str, value: float, sign: int, weights: Any
) -> None:
    rows = with_outlier(dtype, sign * value)
    result = aggregation.geometric_median(rows, weights)
    honest = np.stack(rows[:-1])
    assert (honest.min(axis=0) <= result).all()
    assert (result <= honest.max(axis=0)).all()
    for order in permutations(10, 3, 1):
        permuted = None if weights is None else [weights[k] for k in order]
        again = aggregation.geometric_median([rows[k] for k in order], permuted)
        assert again.tobytes() == result.tobytes()


def test_a_median_that_is_a_client_does_not_hold_the_geometric_median() -> None:
    stack = np.float64([[0, 0], [9, 1], [1, 9], [-4, 0], [0, -4]])
    np.testing.assert_array_equal(aggregation.median(stack), stack[0])
    pull = stack[1:] / np.linalg.norm(stack[1:], axis=1)[:, None]
    weights = np.array([0.05, 1, 1, 1, 0.9])
    assert np.linalg.norm(weights[1:] @ pull) > weights[0]  # so client 0 is not the minimum
    result = aggregation.geometric_median(stack, weights)
    exact = aggregation.geometric_median(stack, weights, tolerance=1e-24, max_iterations=5000)
    slope = (stack - exact) / np.linalg.norm(stack - exact, axis=1)[:, None]
    np.testing.assert_allclose(weights @ slope, 0, atol=1e-6)
    np.testing.assert_allclose(result, exact, atol=0.02)
    assert np.linalg.norm(exact) > 0.1


@pytest.mark.parametrize("value", [1e6, 1e38])
def test_most_of_the_weight_wins_over_most_of_the_clients(value: float) -> None:
    honest = [torch.full((4,), x, dtype=torch.bfloat16) for x in (1.0, 1.5, 2.0)]
    hostile = [torch.full((4,), value, dtype=torch.bfloat16)] * 5
    result = aggregation.geometric_median([*honest, *hostile], [3.0] * 3 + [1.0] * 5)
    assert ((result >= 1.0) & (result <= 2.0)).all()


def test_the_geometric_median_of_huge_and_of_tiny_updates() -> None:
    rows = np.random.default_rng(5).standard_normal((7, 30))
    expected = aggregation.geometric_median(rows, tolerance=1e-20, max_iterations=500)
    for exponent in (-700, 1020):
        factor = 2.0**exponent
        smoothing = 1e-6 * factor if exponent < 0 else 1e300
        result = aggregation.geometric_median(
            rows * factor, smoothing=smoothing, tolerance=1e-20, max_iterations=500
        )
        np.testing.assert_allclose(result / factor, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("smoothing", [5e-324, 1e-300, 1e300])
def test_any_smoothing_and_updates_without_floats(smoothing: float) -> None:
    rows = with_outlier("float64", 1e300)
    assert np.isfinite(aggregation.geometric_median(rows, smoothing=smoothing)).all()
    same = aggregation.geometric_median([rows[0]] * 3, smoothing=smoothing)
    assert same.tobytes() == rows[0].tobytes()
    counts = [{"n": np.array([k])} for k in (1, 2, 9)]
    assert aggregation.geometric_median(counts, [1, 2, 3], smoothing=smoothing)["n"] == 2


def test_norms_beyond_the_range_of_their_squares() -> None:
    big, tiny, small = np.array([1e155, 1.0]), np.array([1e-170, 1e-170]), np.array([3.0, 4.0])
    [clipped] = aggregation.clip_norms([big], max_norm=1.0)
    np.testing.assert_allclose(clipped, [1.0, 1e-155], rtol=1e-15)
    [clipped] = aggregation.clip_norms([tiny], max_norm=1e-180)
    np.testing.assert_allclose(clipped, [0.5**0.5 * 1e-180] * 2, rtol=1e-15)
    [kept] = aggregation.clip_norms([tiny], max_norm=1.5e-170)
    assert kept.tobytes() == tiny.tobytes()
    states = [{"a": torch.from_numpy(big), "b": torch.from_numpy(small).float()}]
    [state] = aggregation.clip_norms(states, max_norm=1e100)
    assert state["a"][0].item() == pytest.approx(1e100)
    # A norm of 2e308 is no float64.
    [clipped] = aggregation.clip_norms([np.full(4, 1e308)], max_norm=2.0)
    np.testing.assert_allclose(clipped, [1.0] * 4, rtol=1e-14)
    [kept] = aggregation.clip_norms([np.zeros(3)], max_norm=1e-300)
    assert not kept.any()
    [clipped] = aggregation.clip_norms([np.array([3e-322, 0.0])], max_norm=1e-322)
    assert 0 < clipped[0] <= 1e-322


def test_norms_that_are_not_finite_are_not_mistaken_for_large_ones() -> None:
    rows = [np.array([1e200, np.inf]), np.array([np.nan, 1.0])]
    for clipped in aggregation.clip_norms(rows, max_norm=1.0, nonfinite="propagate"):
        assert np.isnan(clipped).all()


@pytest.mark.parametrize("size", [1, 4])
def test_centered_clip_of_opposite_extremes(size: int) -> None:
    rows = [np.full(size, x) for x in (1e308, -1e308, 1e308)]
    result = aggregation.centered_clip(rows, clip_radius=1.0)
    np.testing.assert_allclose(result, [1 / (3 * size**0.5)] * size, rtol=1e-14)
    # Longer than float64 holds even for one coordinate: the difference from the centre.
    moved = aggregation.centered_clip(
        rows, clip_radius=1e307, center=np.full(size, -1e308), num_iterations=3
    )
    assert np.isfinite(moved).all()
    assert (moved > -1e308).all()


def quantized_one(value: int, scale: float) -> QuantizedUpdate:
    return QuantizedUpdate(np.int8([value]), scale)


@pytest.mark.parametrize(
    ("scales", "weights", "total", "expected"),
    [
        ([1e30, 1.0], [1e300, 1e300], None, 5e29),
        ([1.0, 3.0], [1e308, 1e308], None, 2.0),
        ([1e-30], [1e-310], None, 1e-30),
        ([1e-30, 3e-30], [5e-324, 5e-324], None, 2e-30),
        ([1e30], [1e-300], 1e-300, 1e30),
        ([1.0, 1.0], [1e308, 1e308], 1e308, 2.0),
        ([1.0], [1e300], 1e-300, np.inf),
        ([1e300], [1e-20], 1e280, 1.0),
    ],
)
def test_quantized_means_at_the_ends_of_the_range(
    scales: list[float], weights: list[float], total: float | None, expected: float
) -> None:
    updates = [quantized_one(1, scale) for scale in scales]
    result = aggregation.quantized_mean(updates, weights, total_weight=total)
    assert result.tolist() == [pytest.approx(expected, rel=1e-7)]


positive = st.floats(1e-300, 1e300)


@given(st.lists(st.tuples(st.integers(-128, 127), st.floats(0, 2.0**127, width=32), positive),
                min_size=1, max_size=5), st.none() | positive)  # fmt: skip
def test_quantized_means_of_any_range_are_close(
    rows: list[tuple[int, float, float]], total: float | None
) -> None:
    weights = [weight for _, _, weight in rows]
    result = aggregation.quantized_mean(
        [quantized_one(q, scale) for q, scale, _ in rows], weights, total_weight=total
    )
    terms = [Fraction(q) * Fraction(scale) * Fraction(weight) for q, scale, weight in rows]
    divisor = Fraction(total) if total else sum(map(Fraction, weights), Fraction(0))
    slack = sum(map(abs, terms), Fraction(0)) / divisor / 2**50 + Fraction(5e-324)
    exact = sum(terms, Fraction(0)) / divisor
    low, high = (
        np.array([round_bits(x, "float32")], np.uint32).view(np.float32)[0]
        for x in (exact - slack, exact + slack)
    )
    assert low <= result[0] <= high


def test_quantize_refuses_what_no_scale_can_hold() -> None:
    with pytest.raises(ValueError, match=r"update must be at most 4\.322e\+40 .* got 1e\+300"):
        aggregation.quantize(np.array([-1e300, 1.0]))
    largest = float(np.finfo(np.float32).max)
    kept = aggregation.quantize(np.array([127 * largest, 0.0]))
    assert (kept.scale, kept.values.tolist()) == (largest, [127, 0])


@pytest.mark.parametrize("steps", [[1, -7], [127, -126], [190, -3], [381, 254]])
def test_quantize_keeps_the_smallest_updates(steps: list[int]) -> None:
    row = np.float32(np.array(steps) * 2.0**-149)
    quantized = aggregation.quantize(row)
    back = quantized.values.astype(np.float64) * quantized.scale
    assert np.abs(back - row).max() <= quantized.scale / 2
    assert (back != 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_updates_that_require_gradients_are_compressed_like_others(dtype: torch.dtype) -> None:
    plain = torch.linspace(-3, 2, 12, dtype=dtype).reshape(3, 4)
    tracked = [torch.nn.Parameter(plain.clone()), plain.clone().requires_grad_() * 1]
    for update in [*tracked, torch.nn.Parameter(plain.T.contiguous()).T]:
        sparse, expected = aggregation.top_k(update, 5), aggregation.top_k(plain, 5)
        assert torch.equal(sparse.indices, expected.indices)
        assert torch.equal(sparse.values, expected.values)
        assert not sparse.values.requires_grad
        quantized, wanted = aggregation.quantize(update), aggregation.quantize(plain)
        assert torch.equal(quantized.values, wanted.values)
        assert quantized.scale == wanted.scale
        assert update.requires_grad
    history = aggregation.SparseUpdate(
        expected.indices, expected.values.clone().requires_grad_(), 12
    )
    assert torch.equal(aggregation.sparse_mean([history]), aggregation.sparse_mean([expected]))


BAD_NUMBERS: list[tuple[Any, type[Exception]]] = [
    (float("nan"), ValueError),
    (float("inf"), ValueError),
    (-1.0, ValueError),
    (1e39, ValueError),  # infinite in float32
    ("1", TypeError),
    (None, TypeError),
    (True, TypeError),
    (1j, TypeError),
]
STEPS: dict[str, tuple[int, dict[str, Any]]] = {
    "sgd_step": (1, {"lr": 0.1, "weight_decay": 0.1, "momentum": 0.0, "proximal": 0.0}),
    "fedavgm_step": (2, {"server_lr": 0.1, "momentum": 0.9}),
    "fedadagrad_step": (3, {"server_lr": 0.1, "beta1": 0.5, "tau": 1e-3}),
    "fedyogi_step": (3, {"server_lr": 0.1, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3}),
    "fedadam_step": (3, {"server_lr": 0.1, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3}),
}


def refuse_step(
    name: str, vectors: list[Any], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    before = [vector.copy() for vector in vectors]
    with pytest.raises(error, match=message):
        getattr(aggregation, name)(*vectors, **options)
    for vector, old in zip(vectors, before, strict=True):
        np.testing.assert_array_equal(vector, old)


@pytest.mark.parametrize(("value", "error"), BAD_NUMBERS)
@pytest.mark.parametrize("name", STEPS)
def test_steps_refuse_coefficients(name: str, value: Any, error: type[Exception]) -> None:
    count, options = STEPS[name]
    for option in options:
        vectors = [np.ones(5, np.float32) for _ in range(count + 1)]
        wanted = f"{option} must be a real number" if error is TypeError else f"{option} must be"
        refuse_step(name, vectors, options | {option: value}, error, wanted)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("sgd_step", {"momentum": 1.5}, r"momentum must be from 0 to 1 in float32, got 1\.5"),
        ("fedavgm_step", {"momentum": 1.5}, "momentum must be from 0 to 1"),
        ("fedadam_step", {"beta1": 1.5}, "beta1 must be from 0 to 1"),
        ("fedyogi_step", {"beta2": 1.5}, "beta2 must be from 0 to 1"),
        ("fedadam_step", {"tau": 0.0}, "tau must be positive in float32"),
        ("fedadagrad_step", {"tau": 1e-50}, "tau must be positive in float32, got 1e-50"),
    ],
)
def test_steps_refuse_values_out_of_range(name: str, change: dict[str, Any], message: str) -> None:
    count, options = STEPS[name]
    vectors = [np.ones(5, np.float32) for _ in range(count + 1)]
    refuse_step(name, vectors, options | change, ValueError, message)


@pytest.mark.parametrize("name", ["sgd_step", "fedavgm_step"])
def test_steps_refuse_switches_that_are_no_bool(name: str) -> None:
    count, options = STEPS[name]
    vectors = [np.ones(5, np.float32) for _ in range(count + 1)]
    refuse_step(name, vectors, options | {"nesterov": "no"}, TypeError, "nesterov must be True or")


@pytest.mark.parametrize("name", ["fedadagrad_step", "fedyogi_step", "fedadam_step"])
def test_adaptive_steps_refuse_negative_second_moments(name: str) -> None:
    vectors = [np.ones((2, 3)) for _ in range(4)]
    vectors[3][1, 0] = -1e-9
    message = "second_moment must not be negative, got -1e-09 at flat index 3"
    refuse_step(name, vectors, {}, ValueError, message)
    tensors = [torch.from_numpy(vector) for vector in vectors]
    with pytest.raises(ValueError, match=message):
        getattr(aggregation, name)(*tensors)
    vectors[3][1, 0] = -0.0
    vectors[3][0, 0] = np.nan
    getattr(aggregation, name)(*vectors)
    assert np.isnan(vectors[0]).sum() == 1
    vectors[3][1, 1] = -1.0
    refuse_step(name, vectors, {}, ValueError, "second_moment must not be negative, got -1.0")


def test_steps_take_numbers_of_numpy() -> None:
    parameters = np.ones(3, np.float32)
    aggregation.sgd_step(parameters, np.ones(3, np.float32), lr=np.float32(0.5), nesterov=np.False_)
    aggregation.sgd_step(parameters, np.ones(3, np.float32), lr=np.int64(0), weight_decay=1)
    assert parameters.tolist() == [0.5] * 3
