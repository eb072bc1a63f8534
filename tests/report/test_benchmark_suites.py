"""The pytest-benchmark suites: their files are read, and no figures come from shared cores."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedbench.report import compare, load_timings, render_comparison

ROOT = Path(__file__).parents[2]

SUITE = """
import pytest

@pytest.mark.parametrize("size", [10, 1000])
def test_sum(benchmark, size):
    benchmark.group = "sums"
    benchmark.pedantic(sum, (range(size),), rounds=8)
"""


@pytest.fixture
def run(tmp_path):
    """Return a function that runs a small suite with the project's settings of pytest."""
    suite = tmp_path / "bench_sums.py"
    suite.write_text(SUITE)

    def run_pytest(*arguments):
        command = [sys.executable, "-m", "pytest", suite, "-c", ROOT / "pyproject.toml"]
        command += ["--rootdir", tmp_path, "-p", "no:cacheprovider", *arguments]
        # The tests themselves may run on several processes; the suite is told nothing of that.
        env = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, check=False, env=env
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run_pytest


def test_two_runs_of_a_suite_are_compared(run, tmp_path):
    files = [tmp_path / "before.json", tmp_path / "after.json"]
    for file in files:
        out = run("--benchmark-only", "--benchmark-json", file, "--benchmark-save-data")
        assert "benchmark 'sums': 2 tests" in out
    before, after = map(load_timings, files)
    changes = compare(before, after)
    assert [change.name for change in changes] == [
        "bench_sums.py::test_sum[10]",
        "bench_sums.py::test_sum[1000]",
    ]
    assert all(change.low is not None for change in changes)
    assert "bench_sums.py::test_sum[10]" in render_comparison(changes)


def test_beside_each_other_benchmarks_run_once_and_give_no_figures(run, tmp_path):
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    file = tmp_path / "shared.json"
    out = run("-n", "2", "--benchmark-json", file)
    assert "2 passed" in out
    assert "Median" not in out
    assert not file.exists() or not json.loads(file.read_text() or "{}").get("benchmarks")
