"""Runs client tasks inside a worker: the same code on every backend."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from fedbench.errors import (
    ClientTaskError,
    ExecutorError,
    FedbenchError,
    TaskTimeoutError,
    WorkerDiedError,
)
from fedbench.executors.guard import Guarded
from fedbench.executors.nesting import in_client_task

__all__ = ["Failure", "Outcome", "Reducer", "TaskRunner", "Ticket", "build_error", "client_of"]


_pid = os.getpid()
"""Of this process, also after a fork: asking the system anew would cost more than a small task."""


def _note_fork() -> None:
    global _pid
    _pid = os.getpid()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_note_fork)


class Reducer(Protocol):
    """What ``map_reduce`` folds with: any order and grouping of ``add`` must give the same bits."""

    order_independent: bool

    def empty(self) -> Reducer:
        """Return a reducer of the same kind that holds nothing."""
        ...

    def add(self, *contribution: Any) -> Any:
        """Fold one contribution."""
        ...

    def merge(self, other: Any) -> Any:
        """Fold everything that `other` holds."""
        ...


@dataclass(slots=True)
class Ticket:
    """One task on its way: the position and value of its item."""

    index: int
    item: Any
    cost: float = 0.0
    attempts: int = 0
    """How often it was run again because its worker died."""
    reported: bool = False
    """Whether the caller has its result; true when a folded task is run again."""


@dataclass(slots=True)
class Failure:
    """Why a task has no result.

    Parameters
    ----------
    error : BaseException
        What the task raised, or a finished `WorkerDiedError` or `TaskTimeoutError`.
    worker_traceback : str
        The traceback as text.
    remote : bool
        Whether `error` lost its traceback on the way from the worker.
    action : str
        What failed, for the message.
    advice : str
        What to do, for the end of the message.
    """

    error: BaseException
    worker_traceback: str = ""
    remote: bool = False
    action: str = "failed"
    advice: str = ""

    @classmethod
    def of(cls, error: BaseException, action: str = "failed") -> Failure:
        """Return the failure for an exception that was just caught."""
        return cls(error, "".join(traceback.format_exception(error)), action=action)


@dataclass(slots=True)
class Outcome:
    """What became of one task; `value` is its result, or its report in ``map_reduce``."""

    index: int
    value: Any = None
    failure: Failure | None = None


class TaskRunner:
    """Runs the tasks of one map in one worker.

    Parameters
    ----------
    task : callable
        ``task(item)``, or ``task(broadcast, item)`` with a broadcast.
    broadcast : Guarded, optional
        The worker's own view of the broadcast.
    partial : Reducer, optional
        Folds the contributions here, so that only the report is the task's value.
    """

    def __init__(
        self,
        task: Callable[..., Any],
        broadcast: Guarded | None = None,
        partial: Reducer | None = None,
    ) -> None:
        self._task = task
        self._broadcast = broadcast
        self._pid = _pid
        self.partial = partial

    def run(self, index: int, item: Any) -> Outcome:
        """Run one task and return what became of it; only an interrupt gets out."""
        broadcast = self._broadcast
        try:
            with in_client_task():
                value = self._task(item) if broadcast is None else self._task(broadcast.value, item)
        except BaseException as error:
            if _pid != self._pid:
                _end_fork_of_task(index, error)
            if isinstance(error, KeyboardInterrupt):
                raise
            # Whatever else a client raises, SystemExit included, is that client's failure.
            explained = broadcast.explain(error) if broadcast is not None else None
            return Outcome(index, failure=Failure.of(explained or error))
        if _pid != self._pid:
            _end_fork_of_task(index)
        try:
            if broadcast is not None:
                violation = broadcast.violation()
                if violation is not None:
                    return Outcome(index, failure=Failure(violation, str(violation)))
                value = broadcast.release(value)
            if self.partial is not None:
                value = fold(self.partial, value)
        except Exception as error:  # noqa: BLE001 - reported as the task's failure
            return Outcome(index, failure=Failure.of(error))
        return Outcome(index, value)


def _end_fork_of_task(index: int, error: BaseException | None = None) -> NoReturn:
    """End a process that a task forked and that left the task: it would go on as a second caller.

    It ends as ``sys.exit`` asked it to, or else with a message and exit code 1.
    """
    if isinstance(error, SystemExit) and isinstance(error.code, (int, type(None))):
        os._exit((error.code or 0) & 0xFF)
    lines = [] if error is None else traceback.format_exception(error)
    lines.append(
        f"fedbench: a process that client task {index} forked (pid {os.getpid()}) must not leave "
        "the task, and was ended. End it inside of the task with os._exit.\n"
    )
    # Not through sys.stderr, whose lock another thread may have held at the fork.
    with contextlib.suppress(OSError):
        os.write(2, "".join(lines).encode(errors="backslashreplace"))
    os._exit(1)


def fold(reducer: Reducer, value: Any) -> Any:
    """Add the contribution of a task's result to `reducer` and return the report."""
    if not (isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], tuple)):
        raise TypeError(
            "the result of a map_reduce task must be (contribution, report) with a tuple of "
            f"arguments for reducer.add as contribution, got {_describe(value)}."
        )
    contribution, report = value
    reducer.add(*contribution)
    return report


def _describe(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {', '.join(type(part).__name__ for part in value) or 'nothing'}"
    return type(value).__name__


def client_of(item: Any) -> Any:
    """Return what identifies an item in errors: its ``client_id`` when it has one."""
    return getattr(item, "client_id", item)


def name_task(index: int, item: Any) -> str:
    """Return the words for one task in messages."""
    if hasattr(item, "client_id"):
        return f"client task {index} (client_id {item.client_id!r})"
    return f"client task {index}"


def build_error(
    failures: list[tuple[Ticket, Failure]], backend: str
) -> tuple[ExecutorError, BaseException | None]:
    """Return the error to raise, that of the lowest index, and its cause."""
    failures = sorted(failures, key=lambda pair: pair[0].index)
    ticket, failure = failures[0]
    others = [other.index for other, _ in failures[1:] if other.index != ticket.index]
    also = f" Also failed by then: {', '.join(map(str, others))}." if others else ""
    error = failure.error
    if isinstance(error, (WorkerDiedError, TaskTimeoutError)):
        if also:
            error.add_note(also.strip())
        return error, None
    lines = traceback.format_exception_only(error)
    if isinstance(error, FedbenchError):  # whose help stands in its own traceback, above this one's
        lines = [line for line in lines if line.rstrip() != error.help]
    summary = "".join(lines).strip()
    if failure.advice:
        summary = f"{summary.rstrip('.')}. {failure.advice}"
    task_error = ClientTaskError(
        f"{name_task(ticket.index, ticket.item)} {failure.action} on backend {backend!r}: "
        f"{summary}{also}",
        index=ticket.index,
        item=client_of(ticket.item),
        worker_traceback=failure.worker_traceback,
        other_failures=others,
    )
    if failure.remote:
        task_error.add_note(f"In the worker:\n{failure.worker_traceback.rstrip()}")
    return task_error, error
