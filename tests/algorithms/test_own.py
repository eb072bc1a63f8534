"""Algorithms that are not in the registry, named by their module."""

import sys

import pytest

import fedbench
from fedbench.algorithms import find_algorithm, make_algorithm
from fedbench.errors import UnknownNameError
from tests.simulation.helpers import tiny_workload

SOURCE = """
from dataclasses import dataclass
from fedbench.algorithms.fedavg import FedAvg

@dataclass(frozen=True)
class Half(FedAvg):
    factor: float = 0.5

    def aggregate(self, server, updates):
        return server.moved(self.factor * updates.mean("delta"))

not_a_class = 3
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """A module in the current folder."""
    (tmp_path / "own_algorithms.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "own_algorithms"
    sys.modules.pop("own_algorithms", None)


def test_a_class_of_a_module_may_be_named(own_module):
    algorithm = make_algorithm(f"{own_module}:Half", factor=0.25)
    assert type(algorithm).__name__ == "Half"
    assert algorithm.factor == 0.25
    simulation = fedbench.Simulation(tiny_workload(), algorithm=f"{own_module}:Half")
    assert simulation.algorithm == make_algorithm(f"{own_module}:Half")
    simulation.run_round()


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("no_such_module:Half", ValueError, "MODULE:NAME of a module that can be imported"),
        ("own_algorithms:Whole", ValueError, "the module has no 'Whole'"),
        ("own_algorithms:not_a_class", TypeError, "must be a subclass of fedbench.algorithms"),
        ("fedavgs", UnknownNameError, "Did you mean 'fedavg'"),
        (None, UnknownNameError, "algorithm must be one of"),
    ],
)
def test_names_that_lead_nowhere_are_refused(own_module, name, error, message):
    with pytest.raises(error, match=message):
        find_algorithm(name)


def test_unknown_hyperparameters_are_listed(own_module):
    with pytest.raises(
        TypeError, match=r"has no hyperparameter 'x'\. It has 'weighting', 'factor'"
    ):
        make_algorithm(f"{own_module}:Half", x=1)
