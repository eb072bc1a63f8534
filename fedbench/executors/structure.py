"""The structure of values: what containers and instances hold, and copies of the whole.

Pickling decides what a copy is, so that a task sees the same on every backend, with processes and
without: an instance is taken apart and put together by its own reduction.
"""

from __future__ import annotations

import collections
import copy
import copyreg
import dataclasses
import enum
import types
from collections.abc import Callable, Container, Iterator
from typing import Any

import numpy as np
import torch

from fedbench.executors.resident import Resident

__all__ = ["ATOMS", "PASSED", "Copier", "attributes", "has_plain_state", "walk"]

ATOMS = frozenset({int, float, str, bytes, bool, type(None), complex})
"""Types of values that nobody can write to and that hold nothing."""

PASSED = (type, types.FunctionType, types.ModuleType, enum.Enum, np.generic, np.dtype, Resident)
"""What is passed on as it is: it pickles by name, cannot be written to, or must not be."""

_CLOSED = (torch.Tensor, torch.nn.Module, *PASSED)
"""What holds nothing, or no more than tensors."""
_CONTAINERS = (dict, list, tuple, set, frozenset)
_PLAIN_REDUCTIONS = (object.__reduce__, types.SimpleNamespace.__reduce__)
_getstate: Callable[[Any], Any] = object.__getstate__


def has_plain_state(kind: Any) -> bool:
    """Return whether instances of a class are pickled as their attributes, whatever these are."""
    return (
        kind.__reduce_ex__ is object.__reduce_ex__
        and kind.__reduce__ in _PLAIN_REDUCTIONS
        and kind.__getstate__ is _getstate
    )


def attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an instance by name, those in slots included; not to be changed."""
    state = _getstate(value)
    if isinstance(state, tuple):
        own, slots = state
        return {**(own or {}), **slots}
    return state or {}


def walk(value: Any, path: str, known: Container[int] = ()) -> Iterator[tuple[str, Any]]:
    """Yield `value` and what it holds, at any depth, each with a path that names it.

    Goes into containers and into instances with plain state, once into each. Tensors and arrays
    are yielded wherever they are met; atoms inside of others are left out.

    Parameters
    ----------
    value : object
        Where to begin.
    path : str
        Its name.
    known : container of int
        Ids of what is left out with everything inside.
    """
    seen: set[int] = set()
    waiting = [(path, value)]
    while waiting:
        path, part = waiting.pop()
        if not isinstance(part, (torch.Tensor, np.ndarray)):
            if id(part) in seen or id(part) in known:
                continue
            seen.add(id(part))
        yield path, part
        if not isinstance(part, _CLOSED):
            waiting.extend(reversed(list(_children(part, path))))


def _children(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield what a value holds itself apart from atoms, each with its path."""
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            for place in np.ndindex(value.shape):
                yield f"{path}{list(place)}", value[place]
        return
    if isinstance(value, dict):
        for key, child in value.items():
            if type(child) not in ATOMS:
                yield f"{path}[{key!r}]", child
            if type(key) not in ATOMS:
                yield f"{path}.keys()", key
    elif isinstance(value, (list, tuple, collections.deque)):
        for position, child in enumerate(value):
            if type(child) not in ATOMS:
                yield f"{path}[{position}]", child
    elif isinstance(value, (set, frozenset)):
        for child in value:
            if type(child) not in ATOMS:
                yield f"{path}{{...}}", child
    if has_plain_state(type(value)):
        for name, child in attributes(value).items():
            if type(child) not in ATOMS:
                yield f"{path}.{name}", child
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield f"{path}.{field.name}", getattr(value, field.name, None)


class Copier:
    """Makes copies that share nothing with the originals, and that are tied as these are.

    Parameters
    ----------
    copy_leaf : callable
        Copies a tensor or an array.
    """

    def __init__(self, copy_leaf: Callable[[Any], Any]) -> None:
        self.shared: dict[int, Any] = {}
        """What cannot be pickled and is therefore not copied, by id."""
        self._copy_leaf = copy_leaf
        self._copies: dict[int, Any] = {}
        self._views: dict[Any, Any] = {}
        self._kept: list[Any] = []  # holding the originals keeps their ids and addresses taken
        self._num_shared = 0

    def copy(self, value: Any) -> Any:
        """Return a copy of `value`, the same one whenever it is met again."""
        kind = type(value)
        if kind in ATOMS:
            return value
        key = id(value)
        if key in self._copies:
            self._num_shared += key in self.shared
            return self._copies[key]
        if kind is dict or kind is collections.OrderedDict:
            copied: Any = kind()
            self._remember(value, copied)  # before the contents, which may hold it
            for name, child in value.items():
                key = name if type(name) in ATOMS else self.copy(name)
                copied[key] = child if type(child) in ATOMS else self.copy(child)
            if kind is not dict and value.__dict__:  # such as the version in a state dict of torch
                copied.__dict__.update(self.copy(value.__dict__))
            return copied
        if kind is list:
            copied = []
            self._remember(value, copied)
            for child in value:
                copied.append(child if type(child) in ATOMS else self.copy(child))
            return copied
        if kind is tuple:
            children = [child if type(child) in ATOMS else self.copy(child) for child in value]
            copied = self._copies.get(key) or tuple(children)  # there if the contents hold it
        elif kind is torch.Tensor:
            copied = self._copy_tensor(value)
        elif isinstance(value, PASSED):
            return value
        elif isinstance(value, np.ndarray):
            copied = self._copy_array(value)
        elif isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
            copied = self._copy_leaf(value)
        elif hasattr(kind, "__deepcopy__") and not isinstance(value, torch.nn.Parameter):
            copied = copy.deepcopy(value, self._copies)
        else:
            copied = self._put_together(value, kind)
        self._remember(value, copied)
        return copied

    def _remember(self, value: Any, copied: Any) -> None:
        self._copies[id(value)] = copied
        self._kept.append(value)

    def _copy_tensor(self, tensor: torch.Tensor) -> Any:
        if tensor.layout != torch.strided or not tensor.numel():
            return self._copy_leaf(tensor)
        # Two tensors that are the same view of one memory stay tied.
        view = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        key = (*view, tensor.requires_grad)
        if key not in self._views:
            self._views[key] = self._copy_leaf(tensor)
        return self._views[key]

    def _copy_array(self, array: np.ndarray) -> Any:
        if array.dtype != object or type(array) is not np.ndarray:
            return self._copy_leaf(array)
        copied = self._copies[id(array)] = array.copy()
        for place in np.ndindex(array.shape):
            copied[place] = self.copy(array[place])
        return copied

    def _put_together(self, value: Any, kind: Any) -> Any:
        """Return an instance that is made as unpickling would make it, or `value` itself."""
        plain = has_plain_state(kind)
        if plain and hasattr(kind, "__del__"):
            return self._pass(value)  # the end of a copy would release what the original holds
        # Whatever pickling raises, code of the user's included, means that it is not pickled.
        try:
            reduce = copyreg.dispatch_table.get(kind)
            reduction = value.__reduce_ex__(4) if reduce is None else reduce(value)
        except RecursionError:
            raise
        except Exception:  # noqa: BLE001
            return self._pass(value)
        if isinstance(reduction, str):  # the name of a global
            return value
        self._kept.append(reduction)
        make, arguments, state, items, pairs, setter = (*reduction, *[None] * 4)[:6]
        num_shared = self._num_shared
        arguments = [self.copy(argument) for argument in arguments]
        if id(value) in self._copies:  # the arguments hold it
            return self._copies[id(value)]
        try:
            copied = make(*arguments)
        except RecursionError:
            raise
        except Exception:  # noqa: BLE001
            return self._pass(value)
        if copied is value:  # there is one only
            return value
        self._copies[id(value)] = copied
        items = [self.copy(item) for item in items or ()]
        pairs = [(self.copy(name), self.copy(child)) for name, child in pairs or ()]
        if plain and type(state) is dict:
            # What copy() would do, with fewer calls inside of each other.
            filled = {}
            for name, child in state.items():
                filled[name] = child if type(child) in ATOMS else self.copy(child)
            state = filled
        else:
            state = self.copy(state)
        try:
            _fill(copied, state, items, pairs, setter)
        except RecursionError:
            raise
        except Exception:  # noqa: BLE001
            return self._pass(value)
        if self._num_shared > num_shared and not (
            isinstance(value, _CONTAINERS) or dataclasses.is_dataclass(value)
        ):
            # A queue or an event with locks of its own, say, which a copy would fall apart from.
            return self._pass(value)
        return copied

    def _pass(self, value: Any) -> Any:
        self.shared[id(value)] = value
        self._num_shared += 1
        return value


def _fill(copied: Any, state: Any, items: list[Any], pairs: list[Any], setter: Any) -> None:
    """Give an instance its contents, in the order of unpickling."""
    for item in items:
        copied.append(item)
    for name, child in pairs:
        copied[name] = child
    if state is None:
        return
    # Looked for in the class: a __getattr__ that forwards would ask for what is not there yet.
    set_state = setter or getattr(type(copied), "__setstate__", None)
    if set_state is not None:
        set_state(copied, state)
        return
    slots = None
    if isinstance(state, tuple) and len(state) == 2:
        state, slots = state
    if state:
        copied.__dict__.update(state)
    for name, child in (slots or {}).items():
        object.__setattr__(copied, name, child)
