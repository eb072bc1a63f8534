"""What processes ask of Linux: ends that hold for sure, and descriptors that nobody prints to."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import signal
from pathlib import Path

__all__ = [
    "above_standard_streams",
    "die_with_parent",
    "end_group_with",
    "kill_group",
    "outlive_parent",
    "start_time",
]

_PR_SET_PDEATHSIG = 1
_FIRST_FREE = 3
"""The first descriptor that is no standard stream."""


def kill_group(pid: int) -> None:
    """Kill a process and its group, of which the process itself may have taken leave."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def start_time(pid: int) -> int | None:
    """Return when a process started, in clock ticks, or None if there is none with this id.

    Id and start time together name one process: the id alone is given to another one later.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name before the last parenthesis may contain anything.
    return int(stat.rpartition(")")[2].split()[19])


def die_with_parent(parent_pid: int) -> None:
    """Have this process killed as soon as its parent ends, whatever it does then."""
    _set_death_signal(signal.SIGKILL)
    if os.getppid() != parent_pid:  # ended before
        os._exit(1)


def end_group_with(fd: int) -> None:
    """Have this process's group killed as soon as nobody can write to a pipe any more.

    The system does it: no process need be left, and none need look. `fd` is the pipe's other end,
    of which each group opens one of its own.
    """
    own = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK)
    os.close(fd)
    fcntl.fcntl(own, fcntl.F_SETOWN, -os.getpgid(0))
    fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(own, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
    poller = select.poll()
    poller.register(own, 0)
    if poller.poll(0):  # it was too late for news
        kill_group(os.getpid())


def outlive_parent() -> None:
    """Take :func:`die_with_parent` back."""
    _set_death_signal(0)


def above_standard_streams(fd: int) -> int:
    """Return `fd`, or one in its place if it has the number of a standard stream.

    Where the caller's standard streams are closed their numbers are free, and what any library
    prints would get into the file.
    """
    if fd >= _FIRST_FREE:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)
    finally:
        os.close(fd)


def _set_death_signal(number: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
