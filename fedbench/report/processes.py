"""CPU time and memory of a tree of processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import psutil

__all__ = ["cpu_seconds", "descendants", "family", "machine_busy_seconds", "memory_bytes"]

# Mappings that have a path and are memory all the same.
_SHARED_MEMORY = ("/dev/shm", "/memfd:", "/SYSV")  # noqa: S108 - names to recognise


def descendants(pid: int | None = None) -> list[psutil.Process]:
    """Return the living children of `pid` (this process by default), and theirs."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def family(pid: int) -> list[psutil.Process]:
    """Return the process `pid` and its descendants; empty when it has ended."""
    try:
        return [psutil.Process(pid), *descendants(pid)]
    except psutil.NoSuchProcess:
        return []


def cpu_seconds(others: Iterable[psutil.Process]) -> float:
    """Return user and system seconds of this process and `others` since their starts.

    Other processes' clocks tick in hundredths of a second: add up many intervals.

    Raises
    ------
    psutil.NoSuchProcess
        If one of them has ended, so that a difference would be wrong.
    """
    total = time.process_time()
    for process in others:
        times = process.cpu_times()
        total += times.user + times.system
    return total


def machine_busy_seconds() -> float:
    """Return the seconds that all cores together were busy, or held back by the hypervisor."""
    times = psutil.cpu_times()
    # Guest time is part of user time.
    names = ("user", "nice", "system", "irq", "softirq", "steal")
    return float(sum(getattr(times, name, 0.0) for name in names))


def memory_bytes(processes: Iterable[psutil.Process]) -> int | None:
    """Return the memory of `processes` as if they were alone on the machine.

    Memory is counted by proportional set size: a page that n processes share counts 1/n in each,
    so once in the sum. Pages of files (libraries) are shared with processes outside the group as
    well, whose number must not matter: of each file the largest resident part is counted.

    Returns
    -------
    int or None
        Bytes; None where the system does not tell (only Linux does).
    """
    total = 0
    files: dict[str, int] = {}
    for process in processes:
        if not hasattr(process, "memory_maps"):
            return None
        try:
            maps = process.memory_maps(grouped=True)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue  # ended since it was listed: it holds no memory
        except (psutil.AccessDenied, OSError):
            return None
        for mapping in maps:
            if _is_file(mapping.path):
                total += mapping.anonymous
                files[mapping.path] = max(
                    files.get(mapping.path, 0), mapping.rss - mapping.anonymous
                )
            else:
                total += mapping.pss
    return total + sum(files.values())


def _is_file(path: str) -> bool:
    return path.startswith("/") and not path.startswith(_SHARED_MEMORY)


class PeakMemory:
    """The largest memory seen of a group of processes.

    Parameters
    ----------
    members : callable
        Returns the group's processes of the moment.
    """

    def __init__(self, members: Callable[[], list[psutil.Process]]) -> None:
        self._members = members
        self.peak_bytes: int | None = None

    def observe(self) -> None:
        """Look once."""
        now = memory_bytes(self._members())
        if now:
            self.peak_bytes = max(self.peak_bytes or 0, now)
