"""What a server or client object holds, by path, and who shares which memory with whom."""

from __future__ import annotations

import io
import logging
import pickle
import random
import threading
import types
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from fedbench.executors.guard import GENERATORS, storage_of
from fedbench.reproducibility import digest

__all__ = [
    "PLAIN",
    "Memory",
    "Snapshot",
    "arrays_in",
    "is_array",
    "memory_of",
    "overlap",
    "random_state_of",
    "restore_random_state",
    "walk",
    "without_messages",
]

Memory = tuple[str, int]
"""What identifies memory: two things with the same may be the same memory."""

PLAIN = (int, float, complex, str, bytes, bool, type(None), np.generic)
_LEFT_OUT = ("dataset", "_clients")  # the clients are walked on their own
_MODULES = ("asyncio", "concurrent", "logging", "multiprocessing", "tqdm")
_OPAQUE = (
    logging.Logger,
    logging.Handler,
    threading.Thread,
    io.IOBase,
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    torch.device,
    torch.dtype,
)


def is_array(value: Any) -> bool:
    """Return whether `value` is a tensor or a numpy array of plain values."""
    if isinstance(value, Tensor):
        return value.layout == torch.strided and value.device.type != "meta"
    return isinstance(value, np.ndarray) and not value.dtype.hasobject


def walk(root: Any, others: Container[int] = ()) -> Iterator[tuple[str, Any]]:
    """Yield everything that `root` holds, once each, with the path that names it.

    Follows attributes, containers, modules (parameters, buffers, gradients, modes), optimizers,
    loaders and generators. An attribute ``dataset``, loggers, functions, open files and the objects
    in `others` are left out; a torch data set is not entered.

    Parameters
    ----------
    root : object
        A server, a client, or a message.
    others : container of int
        ``id`` of every server and client: none of them belongs to another.
    """
    return _Walk(others).enter(root, "")


class _Walk:
    def __init__(self, others: Container[int]) -> None:
        self._others = others
        self._seen: dict[int, Any] = {}  # holds what it has seen, so that no id is used twice

    def visit(self, value: Any, path: str) -> Iterator[tuple[str, Any]]:
        if isinstance(value, PLAIN):
            yield path, value
            return
        if not self._is_opaque(value):
            yield from self.enter(value, path)

    def enter(self, value: Any, path: str) -> Iterator[tuple[str, Any]]:
        self._seen[id(value)] = value
        yield path, value
        if isinstance(value, Tensor):
            if value.is_leaf and value.grad is not None:
                yield from self.visit(value.grad, f"{path}.grad")
        elif isinstance(value, nn.Module):
            yield from self._module(value, path)
        elif isinstance(value, Optimizer):
            yield from self._optimizer(value, path)
        elif isinstance(value, Dataset):
            return
        elif isinstance(value, DataLoader):
            yield from self.visit(value.dataset, f"{path}.dataset")
            yield from self.visit(value.generator, f"{path}.generator")
            yield from self.visit(
                getattr(value.sampler, "generator", None), f"{path}.sampler.generator"
            )
        elif isinstance(value, Mapping):
            for key, entry in value.items():
                yield from self.visit(entry, f"{path}[{key!r}]")
        elif isinstance(value, list | tuple):
            for index, entry in enumerate(value):
                yield from self.visit(entry, f"{path}[{index}]")
        elif not isinstance(value, GENERATORS) and not is_array(value):
            for name, entry in getattr(value, "__dict__", {}).items():
                if name not in _LEFT_OUT and "logger" not in name:
                    yield from self.visit(entry, f"{path}.{name}".lstrip("."))

    def _is_opaque(self, value: Any) -> bool:
        return (
            id(value) in self._seen
            or id(value) in self._others
            or isinstance(value, _OPAQUE)
            or type(value).__module__.partition(".")[0] in _MODULES
        )

    def _module(self, module: nn.Module, path: str) -> Iterator[tuple[str, Any]]:
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            yield from self.visit(tensor, f"{path}.{name}")
        for name, part in module.named_modules():
            inner = f"{path}.{name}" if name else path
            for attribute, value in vars(part).items():
                if not attribute.startswith("_"):
                    yield from self.visit(value, f"{inner}.{attribute}")

    def _optimizer(self, optimizer: Optimizer, path: str) -> Iterator[tuple[str, Any]]:
        for number, group in enumerate(optimizer.param_groups):
            for name, value in group.items():
                if name != "params":
                    yield from self.visit(value, f"{path}.param_groups[{number}][{name!r}]")
            for index, parameter in enumerate(group["params"]):
                if parameter in optimizer.state:
                    yield from self.visit(
                        optimizer.state[parameter], f"{path}.state[{number}, {index}]"
                    )


def memory_of(value: Any) -> Memory | None:
    """Return what identifies the memory that writing to `value` changes, None if there is none."""
    if isinstance(value, np.ndarray | Tensor):
        address = 0 if 0 in value.shape else storage_of(value)
        return ("array", address) if address else None
    # The parts of these are visited on their own; data sets may fill themselves when read.
    if isinstance(value, (*PLAIN, tuple, nn.Module, Optimizer, DataLoader, Dataset)):
        return None
    return "object", id(value)


def arrays_in(held: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any, Memory]]:
    """Yield the path, the value and the memory of the arrays among what a node holds."""
    for path, value in held:
        memory = memory_of(value) if is_array(value) else None
        if memory is not None:
            yield path, value, memory


def without_messages(held: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Leave out the messages that a node has received of what it holds."""
    return (pair for pair in held if not pair[0].startswith("_received_messages"))


def overlap(a: Any, b: Any) -> bool:
    """Return whether writing to `a` may change `b`, two things with the same :func:`memory_of`."""
    if not (is_array(a) and is_array(b)):
        return True
    (a_begin, a_end), (b_begin, b_end) = _extent(a), _extent(b)
    return a_begin < b_end and b_begin < a_end


def _extent(array: Any) -> tuple[int, int]:
    """Return the addresses of the first byte of an array and of the first behind it."""
    if isinstance(array, Tensor):
        begin, width = array.data_ptr(), array.element_size()
        steps = [stride * width for stride in array.stride()]
    else:
        begin, width, steps = int(array.ctypes.data), array.itemsize, list(array.strides)
    reach = [(size - 1) * step for size, step in zip(array.shape, steps, strict=True)]
    low = sum(step for step in reach if step < 0)
    return begin + low, begin + sum(reach) - low + width


def random_state_of(generator: Any) -> bytes:
    """Return the state of a generator of torch, numpy or ``random``."""
    if isinstance(generator, torch.Generator):
        return bytes(generator.get_state().numpy())
    if isinstance(generator, random.Random):
        return pickle.dumps(generator.getstate())
    if isinstance(generator, np.random.Generator):
        return pickle.dumps(generator.bit_generator.state)
    return pickle.dumps(generator.get_state(legacy=False))


def restore_random_state(generator: Any, state: bytes) -> None:
    """Set the state that :func:`random_state_of` returned."""
    if isinstance(generator, torch.Generator):
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    elif isinstance(generator, random.Random):
        generator.setstate(pickle.loads(state))
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = pickle.loads(state)
    else:
        generator.set_state(pickle.loads(state))


class Snapshot:
    """What an array, a container, an object or a generator held, to tell whether it changed."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.held = _held_by(value)

    def has_changed(self) -> bool:
        """Return whether something was written to it meanwhile."""
        now = _held_by(self.value)
        if isinstance(now, list):  # held, so an entry that was replaced is another object
            before: list[Any] = self.held
            return len(now) != len(before) or any(
                a is not b for a, b in zip(now, before, strict=True)
            )
        return bool(now != self.held)


def _held_by(value: Any) -> Any:
    if is_array(value):
        return digest(value)
    if isinstance(value, GENERATORS):
        return random_state_of(value)
    if isinstance(value, Mapping):
        return [part for pair in value.items() for part in pair]
    if isinstance(value, list | set | frozenset):
        return list(value)
    attributes = getattr(value, "__dict__", {}).items()
    # Python itself adds to classes what is looked up in them, such as annotations.
    own = (pair for pair in attributes if not (isinstance(value, type) and pair[0][:2] == "__"))
    return [part for pair in own for part in pair]
