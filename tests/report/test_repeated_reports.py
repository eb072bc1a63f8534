"""The script that compares reports of one machine: what it counts."""

import math

import pytest
from repeated_reports import agreements, shares, table

STEADY = (1.0, 1.01, 0.99, 1.0, 1.02, 0.98)


def reports(build, *slowdowns):
    """Return runs in which the machine, and with it every row, is slower by a factor."""
    return [
        build.report(
            build.measurement(totals=[factor * s for s in STEADY]),
            build.measurement("threads", [factor * s / 2 for s in STEADY], workers=2),
        )
        for factor in slowdowns
    ]


def test_equal_runs_agree(build):
    found = agreements(reports(build, 1.0, 1.0, 1.0))
    assert found["digits/fedavg/sequential (1 worker)"] == [(True, None)] * 3
    assert found["digits/fedavg/threads (2 workers)"] == [(True, True)] * 3


def test_drift_of_the_machine_shows_in_rounds_and_cancels_in_speedups(build):
    found = agreements(reports(build, 1.0, 2.0))
    assert found["digits/fedavg/threads (2 workers)"] == [(False, True)]


def test_a_row_that_failed_once_is_compared_where_it_ran(build):
    first, second = reports(build, 1.0, 1.0)
    third = build.report(build.failure("threads", "broken"))
    found = agreements([first, second, third])
    assert {name: len(pairs) for name, pairs in found.items()} == {
        "digits/fedavg/sequential (1 worker)": 1,
        "digits/fedavg/threads (2 workers)": 1,
    }


def test_shares_leave_out_what_is_not_known():
    assert shares([(True, None), (False, True)]) == (0.5, 1.0)
    first, second = shares([(True, None)])
    assert first == 1.0
    assert math.isnan(second)


def test_the_table_ends_with_the_share_of_all_pairs(build):
    lines = table(agreements(reports(build, 1.0, 1.0, 2.0))).splitlines()
    assert lines[-1].split() == ["33%", "100%", "all", "6", "pairs"]


@pytest.mark.parametrize("rounds", [1, 0])
def test_too_few_rounds_never_agree(build, rounds):
    first = build.report(build.measurement(totals=STEADY[:rounds]))
    (pairs,) = agreements([first, first]).values()
    assert pairs == [(False, None)]
