"""Facts about the machine and the installed software, gathered without heavy imports."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from fedbench.registry import DISTRIBUTION

__all__ = [
    "affinity_cores",
    "available_cores",
    "cgroup_cores",
    "cpu_model",
    "describe_environment",
    "package_version",
    "shared_memory",
    "source_commit",
]

_VERSIONED = ("torch", "numpy", "pandas", "ray", "scikit-learn", "mlxtend")
_CGROUP_V2 = Path("/sys/fs/cgroup/cpu.max")
_CGROUP_V1 = Path("/sys/fs/cgroup/cpu")


def package_version(distribution: str) -> str | None:
    """Return the installed version of `distribution`, or None when it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def affinity_cores() -> int:
    """Return how many logical cores this process may be scheduled on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cgroup_cores() -> float | None:
    """Return the CPU quota of the control group in cores, or None when there is no limit."""
    try:
        if _CGROUP_V2.exists():
            quota, period = _CGROUP_V2.read_text().split()
        else:
            quota = (_CGROUP_V1 / "cpu.cfs_quota_us").read_text().strip()
            period = (_CGROUP_V1 / "cpu.cfs_period_us").read_text().strip()
    except (OSError, ValueError):
        return None
    if quota == "max" or int(quota) <= 0:
        return None
    return int(quota) / int(period)


def available_cores() -> int:
    """Return the cores that this process can keep busy: affinity, capped by the quota."""
    quota = cgroup_cores()
    cores = affinity_cores()
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def cpu_model() -> str:
    """Return the processor's marketing name, or the architecture where it is not known."""
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def shared_memory() -> tuple[int, int] | None:
    """Return (total, free) bytes of ``/dev/shm``, or None where it does not exist."""
    try:
        usage = shutil.disk_usage("/dev/shm")  # noqa: S108 - the mount itself is the subject
    except OSError:
        return None
    return usage.total, usage.free


def memory_bytes() -> int | None:
    """Return the installed memory in bytes, or None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def source_commit() -> str | None:
    """Return the commit of the checkout that the package runs from, with ``+dirty`` if changed.

    None for an installed wheel, outside a repository, or where git is missing.
    """
    package = Path(__file__).resolve().parent

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(package), *arguments]
        try:
            done = subprocess.run(  # noqa: S603 - fixed arguments, no shell
                command, capture_output=True, text=True, timeout=10, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    # A site-packages folder inside somebody else's repository is not our checkout.
    if git("ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    commit = git("rev-parse", "HEAD")
    if commit is None:
        return None
    return f"{commit}+dirty" if git("status", "--porcelain", "--", ".") else commit


def cpu_features() -> list[str] | None:
    """Return the instruction sets that the kernels can dispatch to, or None if not built."""
    try:
        from fedbench._native import core
    except ImportError:
        return None
    return list(core.cpu_features())


def describe_environment() -> dict[str, Any]:
    """Describe machine and software in plain values, as a report file stores them."""
    return {
        "cpu": cpu_model(),
        "cpu_features": cpu_features(),
        "cores_logical": os.cpu_count(),
        "cores_available": available_cores(),
        "memory_bytes": memory_bytes(),
        "system": platform.system(),
        "release": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "fedbench": package_version(DISTRIBUTION),
        "commit": source_commit(),
        "packages": {name: package_version(name) for name in _VERSIONED},
    }
