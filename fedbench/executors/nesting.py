"""Knows whether the current code runs inside a client task, where executors are refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedbench.errors import NestedExecutorError

__all__ = [
    "ExecutorElsewhere",
    "in_client_task",
    "inside_client_task",
    "mark_worker_process",
    "nested_message",
]

_thread = threading.local()
_worker_process = False


@contextmanager
def in_client_task() -> Iterator[None]:
    """Mark the code of this thread as client code while the block runs."""
    _thread.inside = True
    try:
        yield
    finally:
        _thread.inside = False


def mark_worker_process() -> None:
    """Mark everything in this process, whatever the thread, as client code."""
    global _worker_process
    _worker_process = True


def inside_client_task() -> bool:
    """Return whether a client task is running here."""
    return _worker_process or getattr(_thread, "inside", False)


def nested_message(backend: str, verb: str) -> str:
    """Return the words that refuse an executor inside a client task."""
    return (
        f"the {backend!r} executor must be {verb} by server code, got a call inside a client task. "
        "Return what the task found and map again on the server."
    )


class ExecutorElsewhere:
    """What an executor becomes when a task carries it to a worker: an error on first use."""

    def __init__(self, backend: str) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NestedExecutorError(nested_message(self._backend, "used"))

    def __enter__(self) -> None:
        raise NestedExecutorError(nested_message(self._backend, "started"))

    def __exit__(self, *exc: object) -> None:
        """Never reached: entering is an error."""
