"""Every script in examples/ runs as its user would run it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
MARKS = {
    "ray_cluster": [  # starts a cluster of its own, which takes a while
        pytest.mark.ray,
        pytest.mark.slow,
        pytest.mark.skipif(
            importlib.util.find_spec("ray") is None, reason="the extra 'ray' is not installed"
        ),
    ],
}


def test_there_are_examples() -> None:
    assert {"migrating_plain_loop", "quickstart"} <= {script.stem for script in SCRIPTS}


@pytest.mark.parametrize(
    "script",
    [pytest.param(one, id=one.stem, marks=MARKS.get(one.stem, [])) for one in SCRIPTS],
)
def test_the_script_runs(script: Path, tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-P", str(script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONWARNINGS": "ignore::DeprecationWarning"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout
