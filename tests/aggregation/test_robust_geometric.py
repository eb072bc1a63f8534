"""Geometric median, centered clipping and pre-aggregation."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from fedbench import aggregation
from fedbench.errors import LayoutError, NonFiniteError
from tests.aggregation import inputs
from tests.aggregation.exact import mean_bits
from tests.aggregation.robust_reference import permutations


def objective(z: np.ndarray[Any, Any], stack: np.ndarray[Any, Any], weights: Any) -> float:
    return float(weights @ np.linalg.norm(stack - z, axis=1))


@pytest.mark.parametrize("seed", range(5))
def test_the_geometric_median_minimises_the_distances(seed: int) -> None:
    rng = np.random.default_rng(seed)
    stack = rng.standard_normal((9, 4))
    stack[:2] += 100
    weights = rng.integers(1, 5, 9).astype(float)
    weights[:2] = 1
    result = aggregation.geometric_median(stack, weights, tolerance=1e-14, max_iterations=5000)
    best = minimize(
        objective, np.median(stack, axis=0), (stack, weights), method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 20000, "maxfev": 20000},
    )  # fmt: skip
    assert objective(result, stack, weights) <= best.fun * (1 + 1e-9)


def test_a_majority_at_one_point_is_the_geometric_median() -> None:
    row = np.float32([1, -2, 3])
    result = aggregation.geometric_median([row, row, row, row + 50, row - 9])
    np.testing.assert_allclose(result, row, atol=1e-4)
    np.testing.assert_array_equal(aggregation.geometric_median([row] * 4), row)
    np.testing.assert_array_equal(aggregation.geometric_median([row]), row)


def test_centered_clip_is_its_formula() -> None:
    rng = np.random.default_rng(0)
    stack = rng.standard_normal((6, 50)) * rng.uniform(0.1, 3, (6, 1))
    center = rng.standard_normal(50)
    expected = center.copy()
    for _ in range(3):
        differences = stack - expected
        norms = np.linalg.norm(differences, axis=1)
        expected += (differences * np.minimum(1, 4.0 / norms)[:, None]).mean(axis=0)
    before = center.copy()
    result = aggregation.centered_clip(stack, clip_radius=4.0, center=center, num_iterations=3)
    np.testing.assert_allclose(result, expected, rtol=1e-12)
    np.testing.assert_array_equal(center, before)
    unclipped = aggregation.centered_clip(stack, clip_radius=1e9, center=center)
    np.testing.assert_array_equal(unclipped, aggregation.mean(stack))


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        ("geometric_median", {}),
        ("centered_clip", {"clip_radius": 0.5, "num_iterations": 4}),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_the_order_of_clients_changes_no_bit(
    rule: str, options: dict[str, Any], dtype: str
) -> None:
    call = aggregation.RULES.load(rule)
    rows = inputs.rows("normal", 7, 9001, dtype, 4)
    expected = call(rows, **options).tobytes()
    for order in permutations(7, 5, 1):
        assert call([rows[k] for k in order], **options).tobytes() == expected


@pytest.mark.parametrize(
    ("rule", "options"), [("geometric_median", {}), ("centered_clip", {"clip_radius": 1.0})]
)
def test_nonfinite_policies_and_state_dicts(rule: str, options: dict[str, Any]) -> None:
    call = aggregation.RULES.load(rule)
    rows = inputs.rows("normal", 5, 30, "float32", 0)
    clean = call(rows[1:], **options)
    rows[0][7] = np.inf
    states = [{"b": torch.from_numpy(r[:10]), "a": torch.from_numpy(r[10:])} for r in rows]
    with pytest.raises(NonFiniteError, match="client 0 in entry 'b' at flat index 7"):
        call(states, **options)
    through = call(states, nonfinite="propagate", **options)
    assert all(torch.isnan(value).all() for value in through.values())
    with pytest.warns(RuntimeWarning, match=r"client\(s\) 0 of 5") as caught:
        dropped = call(states, nonfinite="drop", **options)
    assert caught[0].filename == __file__
    joined = torch.cat([dropped["b"], dropped["a"]]).numpy()
    np.testing.assert_allclose(joined, clean, rtol=1e-4, atol=1e-5)
    assert list(dropped) == ["b", "a"]


def test_out_of_iterative_rules() -> None:
    rows = inputs.rows("normal", 5, 30, "float32", 0)
    for iterations in (1, 2, 3, 4):
        expected = aggregation.geometric_median(rows, max_iterations=iterations, tolerance=1e-12)
        out = np.empty(30, np.float32)
        given = aggregation.geometric_median(
            rows, max_iterations=iterations, tolerance=1e-12, out=out
        )
        assert given is out
        np.testing.assert_array_equal(out, expected)
        expected = aggregation.centered_clip(rows, clip_radius=0.1, num_iterations=iterations)
        aggregation.centered_clip(rows, clip_radius=0.1, num_iterations=iterations, out=out)
        np.testing.assert_array_equal(out, expected)


def test_clip_norms_scales_and_rounds_once() -> None:
    rows = inputs.rows("normal", 4, 1000, "float32", 2)
    rows[1] *= 0.001
    clipped = aggregation.clip_norms(rows, max_norm=0.5)
    for row, result in zip(rows, clipped, strict=True):
        norm = np.linalg.norm(row.astype(np.float64))
        assert np.linalg.norm(result.astype(np.float64)) <= 0.5 * (1 + 1e-6)
        if norm <= 0.5:
            assert result.tobytes() == row.tobytes()
        else:
            np.testing.assert_allclose(result, row * (0.5 / norm), rtol=1e-6)
        assert not np.shares_memory(row, result)
    factor = 0.75 / 5.0
    [result] = aggregation.clip_norms([np.float32([3, 4])], max_norm=0.75)
    assert [Fraction(float(x)) for x in result] == [
        Fraction(float(np.float32(float(Fraction(factor) * v)))) for v in (3, 4)
    ]


def test_clip_norms_of_states_and_of_what_is_not_finite() -> None:
    states = [
        {"w": torch.full((4,), 3.0), "n": torch.tensor(5)},
        {"w": torch.tensor([1.0, float("nan"), 0.0, 0.0]), "n": torch.tensor(6)},
    ]
    with pytest.raises(NonFiniteError, match="client 1"):
        aggregation.clip_norms(states, max_norm=1.0)
    first, second = aggregation.clip_norms(states, max_norm=3.0, nonfinite="propagate")
    assert torch.equal(first["w"], torch.full((4,), 1.5))
    assert first["n"] == 5
    assert torch.isnan(second["w"]).all()


def test_bucketing_covers_every_client_once() -> None:
    rows = inputs.rows("normal", 7, 40, "float32", 3)
    buckets = aggregation.bucketing(rows, bucket_size=3, rng=np.random.default_rng(5))
    order = np.random.default_rng(5).permutation(7)
    assert len(buckets) == 3
    for start, bucket in zip(range(0, 7, 3), buckets, strict=True):
        members = [rows[k] for k in order[start : start + 3]]
        expected = mean_bits(members, [1.0] * len(members), "float32")
        np.testing.assert_array_equal(bucket.view(np.uint32), expected)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: aggregation.centered_clip(x, clip_radius=0), ValueError, "clip_radius must be"),
        (lambda x: aggregation.centered_clip(x, clip_radius="1"), TypeError, "real number"),
        (
            lambda x: aggregation.centered_clip(x, clip_radius=1.0, center=np.ones(3)),
            LayoutError,
            "center must be",
        ),
        (
            lambda x: aggregation.centered_clip(x, clip_radius=1.0, num_iterations=0),
            ValueError,
            "num_iterations must be at least 1",
        ),
        (lambda x: aggregation.geometric_median(x, smoothing=0.0), ValueError, "smoothing"),
        (lambda x: aggregation.geometric_median(x, tolerance=-1.0), ValueError, "tolerance"),
        (lambda x: aggregation.geometric_median(x, [1, 2]), ValueError, "weights must be"),
        (lambda x: aggregation.clip_norms(x, max_norm=float("inf")), ValueError, "max_norm"),
        (
            lambda x: aggregation.bucketing(x, bucket_size=6, rng=np.random.default_rng(0)),
            ValueError,
            "bucket_size must be from 1 to 5",
        ),
        (
            lambda x: aggregation.bucketing(x, bucket_size=2, rng=np.random),
            TypeError,
            "rng must be a numpy.random.Generator",
        ),
        (
            lambda x: aggregation.nearest_neighbor_mixing(x, num_byzantine=3),
            ValueError,
            "num_byzantine must be from 0 to 2",
        ),
    ],
)
def test_wrong_arguments(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(np.ones((5, 4)))


@pytest.mark.parametrize("nonfinite", ["raise", "drop", "propagate"])
def test_a_center_that_is_not_finite_is_named(nonfinite: str) -> None:
    center = np.array([0.0, np.nan, 0.0, 0.0])
    with pytest.raises(NonFiniteError, match=r"center must be finite, got .* at flat index 1"):
        aggregation.centered_clip(
            np.ones((3, 4)), clip_radius=1.0, center=center, nonfinite=nonfinite
        )
    with pytest.raises(LayoutError, match=r"center must be numpy float64 \(4,\) like the updates"):
        aggregation.centered_clip(np.ones((3, 4)), clip_radius=1.0, center=center[:2])
