"""What caller and worker tell each other through one page of shared memory.

It answers at any time, also while the worker computes or after it died: which task runs, and
since when; and it makes a worker skip the tasks of a map that has failed.
"""

from __future__ import annotations

import time

from fedbench.executors.processes.memory import PAGE, Arena, Extent

__all__ = ["ControlPage"]

_INDEX, _STARTED, _STOPPED, _MAP = range(4)
_NO_TASK = -1


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
            self._fields[_INDEX] = _NO_TASK
            self._fields[_STOPPED] = 0

    def begin(self, number: int, index: int) -> None:
        """Note that the worker starts a task of map `number`."""
        # The clock is the same for all processes of the machine.
        self._fields[_STARTED] = time.monotonic_ns()
        self._fields[_MAP] = number
        self._fields[_INDEX] = index

    def rest(self) -> None:
        """Note that the worker runs no task."""
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
        return None if index == _NO_TASK or self._fields[_MAP] != number else index

    @property
    def running_s(self) -> float:
        """Seconds since the running task began."""
        return (time.monotonic_ns() - self._fields[_STARTED]) / 1e9
