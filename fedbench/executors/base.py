"""The contract that every backend keeps, and the checks that make misuse an error.

The public methods of :class:`Executor` are final; a backend is a subclass that implements the
hooks of :class:`fedbench.executors.hooks.BackendHooks`.

Results come in the order of the items and callbacks run on the entering thread: server code never
sees concurrency.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, final

from fedbench.errors import ExecutorClosedError, ExecutorError, NestedExecutorError
from fedbench.executors.checks import (
    check_count,
    check_map_arguments,
    check_reducer,
    check_timeout,
)
from fedbench.executors.hooks import BackendHooks, Job
from fedbench.executors.nesting import ExecutorElsewhere, inside_client_task, nested_message
from fedbench.executors.resources import default_workers

if TYPE_CHECKING:
    from fedbench.executors.engine import Run, Source

__all__ = ["Executor"]

ReducerT = TypeVar("ReducerT")
Self = TypeVar("Self", bound="Executor")

IN_CALLBACK = "failed in on_result"


class Executor(BackendHooks):
    """Runs client tasks; the base of all backends.

    Use it as a context manager, on one thread. Every backend gives the same bits, provided that a
    task reads nothing but its item and the broadcast and writes nothing but its result.

    Parameters
    ----------
    workers : int, optional
        How many tasks run at once; by default what the machine offers.
    intraop_threads : int, default 1
        Threads that torch may use inside one task. Equal bits need equal numbers.
    retries : int, default 0
        How often a task is run again when its worker died.
    timeout : float, optional
        Seconds after which the worker of a task is ended.
    """

    backend: ClassVar[str]
    """Name in the registry."""
    folds_in_workers: ClassVar[bool] = False
    """Whether ``map_reduce`` folds in the workers, so that partials travel and not updates."""

    def __init__(
        self,
        workers: int | None = None,
        *,
        intraop_threads: int = 1,
        retries: int = 0,
        timeout: float | None = None,
    ) -> None:
        self.workers = default_workers() if workers is None else check_count("workers", workers, 1)
        self.intraop_threads = check_count("intraop_threads", intraop_threads, 1)
        self.retries = check_count("retries", retries, 0)
        self.timeout = check_timeout(timeout)
        self.startup_s = 0.0
        """Seconds that :meth:`start` took; the first map may have to wait for workers."""
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._closed = False
        self._run: Run | None = None

    # -- life -----------------------------------------------------------------------------------

    @final
    def start(self) -> None:
        """Start the workers and bind the executor to the calling thread; idempotent."""
        self._refuse_client_code("started")
        self._refuse_closed()
        if self._thread is not None:
            return
        begin = time.perf_counter()
        try:
            self._start_workers()
        except BaseException:
            self._closed = True
            self._stop_workers()
            raise
        self._thread = threading.current_thread()
        self._pid = os.getpid()
        self.startup_s = time.perf_counter() - begin

    @final
    def close(self) -> None:
        """End the workers; idempotent. A closed executor refuses work."""
        if self._closed:
            return
        if self._run is not None:
            self._refuse_other_thread()
        self._closed = True
        if self._thread is not None and not self._is_forked_copy():
            try:
                if self._run is not None:
                    self._run.end_by(None)
            finally:
                self._stop_workers()

    def __enter__(self: Self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            if self._run is not None:
                self._run.end_by(error)
        finally:
            self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        # A task that closes over an executor can be sent, and is refused when it uses it, on
        # every backend with the same error.
        return ExecutorElsewhere, (self.backend,)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "new" if self._thread is None else "open"
        return f"<{type(self).__name__} {state}, workers={self.workers}>"

    # -- work -----------------------------------------------------------------------------------

    @final
    def map(
        self,
        task: Callable[..., Any],
        items: Iterable[Any],
        *,
        broadcast: Any = None,
        on_result: Callable[[int, Any], Any] | None = None,
        costs: Iterable[float] | None = None,
    ) -> list[Any]:
        """Run ``task`` on every item and return the results in the order of the items.

        Parameters
        ----------
        task : callable
            ``task(item)``, or ``task(broadcast, item)`` when a broadcast is given.
        items : iterable
            A generator is consumed on the calling thread, at most ``4 * workers`` items ahead of
            the completed tasks. An item's ``client_id``, if it has one, names the task in errors.
        broadcast : object, optional
            What every task reads: nested containers of tensors, arrays and plain values. A task
            gets a read-only view of it whose tensors are 64-byte aligned; a write fails the task.
        on_result : callable, optional
            ``on_result(index, result)``, called on the calling thread once per task as it
            completes, in no particular order.
        costs : iterable of float, optional
            One number per item; the most expensive tasks are dispatched first. Results do not
            depend on it.

        Returns
        -------
        list
            One result per item.

        Raises
        ------
        ClientTaskError
            If a task or the callback raised: that of the lowest index by then, with the original
            exception as ``__cause__``.
        WorkerDiedError
            If a worker ended in the middle of a task, more than ``retries`` times.
        TaskTimeoutError
            If a task ran longer than ``timeout``.
        ExecutorClosedError
            If the executor is not open.
        NestedExecutorError
            If a client task calls this, or another map of this executor is still running.
        """
        source = self._source(task, items, on_result, costs)
        job = Job(task, broadcast, broadcast is not None)
        results: dict[int, Any] = {}
        window = self._lookahead if source.total is None else math.inf
        with self._running(job, source, window) as run:
            for ticket, result in run.completed():
                results[ticket.index] = result
                if on_result is not None:
                    run.guard(ticket, IN_CALLBACK, on_result, ticket.index, result)
        return [results[index] for index in range(len(results))]

    @final
    def imap(
        self,
        task: Callable[..., Any],
        items: Iterable[Any],
        *,
        broadcast: Any = None,
        window: int | None = None,
        costs: Iterable[float] | None = None,
    ) -> Iterator[Any]:
        """Run ``task`` on every item and yield the results in order, with back-pressure.

        At most `window` items are pulled ahead of the results taken, so memory stays bounded
        however slow the consumer is. The executor is busy until the iterator is exhausted or
        closed.

        Parameters
        ----------
        task, items, broadcast, costs
            As for :meth:`map`; with costs, the most expensive task inside the window goes first.
        window : int, optional
            By default ``4 * workers``.

        Yields
        ------
        object
            The results in the order of the items.

        Raises
        ------
        ExecutorError
            As for :meth:`map`; the results before the failure may not all have been yielded.
        """
        limit = self._lookahead if window is None else check_count("window", window, 1)
        source = self._source(task, items, None, costs)
        return self._imap(Job(task, broadcast, broadcast is not None), source, limit)

    @final
    def map_reduce(
        self,
        task: Callable[..., Any],
        items: Iterable[Any],
        reducer: ReducerT,
        *,
        broadcast: Any = None,
        on_result: Callable[[int, Any], Any] | None = None,
        costs: Iterable[float] | None = None,
    ) -> ReducerT:
        """Run ``task`` on every item and fold the contributions instead of returning them.

        A task returns ``(contribution, report)``: ``reducer.add(*contribution)`` is called where
        that is cheapest (in the worker on ``processes`` and ``ray``), and only the report goes
        to `on_result`. The result has the same bits on every backend because the reducer is
        order-independent.

        Parameters
        ----------
        task, items, broadcast, costs
            As for :meth:`map`.
        reducer : Reducer
            For example :class:`fedbench.aggregation.StreamingMean`: has a true attribute
            ``order_independent``, ``empty()``, ``add(*contribution)`` and ``merge(other)``.
        on_result : callable, optional
            ``on_result(index, report)``.

        Returns
        -------
        Reducer
            `reducer` itself, with every contribution merged into it. After an error it is as it
            was.

        Raises
        ------
        ExecutorError
            As for :meth:`map`.
        """
        from fedbench.executors.runner import fold

        check_reducer(reducer)
        source = self._source(task, items, on_result, costs)
        total: Any = reducer.empty()  # type: ignore[attr-defined]
        job = Job(task, broadcast, broadcast is not None, total)
        window = self._lookahead if source.total is None else math.inf
        partials: list[Any] = []
        with self._running(job, source, window) as run:
            while True:
                for ticket, value in run.completed():
                    if self.folds_in_workers:
                        report = value
                    else:
                        report = run.guard(ticket, "failed", fold, total, value)
                    del value
                    if on_result is not None:
                        run.guard(ticket, IN_CALLBACK, on_result, ticket.index, report)
                partials += self._partials()
                if not run.unfinished:
                    break
        if partials:
            total = partials.pop()
        for partial in partials:
            total.merge(partial)
        reducer.merge(total)  # type: ignore[attr-defined]
        return reducer

    # -- shared machinery -----------------------------------------------------------------------

    @property
    def _lookahead(self) -> int:
        """How far a generator is pulled ahead: two tasks per worker and as many done early."""
        return 4 * self.workers

    def _source(
        self,
        task: Callable[..., Any],
        items: Iterable[Any],
        on_result: Callable[[int, Any], Any] | None,
        costs: Iterable[float] | None,
    ) -> Source:
        """Check the arguments and the state before anything starts."""
        from fedbench.executors.engine import Source

        check_map_arguments(task, items, on_result, costs)
        self._check_ready()
        return Source(items, costs)

    @contextmanager
    def _running(
        self, job: Job, source: Source, window: float, *, count_completed: bool = True
    ) -> Iterator[Run]:
        """Open a map and make sure that it ends, whatever happens inside the block."""
        from fedbench.executors.engine import Ending, Run

        self._check_ready()
        run = Run(self, source, window, count_completed=count_completed)
        self._run = run
        try:
            self._begin(job)
            yield run
            run.end(Ending.DONE)
        except BaseException as error:
            run.end_by(error)
            raise
        finally:
            self._run = None

    def _imap(self, job: Job, source: Source, window: int) -> Iterator[Any]:
        ready: dict[int, Any] = {}
        following = 0
        with self._running(job, source, window, count_completed=False) as run:
            for ticket, value in run.completed():
                ready[ticket.index] = value
                del ticket, value
                while following in ready:
                    run.released += 1
                    # Popped inside the expression: no reference stays while the caller has it.
                    yield ready.pop(following)
                    following += 1

    def _check_ready(self) -> None:
        self._refuse_client_code("used")
        self._refuse_closed()
        if self._thread is None:
            raise ExecutorClosedError(
                f"the {self.backend!r} executor is not started. Use it in a with statement."
            )
        if self._is_forked_copy():
            raise ExecutorError(
                f"the {self.backend!r} executor must be used in the process that started it "
                f"({self._pid}), got a call in a process forked from it ({os.getpid()}). "
                "Make an executor there."
            )
        self._refuse_other_thread()
        if self._run is not None:
            raise NestedExecutorError(
                f"the {self.backend!r} executor must finish one map before the next, got a call "
                "while a map is running. Finish or close the imap iterator, and do not call the "
                "executor in on_result."
            )

    def _refuse_closed(self) -> None:
        if self._closed:
            raise ExecutorClosedError(
                f"the {self.backend!r} executor is closed. Make a new one with make_executor."
            )

    def _is_forked_copy(self) -> bool:
        return self._pid != os.getpid()

    def _refuse_other_thread(self) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            raise ExecutorError(
                "an executor must be used on the thread that entered it "
                f"({self._thread.name!r}), got a call on {threading.current_thread().name!r}. "
                "Make one executor per thread."
            )

    def _refuse_client_code(self, verb: str) -> None:
        if inside_client_task():
            raise NestedExecutorError(nested_message(self.backend, verb))
