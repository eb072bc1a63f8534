"""A test process that dies costs one test, and the run goes on to its end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

DEADLY = """
import os, signal
def test_before(): pass
def test_deadly(): os.kill(os.getpid(), signal.SIGKILL)
def test_after(): pass
"""


@pytest.fixture
def run(tmp_path):
    """Write files of tests, and run them in two processes."""

    def run(files):
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        arguments = [
            "-n",
            "2",
            "--dist",
            "loadscope",
            "--no-loadscope-reorder",
            "-p",
            "no:benchmark",
        ]
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "tests.xdist_groups", *arguments, str(tmp_path)],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


@pytest.mark.parametrize("deadly", ["test_0.py", "test_3.py", "test_5.py"])
def test_the_other_tests_run_after_a_process_has_died(run, deadly):
    pytest.importorskip("xdist")
    files = {f"test_{number}.py": f"def test_{number}(): pass\n" for number in range(6)}
    done = run({**files, deadly: DEADLY})
    assert "1 failed, 7 passed" in done.stdout, done.stdout + done.stderr
    assert f"{deadly}::test_deadly" in done.stdout


def test_the_last_test_of_all_may_be_the_deadly_one(run):
    pytest.importorskip("xdist")
    done = run({"test_only.py": DEADLY.replace("def test_after(): pass", "")})
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
