"""Result slots: shared memory in which a worker leaves the tensors of a result.

The worker fills a slot and tells its number; the caller builds the result on top of it. When the
last tensor in it is gone, wherever the caller kept it, the slot's number goes back to the worker,
which may then use it for another result. A slot that is held is never written to again.
"""

from __future__ import annotations

from collections import deque

from fedbench._native import core
from fedbench.executors.allocator import kept_bytes
from fedbench.executors.processes.memory import Arena, Extent, Mapping, lay_out
from fedbench.executors.processes.protocol import split

__all__ = ["SLOT_THRESHOLD", "SlotReader", "SlotWriter"]

SLOT_THRESHOLD = 64 * 1024
"""Bytes of tensors from which on a result goes through a slot; less is cheaper in the message."""

_MAX_SLOTS = 4096
"""Slots per worker that may be held at once: each costs a memory mapping on both sides."""
_KEPT_FREE = 3
"""Free slots that stay warm, however large: one to fill, one on its way, one with the caller."""


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
        self.discarded: list[int] = []
        """Slots given back to the system that the caller has not heard of."""
        self.refusal = ""
        """Why there was no slot, the last time that there was none."""

    def begin_map(self) -> None:
        """Give slots back to the system that the last map with large results did not need.

        A round may hold the updates of its whole cohort, and the next one needs as many slots
        again. What was needed only once, because a worker happened to be ahead, must not stay.
        """
        if not self._used:
            return
        unneeded = [number for number in self._free if number not in self._used]
        for number in unneeded[: max(0, len(self._free) - _KEPT_FREE)]:
            self._free.remove(number)
            self._discard(number)
        self._used.clear()

    def place(self, buffers: list[memoryview]) -> tuple[int, int, int] | None:
        """Copy the buffers into a slot and return its description, or None if there is no room."""
        sizes = [buffer.nbytes for buffer in buffers]
        _, length = lay_out(sizes)
        number = self._take(length)
        if number is None:
            return None
        self._used.add(number)
        mapping = self._slots[number]
        for target, buffer in zip(split(mapping.view(), sizes), buffers, strict=True):
            core.copy(target, buffer)
        return number, mapping.extent.offset, mapping.extent.length

    def free(self, numbers: list[int]) -> None:
        """Take back slots that the caller no longer looks at."""
        self._free += numbers
        num_bytes = sum(self._slots[number].extent.length for number in self._free)
        while len(self._free) > _KEPT_FREE and num_bytes > self._kept_bytes:
            number = self._free.pop(0)
            num_bytes -= self._slots[number].extent.length
            self._discard(number)

    def _take(self, length: int) -> int | None:
        # The last one to be freed first, so that what is not needed stays unused.
        fitting = [n for n in reversed(self._free) if length <= self._slots[n].extent.length]
        if fitting:
            number = min(fitting, key=lambda one: self._slots[one].extent.length)
            if self._slots[number].extent.length <= 2 * length:
                self._free.remove(number)
                return number
        if len(self._slots) >= _MAX_SLOTS:
            self.refusal = f"{_MAX_SLOTS} results are held at once"
            return None
        try:
            mapping = self._new(length)
        except OSError as error:
            self.refusal = str(error)
            return None
        self._slots[self._next] = mapping
        self._next += 1
        return self._next - 1

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

    def view(self, slot: tuple[int, int, int]) -> memoryview:
        """Return the memory of a slot, which is held as long as anything looks at it."""
        number, offset, length = slot
        if number not in self._mappings:
            self._mappings[number] = self._arena.map_shared(Extent(offset, length))
        return self._mappings[number].view(self._released.append, number)

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
