"""Equal parts have equal texts, different ones have not."""

import functools
import subprocess
import sys

import numpy as np
import pytest
import torch

from fedbench.training import described, resolve_optimizer


class Warm:
    def __init__(self, rounds):
        self.rounds = rounds

    def __call__(self, round_index):
        return 1.0

    def half(self, round_index):
        return 0.5


class Slotted:
    __slots__ = ("rounds",)

    def __init__(self, rounds):
        self.rounds = rounds


class Named:
    def identity(self):
        return "Named(by itself)"


def closing_over(value):
    return lambda round_index: value


def itself():
    def inner():
        return inner

    return inner


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (np.float32(0.5), 0.5),
        ([0.9, 1], (0.9, 1.0)),
        ({"a": 1, "b": 2}, {"b": 2.0, "a": 1.0}),
        ({"x", "y", "z"}, frozenset({"z", "y", "x"})),
        (Warm(3), Warm(3.0)),
        (Warm(3).half, Warm(3).half),
        (Slotted(2), Slotted(2)),
        (closing_over(2), closing_over(2.0)),
        (closing_over(closing_over(2)), closing_over(closing_over(2))),
        (itself(), itself()),
        (torch.ones(3), np.ones(3, np.float32)),
        (functools.partial(print, sep="", end=""), functools.partial(print, end="", sep="")),
        (resolve_optimizer("adam"), resolve_optimizer(torch.optim.Adam)),
        (
            resolve_optimizer({"name": "adam", "eps": 1, "betas": [0.9, 0.99]}),
            resolve_optimizer({"betas": (0.9, 0.99), "eps": 1.0, "name": "adam"}),
        ),
    ],
)
def test_equal_parts_have_one_text(one, other):
    assert described(one) == described(other)
    assert " at 0x" not in described(one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, "1"),
        (Warm(3), Warm(4)),
        (Warm(3).half, Warm(4).half),
        (Slotted(2), Slotted(3)),
        (lambda index: 1.0, lambda index: 0.1),
        (lambda index: min(index, 1), lambda index: max(index, 1)),
        (lambda index: lambda: 1, lambda index: lambda: 2),
        (lambda index, end=1: end, lambda index, end=2: end),
        (closing_over(2), closing_over(3)),
        (torch.zeros(5000), torch.arange(5000) / 1e9),
        ([0.5] * 900, [0.5] * 901),
        (functools.partial(print, sep=" "), functools.partial(print, sep="")),
    ],
)
def test_different_parts_have_different_texts(one, other):
    assert described(one) != described(other)


def test_functions_with_a_name_are_that_name_and_parts_may_name_themselves():
    assert described(closing_over) == f"{__name__}:closing_over"
    assert described(Named()) == "Named(by itself)"
    assert described(Named) == f"{__name__}:Named"


def test_the_text_is_the_same_in_every_process():
    program = (
        "from fedbench.training import described\n"
        "print(described(lambda name: name in {'a', 'bc', 'def', 'ghij'}))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1
