"""What caller and worker tell each other through one page of shared memory.

It answers at any time, also while the worker computes or after it died: what it does, and since
when; and it makes a worker skip the tasks of a map that has failed.
"""

from __future__ import annotations

import time

from fedbench.executors.processes.memory import PAGE, Arena, Extent

__all__ = ["ControlPage"]

_INDEX, _CHANGED, _STOPPED, _MAP = range(4)
_NO_TASK, _PREPARING = -1, -2


class ControlPage:
    """The first page of a worker's arena.

    Parameters
    ----------
    arena : Arena
        Of one worker.
    """

    def __init__(self, arena: Arena, *, create: bool = False) -> None:
        extent = arena.allocate(PAGE) if create else Extent(0, PAGE)
        self._fields = arena.map_shared(extent).view().cast("q")
        if create:
            self._fields[_STOPPED] = 0
            self.rest()

    def begin(self, number: int, index: int) -> None:
        """Note that the worker starts a task of map `number`."""
        # The clock is the same for all processes of the machine.
        self._fields[_CHANGED] = time.monotonic_ns()
        self._fields[_MAP] = number
        self._fields[_INDEX] = index

    def prepare(self) -> None:
        """Note that the worker gets ready for a map, and imports what its tasks need."""
        self._fields[_CHANGED] = time.monotonic_ns()
        self._fields[_INDEX] = _PREPARING

    def rest(self) -> None:
        """Note that the worker runs no task."""
        self._fields[_CHANGED] = time.monotonic_ns()
        self._fields[_INDEX] = _NO_TASK

    def stop(self, number: int) -> None:
        """Make the worker skip the tasks of map `number` and of all before it."""
        self._fields[_STOPPED] = number

    def stopped(self, number: int) -> bool:
        """Return whether the tasks of map `number` are to be skipped."""
        return self._fields[_STOPPED] >= number

    def running(self, number: int) -> int | None:
        """Return the index of the task of map `number` that the worker runs, or ran last."""
        index = self._fields[_INDEX]
        return None if index < 0 or self._fields[_MAP] != number else index

    @property
    def preparing(self) -> bool:
        """Whether the worker gets ready for a map."""
        return self._fields[_INDEX] == _PREPARING

    @property
    def changed_at(self) -> float:
        """When the worker began what it does, by :func:`time.monotonic`."""
        return self._fields[_CHANGED] / 1e9
