"""The table of all algorithms in the guide: complete, and what its command computes."""

import importlib.util
import shutil
import types
from pathlib import Path

import pandas as pd
import pytest

from fedbench.algorithms import ALGORITHMS

DATA = Path(__file__).parents[2] / "docs" / "data"
COMMITTED = pd.read_csv(DATA / "algorithms.csv", dtype=str, keep_default_na=False)


@pytest.fixture
def script(tmp_path) -> types.ModuleType:
    """The script, with a copy of its files to write to."""
    spec = importlib.util.spec_from_file_location("algorithm_table", DATA / "algorithms.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    shutil.copy(DATA / "algorithms.yaml", tmp_path)
    module.HERE = tmp_path
    return module


def with_only(folder, *algorithms, rounds=None):
    """Leave these algorithms in the job."""
    job = folder / "algorithms.yaml"
    head, _, lines = job.read_text().partition("  algorithm:\n")
    kept = [
        line
        for line in lines.splitlines()
        if any(name in line.split(",")[0] for name in algorithms)
    ]
    if rounds is not None:
        head = head.replace("rounds: 40", f"rounds: {rounds}").replace("[0, 1, 2]", "[0]")
    job.write_text(f"{head}  algorithm:\n" + "\n".join(kept) + "\n")


def test_every_algorithm_is_in_the_table_once():
    assert sorted(COMMITTED["algorithm"]) == sorted(ALGORITHMS)


def test_the_command_writes_a_table_like_the_committed_one(script, tmp_path):
    with_only(tmp_path, "scaffold", "fedcr", rounds=2)
    script.main()
    table = pd.read_csv(tmp_path / "algorithms.csv", dtype=str, keep_default_na=False)
    assert list(table.columns) == list(COMMITTED.columns)
    assert list(table["algorithm"]) == ["scaffold", "fedcr"]
    options = COMMITTED.set_index("algorithm")["options"]
    assert list(table["options"]) == [options["scaffold"], options["fedcr"]]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavgm", "ditto"])
def test_the_committed_figures_are_those_of_the_command(script, tmp_path, name):
    with_only(tmp_path, name)
    script.main()
    table = pd.read_csv(tmp_path / "algorithms.csv", dtype=str, keep_default_na=False)
    expected = COMMITTED[COMMITTED["algorithm"] == name].reset_index(drop=True)
    pd.testing.assert_frame_equal(table, expected)
