"""Executors: one contract, an in-order map of client tasks, and a backend for each way to run it.

===========  ========================================================================
sequential   one task at a time in the calling thread; the reference for all others
threads      a persistent pool of threads in this process
processes    a persistent pool of processes with shared-memory transport
ray          actors on a local or remote Ray cluster (extra ``ray``)
===========  ========================================================================

``base.py`` is the contract and its argument checks, ``engine.py`` feeds a backend and picks the
failure to raise, ``runner.py`` runs one task in a worker. A backend implements only the hooks at
the end of :class:`Executor`.
"""

from __future__ import annotations

import inspect
from typing import Any

from fedbench.executors.base import Executor
from fedbench.executors.lending import empty_result
from fedbench.executors.resident import Resident
from fedbench.executors.resources import default_workers
from fedbench.registry import Entry, Registry, did_you_mean

__all__ = [
    "EXECUTORS",
    "Executor",
    "Resident",
    "default_workers",
    "empty_result",
    "make_executor",
]

EXECUTORS: Registry[type[Executor]] = Registry(
    "backend",
    {
        "sequential": Entry(
            "fedbench.executors.sequential:SequentialExecutor",
            "one task at a time in the calling thread",
        ),
        "threads": Entry(
            "fedbench.executors.threads:ThreadExecutor",
            "a persistent pool of threads in this process",
        ),
        "processes": Entry(
            "fedbench.executors.processes.executor:ProcessExecutor",
            "a persistent pool of processes with shared-memory transport",
        ),
        "ray": Entry(
            "fedbench.executors.ray.executor:RayExecutor",
            "actors on a local or remote Ray cluster",
            extra="ray",
        ),
    },
)
"""The backends, subclasses of :class:`Executor`."""


def make_executor(backend: str, workers: int | None = None, **options: Any) -> Executor:
    """Return an executor of the given backend; use it as a context manager.

    Parameters
    ----------
    backend : str
        A name of :data:`EXECUTORS`: ``"sequential"``, ``"threads"``, ``"processes"``, ``"ray"``.
    workers : int, optional
        How many tasks run at once. By default :func:`default_workers`, and 1 for
        ``"sequential"``.
    **options
        ``intraop_threads`` (default 1), ``retries`` (default 0) and ``timeout`` in seconds
        (default none) on every backend, and what the backend adds.

    Returns
    -------
    Executor
        Not started yet: entering it starts the workers.

    Raises
    ------
    UnknownNameError
        If no backend has this name.
    MissingExtraError
        If the backend needs a package that is not installed.
    UnsupportedPlatformError
        If the backend does not run on this operating system.
    TypeError
        If the backend has no such option.

    Examples
    --------
    >>> with make_executor("threads", workers=2) as executor:
    ...     executor.map(lambda x: x * x, range(4))
    [0, 1, 4, 9]
    """
    executor_class = EXECUTORS.load(backend)
    known = list(inspect.signature(executor_class).parameters)
    for option in options:
        if option not in known:
            raise TypeError(
                f"options of backend {backend!r} must be among {', '.join(known)}, got {option!r}."
                f"{did_you_mean(option, known)}"
            )
    return executor_class(workers, **options)
