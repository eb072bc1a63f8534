"""Messages between the caller and a worker: framing, and what each kind holds.

A frame is two lengths, a pickled tuple of plain values (the head), and raw bytes (the blob) that
hold the buffers of the parcels that are not in a slot, one after the other. Heads::

    to a worker
      (TASK, parcel)                                       what to call, when it changed
      (MAP, number, path, ambient, broadcast, reducer)     what else all tasks of a map share
      (TASKS, number, [(index, parcel), ...], freed)       run these, in this order
      (COLLECT, number)                                    send the partial reducer
      (FORGET, [key, ...])                                 drop these resident constants
      (EXIT,)                                              end

    to the caller
      (HELLO,)                                             ready for work
      (DONE, number, [(index, ok, parcel), ...], seconds, discarded, refusal, slot)
      (PARTIAL, number, ok, parcel)

A parcel is a value on its way, see :class:`Parcel`; that of a task which did not go well is a
:class:`~fedbench.executors.runner.Failure`, that of a task which was skipped is ``None``. `freed`
lists result slots that the caller no longer looks at, `discarded` those that the worker gave back
to the system; `refusal` says why a large result had no slot; `slot` is the one that holds the blob
where it is large.
"""

from __future__ import annotations

import itertools
import pickle
import socket
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from fedbench.executors.guard import ALIGNMENT, aligned_bytes
from fedbench.executors.packing import unpack
from fedbench.executors.processes.memory import lay_out

__all__ = [
    "ATOMS",
    "Inbox",
    "Kind",
    "Outbox",
    "Parcel",
    "Slot",
    "frame",
    "open_parcel",
    "receive",
    "split",
    "split_among",
]

_LENGTHS = struct.Struct("<QQ")
_READ = 256 * 1024

ATOMS = frozenset({int, float, str, bytes, bool, type(None)})
"""Types whose values travel in the head as they are."""


class Kind:
    """What a message is about; plain numbers, which pickle fast."""

    TASK: Final = 1
    MAP: Final = 2
    TASKS: Final = 3
    COLLECT: Final = 4
    FORGET: Final = 5
    EXIT: Final = 6
    HELLO: Final = 7
    DONE: Final = 8
    PARTIAL: Final = 9


class Slot(NamedTuple):
    """Shared memory that holds the buffers of a parcel."""

    number: int
    offset: int
    """Where it is in the arena, in bytes."""
    length: int
    start: int = 0
    """Where the buffers begin in it."""


class Parcel(NamedTuple):
    """A value on its way."""

    atom: Any = None
    """The value itself, if `payload` is None."""
    payload: bytes | None = None
    """What :func:`fedbench.executors.packing.pack` gave."""
    sizes: Sequence[int] = ()
    """Bytes of each buffer."""
    slot: Slot | None = None
    """What holds the buffers, if not the blob."""


def open_parcel(parcel: Parcel, buffers: Iterable[memoryview]) -> Any:
    """Return the value of a parcel, built on top of its buffers."""
    return parcel.atom if parcel.payload is None else unpack(parcel.payload, buffers)


def frame(head: tuple[Any, ...], buffers: Sequence[memoryview] = ()) -> list[memoryview]:
    """Return the parts of a frame; the blob holds the buffers, each at an aligned offset."""
    plain = pickle.dumps(head, protocol=5)
    _, length = lay_out([buffer.nbytes for buffer in buffers])
    parts = [memoryview(_LENGTHS.pack(len(plain), length) + plain)]
    for buffer in buffers:
        parts.append(buffer)
        if padding := -buffer.nbytes % ALIGNMENT:
            parts.append(memoryview(bytes(padding)))
    return parts


def split(blob: memoryview, sizes: Iterable[int]) -> list[memoryview]:
    """Return the buffers of these sizes that lie in `blob`, each at an aligned offset."""
    sizes = list(sizes)
    return [
        blob[offset : offset + size] for offset, size in zip(lay_out(sizes)[0], sizes, strict=True)
    ]


def split_among(parcels: Iterable[Parcel], blob: memoryview) -> Iterator[list[memoryview]]:
    """Yield the buffers in `blob` of each parcel; none for a parcel that is in a slot."""
    parcels = list(parcels)
    buffers = iter(split(blob, [size for one in parcels if not one.slot for size in one.sizes]))
    for parcel in parcels:
        yield [] if parcel.slot else list(itertools.islice(buffers, len(parcel.sizes)))


class Inbox:
    """Cuts what arrives on a socket into messages; used by the caller, without blocking."""

    def __init__(self, source: socket.socket) -> None:
        self._socket = source
        self._data = bytearray()
        self._head: tuple[Any, ...] | None = None
        self._blob = _NO_BYTES
        self._filled = 0
        self.closed = False
        """Whether the other side is gone; every message before that has been given."""

    def messages(self) -> Iterator[tuple[tuple[Any, ...], memoryview]]:
        """Yield the head and blob of each message that is complete by now."""
        while not self.closed:
            try:
                if self._head is not None:
                    count = self._socket.recv_into(self._blob[self._filled :])
                    self._filled += count
                else:
                    data = self._socket.recv(_READ)
                    count = len(data)
                    self._data += data
            except BlockingIOError:
                return
            except ConnectionError:
                count = 0
            self.closed = count == 0
            yield from self._cut()
            if self._head is None and 0 < count < _READ:
                return  # most likely nothing more is there: save the attempt

    def _cut(self) -> Iterator[tuple[tuple[Any, ...], memoryview]]:
        while True:
            if self._head is None:
                if len(self._data) < _LENGTHS.size:
                    return
                head_length, blob_length = _LENGTHS.unpack_from(self._data)
                end = _LENGTHS.size + head_length
                if len(self._data) < end:
                    return
                with memoryview(self._data) as data:
                    self._head = pickle.loads(data[_LENGTHS.size : end])
                self._filled = min(blob_length, len(self._data) - end)
                if blob_length:
                    self._blob = aligned_bytes(blob_length)
                    self._blob[: self._filled] = self._data[end : end + self._filled]
                del self._data[: end + self._filled]
            if self._filled < len(self._blob):
                return
            complete = self._head, self._blob
            self._head, self._blob, self._filled = None, _NO_BYTES, 0
            yield complete


class Outbox:
    """Sends frames without blocking, so that caller and worker cannot wait for each other."""

    def __init__(self, target: socket.socket) -> None:
        self._socket = target
        self._parts: deque[memoryview] = deque()

    def __bool__(self) -> bool:
        return bool(self._parts)

    def send(self, parts: Sequence[memoryview]) -> None:
        """Send what the socket takes now and keep the rest."""
        self._parts.extend(parts)
        self.flush()

    def flush(self) -> None:
        """Send what the socket takes now."""
        parts = self._parts
        while parts:
            try:
                sent = self._socket.send(parts[0])
            except BlockingIOError:
                return
            except ConnectionError:
                parts.clear()  # the worker is gone, which its inbox will tell
                return
            if sent < len(parts[0]):
                parts[0] = parts[0][sent:]
            else:
                parts.popleft()


def receive(source: socket.socket) -> tuple[tuple[Any, ...], memoryview]:
    """Wait for one message and return its head and blob; used by the worker.

    Raises
    ------
    EOFError
        If the other side is gone.
    """
    head_length, blob_length = _LENGTHS.unpack(_receive_exactly(source, _LENGTHS.size))
    head = pickle.loads(_receive_exactly(source, head_length))
    if not blob_length:
        return head, _NO_BYTES
    blob = aligned_bytes(blob_length)
    _fill(source, blob)
    return head, blob


def _receive_exactly(source: socket.socket, count: int) -> bytearray:
    data = bytearray(count)
    _fill(source, memoryview(data))
    return data


def _fill(source: socket.socket, view: memoryview) -> None:
    while view:
        count = source.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]


_NO_BYTES = memoryview(b"")
