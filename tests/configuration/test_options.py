"""The options of simulations, from YAML, flags and variables."""

import dataclasses

import pytest
import torch

from fedbench.configuration import load, make_simulation
from fedbench.configuration.options import OPTION_KEYS
from fedbench.configuration.yaml_text import dump
from fedbench.errors import ConfigurationError
from fedbench.simulation import Lognormal, SimulationOptions, TopK, Weighted
from fedbench.training import Step

BASE = {"workload": "digits-logreg", "num_clients": 6, "partitioner": "iid", "cohort_size": 3}
HERE = __name__


def halved(round_index):
    return 0.5**round_index


def own_training(model, data, rng):
    return 0.25


class Slow(Lognormal):
    """A class of the user's."""


def options_of(**keys):
    plan = load({**BASE, **keys}, environ={})
    assert load(plan.to_plain(), environ={}).to_plain() == plan.to_plain()
    return make_simulation(plan.runs[0].configuration).options


def test_every_option_of_a_simulation_is_a_key():
    assert {field.name for field in dataclasses.fields(SimulationOptions)} == set(OPTION_KEYS)


def test_yaml_says_what_python_says(tmp_path):
    file = tmp_path / "run.yaml"
    keys = {
        "participation": {"name": "weighted", "weights": [1, 2, 3, 4, 5, 6]},
        "client_dropout": 0.1,
        "stragglers": {"name": "lognormal", "deadline": 2.0},
        "schedule": {"name": "step", "every": 3},
        "clip_norm": 1.0,
        "clip_value": 0.5,
        "drop_last": True,
        "buffers": "local",
        "integers": "sum",
        "frozen": ["*.bias"],
        "compression": {"name": "top_k", "fraction": 0.1},
        "validation": 0.2,
        "evaluate_clients": "all",
    }
    file.write_text(dump({**BASE, **keys}))
    (run,) = load(file, environ={}).runs
    assert make_simulation(run.configuration).options == SimulationOptions(
        participation=Weighted([1, 2, 3, 4, 5, 6]),
        client_dropout=0.1,
        stragglers=Lognormal(2.0),
        schedule=Step(3),
        clip_norm=1.0,
        clip_value=0.5,
        drop_last=True,
        buffers="local",
        integers="sum",
        frozen=["*.bias"],
        compression=TopK(0.1),
        validation=0.2,
        evaluate_clients="all",
    )


def test_flags_and_variables():
    plan = load(
        BASE,
        environ={"FEDBENCH_CLIENT_DROPOUT": "0.25", "FEDBENCH_SCHEDULE": "exponential"},
        flags={"personal": "['*.bias']", "compression": "{name: quantized, stochastic: false}"},
    )
    options = make_simulation(plan.runs[0].configuration).options
    assert options.client_dropout == 0.25
    assert options.schedule(1) == 0.99
    assert options.personal == ("*.bias",)
    assert options.compression.stochastic is False


def test_options_of_parts_can_be_swept():
    matrix = {"compression.fraction": [0.1, 0.5], "client_dropout": [0.0, 0.5]}
    plan = load({**BASE, "compression": "top_k", "matrix": matrix}, environ={})
    found = [make_simulation(run.configuration).options for run in plan.runs]
    assert [(o.compression.fraction, o.client_dropout) for o in found] == [
        (0.1, 0.0),
        (0.1, 0.5),
        (0.5, 0.0),
        (0.5, 0.5),
    ]


def test_own_code_is_named():
    schedule = options_of(schedule=f"{HERE}:halved").schedule
    assert schedule is halved or schedule(2) == 0.25
    options = options_of(
        train=f"{HERE}:own_training",
        stragglers={"name": f"{HERE}:Slow", "deadline": 3.0},
    )
    assert options.train(None, None, None) == 0.25
    assert options.stragglers.deadline == 3.0
    betas = options_of(optimizer={"name": "adam", "betas": [0.5, 0.9]}).optimizer
    (group,) = betas([torch.nn.Parameter(torch.zeros(1))], 0.1).param_groups
    assert group["betas"] == (0.5, 0.9)
    assert options_of(optimizer="torch.optim:Adam").optimizer is torch.optim.Adam


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"participation": "trace"}, "participation.available is missing"),
        ({"participation": {"name": "trace", "available": "none.csv"}}, "a readable file"),
        ({"stragglers": {"name": "lognormal", "deadline": 0}}, "deadline must be a finite number"),
        ({"schedule": "cosinus"}, "Did you mean 'cosine'"),
        ({"schedule": {"name": f"{HERE}:halved", "by": 3}}, "must be a class to have options"),
        ({"optimizer": {"name": "adam", "betas": [0.5]}}, "optimizer.betas must be"),
        ({"optimizer": {"name": "adam", "beta": 1}}, "unknown option 'beta'.*'betas'"),
        ({"train": "own_training"}, "train must be"),
        ({"train": f"{HERE}:nothing"}, "has no 'nothing'"),
        ({"compression": {"name": "top_k", "fraction": "all"}}, "compression.fraction must be"),
        ({"buffers": "mean"}, "buffers must be one of 'average' or 'local'"),
        ({"frozen": "*.bias"}, "frozen must be a list"),
        ({"client_dropout": 1.0}, "client_dropout must be less than 1"),
        ({"evaluate_clients": "some"}, "evaluate_clients must be one of"),
        ({"algorithm": "apfl", "personal": ["*.bias"]}, "personal must be left out with APFL"),
    ],
)
def test_wrong_options_are_refused_where_they_are(keys, words):
    with pytest.raises(ConfigurationError, match=words):
        load({**BASE, **keys}, environ={})
