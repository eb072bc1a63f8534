"""Isolation of what tasks read: aligned private copies, and the check that nobody wrote to them.

A task may only read the broadcast, which all tasks of a map share, and owns its item. So that
this holds alike where workers share memory with the caller (``sequential``, ``threads``),
:func:`isolate` copies the tensors and mutable containers of both. All copies are 64-byte aligned
and laid out by one rule (:func:`kept_strides`), because torch's results depend on both.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch

from fedbench._native import POOLED_BYTES, core
from fedbench.errors import BroadcastModifiedError

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

_ATOMS = (int, float, str, bytes, bool, type(None), complex)


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
    """Return `value` with its tensors, arrays, random generators and mutable containers copied.

    Follows dict, list, tuple, set and dataclass instances and their subclasses as far as these
    copy like their base; a module is deep-copied; other objects are passed as they are. Tensors
    that share memory exactly stay tied in the copy.
    """
    if type(value) in _ATOMS:
        return value
    with torch.inference_mode(False):
        return _rebuild(value, _copy_leaf, {})


def named_arrays(
    value: Any, path: str = "broadcast"
) -> Iterator[tuple[str, torch.Tensor | np.ndarray]]:
    """Yield every tensor and array inside containers and modules with a path that names it."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        yield path, value
    elif isinstance(value, torch.nn.Module):
        for name, tensor in value.state_dict(keep_vars=True).items():
            if isinstance(tensor, torch.Tensor):
                yield f"{path}.{name}", tensor
    else:
        for name, child in _named_children(value, path):
            yield from named_arrays(child, name)


def _named_children(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield what a dict, list, tuple or dataclass instance holds, each with its path."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield f"{path}[{key!r}]", child
    elif isinstance(value, (list, tuple)):
        for position, child in enumerate(value):
            yield f"{path}[{position}]", child
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield f"{path}.{field.name}", getattr(value, field.name, None)


def _contents(container: Any) -> list[Any]:
    """Return what a mutable container holds, in order, or the state of a random generator."""
    if isinstance(container, GENERATORS):
        return [pickle.dumps(container)]
    if isinstance(container, dict):
        return [part for pair in container.items() for part in pair]
    return list(container)


def _named_containers(value: Any, path: str = "broadcast") -> Iterator[tuple[str, Any]]:
    """Yield every dict, list, set and random generator inside containers with its path."""
    if isinstance(value, (dict, list, set, *GENERATORS)):
        yield path, value
    for name, child in _named_children(value, path):
        if type(child) not in _ATOMS:
            yield from _named_containers(child, name)


class Guarded:
    """The broadcast as one worker sees it, with the means to tell that a task wrote to it.

    Parameters
    ----------
    value : object
        A broadcast that belongs to this worker alone (from :func:`isolate` or a transport).
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        self._tensors: list[tuple[str, torch.Tensor, int, bool]] = []
        self._arrays: list[str] = []
        self._storages: set[int] = set()
        for name, array in named_arrays(value):
            if isinstance(array, np.ndarray):
                # Numpy counts no writes, but it can refuse them.
                array.setflags(write=False)
                self._arrays.append(name)
                self._storages.add(storage_of(array))
            elif array.layout == torch.strided and not array.is_inference():
                self._tensors.append((name, array, array._version, array.requires_grad))
                self._storages.add(storage_of(array))
        self._storages.discard(0)  # empty tensors all live at address 0
        # The contents are held, so an entry that was replaced is another object.
        self._containers = [(n, held, _contents(held)) for n, held in _named_containers(value)]

    def violation(self) -> BroadcastModifiedError | None:
        """Return the error that names the entries written to since the start, if any."""
        changed = [
            name
            for name, tensor, version, requires_grad in self._tensors
            if tensor._version != version
            or tensor.requires_grad is not requires_grad
            or (tensor.is_leaf and tensor.grad is not None)
        ]
        for name, container, before in self._containers:
            now = _contents(container)
            if len(now) != len(before) or any(
                a is not b and not (type(a) is bytes and a == b)
                for a, b in zip(now, before, strict=True)
            ):
                changed.append(name)
        return _modified(changed) if changed else None

    def explain(self, error: BaseException) -> BroadcastModifiedError | None:
        """Return the error to report instead if `error` is numpy's refusal of a write."""
        if self._arrays and isinstance(error, ValueError) and "read-only" in str(error):
            modified = _modified(self._arrays)
            modified.__cause__ = error
            return modified
        return None

    def release(self, result: Any) -> Any:
        """Return `result` with copies in place of the tensors that it shares with the broadcast."""
        if type(result) in _ATOMS or not any(
            storage_of(array) in self._storages for _, array in named_arrays(result)
        ):
            return result

        def copy_shared(leaf: Any) -> Any:
            return _copy_leaf(leaf) if storage_of(leaf) in self._storages else leaf

        with torch.inference_mode(False):
            return _rebuild(result, copy_shared, {})


def _modified(names: list[str]) -> BroadcastModifiedError:
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return BroadcastModifiedError(
        f"the broadcast must not be written to by a task, got a write to {shown}. "
        "Work on a copy: clone() of a tensor, copy() of an array, dict or list, copy.deepcopy() of "
        "a random generator."
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
    return copy.deepcopy(leaf)  # parameters, other subclasses and layouts know how to copy


def _copy_array(array: np.ndarray) -> np.ndarray:
    if array.dtype.hasobject or type(array) is not np.ndarray:
        return copy.deepcopy(array)
    memory = aligned_bytes(array.nbytes)
    order: Literal["C", "F"] = (
        "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    )
    copied = np.ndarray(array.shape, array.dtype, buffer=memory, order=order)
    copied[...] = array
    return copied


def _rebuild(value: Any, copy_leaf: Callable[[Any], Any], memo: dict[Any, Any]) -> Any:
    """Return a structural copy of `value` with ``copy_leaf`` applied to tensors and arrays."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    key = _identity(value)
    if key in memo:
        return memo[key][1]
    copied: Any
    if isinstance(value, (torch.Tensor, np.ndarray)):
        copied = copy_leaf(value)
    elif isinstance(value, (torch.nn.Module, *GENERATORS)):
        copied = copy.deepcopy(value)
    elif isinstance(value, dict):
        copied = copy.copy(value)  # keeps the subclass: OrderedDict, defaultdict, ...
        memo[key] = (value, copied)  # before the contents, which may hold it
        for name, child in value.items():
            copied[name] = _rebuild(child, copy_leaf, memo)
    elif isinstance(value, list):
        copied = copy.copy(value)
        memo[key] = (value, copied)
        copied[:] = [_rebuild(child, copy_leaf, memo) for child in value]
    elif isinstance(value, tuple):
        children = [_rebuild(child, copy_leaf, memo) for child in value]
        copied = kind(*children) if hasattr(value, "_fields") else kind(children)
    elif isinstance(value, set):
        copied = copy.copy(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        copied = copy.copy(value)
        memo[key] = (value, copied)
        for field in dataclasses.fields(value):
            if hasattr(value, field.name):
                child = _rebuild(getattr(value, field.name), copy_leaf, memo)
                object.__setattr__(copied, field.name, child)
    else:
        copied = value
    memo[key] = (value, copied)  # holding the original keeps its identity taken
    return copied


def _identity(value: Any) -> Any:
    """Return a key that two tensors share exactly when they are the same view of one memory."""
    if type(value) is torch.Tensor and value.layout == torch.strided and value.numel():
        return (value.data_ptr(), value.dtype, value.shape, value.stride(), value.requires_grad)
    return id(value)
