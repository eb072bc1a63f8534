"""What this process may use: CPUs by affinity, container and environment, and memory."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = [
    "WORKERS_VARIABLE",
    "available_cpus",
    "cpus_per_worker",
    "default_workers",
    "memory_limit",
]

WORKERS_VARIABLE = "FEDBENCH_WORKERS"
"""Environment variable that replaces the default number of workers."""

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


def default_workers() -> int:
    """Return the default number of workers: the CPUs that this process may use.

    The CPUs are those of the affinity mask, fewer where a cgroup (v1 or v2) grants less CPU
    time. The environment variable ``FEDBENCH_WORKERS`` replaces the answer.

    Raises
    ------
    ValueError
        If ``FEDBENCH_WORKERS`` is not a positive integer.
    """
    text = os.environ.get(WORKERS_VARIABLE)
    if text is None:
        return available_cpus()
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError(
            f"{WORKERS_VARIABLE} must be a positive integer, got {text!r}. Unset it to use every "
            "available CPU."
        )
    return int(text)


def available_cpus() -> int:
    """Return the number of CPUs that this process may keep busy, at least 1."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    cpus = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota = _cgroup_quota()
    if quota is not None:
        cpus = min(cpus, int(quota))
    return max(1, cpus)


def cpus_per_worker(workers: int) -> int:
    """Return how many CPUs each of so many workers may keep busy, at least 1."""
    return max(1, available_cpus() // workers)


def _cgroup_quota() -> float | None:
    """Return the CPUs' worth of time that the tightest cgroup of this process grants."""
    quotas = [_read_quota_v2(group) for group in _own_groups("")]
    quotas += [_read_quota_v1(group) for group in _own_groups("cpu")]
    return min((quota for quota in quotas if quota is not None), default=None)


def _own_groups(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's cgroup and its parents; "" is the v2 hierarchy."""
    try:
        lines = _OWN_CGROUP.read_text().splitlines()
    except OSError:  # no cgroups: another operating system, or /proc is hidden
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller not in controllers.split(","):
            continue
        base = _CGROUP_ROOT / controller
        folder = base / path.lstrip("/")
        # A parent may be tighter than its child. Inside a container the path is the host's and
        # does not exist; its parents down to the mount point still do.
        yield folder
        for parent in folder.parents:
            if base == folder or base not in (parent, *parent.parents):
                break
            yield parent


def _read_quota_v2(group: Path) -> float | None:
    try:
        quota, period = (group / "cpu.max").read_text().split()
    except (OSError, ValueError):  # the root group has no such file
        return None
    return None if quota == "max" else int(quota) / int(period)


def _read_quota_v1(group: Path) -> float | None:
    try:
        quota = int((group / "cpu.cfs_quota_us").read_text())
        period = int((group / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return None if quota <= 0 else quota / period


def memory_limit() -> float:
    """Return how many more bytes the tightest cgroup of this process allows, or infinity."""
    room = [_memory_room(group, "memory.max", "memory.current") for group in _own_groups("")]
    room += [
        _memory_room(group, "memory.limit_in_bytes", "memory.usage_in_bytes")
        for group in _own_groups("memory")
    ]
    return min(room, default=math.inf)


def _memory_room(group: Path, limit: str, used: str) -> float:
    try:
        return int((group / limit).read_text()) - int((group / used).read_text())
    except (OSError, ValueError):  # no such file, or the limit is "max"
        return math.inf
