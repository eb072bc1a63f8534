"""The generators of the client task that runs in this thread."""

from __future__ import annotations

import random
import threading

import numpy as np
import torch

from fedbench.reproducibility.streams import (
    KeyedSeedSequence,
    fill_torch_generator,
    hash_name,
    numpy_random_state,
    python_random_of,
)

__all__ = ["TaskGenerators", "active"]


class TaskGenerators:
    """The torch, numpy and random generators of one client task, each made at its first use.

    Parameters
    ----------
    name : tuple
        The stream that all of them are filled from; hashed when the first is made.
    outer : TaskGenerators or None
        Those of the scope that is resumed when this one ends.
    """

    __slots__ = ("_name", "_numpy", "_python", "_seeds", "_torch", "outer")

    def __init__(self, name: tuple[int | str | bytes, ...], outer: TaskGenerators | None) -> None:
        self._name = name
        self.outer = outer
        self._torch: torch.Generator | None = None
        self._numpy: np.random.RandomState | None = None
        self._python: random.Random | None = None
        self._seeds: KeyedSeedSequence | None = None

    @property
    def torch(self) -> torch.Generator:
        """What ``torch``'s functions without ``generator=`` draw from; a CPU generator."""
        if self._torch is None:
            self._torch = torch.Generator()
            fill_torch_generator(self._torch, hash_name(self._name))
        return self._torch

    @property
    def numpy(self) -> np.random.RandomState:
        """What the functions of ``numpy.random`` draw from."""
        if self._numpy is None:
            self._numpy = numpy_random_state(hash_name(self._name))
        return self._numpy

    @numpy.setter
    def numpy(self, generator: np.random.RandomState) -> None:
        self._numpy = generator

    @property
    def python(self) -> random.Random:
        """What the functions of ``random`` draw from."""
        if self._python is None:
            self._python = python_random_of(hash_name(self._name))
        return self._python

    def next_numpy_seed(self) -> KeyedSeedSequence:
        """Return the seed of the task's next ``numpy.random.default_rng()``."""
        if self._seeds is None:
            self._seeds = KeyedSeedSequence(hash_name(self._name))
        return self._seeds.spawn(1)[0]


class _Active(threading.local):
    """`generators` is None in threads that run no client task."""

    generators: TaskGenerators | None = None


active = _Active()
