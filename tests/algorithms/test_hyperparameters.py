"""Every hyperparameter is checked, and the message names it."""

import dataclasses
import math
from typing import ClassVar

import numpy as np
import pytest

from fedbench.algorithms import ALGORITHMS, hyperparameter, make_algorithm
from fedbench.algorithms.fedavg import FedAvg

FIELDS = [
    (name, field.name, field.default)
    for name in ALGORITHMS
    for field in ALGORITHMS.load(name).options()
    # The model knows its layers, so this one is checked against it.
    if (name, field.name) != ("fedcr", "head")
]
DEFAULTS = {
    "fedavg": {"weighting": "samples"},
    "fedprox": {"mu": 0.01},
    "fedavgm": {"momentum": 0.9, "server_lr": 1.0, "nesterov": False},
    "fedadagrad": {"beta1": 0.0, "tau": 1e-3},
    "fedyogi": {"beta1": 0.9, "beta2": 0.99, "tau": 1e-3},
    "fedadam": {"beta1": 0.9, "beta2": 0.99, "tau": 1e-3},
    "scaffold": {"server_lr": 1.0, "option": "II"},
    "feddr": {"alpha": 1.95, "regularizer": "none"},
    "feddc": {"drift": "paper", "weighting": "samples"},
    "apfl": {"tau": 1, "adaptive": False, "chain_factor": True},
    "pfedme": {"lam": 15.0, "beta": 1.0, "outer_steps": 20},
    "pfedmac": {"sparsity": 0.0, "beta": 1.0},
    "fpfc": {"rho": 1.0, "a": 3.7, "xi": 1e-4},
    "fedcr": {"beta": 0.001, "samples": 15, "divergence": "prior-encoder", "weighting": "uniform"},
}


def wrong_values(default):
    if isinstance(default, bool):
        return ["a", 1, None]
    if isinstance(default, str):
        return ["a", 1, None]
    if isinstance(default, int):
        return ["a", -1, 1.5, True, None, math.nan]
    return ["a", None, True, math.nan, math.inf, -math.inf, [1.0]]


@pytest.mark.parametrize(("algorithm", "field", "default"), FIELDS)
def test_wrong_values_are_refused_by_name(algorithm, field, default):
    for value in wrong_values(default):
        with pytest.raises((TypeError, ValueError)) as caught:
            make_algorithm(algorithm, **{field: value})
        message = str(caught.value)
        assert message.startswith(f"{field} must be "), message
        assert f"got {value!r}" in message
        assert f"The default is {default!r}." in message


@pytest.mark.parametrize(("algorithm", "field", "default"), FIELDS)
def test_the_default_may_be_given(algorithm, field, default):
    given = make_algorithm(algorithm, **{field: default})
    assert given == make_algorithm(algorithm)
    assert repr(default) in repr(given)


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_are_those_of_the_papers(name):
    algorithm = make_algorithm(name)
    assert {key: getattr(algorithm, key) for key in DEFAULTS[name]} == DEFAULTS[name]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fedprox", {"mu": -0.1}, "mu must be finite and >= 0, got -0.1"),
        ("fedprox", {"mu": "a"}, "mu must be a number, got 'a'"),
        ("fedavgm", {"momentum": 1.0}, "momentum must be finite and >= 0 and < 1, got 1.0"),
        ("fedadam", {"beta2": 1.01}, "beta2 must be finite and >= 0 and <= 1, got 1.01"),
        ("scaffold", {"option": "III"}, "option must be one of 'I', 'II', got 'III'"),
        ("feddyn", {"alpha": 0}, "alpha must be finite and > 0, got 0"),
        ("proxskip", {"p": 0.0}, "p must be finite and > 0 and <= 1, got 0.0"),
        ("fedpd", {"skip": 1}, "skip must be finite and >= 0 and < 1, got 1"),
        ("ifca", {"clusters": 0}, "clusters must be >= 1, got 0"),
        ("ifca", {"clusters": 2.0}, "clusters must be an integer, got 2.0"),
        ("fpfc", {"a": 1.5, "rho": 1.0}, r"a must satisfy \(a - 1\) \* rho > 1, got a=1.5"),
        ("fedcr", {"ema": 1.0}, "ema must be finite and >= 0 and < 1, got 1.0"),
    ],
)
def test_ranges(name, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make_algorithm(name, **options)


def test_numbers_of_numpy_are_numbers():
    assert make_algorithm("fedprox", mu=np.float64(0.5)).mu == 0.5


class Naive(FedAvg):
    """Its decorator was forgotten."""

    beta: float = 0.9


class NaiveField(FedAvg):
    beta: float = hyperparameter(0.9, low=0)


@dataclasses.dataclass(frozen=True)
class OfNaive(Naive):
    gamma: float = 1.0


@pytest.mark.parametrize("kind", [Naive, NaiveField, OfNaive])
def test_a_forgotten_dataclass_decorator_is_named(kind):
    forgotten = kind if kind is not OfNaive else Naive
    message = (
        rf"^{forgotten.__name__} must be a dataclass to have the hyperparameter 'beta', got a "
        r"class without the decorator. Put @dataclass\(frozen=True\) above it\.$"
    )
    with pytest.raises(TypeError, match=message):
        kind()
    with pytest.raises(TypeError, match=message):
        kind(beta=1.0)
    with pytest.raises(TypeError, match=message):
        kind.options()


def test_a_subclass_that_declares_no_hyperparameter_needs_no_decorator():
    class Plain(FedAvg):
        stateful: ClassVar[bool] = True
        _private: int = 3

    assert Plain("uniform").weighting == "uniform"
    assert [field.name for field in Plain.options()] == ["weighting"]
