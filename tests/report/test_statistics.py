import math
import statistics as stdlib

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from fedbench.report import statistics

times = st.floats(min_value=1e-9, max_value=1e6, allow_subnormal=False)
samples = st.lists(times, min_size=1, max_size=30)


@given(samples)
def test_median_is_that_of_the_standard_library(values):
    assert statistics.median(values) == pytest.approx(stdlib.median(values), rel=1e-15)


def test_nothing_has_no_median_and_no_spread():
    assert statistics.median([]) is None
    assert statistics.interquartile_range([]) is None
    assert statistics.interquartile_range([1.0]) is None
    assert statistics.bootstrap_interval([1.0]) is None


def test_interquartile_range_of_known_values():
    assert statistics.interquartile_range([1.0, 2.0, 3.0, 4.0, 5.0]) == 2.0


@given(st.lists(times, min_size=2, max_size=30))
def test_interval_holds_the_median_and_stays_within_the_samples(values):
    low, high = statistics.bootstrap_interval(values)
    assert min(values) <= low <= high <= max(values)
    if len(values) % 2:  # an even count has its median between two observed values
        assert low <= statistics.median(values) <= high


@given(st.lists(times, min_size=2, max_size=12))
def test_interval_of_the_same_samples_is_the_same(values):
    assert statistics.bootstrap_interval(values) == statistics.bootstrap_interval(list(values))


@given(times, st.integers(2, 20))
def test_interval_of_constant_samples_has_no_width(value, count):
    assert statistics.bootstrap_interval([value] * count) == (value, value)


@given(st.lists(times, min_size=6, max_size=20), st.sampled_from([0.5, 2.0, 4.0]))
def test_interval_scales_with_the_samples(values, factor):
    low, high = statistics.bootstrap_interval(values)
    scaled = statistics.bootstrap_interval([factor * value for value in values])
    # Values whose median lies between two samples may round differently.
    assert scaled == pytest.approx((factor * low, factor * high), rel=1e-12)


@pytest.mark.parametrize("confidence", [0, 1, -0.5, 95, math.nan])
def test_confidence_outside_the_unit_interval_is_refused(confidence):
    with pytest.raises(ValueError, match=r"confidence must be between 0 and 1, got"):
        statistics.bootstrap_interval([1.0, 2.0], confidence)


@pytest.mark.parametrize("count", [6, 8, 12, 40])
def test_interval_covers_the_true_median_as_often_as_it_says(count):
    generator = np.random.Generator(np.random.PCG64(1))
    hits = 0
    for _ in range(400):
        values = generator.lognormal(0.0, 0.2, size=count).tolist()
        low, high = statistics.bootstrap_interval(values)
        hits += low <= 1.0 <= high
    assert 0.93 < hits / 400 < 0.995


def test_interval_knows_of_seconds_in_which_everything_is_slower():
    """Half of the variance is common to five rounds that follow each other."""
    generator = np.random.Generator(np.random.PCG64(2))
    hits = 0
    for _ in range(400):
        drift = np.repeat(generator.normal(0.0, 0.15, size=8), 5)
        values = np.exp(drift + generator.normal(0.0, 0.15, size=40)).tolist()
        low, high = statistics.bootstrap_interval(values)
        hits += low <= 1.0 <= high
    assert hits / 400 > 0.93


@pytest.mark.parametrize("count", [1, 3, 7, 8, 9, 20, 24, 1000])
def test_batches_hold_every_sample_once_and_are_of_like_size(count):
    bounds = [statistics.batch_bounds(count, batch) for batch in range(statistics.BATCHES)]
    assert [i for first, end in bounds for i in range(first, end)] == list(range(count))
    sizes = {end - first for first, end in bounds}
    assert max(sizes) - min(sizes) <= 1


def test_batches_are_resampled_whole():
    """Between two levels that change from batch to batch, the interval leaves nothing out."""
    values = [1.0] * 5 + [2.0] * 5
    assert statistics.bootstrap_interval(values * 4) == (1.0, 2.0)


@pytest.mark.parametrize("freedom", [1, 2, 3, 7, 30])
@pytest.mark.parametrize("probability", [0.75, 0.95, 0.975])
def test_quantiles_of_student(probability, freedom):
    exact = scipy.stats.t.ppf(probability, freedom)
    assert statistics._student_quantile(probability, freedom) == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("count", [2, 5, 8, 9, 23])
def test_resampled_medians_are_those_of_the_batches_drawn(count, monkeypatch):
    """Against the definition: concatenate the batches that were drawn, and take the median."""
    monkeypatch.setattr(statistics, "_AT_ONCE", 50)
    values = np.random.default_rng(count).normal(size=count)
    medians = statistics._resampled_medians(values, statistics._generator())
    batches = min(count, 8)
    picks = statistics._generator().multinomial(batches, [1 / batches] * batches, size=len(medians))
    parts = [values[slice(*statistics.batch_bounds(count, batch))] for batch in range(8)]
    parts = [part for part in parts if len(part)]
    for found, counts in zip(medians[:200], picks, strict=False):
        drawn = np.concatenate([p for p, c in zip(parts, counts, strict=True) for _ in range(c)])
        assert found == pytest.approx(np.median(drawn), rel=1e-12)


@given(samples, samples)
def test_ratios_pair_the_rounds_in_order(first, second):
    ratios = statistics.paired_ratios(first, second)
    assert ratios == [a / b for a, b in zip(first, second, strict=False)]


def test_a_time_of_zero_gives_no_ratio_instead_of_a_division_by_zero():
    assert statistics.paired_ratios([0.0, 1.0, 2.0], [1.0, 0.0, 4.0]) == [0.5]
    assert statistics.paired_ratios([], [1.0]) == []


@pytest.mark.parametrize("rounds", [6, 7, 25])
def test_equal_runs_are_called_different_in_less_than_a_tenth_of_the_cases(rounds):
    # Rounds of a quiet machine: a floor, and now and then much more.
    generator = np.random.Generator(np.random.PCG64(7))
    contained = 0
    for _ in range(200):
        first, second = (1 + 0.05 * generator.exponential(size=rounds) ** 1.5 for _ in range(2))
        low, high = statistics.ratio_interval(first, second)
        contained += low <= 1 <= high
    assert contained >= 180
