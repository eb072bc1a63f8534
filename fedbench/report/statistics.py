"""Medians, paired ratios and bootstrap intervals of measured times.

Seconds of one machine, taken one after the other, are not independent: in some half minutes
everything is slower than in others. So the intervals here resample *batches* of consecutive samples
instead of single ones, and are as wide as few batches make them uncertain.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BATCHES",
    "MIN_ROUNDS_FOR_INTERVAL",
    "batch_bounds",
    "bootstrap_interval",
    "interquartile_range",
    "median",
    "paired_ratios",
    "ratio_interval",
]

BATCHES = 8
"""Most batches that samples are dealt into; fewer samples are a batch each."""

MIN_ROUNDS_FOR_INTERVAL = 6
"""Fewest samples with which an interval of the median can reach 95 %.

The widest interval that n samples can give, from the smallest to the largest, holds the true
median with probability 1 - 2 ** (1 - n): 93.8 % for five samples, 96.9 % for six.
"""

_RESAMPLES = 4000
_AT_ONCE = 2**21  # entries of the largest table: tens of thousands of samples need no gigabytes
_SEED = 20240229  # intervals of the same samples are the same in every run


def median(values: Sequence[float]) -> float | None:
    """Return the median, or None of nothing."""
    return float(np.median(values)) if len(values) else None


def interquartile_range(values: Sequence[float]) -> float | None:
    """Return the distance of the quartiles (linear interpolation), None below two values."""
    if len(values) < 2:
        return None
    low, high = np.percentile(values, [25, 75])
    return float(high - low)


def paired_ratios(baseline: Sequence[float], other: Sequence[float]) -> list[float]:
    """Return baseline[i] / other[i] of the pairs whose two times are above zero.

    Parameters
    ----------
    baseline, other : sequence of float
        Seconds of the same rounds in two configurations. Where the lengths differ, the surplus
        has no partner and is left out.

    Returns
    -------
    list of float
        Above 1 where `other` is faster. A time of zero means that the clock did not tick: such
        a pair says nothing and is left out.
    """
    pairs = zip(baseline, other, strict=False)
    return [first / second for first, second in pairs if first > 0 and second > 0]


def batch_bounds(count: int, batch: int) -> tuple[int, int]:
    """Return the first sample of a batch, and that after its last one.

    Parameters
    ----------
    count : int
        Samples in all.
    batch : int
        Index of the batch, below :data:`BATCHES`. With fewer samples some batches are empty.
    """
    return count * batch // BATCHES, count * (batch + 1) // BATCHES


def bootstrap_interval(
    values: Sequence[float], confidence: float = 0.95
) -> tuple[float, float] | None:
    """Return the expanded percentile bootstrap interval of the median.

    Parameters
    ----------
    values : sequence of float
        Samples in the order in which they were taken. Batches of them (:func:`batch_bounds`) are
        resampled, so that samples which follow each other closely need not be independent.
    confidence : float
        Nominal coverage, in (0, 1).

    Returns
    -------
    tuple of float or None
        (low, high), the same for the same `values`; None below two values. With fewer than
        :data:`MIN_ROUNDS_FOR_INTERVAL` values the true coverage is below 95 %.

    Raises
    ------
    ValueError
        If `confidence` is outside (0, 1).

    Notes
    -----
    Few batches make the plain percentile interval too narrow. Its percentiles are moved outwards
    to where Student's t interval has its ends: the expanded percentile interval of T. Hesterberg,
    "What Teachers Should Know About the Bootstrap", The American Statistician 69, 2015.
    """
    if len(values) < 2:
        return None
    medians = _resampled_medians(values, _generator())
    return _percentile_interval(medians, confidence, len(values))


def ratio_interval(
    first: Sequence[float], second: Sequence[float], confidence: float = 0.95
) -> tuple[float, float] | None:
    """Return the bootstrap interval of median(second) / median(first), samples unpaired.

    Parameters
    ----------
    first, second : sequence of float
        Positive samples of two runs that have nothing to do with each other, each in the order in
        which it was taken.
    confidence : float
        Nominal coverage, in (0, 1).

    Returns
    -------
    tuple of float or None
        (low, high), the same for the same values; None below two values or with a value that is
        not positive.

    Raises
    ------
    ValueError
        If `confidence` is outside (0, 1).
    """
    if min(len(first), len(second)) < 2 or min(*first, *second) <= 0:
        return None
    generator = _generator()
    below = _resampled_medians(first, generator)
    ratios = _resampled_medians(second, generator) / below
    return _percentile_interval(ratios, confidence, min(len(first), len(second)))


def _generator() -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(_SEED))


def _resampled_medians(
    values: Sequence[float], generator: np.random.Generator
) -> NDArray[np.float64]:
    """Return the median of each resample: as many batches, drawn with replacement."""
    samples: NDArray[np.float64] = np.asarray(values, dtype=np.float64)
    bounds = (batch_bounds(samples.size, batch) for batch in range(BATCHES))
    sizes = [end - first for first, end in bounds if end > first]
    picks = generator.multinomial(len(sizes), np.full(len(sizes), 1 / len(sizes)), size=_RESAMPLES)
    order = np.argsort(samples)
    samples = samples[order]
    batch = np.repeat(np.arange(len(sizes)), sizes)[order]
    medians = np.empty(_RESAMPLES)
    step = max(1, _AT_ONCE // samples.size)
    for first in range(0, _RESAMPLES, step):
        # How many samples of the resample there are up to each value.
        ranks = np.cumsum(picks[first : first + step, batch], axis=1)
        count = ranks[:, -1:]
        below = samples[(ranks <= (count - 1) // 2).sum(axis=1)]
        above = samples[(ranks <= count // 2).sum(axis=1)]
        medians[first : first + step] = below + (above - below) / 2
    return medians


def _percentile_interval(
    estimates: NDArray[np.float64], confidence: float, count: int
) -> tuple[float, float]:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence!r}. Use 0.95.")
    batches = min(count, BATCHES)
    wide = math.sqrt(batches / (batches - 1)) * _student_quantile((1 + confidence) / 2, batches - 1)
    tail = 100 * NormalDist().cdf(-wide)
    # "nearest" picks an estimate that was really made: interpolation may leave [min, max] by an
    # ulp.
    low, high = np.percentile(estimates, [tail, 100 - tail], method="nearest")
    return float(low), float(high)


@functools.cache
def _student_quantile(probability: float, freedom: int) -> float:
    """Return the quantile of Student's t, to five digits.

    With t = sqrt(freedom) tan(angle), the density over the angle is a power of its cosine, which is
    smooth and ends at a right angle.
    """
    angle = np.linspace(-np.pi / 2, np.pi / 2, 20_001)
    density = np.cos(angle) ** (freedom - 1)
    share = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return float(math.sqrt(freedom) * np.tan(np.interp(probability, share / share[-1], angle)))
