"""Facts about the machine and the installed software, gathered without heavy imports."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from fedbench.executors.resources import available_cpus
from fedbench.registry import DISTRIBUTION

__all__ = [
    "cpu_features",
    "cpu_model",
    "describe_environment",
    "memory_bytes",
    "package_version",
    "python_version",
    "shared_memory",
    "source_commit",
]

_VERSIONED = ("torch", "numpy", "pandas", "ray", "scikit-learn", "mlxtend")


def package_version(distribution: str) -> str | None:
    """Return the installed version of `distribution`, or None when it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


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


def python_version() -> str:
    """Return the interpreter's version, with its build where that matters."""
    build = "" if getattr(sys, "_is_gil_enabled", lambda: True)() else " (no GIL)"
    return f"{platform.python_version()}{build}"


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
        "cores_available": available_cpus(),
        "memory_bytes": memory_bytes(),
        "system": platform.system(),
        "release": platform.release(),
        "machine": platform.machine(),
        "python": python_version(),
        "implementation": sys.implementation.name,
        "fedbench": package_version(DISTRIBUTION),
        "commit": source_commit(),
        "packages": {name: package_version(name) for name in _VERSIONED},
    }
