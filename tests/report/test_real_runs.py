"""The report on real simulations: every backend runs, and all of them give the same bits."""

import os
import signal
import subprocess
import sys
import time

import pandas as pd
import psutil
import pytest

from fedbench.executors import EXECUTORS
from fedbench.report import Report

LOCAL = [name for name in EXECUTORS if name != "ray"]
VECTORIZED = "sequential+vectorized"


def command(*arguments):
    return [sys.executable, "-m", "fedbench", *arguments]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "backends",
    [[*LOCAL, VECTORIZED], pytest.param(["sequential", "ray"], marks=pytest.mark.ray)],
    ids=str,
)
def test_the_smoke_report_has_every_backend_with_the_same_bits(tmp_path, backends):
    """Clients that are trained at once show their difference, which never fails."""
    table, raw = tmp_path / "t.csv", tmp_path / "t.json"
    wanted = ["--preset", "smoke", "--rounds", "2", "--workers", "2", "--backend", *backends]
    done = subprocess.run(
        command("report", *wanted, "--out", str(table), str(raw)), capture_output=True, check=False
    )
    frame = pd.read_csv(table)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    assert frame["backend"].tolist() == backends
    assert frame["status"].tolist() == ["ok"] * len(backends)
    promised = frame[frame["backend"] != VECTORIZED]
    assert promised["identical"].all()
    assert promised["digest"].nunique() == 1
    assert (promised["max_abs_diff"] == 0).all()
    vectorized = frame[frame["backend"] == VECTORIZED]
    assert not vectorized["identical"].any()
    assert vectorized["max_abs_diff"].between(0, 1e-6, inclusive="neither").all()
    measured = ["startup_s", "round_s", "speedup", "efficiency", "cpu_s", "peak_mem_mb"]
    assert (frame[measured] > 0).all(axis=None)
    assert (frame["uplink_mb"] == frame["uplink_mb"][0]).all()
    for entry in Report.load(raw).measurements:
        assert [len(entry.warmup), len(entry.rounds)] == [1, 2]
        assert 0.1 < entry.metrics["test_accuracy"] <= 1.0


@pytest.mark.timeout(300)
def test_an_interrupt_ends_everything_within_seconds(tmp_path):
    target = tmp_path / "t.csv"
    target.write_text("old")
    wanted = ["--rounds", "100000", "--backend", "sequential", "processes", "--workers", "2"]
    process = subprocess.Popen(
        command("report", "--preset", "smoke", *wanted, "--out", str(target)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    family = _wait_for_rounds(process)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    # The line feed before it parts the message from the ^C that a terminal shows.
    assert out == b""
    assert err.endswith(b"\nfedbench: error: interrupted.\n")
    assert b"Traceback" not in err
    assert target.read_text() == "old"
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive


def _wait_for_rounds(process):
    """Wait until the workers of the backend `processes` are there; return all descendants."""
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        family = psutil.Process(process.pid).children(recursive=True)
        if len(family) >= 4:
            return family
        time.sleep(0.2)
    raise AssertionError("the workers did not start")


def test_run_prints_and_writes_its_metrics(tmp_path):
    target = tmp_path / "history.csv"
    outputs = []
    for backend in ("sequential", "threads"):
        wanted = ["--workload", "digits-logreg", "--rounds", "2", "--backend", backend]
        done = subprocess.run(
            command("run", *wanted, "--out", str(target)), capture_output=True, check=True
        )
        outputs.append((done.stdout, target.read_bytes()))
    assert outputs[0] == outputs[1]
    assert b"test_accuracy" in outputs[0][0]
    frame = pd.read_csv(target)
    assert list(frame.columns) == ["round", "split", "metric", "value"]
    assert frame["round"].max() == 2


@pytest.mark.timeout(300)
def test_a_backend_whose_package_is_missing_is_a_row_that_says_what_to_install(tmp_path):
    absent = tmp_path / "absent"
    absent.mkdir()
    (absent / "ray.py").write_text("raise ModuleNotFoundError('No module', name='ray')")
    table = tmp_path / "t.csv"
    wanted = ["--workload", "quadratic", "--backend", "sequential", "ray", "--rounds", "1"]
    done = subprocess.run(
        command("report", "--preset", "smoke", *wanted, "--out", str(table)),
        capture_output=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(absent)},
    )
    status = pd.read_csv(table)["status"].tolist()
    assert status[0] == "ok"
    assert "needs the package 'ray'" in status[1]
    assert "pip install -c constraints.txt -e '.[ray]'" in status[1]
    assert b"Traceback" not in done.stdout + done.stderr
