"""Result slots: shared memory in which a worker leaves the tensors of a result.

The worker fills a slot and tells its number; the caller builds the result on top of it. When the
last tensor in it is gone, wherever the caller kept it, the slot's number goes back to the worker,
which may then use it for another result. A slot that is held is never written to again.

A task may also make its result in a slot (:func:`fedbench.executors.lending.empty_result`). Such a
slot is handed over as it is, without a copy, if nothing in the worker looks at it any more.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from fedbench._native import core
from fedbench.executors.allocator import kept_bytes
from fedbench.executors.processes.memory import Arena, Extent, Mapping, lay_out
from fedbench.executors.processes.protocol import Slot, split

__all__ = ["SLOT_THRESHOLD", "SlotReader", "SlotWriter"]

SLOT_THRESHOLD = 64 * 1024
"""Bytes of tensors from which on a result goes through a slot; less is cheaper in the message."""

_MAX_SLOTS = 4096
"""Slots per worker that may be held at once: each costs a memory mapping on both sides."""
_KEPT_FREE = 3
"""Free slots that stay warm, however large: one to fill, one on its way, one with the caller."""
_LEAST_LENT = 2**20
"""Bytes of a tensor from which on a slot is lent for it; less is soon copied."""
_MARGIN = 64 * 1024
"""Bytes before and behind a lent tensor, for what else is in the result."""


class SlotWriter:
    """The worker's side.

    Parameters
    ----------
    arena : Arena
        Where slots are made; only this worker makes any.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._slots: dict[int, Mapping] = {}
        self._free: list[int] = []
        self._used: set[int] = set()
        """Slots that were filled in this map."""
        self._next = 0
        self._kept_bytes = kept_bytes()
        self._lent: dict[tuple[int, int], int] = {}
        """Numbers of lent slots by the address and bytes of the tensor in it."""
        # Filled by whatever thread drops the last reference to a lent tensor.
        self._returned: deque[int] = deque()
        self.discarded: list[int] = []
        """Slots given back to the system that the caller has not heard of."""
        self.refusal = ""
        """Why there was no slot, the last time that there was none."""

    def begin_map(self) -> None:
        """Give slots back to the system that the last map with large results did not need.

        A round may hold the updates of its whole cohort, and the next one needs as many slots
        again. What was needed only once, because a worker happened to be ahead, must not stay.
        """
        self._take_back()
        if not self._used:
            return
        unneeded = [number for number in self._free if number not in self._used]
        for number in unneeded[: max(0, len(self._free) - _KEPT_FREE)]:
            self._free.remove(number)
            self._discard(number)
        self._used.clear()

    def lend(self, num_bytes: int) -> memoryview | None:
        """Return a slot's memory for a tensor of a result to come.

        None if there is no room, or if the tensor is so small that it is soon copied.
        """
        if num_bytes < _LEAST_LENT:
            return None
        self._take_back()
        try:
            number = self._take(num_bytes)
        except OSError:
            return None
        view = self._slots[number].view(self._returned.append, number)
        view = view[_MARGIN : _MARGIN + num_bytes]
        self._lent[_place_of(view)] = number
        return view

    def place(self, buffers: list[memoryview]) -> Slot | None:
        """Put the buffers into a slot and return it, or None if there is no room.

        If the task made the largest of them in a slot, and it is there as a whole, that slot is
        taken, and `buffers` emptied, which must hold the last references to their memory.
        """
        self._take_back()
        sizes = [buffer.nbytes for buffer in buffers]
        largest = max(range(len(sizes)), key=sizes.__getitem__)
        # Not for a part of the tensor: what lies behind it may be another part.
        number = self._lent.get(_place_of(buffers[largest])) if self._lent else None
        if number is not None:
            start = _MARGIN - lay_out(sizes[:largest])[1]
            if start >= 0 and lay_out(sizes[largest + 1 :])[1] <= _MARGIN:
                return self._hand_over(number, start, buffers, largest)
        return self._copy(buffers, lay_out(sizes)[1])

    def _hand_over(
        self, number: int, start: int, buffers: list[memoryview], lent: int
    ) -> Slot | None:
        """Return the slot that holds the lent buffer, with the others copied in around it."""
        sizes = [buffer.nbytes for buffer in buffers]
        mapping = self._slots[number]
        inside = split(mapping.view()[start:], sizes)
        for position, (target, buffer) in enumerate(zip(inside, buffers, strict=True)):
            if position != lent:
                target[:] = buffer
        buffers.clear()
        del buffer
        if number not in self._returned:  # the worker still looks at it, and may write to it
            buffers += inside
            return self._copy(buffers, lay_out(sizes)[1])
        self._returned.remove(number)
        del self._lent[_place_of(inside[lent])]
        return Slot(number, mapping.extent.offset, mapping.extent.length, start)

    def _copy(self, buffers: list[memoryview], length: int) -> Slot | None:
        try:
            number = self._take(length)
        except OSError as error:
            self.refusal = str(error)
            return None
        mapping = self._slots[number]
        sizes = [buffer.nbytes for buffer in buffers]
        for target, buffer in zip(split(mapping.view(), sizes), buffers, strict=True):
            core.copy(target, buffer)
        return Slot(number, mapping.extent.offset, mapping.extent.length)

    def free(self, numbers: list[int]) -> None:
        """Take back slots that the caller no longer looks at."""
        self._free += numbers
        num_bytes = sum(self._slots[number].extent.length for number in self._free)
        while len(self._free) > _KEPT_FREE and num_bytes > self._kept_bytes:
            number = self._free.pop(0)
            num_bytes -= self._slots[number].extent.length
            self._discard(number)

    def _take(self, length: int) -> int:
        """Return a slot of at least `length` bytes; OSError says why there is none.

        It takes no lent slot back, because one may hold what the new one is for.
        """
        if length >= _LEAST_LENT:
            length += 2 * _MARGIN  # any large slot may be lent
        # The last one to be freed first, so that what is not needed stays unused.
        fitting = [n for n in reversed(self._free) if length <= self._slots[n].extent.length]
        number = min(fitting, key=lambda one: self._slots[one].extent.length, default=None)
        if number is not None and self._slots[number].extent.length <= 2 * length:
            self._free.remove(number)
        elif len(self._slots) >= _MAX_SLOTS:
            raise OSError(f"{_MAX_SLOTS} results are held at once")
        else:
            mapping = self._new(length)
            number = self._next
            self._slots[number] = mapping
            self._next += 1
        self._used.add(number)
        return number

    def _take_back(self) -> None:
        """Take back slots that were lent for nothing: the task's tensors in them are gone."""
        if self._returned:
            gone = {self._returned.popleft() for _ in range(len(self._returned))}
            self._lent = {key: number for key, number in self._lent.items() if number not in gone}
            self.free(sorted(gone))

    def _new(self, length: int) -> Mapping:
        try:
            return self._arena.map_shared(self._arena.allocate(length))
        except OSError:
            if not self._free:
                raise
        while self._free:  # none of them fits, but their memory may be what is missing
            self._discard(self._free.pop())
        return self._arena.map_shared(self._arena.allocate(length))

    def _discard(self, number: int) -> None:
        self._arena.free(self._slots.pop(number).extent)
        self.discarded.append(number)


class SlotReader:
    """The caller's side of one worker's slots.

    Parameters
    ----------
    arena : Arena
        The worker's arena.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._mappings: dict[int, Mapping] = {}
        # Filled by whatever thread drops the last reference to a result.
        self._released: deque[int] = deque()

    def view(self, slot: Slot) -> memoryview:
        """Return what was put into a slot, which is held as long as anything looks at it."""
        if slot.number not in self._mappings:
            extent = Extent(slot.offset, slot.length)
            self._mappings[slot.number] = self._arena.map_shared(extent)
        return self._mappings[slot.number].view(self._released.append, slot.number)[slot.start :]

    def take_released(self) -> list[int]:
        """Return the slots that are no longer held, each once."""
        released = []
        while self._released:
            released.append(self._released.popleft())
        return released

    def discard(self, numbers: list[int]) -> None:
        """Forget slots that the worker gave back."""
        for number in numbers:
            self._mappings.pop(number, None)


def _place_of(memory: memoryview) -> tuple[int, int]:
    return int(np.frombuffer(memory, np.uint8).ctypes.data), memory.nbytes
