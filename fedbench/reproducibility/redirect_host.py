"""Draws from the global generators of ``numpy.random`` and ``random`` come from the task's.

Both modules offer the methods of one hidden object as functions. A stand-in for that object
forwards every call: to the task's generator in a thread that runs a task, to the hidden object
elsewhere.
"""

from __future__ import annotations

import copy
import functools
import random
import threading
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from fedbench.reproducibility.active import active
from fedbench.reproducibility.ledger import ledger

__all__ = ["install_numpy", "install_python"]

_NUMPY = "numpy's global generator"
_PYTHON = "the global generator of random"

_mtrand: Any = np.random.mtrand
_random: Any = random
_global_state: np.random.RandomState = _mtrand._rand
_unredirected_default_rng = np.random.default_rng
_unredirected_set_bit_generator = _mtrand.set_bit_generator
_native_random = Random.random
_native_getrandbits = Random.getrandbits
_swap_lock = threading.Lock()


class _NumpyStandIn(np.random.RandomState):
    """Stands for numpy's global ``RandomState``; its methods are added below."""

    def __reduce__(self) -> Any:
        return _numpy_global, ()

    def __copy__(self) -> np.random.RandomState:
        return copy.copy(_current_numpy())

    def __deepcopy__(self, memo: dict[int, Any]) -> np.random.RandomState:
        return copy.deepcopy(_current_numpy(), memo)


def _numpy_global() -> np.random.RandomState:
    """Return the process's own: what a pickled stand-in becomes in another process."""
    state: np.random.RandomState = _mtrand._rand
    return state


def _current_numpy() -> np.random.RandomState:
    generators = active.generators
    return _global_state if generators is None else generators.numpy


def _numpy_method(name: str) -> Callable[..., Any]:
    outside = getattr(_global_state, name)

    @functools.wraps(getattr(np.random.RandomState, name))
    def method(self: _NumpyStandIn, *args: Any, **kwargs: Any) -> Any:
        generators = active.generators
        if generators is None:
            return ledger.outside(_NUMPY, outside, *args, **kwargs)
        return getattr(generators.numpy, name)(*args, **kwargs)

    return method


@functools.wraps(_unredirected_default_rng)
def _default_rng(seed: Any = None) -> np.random.Generator:
    generators = active.generators
    if seed is None and generators is not None:
        seed = generators.next_numpy_seed()
    return _unredirected_default_rng(seed)


@functools.wraps(_mtrand.get_bit_generator)
def _get_bit_generator() -> Any:
    state: Any = _current_numpy()
    return state._bit_generator


@functools.wraps(_unredirected_set_bit_generator)
def _set_bit_generator(bitgen: Any) -> None:
    generators = active.generators
    if generators is not None:
        generators.numpy = np.random.RandomState(bitgen)
        return
    with _swap_lock:  # numpy's function changes whatever object stands there
        stand_in, _mtrand._rand = _mtrand._rand, _global_state
        try:
            ledger.outside(_NUMPY, _unredirected_set_bit_generator, bitgen)
        finally:
            _mtrand._rand = stand_in


def install_numpy() -> None:
    """Redirect ``numpy.random.*`` of this process, for good.

    ``numpy.random.default_rng()`` without a seed is keyed by the task as well: it would draw its
    seed from the operating system.
    """
    if _mtrand._rand is not _global_state:
        return
    for name in dir(np.random.RandomState):
        if not name.startswith("_") and callable(getattr(_global_state, name)):
            setattr(_NumpyStandIn, name, _numpy_method(name))
    stand_in = _NumpyStandIn()
    for name in dir(np.random):
        if getattr(getattr(np.random, name), "__self__", None) is _global_state:
            setattr(np.random, name, getattr(stand_in, name))
    for name, function in (
        ("default_rng", _default_rng),
        ("get_bit_generator", _get_bit_generator),
        ("set_bit_generator", _set_bit_generator),
    ):
        setattr(np.random, name, function)
    ledger.register(_NUMPY, _numpy_snapshot)
    _mtrand._rand = stand_in  # numpy.random.seed, scikit-learn and scipy look here


def _numpy_snapshot() -> object:
    state: Any = _global_state.get_state(legacy=False)
    return {**state, "state": {k: np.asarray(v).tobytes() for k, v in state["state"].items()}}


def _python_global() -> Random:
    instance: Random = _random._inst
    return instance


def _python_copy(generator: Random) -> Random:
    copied = Random()
    copied.setstate(generator.getstate())
    return copied


class _PythonStandIn(Random):
    """What the hidden instance of ``random`` becomes: aware of tasks in the same object.

    The methods written in Python (``shuffle``, ``sample``, ``gauss``, ...) end in the ones below,
    also where they were imported by name before.
    """

    def random(self) -> float:
        generators = active.generators
        if generators is not None:
            return generators.python.random()
        if ledger.tasks:
            return ledger.outside(_PYTHON, _native_random, self)
        return _native_random(self)  # entering it would cost ten times the draw

    def getrandbits(self, k: int, /) -> int:
        generators = active.generators
        if generators is not None:
            return generators.python.getrandbits(k)
        if ledger.tasks:
            return ledger.outside(_PYTHON, _native_getrandbits, self, k)
        return _native_getrandbits(self, k)

    def seed(self, a: Any = None, version: int = 2) -> None:
        generators = active.generators
        if generators is None:
            ledger.outside(_PYTHON, super().seed, a, version)
        else:
            generators.python.seed(a, version)

    def getstate(self) -> tuple[Any, ...]:
        generators = active.generators
        return super().getstate() if generators is None else generators.python.getstate()

    def setstate(self, state: tuple[Any, ...]) -> None:
        generators = active.generators
        if generators is None:
            ledger.outside(_PYTHON, super().setstate, state)
        else:
            generators.python.setstate(state)

    def __reduce__(self) -> Any:
        return _python_global, ()

    def __copy__(self) -> Random:
        return _python_copy(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Random:
        return _python_copy(self)

    @property
    def gauss_next(self) -> float | None:
        """The second of a pair of normal variates, which ``gauss`` keeps for its next call."""
        generators = active.generators
        owner = self if generators is None else generators.python
        value: float | None = owner.__dict__["gauss_next"]
        return value

    @gauss_next.setter
    def gauss_next(self, value: float | None) -> None:
        generators = active.generators
        if generators is None:
            ledger.outside(_PYTHON, self.__dict__.__setitem__, "gauss_next", value)
        else:
            generators.python.__dict__["gauss_next"] = value


def install_python() -> None:
    """Redirect ``random.*`` of this process, for good."""
    instance: Any = _random._inst
    if isinstance(instance, _PythonStandIn):
        return
    ledger.register(_PYTHON, functools.partial(Random.getstate, instance))
    instance.__class__ = _PythonStandIn
    for name in ("random", "getrandbits", "seed", "getstate", "setstate"):
        setattr(random, name, getattr(instance, name))
