"""A persistent pool of threads in this process.

::

    calling thread                                    worker thread (one of `workers`)
    _submit  ──────  inbox: (map, ticket)  ────────►  isolate the item, run the task
    _completed  ◄──  outbox: outcome  ─────────────   (its own copy of the broadcast per map)

Both queues are shared by all workers, so whoever is free takes the next task.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import signal
import sys
import threading
import time
import weakref
from collections.abc import Sequence

import torch

from fedbench._native import core
from fedbench.errors import ExecutorError
from fedbench.executors.allocator import KeptMemory
from fedbench.executors.ambient import Ambient, set_intraop_threads
from fedbench.executors.base import Executor
from fedbench.executors.checks import refuse_timeout
from fedbench.executors.engine import Ending
from fedbench.executors.guard import Guarded, isolate
from fedbench.executors.hooks import Job
from fedbench.executors.resources import cpus_per_worker
from fedbench.executors.runner import Failure, Outcome, TaskRunner, Ticket

__all__ = ["ThreadExecutor", "running_tasks"]

_QUEUED_PER_WORKER = 16
"""Tasks in the inbox per worker: enough that a worker rarely waits for the calling thread."""


_running: set[threading.Thread] = set()


def running_tasks() -> int:
    """Return how many worker threads of this process are inside a task."""
    return len(_running)


@atexit.register
def _outlive_running_tasks() -> None:
    """Keep the interpreter until no worker is inside torch.

    A thread that comes back from C++ while the interpreter ends is unwound through frames that do
    not allow it, which aborts the process. Tasks that an interrupt left behind are not waited
    for: the process then ends as an interrupted one does, at once.
    """
    if not _running:
        return
    if getattr(sys, "last_type", None) is KeyboardInterrupt:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    while _running:
        time.sleep(0.02)


class _Map:
    """One map, as the workers see it."""

    def __init__(self, job: Job) -> None:
        self.task = job.task
        self.has_broadcast = job.has_broadcast
        # Now, since on_result may change the original before the last worker begins.
        self.broadcast = isolate(job.broadcast)
        self.ambient = Ambient.capture()
        self.outbox: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self.stopped = False
        """Set to make the workers hand back what waits without running it."""


_Inbox = queue.SimpleQueue[tuple[_Map, Ticket] | None]


class ThreadExecutor(Executor):
    """Runs tasks in threads of this process; torch's kernels and ours release the GIL.

    After an interrupt the tasks that run go on in their threads until they end, because a thread
    cannot be stopped from outside; their results are dropped and the next map gets new threads.

    Parameters
    ----------
    workers : int, optional
        Number of threads; by default what the machine offers.
    intraop_threads : int, default 1
        Torch's threads inside one task, set in the worker threads only.
    retries : int, default 0
        Without effect: no worker can die alone.
    timeout : None
        Refused: a thread cannot be ended from outside.
    """

    backend = "threads"

    def __init__(
        self,
        workers: int | None = None,
        *,
        intraop_threads: int = 1,
        retries: int = 0,
        timeout: float | None = None,
    ) -> None:
        refuse_timeout(self.backend, timeout, "a thread cannot be ended from outside.")
        super().__init__(workers, intraop_threads=intraop_threads, retries=retries)
        self._inbox: _Inbox = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._map: _Map | None = None
        self._in_flight = 0
        self._memory = KeptMemory()

    def _start_workers(self) -> None:
        self._memory.hold()
        parent_threads = torch.get_num_threads()
        kernel_threads = cpus_per_worker(self.workers)
        ready = threading.Barrier(self.workers + 1)
        self._inbox = queue.SimpleQueue()
        self._threads = []
        # Who drops the executor without closing it leaves no threads behind.
        weakref.finalize(self, _dismiss, self._inbox, self.workers).atexit = False
        try:
            for number in range(self.workers):
                # Daemons, so that an interrupted program does not wait for a running task.
                thread = threading.Thread(
                    target=_work,
                    args=(self._inbox, ready, self.intraop_threads, kernel_threads),
                    name=f"fedbench-worker-{number}",
                    daemon=True,
                )
                self._threads.append(thread)
                thread.start()
        except RuntimeError as error:
            ready.abort()
            raise ExecutorError(
                f"the 'threads' executor could not start {self.workers} threads: {error}. "
                "Ask for fewer workers."
            ) from error
        ready.wait()
        # Setting the number in a worker also changes what threads born later start with.
        torch.set_num_threads(parent_threads)

    def _stop_workers(self) -> None:
        _dismiss(self._inbox, len(self._threads))
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self._threads = []
        self._memory.release()

    def _begin(self, job: Job) -> None:
        if not self._threads:  # an interrupt left the old ones to themselves
            self._start_workers()
        self._map = _Map(job)
        self._in_flight = 0

    def _room(self) -> int:
        return _QUEUED_PER_WORKER * self.workers - self._in_flight

    def _submit(self, tickets: Sequence[Ticket]) -> None:
        current = self._map
        if current is None:
            raise RuntimeError("no map was begun")
        self._in_flight += len(tickets)
        for ticket in tickets:
            self._inbox.put((current, ticket))

    def _completed(self) -> list[Outcome]:
        current = self._map
        if current is None:
            raise RuntimeError("no map was begun")
        outcomes = [current.outbox.get()]
        while not current.outbox.empty():
            outcomes.append(current.outbox.get_nowait())
        self._in_flight -= len(outcomes)
        return outcomes

    def _end(self, ending: Ending) -> Sequence[Outcome]:
        current, self._map = self._map, None
        if current is None or not self._in_flight:
            return ()
        current.stopped = True
        if ending is Ending.INTERRUPTED:
            _dismiss(self._inbox, len(self._threads))
            self._threads = []
            return ()
        outcomes = [current.outbox.get() for _ in range(self._in_flight)]
        self._in_flight = 0
        return outcomes


def _dismiss(inbox: _Inbox, workers: int) -> None:
    for _ in range(workers):
        inbox.put(None)


def _work(
    inbox: _Inbox, ready: threading.Barrier, intraop_threads: int, kernel_threads: int
) -> None:
    """Run tasks until the inbox says stop."""
    set_intraop_threads(intraop_threads)
    core.limit_threads(kernel_threads)
    try:
        ready.wait()
    except threading.BrokenBarrierError:
        return
    current: _Map | None = None
    runner: TaskRunner | None = None
    while (entry := inbox.get()) is not None:
        asked, ticket = entry
        if asked.stopped:
            outcome = Outcome(ticket.index)
        else:
            _running.add(threading.current_thread())
            try:
                if runner is None or asked is not current:
                    current, runner = asked, _prepare(asked)
                outcome = runner.run(ticket.index, isolate(ticket.item))
            except BaseException as error:  # noqa: BLE001 - a worker thread must always answer
                outcome = Outcome(ticket.index, failure=Failure.of(error))
            _running.discard(threading.current_thread())
        asked.outbox.put(outcome)
        # Keep nothing alive while waiting for the next task.
        del entry, asked, ticket, outcome
        if current is not None and current.stopped:
            current = runner = None


def _prepare(current: _Map) -> TaskRunner:
    """Return this worker's runner for a map, with its own copy of the broadcast."""
    current.ambient.apply()
    guarded = Guarded.copy_of(current.broadcast) if current.has_broadcast else None
    return TaskRunner(current.task, guarded)
