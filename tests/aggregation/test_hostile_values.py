"""Values at the ends of the floating-point range, and arguments that no formula can take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedbench import aggregation
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
    # A norm of 2e308 is no float64, and a square of a single one neither.
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
