"""Algorithms that are not in the registry, named by their module."""

import ast
import sys
from pathlib import Path

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


EXAMPLE = Path(__file__).parents[2] / "examples" / "own_algorithm.py"


def test_the_documented_example_is_short():
    module = ast.parse(EXAMPLE.read_text())
    (algorithm,) = (node for node in module.body if isinstance(node, ast.ClassDef))
    assert algorithm.end_lineno - algorithm.lineno < 40


def test_the_documented_example_has_the_same_bits_on_every_backend(
    backend, new_executor, monkeypatch
):
    """Its module is found by its name, in the workers as well."""
    monkeypatch.chdir(EXAMPLE.parent)
    monkeypatch.setattr(sys, "path", [*sys.path])
    name = "own_algorithm:ServerVelocity"
    digests = []
    make_algorithm(name)
    # Workers that start now look for modules where this process does.
    started = new_executor(None if backend == "sequential" else 2)
    for given in ("sequential", started):
        simulation = fedbench.Simulation(tiny_workload(), algorithm=name, executor=given)
        simulation.run(2)
        digests.append(simulation.state_digest())
    sys.modules.pop("own_algorithm", None)
    assert digests[0] == digests[1]


def test_unknown_hyperparameters_are_listed(own_module):
    with pytest.raises(
        TypeError, match=r"has no hyperparameter 'x'\. It has 'weighting', 'factor'"
    ):
        make_algorithm(f"{own_module}:Half", x=1)
