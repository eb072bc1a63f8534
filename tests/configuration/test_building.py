"""Configurations become the simulations that one would make by hand."""

import dataclasses
import re

import pytest
import torch

from fedbench import Simulation
from fedbench.algorithms import make_algorithm
from fedbench.configuration import load, make_simulation
from fedbench.configuration.building import make_workload
from fedbench.data import load_digits
from fedbench.errors import ConfigurationError
from fedbench.models import mlp
from fedbench.workloads import load as load_workload
from tests.configuration.jobs import TINY


def configured(values):
    (run,) = load(values, environ={}).runs
    return run.configuration


def digest(simulation, rounds=1):
    with simulation.executor:
        simulation.run(rounds)
    return simulation.state_digest()


def test_a_workload_by_name_is_the_workload():
    mine = make_simulation(configured({"workload": "digits-logreg", "seed": 3}))
    assert mine.workload.name == "digits-logreg"
    assert digest(mine) == digest(Simulation("digits-logreg", seed=3))


def test_values_replace_those_of_the_workload():
    values = {
        "workload": "digits-logreg",
        "algorithm": {"name": "fedprox", "mu": 0.2},
        "lr": 0.05,
        "batch_size": 7,
        "local_epochs": 2,
        "cohort_size": 5,
        "backend": "threads",
        "workers": 2,
    }
    workload = dataclasses.replace(
        load_workload("digits-logreg"), lr=0.05, batch_size=7, local_epochs=2, cohort_size=5
    )
    by_hand = Simulation(workload, algorithm=make_algorithm("fedprox", mu=0.2))
    assert digest(make_simulation(configured(values))) == digest(by_hand)


def test_parts_make_the_simulation_that_a_hand_would():
    values = {
        "dataset": {"name": "digits", "test_fraction": 0.3},
        "partitioner": {"name": "dirichlet", "alpha": 0.5},
        "num_clients": 8,
        "data_seed": 2,
        "model": {"name": "mlp", "in_features": 64, "num_classes": 10, "hidden": [8]},
        "cohort_size": 3,
        "rounds": 1,
        "batch_size": 10,
        "lr": 0.1,
        "seed": 4,
    }

    def dataset(seed=0):
        samples = load_digits(seed=2, test_fraction=0.3)
        return samples.federate("dirichlet", 8, seed=2, alpha=0.5)

    def model(seed=0):
        return mlp(64, 10, hidden=[8], seed=seed)

    parts = {"name": "by hand", "description": "-", "dataset": dataset, "model": model}
    by_hand = Simulation(
        {**parts, "cohort_size": 3, "rounds": 1, "batch_size": 10, "lr": 0.1}, seed=4
    )
    assert digest(make_simulation(configured(values))) == digest(by_hand)


def test_a_partitioner_divides_the_samples_of_a_workload_anew():
    source = load_workload("digits-logreg").dataset()
    same_size = make_simulation(configured({"workload": "digits-logreg", "partitioner": "iid"}))
    assert same_size.dataset.num_clients == source.num_clients
    assert torch.equal(same_size.dataset.inputs, source.inputs)
    sizes = same_size.dataset.client_sizes()
    assert sizes.max() - sizes.min() <= 1
    other = {"workload": "digits-logreg", "partitioner": "shards", "num_clients": 10}
    assert make_simulation(configured({**other, "cohort_size": 2})).dataset.num_clients == 10


def test_feature_shift_rotates_the_images_of_each_client():
    plain = make_workload(configured({"workload": "digits-logreg"})).dataset()
    values = {"workload": "digits-logreg", "rotate": [0, 90, 180]}
    shifted = make_workload(configured(values))
    assert shifted.name.startswith("digits-logreg~")
    turned = shifted.dataset()
    for client in range(6):
        before, after = plain.client(client), turned.client(client)
        assert torch.equal(after.inputs, before.inputs.rot90(client % 3, (2, 3)))
        assert torch.equal(after.targets, before.targets)


def test_different_data_have_different_names_so_that_checkpoints_do_not_mix():
    variations = [
        {},
        {"data_seed": 1},
        {"partitioner": "iid"},
        {"partitioner": {"name": "dirichlet", "alpha": 0.1}},
        {"partitioner": {"name": "dirichlet", "alpha": 0.2}},
        {"model": {"name": "mlp", "in_features": 64, "num_classes": 10}},
    ]
    base = {"workload": "digits-logreg"}
    names = [make_simulation(configured({**base, **v})).workload.name for v in variations]
    assert len(set(names)) == len(names)
    assert names[0] == "digits-logreg"


def test_natural_clients_come_with_the_data():
    values = {
        "dataset": {"name": "synthetic", "num_clients": 4},
        "model": {"name": "logistic_regression", "in_features": 60, "num_classes": 10},
        "cohort_size": 2,
        "rounds": 1,
        "batch_size": 10,
        "lr": 0.01,
    }
    assert make_simulation(configured(values)).dataset.num_clients == 4
    named = configured({**values, "partitioner": {"name": "natural", "min_size": 1}})
    assert make_simulation(named).dataset.num_clients == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"partitioner": None, "num_clients": None},
            "must divide the samples, got none",
        ),
        ({"partitioner": "natural", "num_clients": None}, "got natural: they have no client"),
        ({"cohort_size": 7}, "cohort_size must be at most the number of clients, 6, got 7"),
        ({"num_clients": 61}, "num_clients"),
    ],
)
def test_what_only_the_data_can_tell(changes, message):
    with pytest.raises(ValueError, match=message):
        make_simulation(configured({**TINY, **changes}))


def test_natural_does_not_divide_a_workload_anew():
    values = {"workload": "digits-logreg", "partitioner": "natural"}
    with pytest.raises(ConfigurationError, match="must divide the samples anew"):
        make_simulation(configured(values))


def test_your_own_parts_are_named_by_module_and_attribute():
    simulation = make_simulation(
        configured({**TINY, "model": "tests.configuration.jobs:noisy_model"})
    )
    assert simulation.num_parameters == 18
    own = configured({**TINY, "algorithm": {"name": "tests.configuration.jobs:Failing"}})
    assert own.algorithm.options == {"weighting": "samples", "how": "raise"}
    with pytest.raises(ConfigurationError, match=r"unknown option 'cuont'.* Did you mean 'count'"):
        configured({**TINY, "dataset": {"name": "tests.configuration.jobs:samples", "cuont": 3}})
    with pytest.raises(ConfigurationError, match="algorithm must be a subclass"):
        configured({**TINY, "algorithm": "tests.configuration.jobs:samples"})


@pytest.mark.parametrize(
    ("key", "name"), [("model", "unseeded_model"), ("dataset", "unseeded_samples")]
)
def test_own_models_and_samples_must_take_a_seed(key, name):
    expected = f"{key} must be a function that takes seed, got 'tests.configuration.jobs:{name}'"
    with pytest.raises(ConfigurationError, match=re.escape(expected)):
        configured({**TINY, key: f"tests.configuration.jobs:{name}"})


def test_what_cannot_be_called_is_no_model():
    with pytest.raises(ConfigurationError, match=r"a function or a class, got .* of type dict"):
        configured({**TINY, "model": "tests.configuration.jobs:TINY"})


@pytest.mark.parametrize("own", ["tests.configuration.jobs:Bounded", "fedprox"])
def test_a_wrong_hyperparameter_is_said_once_under_its_own_key(own, tmp_path):
    file = tmp_path / "f"
    file.write_text(f"workload: digits-logreg\nalgorithm:\n  name: {own}\n  mu: -1\nlr: 0.1")
    with pytest.raises(ConfigurationError) as info:
        load(file, environ={})
    [line] = str(info.value).splitlines()
    assert line.startswith(f"{file}:4: mu must be ")
    file.write_text(file.read_text() + "\ndevice: gpu\n")
    with pytest.raises(ConfigurationError) as info:
        load(file, environ={})
    assert [line.split(": ")[0] for line in str(info.value).splitlines()] == [
        f"{file}:4",
        f"{file}:6",
    ]


@pytest.mark.parametrize("text", ["workload", "dataset", "partitioner", "model", "algorithm"])
def test_the_options_of_every_built_in_component_have_types(text):
    """A name that only type checkers import would leave options unchecked."""
    import importlib
    import inspect

    from fedbench.configuration import components

    module, _, attribute = components._REGISTRIES[text].partition(":")
    for name in getattr(importlib.import_module(module), attribute):
        target = components.find(text, name)
        options, takes_any = components._options(text, target)
        assert not takes_any
        typed = [annotation for annotation, _ in options.values()]
        assert inspect.Parameter.empty not in typed
        assert not [a for a in typed if isinstance(a, str)]
        assert all(annotation is not None for annotation in typed)
        from typing import Any

        assert Any not in typed, name
