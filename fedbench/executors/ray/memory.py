"""What travels through Ray's object store, and how the memory of tensors is read from there."""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedbench._native import core
from fedbench.executors.guard import ALIGNMENT, aligned_bytes
from fedbench.executors.packing import unpack
from fedbench.executors.processes.memory import lay_out
from fedbench.executors.processes.protocol import Parcel

__all__ = [
    "Array",
    "Lender",
    "Message",
    "PrivateMemory",
    "as_arrays",
    "private_copies",
    "split",
    "unpack_shared",
]

Array = np.ndarray[Any, np.dtype[Any]]


class Message(NamedTuple):
    """A pickled head and the buffers of all its parcels, in order, which Ray moves out of band."""

    head: bytes
    buffers: list[Array]


def as_arrays(buffers: Iterable[memoryview | bytes]) -> list[Array]:
    """Return buffers in the form that Ray moves without pickling them."""
    return [np.frombuffer(buffer, np.uint8) for buffer in buffers]


def split(buffers: Iterable[Array], parcels: Iterable[Parcel]) -> list[list[Array]]:
    """Return the buffers of each parcel."""
    following = iter(buffers)
    return [list(itertools.islice(following, len(parcel.sizes))) for parcel in parcels]


def private_copies(arrays: Sequence[Array]) -> list[memoryview]:
    """Return writable copies in fresh memory, each at an aligned address."""
    offsets, total = lay_out([array.nbytes for array in arrays])
    return _copy(arrays, memoryview(aligned_bytes(total)), offsets)


def _copy(arrays: Sequence[Array], memory: memoryview, offsets: list[int]) -> list[memoryview]:
    copies = []
    for array, offset in zip(arrays, offsets, strict=True):
        target = memory[offset : offset + array.nbytes]
        core.copy(target, array.data)
        copies.append(target)
    return copies


def unpack_shared(message: Message) -> Any:
    """Return the object of a message on top of the store's memory, of which a node has one copy.

    Its arrays are read-only; its tensors cannot be, and are so by agreement.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)
        return unpack(
            message.head,
            [
                private_copies([array])[0] if array.ctypes.data % ALIGNMENT else array.data
                for array in message.buffers
            ],
        )


class _Pin:
    """Shows memory as writable, keeps it, and is gone when nobody looks at it any more."""

    def __init__(self, array: Array) -> None:
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface
        self._array = array


class PrivateMemory:
    """Memory for copies that is used again when nobody looks at it: fresh memory costs far more."""

    def __init__(self) -> None:
        self._array: Array = np.empty(0, np.uint8)
        self._user: weakref.ref[_Pin] | None = None

    def copies(self, arrays: Sequence[Array]) -> list[memoryview]:
        """Return writable copies, each at an aligned address."""
        offsets, total = lay_out([array.nbytes for array in arrays])
        in_use = self._user is not None and self._user() is not None
        if in_use or not total <= self._array.nbytes <= 4 * total + 2**20:
            self._array = np.frombuffer(aligned_bytes(total), np.uint8)
        pin = _Pin(self._array)
        self._user = weakref.ref(pin)
        return _copy(arrays, np.asarray(pin).data, offsets)


class Lender:
    """Gives out views of objects in the store instead of copies, up to a limit.

    An object that is looked at cannot leave the store, so a caller who keeps results for long
    would fill it: beyond the limit the memory is copied.

    Parameters
    ----------
    limit : int
        Bytes that may be lent at once.
    """

    _SMALLEST = 1 << 20
    """Copying less costs no more than keeping account of it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lent = 0
        # Filled by whatever thread drops the last reference to a view.
        self._returned: deque[int] = deque()

    def views(self, arrays: Sequence[Array]) -> list[memoryview]:
        """Return writable memory with the content of `arrays`, which nobody else may write to."""
        total = sum(array.nbytes for array in arrays)
        while self._returned:
            self._lent -= self._returned.popleft()
        if total < self._SMALLEST or self._lent + total > self._limit:
            return private_copies(arrays)
        return [self._view(array) for array in arrays]

    def _view(self, array: Array) -> memoryview:
        # Ray aligns large buffers inside an object but packs small ones.
        if array.nbytes < self._SMALLEST or array.ctypes.data % ALIGNMENT:
            return private_copies([array])[0]
        pin = _Pin(array)
        self._lent += array.nbytes
        weakref.finalize(pin, self._returned.append, array.nbytes).atexit = False
        return np.asarray(pin).data
