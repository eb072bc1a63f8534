"""The notebook of the examples runs, is kept without output, and is one by its format."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

NOTEBOOK = Path(__file__).parents[2] / "examples" / "tour.ipynb"
RUN_NOTEBOOK = Path(__file__).with_name("run_notebook.py")


def run(notebook: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", str(RUN_NOTEBOOK), str(notebook)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_the_notebook_runs(tmp_path: Path) -> None:
    result = run(NOTEBOOK, tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_failing_cell_is_noticed(tmp_path: Path) -> None:
    broken = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    broken["cells"] = [{"cell_type": "code", "source": ["x = 1\n", "x / 0"]}]
    (tmp_path / "broken.ipynb").write_text(json.dumps(broken), encoding="utf-8")
    result = run(tmp_path / "broken.ipynb", tmp_path)
    assert result.returncode == 1
    assert 'File "<cell 0>", line 2' in result.stderr
    assert "ZeroDivisionError" in result.stderr


def test_the_notebook_is_kept_clean() -> None:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    names = [cell["id"] for cell in notebook["cells"]]
    assert len(set(names)) == len(names)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
