import dataclasses
import re
from pathlib import Path

import pandas as pd
import pytest

from fedbench.report import COLUMNS, Configuration, Measurement, Report, to_frame
from fedbench.report.bandwidth import memory_bandwidth
from fedbench.report.columns import rows, significant

STABLE = [
    "workload",
    "algorithm",
    "backend",
    "workers",
    "intraop_threads",
    "status",
    "clients",
    "cohort",
    "params",
    "rounds",
    "startup_s",
    "round_s",
    "round_s_iqr",
    "speedup",
    "speedup_low",
    "speedup_high",
    "efficiency",
    "train_s",
    "broadcast_s",
    "uplink_s",
    "aggregate_s",
    "evaluate_s",
    "cpu_s",
    "overhead_pct",
    "peak_mem_mb",
    "uplink_mb",
    "max_abs_diff",
    "digest",
    "identical",
    "seed",
    "reproducibility",
    "fedbench_version",
    "torch_version",
    "date",
    "aggregate_bandwidth",
    "bandwidth_pct",
]


def test_names_and_order_are_the_stable_ones():
    assert [column.name for column in COLUMNS] == STABLE


def test_every_column_is_described_and_ranks_are_unique():
    assert all(column.description.endswith(".") for column in COLUMNS)
    ranks = [column.rank for column in COLUMNS if column.rank is not None]
    assert sorted(ranks) == list(range(1, len(ranks) + 1))


def test_seconds_have_unit_s_and_only_they():
    for column in COLUMNS:
        assert (column.unit == "s") == bool(re.search(r"_s(_|$)", column.name))


def test_speedup_is_the_median_of_paired_ratios(build):
    # Unpaired medians would give 3 / 2; the pairs say 2, 1.5, 4.
    frame = to_frame(
        build.report(
            build.measurement("sequential", (2.0, 3.0, 8.0)),
            build.measurement("threads", (1.0, 2.0, 2.0), workers=2),
        )
    )
    assert frame["speedup"].tolist() == [1.0, 2.0]
    assert frame["speedup_low"][1] == 1.5
    assert frame["speedup_high"][1] == 4.0


def test_a_slower_backend_has_a_speedup_below_one(build):
    frame = to_frame(
        build.report(build.measurement(totals=(1.0,) * 6), build.measurement("ray", (4.0,) * 6))
    )
    assert frame["speedup"][1] == 0.25


def test_no_baseline_means_no_speedup_never_one(build):
    frame = to_frame(build.report(build.measurement("threads", (1.0, 1.0), workers=2)))
    for name in ("speedup", "speedup_low", "speedup_high", "efficiency", "identical"):
        assert frame[name].isna().all()


def test_sequential_with_more_threads_is_no_baseline(build):
    frame = to_frame(build.report(build.measurement(totals=(1.0, 1.0), intraop_threads=2)))
    assert frame["speedup"].isna().all()


def test_a_failed_baseline_is_no_baseline(build):
    frame = to_frame(
        build.report(build.failure("sequential", "broken", workers=1), build.measurement("threads"))
    )
    assert frame["speedup"].isna().all()


def test_a_baseline_of_another_workload_is_not_used(build):
    frame = to_frame(build.report(build.measurement(), build.measurement("ray", workload="cnn")))
    assert frame["speedup"].isna().tolist() == [False, True]


def test_efficiency_is_ideal_time_over_own_time(build):
    # Ideal: 8 s of tasks over 2 workers. The row's own tasks took 12 s as they hindered each other.
    frame = to_frame(
        build.report(
            build.measurement(totals=(10.0, 10.0), task_s=8.0),
            build.measurement("threads", (8.0, 8.0), workers=2, task_s=12.0),
        )
    )
    assert frame["efficiency"].tolist() == [0.8, 0.5]
    assert frame["overhead_pct"].tolist() == pytest.approx([20.0, 25.0])


def test_threads_inside_operations_count_towards_the_ideal(build):
    # 8 s of tasks on two cores are 4 s, whether workers or torch's threads keep them busy.
    frame = to_frame(
        build.report(
            build.measurement(totals=(10.0, 10.0), task_s=8.0),
            build.measurement(totals=(8.0, 8.0), intraop_threads=2),
        )
    )
    assert frame["efficiency"].tolist() == [0.8, 0.5]


def test_zero_times_leave_figures_empty(build):
    frame = to_frame(build.report(build.measurement(totals=(0.0, 0.0))))
    assert frame["round_s"].tolist() == [0.0]
    for name in ("speedup", "efficiency", "overhead_pct"):
        assert frame[name].isna().all()


def test_cpu_time_with_a_hole_is_left_out(build):
    whole = build.measurement(totals=(1.0, 3.0))
    partial = build.measurement("threads", (1.0,))
    hole = partial.rounds[0].__class__(**(vars(partial.rounds[0]) | {"cpu_s": None}))
    partial = build.measurement("threads", (1.0,), rounds=(partial.rounds[0], hole))
    assert to_frame(build.report(whole, partial))["cpu_s"].tolist()[0] == 2.0
    assert pd.isna(to_frame(build.report(whole, partial))["cpu_s"][1])


def test_identical_follows_the_digests(build):
    table = rows(
        build.report(
            build.measurement(),
            build.measurement("threads"),
            build.measurement("processes", digest="cd" * 32),
            build.failure("ray", "not installed"),
        )
    )
    assert [row.identical for row in table] == [True, True, False, None]
    assert [row.broken_promise for row in table] == [False, False, True, False]


@pytest.mark.parametrize(
    ("level", "threads", "promised"), [("L1", 1, True), ("L1", 2, False), ("L0", 1, False)]
)
def test_only_l1_with_the_baselines_threads_promises_equal_bits(build, level, threads, promised):
    other = build.measurement("threads", digest="cd" * 32, intraop_threads=threads)
    table = rows(build.report(build.measurement(), other, reproducibility=level))
    assert table[1].identical is False
    assert table[1].broken_promise is promised


def test_vectorized_rows_promise_nothing(build):
    other = build.measurement("processes+vectorized", digest="cd" * 32)
    table = rows(build.report(build.measurement(), other))
    assert table[1].identical is False
    assert not table[1].broken_promise
    assert "at once" in table[1].no_promise


def test_failed_rows_keep_what_was_asked_for_and_have_no_figures(build):
    failed = build.failure("ray", "stopped", clients=100, cohort=10, params=650)
    row = to_frame(build.report(failed)).iloc[0]
    assert row["status"] == "stopped"
    counts = ["clients", "cohort", "params", "workers", "rounds"]
    assert row[counts].tolist() == [100, 10, 650, 2, 0]
    figures = [column.name for column in COLUMNS if column.kind in ("number", "truth")]
    assert row[figures].isna().all()
    assert row["digest"] is None


def test_the_aggregation_is_held_against_the_machine(build):
    # 10 updates of 1000 bytes in all are read and a tenth of that written, in 0.05 of a second.
    made = build.report(build.measurement(totals=(1.0, 1.0, 1.0)))
    made.environment["memory_bytes_per_s"] = 44_000.0
    row = to_frame(made).iloc[0]
    assert row["aggregate_bandwidth"] * 1e9 == pytest.approx(1100 / 0.05)
    assert row["bandwidth_pct"] == pytest.approx(50.0)


def test_sums_that_workers_made_say_nothing_about_the_bandwidth(build):
    whole = build.measurement(totals=(1.0,))
    folded = dataclasses.replace(whole.rounds[0], reduced=True)
    row = to_frame(build.report(dataclasses.replace(whole, rounds=(folded,)))).iloc[0]
    assert pd.isna(row["aggregate_bandwidth"])
    assert pd.isna(row["bandwidth_pct"])


def test_the_bandwidth_of_the_machine_is_that_of_memory():
    assert 1e8 < memory_bandwidth(threads=1) < 1e12


def test_every_row_says_what_made_it(build):
    made = build.report(build.measurement(), build.failure("ray", "not installed"), seed=7)
    frame = to_frame(made)
    assert frame["seed"].tolist() == [7, 7]
    assert frame["reproducibility"].tolist() == ["L1", "L1"]
    assert frame["fedbench_version"].tolist() == ["0.1.0", "0.1.0"]
    assert frame["torch_version"].tolist() == ["2.13.0", "2.13.0"]
    assert frame["date"].tolist() == ["2024-02-29T12:00:00+00:00"] * 2


def test_a_report_without_an_environment_leaves_the_versions_empty():
    frame = to_frame(Report((Measurement(Configuration("w", "a", "sequential", 1)),), settings={}))
    assert frame[["seed", "fedbench_version", "torch_version", "date"]].isna().all(axis=None)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1234.5, "1234"),
        (12.34, "12.3"),
        (0.99949, "0.999"),
        (9.999999, "10.0"),
        (0.001234, "0.00123"),
        (1.5e-8, "1.50e-08"),
        (-0.5, "-0.500"),
        (float("inf"), "inf"),
    ],
)
def test_figures_have_three_significant_digits(value, text):
    assert significant(value) == text


def test_the_column_table_is_the_only_place_that_names_phases():
    # A new column must need one entry only.
    source = Path(__file__).parents[2] / "fedbench" / "report"
    for name in ("frames.py", "render.py"):
        assert '_s"' not in (source / name).read_text()
