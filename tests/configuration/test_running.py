"""Runs of a matrix: serial and parallel are the same, failures are reported, nothing else stops."""

import pandas as pd
import pytest

from fedbench.configuration import load, process_count, run_all, summary, tidy_table
from tests.configuration.jobs import TINY

FAILING = "tests.configuration.jobs:Failing"


def plan_of(matrix, **changes):
    return load({**TINY, **changes, "matrix": matrix}, environ={})


@pytest.fixture
def two_cpus(monkeypatch):
    monkeypatch.setattr("fedbench.executors.resources.available_cpus", lambda: 2)


def test_a_matrix_of_algorithms_partitions_and_seeds_is_one_tidy_table():
    matrix = {
        "algorithm": ["fedavg", {"name": "fedprox", "mu": 0.5}, "scaffold"],
        "partitioner": ["iid", {"name": "dirichlet", "alpha": 0.5}],
        "seed": [0, 1],
    }
    results = run_all(plan_of(matrix))
    table = tidy_table(results)
    assert list(table.columns) == [*matrix, "round", "split", "metric", "value"]
    assert len(table.groupby(["algorithm", "partitioner", "seed"])) == 12
    # Each run: two rounds of one training metric and of two metrics on the test samples.
    assert len(table) == 12 * 2 * 3
    assert table["value"].notna().all()
    assert len({result.digest for result in results}) == 12


@pytest.mark.parametrize("level", ["L1", "L0"])
def test_parallel_runs_have_the_bits_of_serial_ones(level, two_cpus):
    # At L0 dropout draws from the process's generators, so what ran before would matter.
    changes = {"model": "tests.configuration.jobs:noisy_model", "reproducibility": level}
    matrix = {"seed": [0, 1, 2], "lr": [0.1, 0.5]}
    serial = run_all(plan_of(matrix, **changes))
    seen = []
    parallel = run_all(
        plan_of(matrix, parallel=2, **changes),
        on_progress=lambda progress: seen.append((progress.index, progress.done)),
        on_result=lambda index, result: seen.append((index, result.error)),
    )
    assert [r.error for r in serial] == [r.error for r in parallel] == [None] * 6
    assert [r.digest for r in serial] == [r.digest for r in parallel]
    assert len({r.digest for r in serial}) == 6
    pd.testing.assert_frame_equal(tidy_table(serial), tidy_table(parallel), check_exact=True)
    assert sorted(seen, key=str) == sorted(
        [(i, what) for i in range(6) for what in (1, 2, None)], key=str
    )


@pytest.mark.parametrize("parallel", [1, 2])
def test_a_run_that_fails_is_reported_and_the_others_finish(parallel, two_cpus):
    plan = plan_of({"algorithm": ["fedavg", FAILING, "scaffold"]}, parallel=parallel)
    results = run_all(plan)
    assert [result.error is None for result in results] == [True, False, True]
    assert "planted" in results[1].details
    assert results[1].digest is None
    assert set(tidy_table(results)["algorithm"]) == {"fedavg", "scaffold"}
    assert [row["status"] for row in summary(results)] == ["ok", "failed", "ok"]


def test_a_run_that_does_not_fit_its_data_is_reported_too():
    results = run_all(plan_of({"cohort_size": [3, 7]}))
    assert results[0].error is None
    assert "cohort_size must be at most the number of clients" in results[1].error


def test_a_process_that_is_killed_costs_its_own_run_only(two_cpus):
    dying = {"name": FAILING, "how": "die"}
    plan = plan_of({"algorithm": [dying, "fedavg", "scaffold"]}, parallel=2)
    results = run_all(plan)
    assert "ended with SIGKILL" in results[0].error
    assert [result.error for result in results[1:]] == [None, None]


def test_threads_times_processes_stay_within_the_cores(monkeypatch):
    monkeypatch.setattr("fedbench.executors.resources.available_cpus", lambda: 8)
    seeds = {"seed": list(range(6))}
    assert process_count(plan_of(seeds, parallel=4)) == 4
    assert process_count(plan_of(seeds, parallel=100)) == 6
    assert process_count(plan_of(seeds, parallel=4, intraop_threads=3)) == 2
    assert process_count(plan_of(seeds, parallel=4, intraop_threads=9)) == 1


def test_if_all_runs_fail_the_table_has_no_rows():
    table = tidy_table(run_all(plan_of({"algorithm": [FAILING]})))
    assert table.empty
    assert list(table.columns) == ["algorithm", "round", "split", "metric", "value"]
