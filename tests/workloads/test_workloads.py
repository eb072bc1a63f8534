"""Workloads: fields checked, data and models from their seeds, picklable, ready to train."""

from __future__ import annotations

import dataclasses
import functools
import pickle
import warnings

import cloudpickle
import pytest
import torch

from fedbench.errors import UnknownNameError
from fedbench.training import LOSSES
from fedbench.workloads import WORKLOADS, Workload, load

NAMES = list(WORKLOADS)


@functools.cache
def data_of(name):
    with warnings.catch_warnings():
        # On other Pythons than the one of the published figures the text differs.
        warnings.filterwarnings("ignore", message="the text of pydoc_data")
        return load(name).dataset()


@pytest.mark.parametrize("name", NAMES)
def test_names_and_descriptions(name):
    workload = load(name)
    assert workload.name == name
    assert workload.description


@pytest.mark.parametrize("name", NAMES)
def test_the_model_fits_the_data_and_the_loss(name):
    workload, dataset = load(name), data_of(name)
    assert dataset.num_clients >= workload.cohort_size
    data = dataset.client(0)
    rows = slice(workload.batch_size)
    model = workload.model(seed=0)
    loss = LOSSES.load(workload.loss).mean(model(data.inputs[rows]), data.targets[rows])
    assert loss.dim() == 0
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients)


@pytest.mark.parametrize("name", NAMES)
def test_seeds_change_models_and_the_global_generator_stays(name):
    workload = load(name)
    before = torch.get_rng_state()
    first, again, other = (workload.model(seed=seed) for seed in (1, 1, 2))
    for key, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[key])
    flat = [torch.cat([p.flatten() for p in model.parameters()]) for model in (first, other)]
    assert not torch.equal(*flat)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", ["digits-logreg", "mnist5k-cnn", "synthetic-logreg"])
def test_seeds_change_partitions(name):
    first = data_of(name)
    again, other = load(name).dataset(seed=0), load(name).dataset(seed=1)
    assert torch.equal(first.inputs, again.inputs)
    assert torch.equal(first.client_sizes(), again.client_sizes())
    assert not torch.equal(first.client_sizes(), other.client_sizes())


@pytest.mark.parametrize("name", NAMES)
def test_workloads_travel_small_without_their_data(name):
    workload = load(name)
    for dumps in (pickle.dumps, cloudpickle.dumps):
        data = dumps(workload)
        assert len(data) < 2000
        twin = pickle.loads(data)
        for field in dataclasses.fields(Workload):
            if field.name not in ("dataset", "model"):
                assert getattr(twin, field.name) == getattr(workload, field.name)
        theirs, ours = twin.model(seed=3), workload.model(seed=3)
        assert list(theirs.state_dict()) == list(ours.state_dict())


def test_every_client_of_the_digits_has_enough_samples():
    sizes = data_of("digits-logreg").client_sizes()
    assert len(sizes) == 100
    assert int(sizes.min()) >= 4
    assert int(sizes.max()) > 4 * int(sizes.min())


def test_unknown_names_are_refused_with_a_suggestion():
    with pytest.raises(UnknownNameError, match="Did you mean 'digits-logreg'"):
        load("digit-logreg")


def test_a_changed_copy_is_checked_again():
    workload = dataclasses.replace(load("digits-mlp"), rounds=3, lr=1)
    assert (workload.rounds, workload.lr) == (3, 1)
    with pytest.raises(ValueError, match="rounds must be an integer >= 1, got 0"):
        dataclasses.replace(workload, rounds=0)


def test_options_are_copied():
    options = {"mu": 1.0}
    workload = dataclasses.replace(load("digits-mlp"), algorithm_options=options)
    options["mu"] = 2.0
    assert workload.algorithm_options == {"mu": 1.0}


def no_seed():
    return torch.nn.Linear(64, 10)


def more_than_a_seed(width, seed=0):
    return torch.nn.Linear(width, 10)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"name": ""}, ValueError, "name must be a non-empty string"),
        ({"dataset": "digits"}, TypeError, "dataset must be a function of a seed, got str"),
        ({"model": torch.nn.Linear(1, 1).weight}, TypeError, "model must be a function of a seed"),
        ({"model": torch.nn.Linear(1, 1)}, TypeError, "function of a seed, got Linear. Pass the"),
        (
            {"model": torch.nn.ReLU},
            TypeError,
            r"got ReLU\(inplace.*'seed'. Give it a parameter seed=0",
        ),
        ({"model": no_seed}, TypeError, r"got no_seed\(\): .*'seed'. Give it a parameter seed=0"),
        ({"model": more_than_a_seed}, TypeError, "missing a required argument: 'width'. Give it"),
        ({"cohort_size": 0}, ValueError, "cohort_size must be an integer >= 1, got 0"),
        ({"local_epochs": 1.5}, ValueError, "local_epochs must be an integer >= 1, got 1.5"),
        ({"batch_size": True}, ValueError, "batch_size must be an integer >= 1, got True"),
        ({"eval_every": -1}, ValueError, "eval_every must be an integer >= 1, got -1"),
        ({"lr": 0}, ValueError, "lr must be a positive number, got 0"),
        ({"lr": float("nan")}, ValueError, "lr must be a positive number, got nan"),
        ({"lr": "0.1"}, ValueError, "lr must be a positive number, got '0.1'"),
        ({"loss": "hinge"}, UnknownNameError, "'cross_entropy', 'mse', got 'hinge'"),
        ({"algorithm": "fedprx"}, UnknownNameError, "Did you mean 'fedprox'"),
        ({"algorithm_options": [1]}, TypeError, "algorithm_options must be a mapping"),
    ],
)
def test_wrong_fields_are_refused_by_name(change, error, message):
    with pytest.raises(error, match=message):
        dataclasses.replace(load("digits-logreg"), **change)
