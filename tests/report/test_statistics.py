import math
import statistics as stdlib

import numpy as np
import pytest
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


def test_interval_covers_the_true_median_about_as_often_as_it_says():
    import numpy as np

    generator = np.random.Generator(np.random.PCG64(1))
    hits = 0
    for _ in range(300):
        low, high = statistics.bootstrap_interval(generator.lognormal(0.0, 0.2, size=12).tolist())
        hits += low <= 1.0 <= high
    assert hits / 300 > 0.88


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
