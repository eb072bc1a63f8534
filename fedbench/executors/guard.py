"""Isolation of what tasks read: aligned private copies, and the check that nobody wrote to them.

A task may only read the broadcast, which all tasks of a map share, and owns its item. So that
this holds alike where workers share memory with the caller (``sequential``, ``threads``),
:func:`isolate` copies both. All copies are 64-byte aligned and laid out by one rule
(:func:`kept_strides`), because torch's results depend on both.
"""

from __future__ import annotations

import collections
import copy
import inspect
import math
import operator
import pickle
import random
import types
from collections.abc import Collection, Container, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch

from fedbench._native import POOLED_BYTES, core
from fedbench.errors import BroadcastModifiedError
from fedbench.executors.structure import (
    ATOMS,
    PASSED,
    Copier,
    attributes,
    has_plain_state,
    walk,
)

__all__ = [
    "ALIGNMENT",
    "GENERATORS",
    "Guarded",
    "aligned_bytes",
    "empty_tensor",
    "isolate",
    "kept_strides",
    "named_arrays",
    "storage_of",
]

ALIGNMENT = 64
"""Bytes; what torch's own CPU allocator gives, so fresh and transported tensors are alike."""

GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
"""The random generators that code may hold."""


def aligned_bytes(num_bytes: int) -> memoryview:
    """Return writable memory for new values that starts at a multiple of 64 bytes.

    Large memory comes from the extension's pool: mapping pages anew takes longer than filling them.

    Raises
    ------
    MemoryError
        If there is too little.
    """
    if num_bytes >= POOLED_BYTES:
        try:
            return core.allocate(num_bytes).data
        except MemoryError as error:
            raise MemoryError(f"{num_bytes} bytes of memory are not available") from error
    # Torch's CPU allocator aligns to 64 bytes; numpy's does not on every version.
    with torch.inference_mode(False):
        array: Any = torch.empty(num_bytes, dtype=torch.uint8, device="cpu").numpy()
    return memoryview(array)


def empty_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a CPU tensor without values; a large one is pooled and cannot be resized."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes < POOLED_BYTES:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.frombuffer(aligned_bytes(num_bytes), dtype=dtype).resize_(shape)


def kept_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of a dense copy of a tensor that is not contiguous.

    They keep the tensor's own order of dimensions, without gaps. A contiguous tensor is copied
    with the usual strides, also where a dimension of size one would allow others.
    """
    return torch.empty_like(tensor, device="meta").stride()


def isolate(value: Any) -> Any:
    """Return `value` with everything in it copied that a task could write to.

    A copy is what pickling would make of the original: containers, instances, modules and random
    generators are made anew, tensors and arrays too, and those that share memory exactly stay
    tied. Left out are a :class:`Resident`, and what cannot be pickled, such as a lock, together
    with the instance that holds it; a class with ``__deepcopy__`` decides for itself.
    """
    if type(value) in ATOMS:
        return value
    with torch.inference_mode(False):
        return Copier(_copy_leaf).copy(value)


def named_arrays(
    value: Any, path: str = "broadcast"
) -> Iterator[tuple[str, torch.Tensor | np.ndarray]]:
    """Yield every tensor and array inside of a value with a path that names it.

    They are looked for in containers, modules and instances with plain state.
    """
    for name, part in walk(value, path):
        yield from _arrays_at(name, part)


def _arrays_at(path: str, part: Any) -> Iterator[tuple[str, torch.Tensor | np.ndarray]]:
    if isinstance(part, (torch.Tensor, np.ndarray)):
        yield path, part
    elif isinstance(part, torch.nn.Module):
        for name, tensor in part.state_dict(keep_vars=True).items():
            if isinstance(tensor, torch.Tensor):
                yield f"{path}.{name}", tensor


class _Held:
    """A part of the broadcast and what it held at the start.

    The contents are kept alive, so an entry that was replaced is another object.
    """

    __slots__ = ("attributes", "items", "name", "part")

    def __init__(self, name: str, part: Any) -> None:
        self.name, self.part = name, part
        self.items = _items(part)
        self.attributes = dict(attributes(part)) if has_plain_state(type(part)) else {}

    def __bool__(self) -> bool:
        """Whether anybody could write to the part."""
        return bool(self.attributes) or isinstance(self.part, _WRITABLE)

    def written(self) -> Iterator[str]:
        """Yield the names of what was written to."""
        if not _same(_items(self.part), self.items):
            yield self.name
        if not self.attributes:
            return
        now, before = attributes(self.part), self.attributes
        if _same(now, before) and _same(now.values(), before.values()):
            return
        for name in {**before, **now}:
            if name not in before and _is_lazy(type(self.part), name):
                continue
            if name not in now or name not in before or now[name] is not before[name]:
                yield f"{self.name}.{name}"


_UNHELD = (torch.Tensor, np.ndarray, torch.nn.Module, *PASSED)
"""What is not compared with how it was: tensors are guarded otherwise, and calling a module may
write to its attributes."""
_WRITABLE = (dict, list, set, collections.deque, bytearray, *GENERATORS)


def _items(part: Any) -> list[Any]:
    """Return what a container holds, in order, or the state of a random generator."""
    if isinstance(part, dict):
        return [*part, *part.values()]
    if isinstance(part, (list, set, collections.deque)):
        return list(part)
    if isinstance(part, bytearray):
        return [bytes(part)]
    return [pickle.dumps(part)] if isinstance(part, GENERATORS) else []


def _same(now: Collection[Any], before: Collection[Any]) -> bool:
    return len(now) == len(before) and (
        all(map(operator.is_, now, before))
        or all(a is b or (type(a) is bytes and a == b) for a, b in zip(now, before, strict=True))
    )


def _is_lazy(kind: type, name: str) -> bool:
    """Return whether an attribute is one that its first reader computes and stores.

    As ``functools.cached_property`` does: a descriptor in the class that gives way to it.
    """
    descriptor = inspect.getattr_static(kind, name, None)
    return (
        hasattr(descriptor, "__get__")
        and not hasattr(descriptor, "__set__")
        and not isinstance(descriptor, types.FunctionType)
    )


class Guarded:
    """The broadcast as one worker sees it, with the means to tell that a task wrote to it.

    Parameters
    ----------
    value : object
        A broadcast that belongs to this worker alone, as a transport brings it.
    shared : container of int
        Ids of what does not belong to it nevertheless.
    """

    def __init__(self, value: Any, shared: Container[int] = ()) -> None:
        self.value = value
        self._tensors: list[tuple[str, torch.Tensor, int, bool]] = []
        self._arrays: list[str] = []
        self._storages: set[int] = set()
        self._parts: dict[int, Any] = {}
        self._held: list[_Held] = []
        for path, part in walk(value, "broadcast", shared):
            for name, array in _arrays_at(path, part):
                self._guard_array(name, array)
            if isinstance(part, _UNHELD):
                continue
            self._parts[id(part)] = part
            if held := _Held(path, part):
                self._held.append(held)
        self._storages.discard(0)  # empty tensors all live at address 0

    @classmethod
    def copy_of(cls, broadcast: Any) -> Guarded:
        """Return a worker's own copy of a broadcast that lives in this process."""
        copier = Copier(_copy_leaf)
        with torch.inference_mode(False):
            value = copier.copy(broadcast)
        return cls(value, copier.shared)

    def _guard_array(self, name: str, array: torch.Tensor | np.ndarray) -> None:
        if isinstance(array, np.ndarray):
            # Numpy counts no writes, but it can refuse them.
            array.setflags(write=False)
            self._arrays.append(name)
            self._storages.add(storage_of(array))
        elif array.layout == torch.strided and not array.is_inference():
            self._tensors.append((name, array, array._version, array.requires_grad))
            self._storages.add(storage_of(array))

    def violation(self) -> BroadcastModifiedError | None:
        """Return the error that names the entries written to since the start, if any."""
        changed = [
            name
            for name, tensor, version, requires_grad in self._tensors
            if tensor._version != version
            or tensor.requires_grad is not requires_grad
            or (tensor.is_leaf and tensor.grad is not None)
        ]
        for held in self._held:
            changed += held.written()
        return _modified(changed) if changed else None

    def explain(self, error: BaseException) -> BroadcastModifiedError | None:
        """Return the error to report instead if `error` is numpy's refusal of a write."""
        if self._arrays and isinstance(error, ValueError) and "read-only" in str(error):
            modified = _modified(self._arrays)
            modified.__cause__ = error
            return modified
        return None

    def release(self, result: Any) -> Any:
        """Return `result` with copies in place of what it shares with the broadcast."""
        if type(result) in ATOMS or not self._shares(result):
            return result

        def copy_shared(leaf: Any) -> Any:
            if storage_of(leaf) not in self._storages:
                return leaf
            copied = _copy_leaf(leaf)
            if isinstance(copied, np.ndarray):
                copied.setflags(write=True)  # it was this guard that made it read-only
            return copied

        with torch.inference_mode(False):
            return Copier(copy_shared).copy(result)

    def _shares(self, result: Any) -> bool:
        for path, part in walk(result, ""):
            if id(part) in self._parts:
                return True
            if isinstance(part, (torch.Tensor, np.ndarray)):
                if storage_of(part) in self._storages:
                    return True
            elif isinstance(part, torch.nn.Module):
                arrays = _arrays_at(path, part)
                if any(storage_of(array) in self._storages for _, array in arrays):
                    return True
        return False


def _modified(names: list[str]) -> BroadcastModifiedError:
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return BroadcastModifiedError(
        f"the broadcast must not be written to by a task, got a write to {shown}. "
        "Work on a copy: clone() of a tensor, copy() of an array, dict or list, copy.deepcopy() of "
        "an object or a random generator."
    )


def storage_of(array: torch.Tensor | np.ndarray) -> int:
    """Return the address of the memory that an array is a view of, 0 if it has none."""
    if isinstance(array, np.ndarray):
        while isinstance(array.base, np.ndarray):
            array = array.base
        return int(array.ctypes.data)
    if array.layout != torch.strided or array.device.type == "meta":
        return 0
    return array.untyped_storage().data_ptr()


def _copy_leaf(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        return _copy_array(leaf)
    if type(leaf) is torch.Tensor and leaf.layout == torch.strided:
        if leaf.is_quantized:
            return leaf.clone()  # with its scales
        if leaf.is_contiguous() and leaf.is_cpu:
            copied = empty_tensor(leaf.size(), leaf.dtype)
        elif leaf.is_contiguous():
            copied = torch.empty(leaf.size(), dtype=leaf.dtype, device=leaf.device)
        else:
            copied = torch.empty_strided(
                leaf.size(), kept_strides(leaf), dtype=leaf.dtype, device=leaf.device
            )
        copied.copy_(leaf.detach())
        return copied.requires_grad_(leaf.requires_grad)
    return copy.deepcopy(leaf)  # other subclasses and layouts know how to copy


def _copy_array(array: np.ndarray) -> np.ndarray:
    if array.dtype.hasobject or type(array) is not np.ndarray:
        return copy.deepcopy(array)
    memory = aligned_bytes(array.nbytes)
    order: Literal["C", "F"] = (
        "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    )
    copied = np.ndarray(array.shape, array.dtype, buffer=memory, order=order)
    copied[...] = array
    if array.flags.forc and not array.flags.writeable:
        copied.setflags(write=False)  # as pickling does
    return copied
