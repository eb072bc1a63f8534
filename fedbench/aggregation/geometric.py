"""Robust rules that pull an estimate towards the updates, by distances to the estimate."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedbench.aggregation import _updates
from fedbench.aggregation._arrays import Buffer
from fedbench.aggregation._robust import (
    Rows,
    fill,
    prepare,
    prepare_weighted,
    refuse_nonfinite,
    require_count,
    require_positive,
    result,
)
from fedbench.aggregation._updates import Updates
from fedbench.aggregation._weighted_median import half_radius, weighted_median
from fedbench.errors import LayoutError, NonFiniteError

__all__ = ["centered_clip", "geometric_median"]

_EXPONENT = -64  # distances are taken times 2^-64, so that the longest fit float64


def geometric_median(
    updates: Any,
    weights: Any = None,
    *,
    max_iterations: int = 100,
    tolerance: float = 1e-7,
    smoothing: float = 1e-6,
    out: Any = None,
    nonfinite: str = "raise",
) -> Any:
    r"""Geometric median by the smoothed Weiszfeld algorithm (RFA).

    Minimises :math:`\sum_k w_k \lVert x_k - z \rVert` over z: each iteration takes the mean with
    weights :math:`w_k / \max(\nu, \lVert x_k - z \rVert)` [1]_. It starts at the coordinate-wise
    median (weighted if the weights differ), which no minority can pull away, and ends with a step
    s such that :math:`(s / r)^2` is at most `tolerance`, r being the distance of z within which
    half of the weight lies (at least `smoothing`). In iteration t = 0, 1, ..., :math:`\nu` is
    :math:`r / 4^t`, but at least `smoothing`.

    Parameters
    ----------
    updates : sequence of arrays, sequence of mappings, or array
        One update per client, as for :func:`median`. Distances run over all floating entries.
    weights : sequence of K numbers, optional
        Non-negative weights of the clients; equal by default.
    max_iterations : int, default 100
        At least 1.
    tolerance : float, default 1e-7
        Positive; the square of a step relative to the distances of the nearer half, which is
        about the relative change of their objective.
    smoothing : float, default 1e-6
        The last value of :math:`\nu`, the least distance that is divided by; positive, in the
        units of the updates.
    out : array or mapping of arrays, optional
        As for :func:`median`.
    nonfinite : {"raise", "propagate", "drop"}, default "raise"
        For NaN and infinities: refuse them, naming client and entry; return NaN everywhere; or
        leave out such a client and its weight, with a `RuntimeWarning` that names it.

    Returns
    -------
    array or dict of arrays
        Of the kind, shapes and dtypes of one update. The iterates are held in these dtypes, which
        limits how close to the minimum they come. Integer and bool entries of state dicts get
        their lower median.

    Raises
    ------
    ValueError
        If an option is out of range. Otherwise as for :func:`median`, and for `weights` as for
        :func:`mean`.
    NonFiniteError
        If an update is not finite and `nonfinite` is "raise".

    Notes
    -----
    Breakdown point: arbitrary clients of less than half of the weight, at any finite distance.
    Time: a median (if the weights differ by a sort per coordinate, then the slowest part), then
    two passes over the updates per iteration, typically 5 to 30; float64 updates whose squared
    distances leave the range of float64 are measured in exact integers, more slowly.
    Memory: the result and two more vectors like it.
    Determinism: distances are summed in an order that depends on the layout alone and means are
    rounded once, so the result is a function of the multiset of (weight, update) pairs.

    References
    ----------
    .. [1] Pillutla, Kakade and Harchaoui, "Robust Aggregation for Federated Learning", IEEE
       Transactions on Signal Processing 70, 2022 (arXiv:1912.13445).

    Examples
    --------
    >>> import numpy as np
    >>> from fedbench import aggregation
    >>> stack = np.float64([[0, 0], [2, 0], [0, 2], [2, 2], [1000, 1000]])
    >>> bool(np.all(aggregation.geometric_median(stack) <= 2))
    True
    """
    iterations = require_count("max_iterations", max_iterations, 1, None, "Use at least one.")
    tolerance = require_positive("tolerance", tolerance)
    smoothing = require_positive("smoothing", smoothing)
    collected, values = prepare_weighted(updates, weights, nonfinite)
    buffers = _updates.outputs(collected, out)
    if _spoilt(collected, nonfinite):
        fill(buffers, math.nan)
        return result(collected, buffers, out)
    rows = Rows.of(collected)
    values = values / values.max()
    weighted_median(collected, values, buffers)
    estimate, other = buffers, _updates.outputs(collected, None)
    least = math.ldexp(smoothing, _EXPONENT) or math.ulp(0.0)
    for iteration in range(iterations):
        handles = rows.of_buffers(estimate)
        lengths = np.array([rows.distance(k, handles, _EXPONENT) for k in range(rows.clients)])
        radius = max(least, half_radius(lengths, values))
        # A start at a client's update would hold the iterates there if the floor were low at once.
        floor = max(least, radius * 0.25**iteration)
        divisors = np.maximum(floor, lengths)
        nearest = divisors[values > 0].min()
        rows.mean(values * (nearest / divisors), None, other)
        step = rows.distance_between(rows.of_buffers(other), handles, _EXPONENT)
        estimate, other = other, estimate
        small = math.sqrt(tolerance) * radius
        if step <= small and (floor <= small or floor == least):
            break
    return result(collected, _into(buffers, estimate), out)


def centered_clip(
    updates: Any,
    *,
    clip_radius: float,
    center: Any = None,
    num_iterations: int = 1,
    out: Any = None,
    nonfinite: str = "raise",
) -> Any:
    r"""Centered clipping.

    Each of `num_iterations` steps moves the estimate v, which starts at `center`, by the mean of
    the updates' differences from it, each clipped to length :math:`\tau` [1]_:
    :math:`v \leftarrow v + \frac1K \sum_k (x_k - v) \min(1, \tau / \lVert x_k - v \rVert)`.

    Parameters
    ----------
    updates : sequence of arrays, sequence of mappings, or array
        One update per client, as for :func:`median`. Distances run over all floating entries.
    clip_radius : float
        :math:`\tau` > 0, in the units of the updates.
    center : array or mapping of arrays, optional
        Where to start, like an update; the paper takes the previous round's result. Zero by
        default, which suits updates that are differences from the server's state.
    num_iterations : int, default 1
        At least 1.
    out : array or mapping of arrays, optional
        As for :func:`median`.
    nonfinite : {"raise", "propagate", "drop"}, default "raise"
        As for :func:`geometric_median`.

    Returns
    -------
    array or dict of arrays
        As for :func:`geometric_median`.

    Raises
    ------
    ValueError
        If an option is out of range. Otherwise as for :func:`median`.
    LayoutError
        If `center` is not like an update.
    NonFiniteError
        If an update or `center` is not finite and `nonfinite` is "raise".

    Notes
    -----
    Breakdown point: a minority; the error grows with the fraction of arbitrary clients and with
    :math:`\tau`, and vanishes with the clients' variance.
    Time: two passes over the updates per iteration. Memory: the result and two more vectors.
    Determinism: the step is computed as the weighted mean of the updates (weights
    :math:`c_k = \min(1, \tau / \lVert x_k - v \rVert)`) and of v (weight :math:`\sum_k (1 - c_k)`)
    over K, rounded once; so the result is a function of the multiset of updates alone.

    References
    ----------
    .. [1] Karimireddy, He and Jaggi, "Learning from History for Byzantine Robust Optimization",
       ICML 2021.

    Examples
    --------
    >>> import numpy as np
    >>> from fedbench import aggregation
    >>> stack = np.float64([[1, 0], [1, 0], [1, 0], [800, 600]])
    >>> aggregation.centered_clip(stack, clip_radius=2.0)
    array([1.15, 0.3 ])
    """
    radius = require_positive("clip_radius", clip_radius)
    iterations = require_count("num_iterations", num_iterations, 1, None, "Use at least one.")
    collected = prepare(updates, nonfinite)
    estimate = _start(collected, center)
    buffers = _updates.outputs(collected, out)
    if _spoilt(collected, nonfinite):
        fill(buffers, math.nan)
        return result(collected, buffers, out)
    rows = Rows.of(collected)
    spare = _updates.outputs(collected, None)
    for step in range(iterations):
        target = buffers if step == iterations - 1 else spare
        handles = rows.of_buffers(estimate)
        factors = [rows.shrinkage(k, handles, radius) for k in range(rows.clients)]
        own = math.fsum(1.0 - factor for factor in factors)
        rows.mean(np.array([*factors, own]), float(rows.clients), target, extra=handles)
        estimate, spare = target, estimate
    return result(collected, buffers, out)


def _start(collected: Updates, center: Any) -> dict[str | None, Buffer]:
    """Return a private copy of `center`, or zeros."""
    buffers = _updates.outputs(collected, None)
    if center is None:
        fill(buffers, 0.0)
        return buffers
    given = _updates.collect([center])
    expected = {entry.name: entry.first.summary() for entry in collected.floating}
    got = {entry.name: entry.first.summary() for entry in given.floating}
    for name in [*expected, *got]:
        if got.get(name) != expected.get(name):
            where = "center" if name is None else f"center[{name!r}]"
            raise LayoutError(
                f"{where} must be {expected.get(name, 'absent')} like the updates, got "
                f"{got.get(name, 'nothing')}."
            )
    if (found := given.first_nonfinite(0)) is not None:
        name, index = found
        where = "center" if name is None else f"center[{name!r}]"
        raise NonFiniteError(
            f"{where} must be finite, got NaN or infinity at flat index {index}. Pass the last "
            "finite estimate, or leave it out to start from zero."
        )
    Rows.of(given).mean(np.ones(1), None, buffers)
    return buffers


def _spoilt(collected: Updates, nonfinite: str) -> bool:
    """Whether values that are not finite have been let through."""
    refuse_nonfinite(collected, nonfinite)
    if nonfinite != "propagate":
        return False
    return any(collected.first_nonfinite(k) is not None for k in range(collected.clients))


def _into(
    buffers: dict[str | None, Buffer], estimate: dict[str | None, Buffer]
) -> dict[str | None, Buffer]:
    """Return `buffers` with the content of `estimate`."""
    if estimate is not buffers:
        for name, buffer in buffers.items():
            buffer.owner[...] = estimate[name].owner
    return buffers
