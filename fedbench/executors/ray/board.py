"""The board: what a worker and the caller tell each other outside of Ray."""

from __future__ import annotations

import mmap
import os
import secrets
import struct
import time

__all__ = ["Board"]


class Board:
    """A few bytes that caller and worker share when they are on one machine.

    They tell, also after the worker's death, which task it ran and since when, and make it skip
    the tasks of a map that has failed. Ray's own messages could not: a worker that dies at the
    start of a task may take the reply for the one before with it.

    Parameters
    ----------
    fd : int
        Of the memory, which both sides map.
    """

    _FIELDS = struct.Struct("<16sqqq")
    _INDEX, _STARTED, _STOPPED = 2, 3, 4
    _NO_TASK, _PREPARING = -1, -2

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, self._FIELDS.size)
        self._fields = memoryview(self._memory).cast("q")

    @classmethod
    def create(cls) -> tuple[Board, int, tuple[str, bytes]]:
        """Return a new board, its descriptor (to be closed), and where a worker finds it."""
        fd = os.memfd_create("fedbench-board")
        token = secrets.token_bytes(16)
        os.write(fd, cls._FIELDS.pack(token, cls._NO_TASK, 0, 0))
        return cls(fd), fd, (f"/proc/{os.getpid()}/fd/{fd}", token)

    @classmethod
    def find(cls, path: str, token: bytes) -> Board | None:
        """Return the board at `path`, or None if it is on another machine or out of reach."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            # In another container the same path may be anything.
            if os.pread(fd, len(token), 0) != token:
                return None
            return cls(fd)
        except (OSError, ValueError):
            return None
        finally:
            os.close(fd)

    def begin(self, index: int) -> None:
        """Note that the worker starts a task."""
        self._fields[self._STARTED] = time.monotonic_ns()
        self._fields[self._INDEX] = index

    def prepare(self) -> None:
        """Note that the worker gets ready for a map; it does until its first task begins."""
        self._fields[self._INDEX] = self._PREPARING

    def rest(self) -> None:
        """Note that the worker has begun no task since."""
        self._fields[self._INDEX] = self._NO_TASK

    def stop(self, number: int) -> None:
        """Make the worker skip the tasks of map `number` and of all before it."""
        self._fields[self._STOPPED] = number

    def stopped(self, number: int) -> bool:
        """Return whether the tasks of map `number` are to be skipped."""
        return self._fields[self._STOPPED] >= number

    @property
    def running(self) -> int:
        """Index of the task that the worker runs or ran last, negative before the first."""
        return self._fields[self._INDEX]

    @property
    def preparing(self) -> bool:
        """Whether the worker has heard of a map and begun no task of it."""
        return self._fields[self._INDEX] == self._PREPARING

    @property
    def running_s(self) -> float:
        """Seconds since that task began."""
        return (time.monotonic_ns() - self._fields[self._STARTED]) / 1e9
