"""The hooks of the ``processes`` backend: which worker gets which task, and what a loss means."""

from __future__ import annotations

import math
import os
import pickle
import signal
import sys
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fedbench.errors import (
    ExecutorError,
    ResourceError,
    TaskTimeoutError,
    UnsupportedPlatformError,
    WorkerDiedError,
)
from fedbench.executors.ambient import Ambient
from fedbench.executors.base import Executor
from fedbench.executors.checks import check_count
from fedbench.executors.engine import Ending
from fedbench.executors.hooks import Job
from fedbench.executors.processes.broadcast import Downlink
from fedbench.executors.processes.dispatch import BatchSize
from fedbench.executors.processes.memory import Arena
from fedbench.executors.processes.pool import (
    EXIT_S,
    Crew,
    WorkerHandle,
    describe_exit,
    kill_all,
    search_path,
)
from fedbench.executors.processes.protocol import ATOMS, Kind, Parcel, open_parcel, split_among
from fedbench.executors.runner import Failure, Outcome, Ticket, client_of, name_task

__all__ = ["ProcessExecutor"]

_START_S = 120.0
"""How long a worker may take to import what it needs."""
_GRACE_S = 1.0
"""How long the tasks that run may go on after another has failed."""
_POLL_S = 0.2
"""How often time-outs are looked at, at least."""
_PATIENT_S = 60.0
_MAX_IDLE_DEATHS = 3
"""Workers that may die in one map without running anything, per worker."""


class ProcessExecutor(Executor):
    """Runs tasks in spawned processes that live as long as the executor.

    Parameters
    ----------
    workers : int, optional
        Number of processes; by default what the machine offers.
    intraop_threads : int, default 1
        Torch's threads inside one task.
    retries : int, default 0
        How often a task is run again when its worker died.
    timeout : float, optional
        Seconds after which a task's worker is ended and the map fails.
    recycle_after : int, optional
        Tasks after which a worker is replaced by a fresh one, between tasks; in ``map_reduce``
        between maps.

    Raises
    ------
    UnsupportedPlatformError
        On systems other than Linux.
    """

    backend = "processes"
    folds_in_workers = True

    def __init__(
        self,
        workers: int | None = None,
        *,
        intraop_threads: int = 1,
        retries: int = 0,
        timeout: float | None = None,
        recycle_after: int | None = None,
    ) -> None:
        if not sys.platform.startswith("linux"):
            raise UnsupportedPlatformError(
                f"the backend 'processes' needs Linux, got {sys.platform!r}. "
                "Use the backend 'threads'."
            )
        super().__init__(workers, intraop_threads=intraop_threads, retries=retries, timeout=timeout)
        self.recycle_after = (
            None if recycle_after is None else check_count("recycle_after", recycle_after, 1)
        )
        self._crew = Crew()
        self._downlink: Downlink | None = None
        self._batches = BatchSize()
        self._number = 0
        self._task: tuple[int, Parcel, list[memoryview]] = (0, Parcel(), [])
        self._map: tuple[tuple[Any, ...], list[memoryview]] = ((), [])
        self._folding = False
        self._ready: list[Outcome] = []
        self._collected: list[Any] = []
        self._idle_deaths = 0

    # -- life -----------------------------------------------------------------------------------

    def _start_workers(self) -> None:
        self._downlink = Downlink(Arena())
        # Also runs when the program ends without close(), or drops the executor.
        weakref.finalize(self, kill_all, self._crew.workers, os.getpid())
        for _ in range(self.workers):
            self._add_worker()
        deadline = time.monotonic() + _START_S
        while not all(worker.ready for worker in self._crew.workers):
            if time.monotonic() > deadline:
                raise ResourceError(
                    f"{self.workers} worker processes must start within {_START_S:.0f} s, got "
                    f"{sum(worker.ready for worker in self._crew.workers)}. The machine is "
                    "overloaded, or an import in the workers waits for something."
                )
            self._receive(1.0)
            for worker in self._crew.workers:
                if worker.gone:
                    code = self._crew.remove(worker, EXIT_S)
                    raise ExecutorError(
                        f"a worker process {describe_exit(code)} while it started; "
                        "its own messages are on stderr."
                    )

    def _stop_workers(self) -> None:
        self._crew.stop()
        if self._downlink is not None:
            self._downlink.arena.close()
            self._downlink = None

    def _add_worker(self) -> None:
        self._crew.add(self._open_downlink().arena, self.intraop_threads)

    def _open_downlink(self) -> Downlink:
        if self._downlink is None:
            raise RuntimeError("the executor is not started")
        return self._downlink

    # -- one map --------------------------------------------------------------------------------

    def _begin(self, job: Job) -> None:
        downlink = self._open_downlink()
        self._number += 1
        self._folding = job.reducer is not None
        self._ready, self._collected, self._idle_deaths = [], [], 0
        with _naming("the task"):
            self._prepare_task(*downlink.pack(job.task))
        broadcast = reducer = None
        buffers: list[memoryview] = []
        if job.has_broadcast:
            with _naming("the broadcast"):
                broadcast, buffers = downlink.place_broadcast(job.broadcast)
        if self._folding:
            with _naming("the reducer"):
                payload, reducer_buffers = downlink.pack(job.reducer)
            reducer = Parcel(None, payload, [buffer.nbytes for buffer in reducer_buffers])
            buffers += reducer_buffers
        head = (Kind.MAP, self._number, search_path(), Ambient.capture(), broadcast, reducer)
        self._map = head, buffers
        self._tend_workers(downlink)

    def _prepare_task(self, payload: bytes, buffers: list[memoryview]) -> None:
        """Note the task; one with the same bytes as the last need not be sent again."""
        number, last, _ = self._task
        if buffers or payload != last.payload:
            sizes = [buffer.nbytes for buffer in buffers]
            self._task = number + 1, Parcel(None, payload, sizes), buffers

    def _tend_workers(self, downlink: Downlink) -> None:
        """Replace workers that ended between maps, and pass on what the living must forget."""
        forgotten, downlink.forgotten = downlink.forgotten, []
        for worker in list(self._crew.workers):
            if worker.has_ended():
                self._crew.remove(worker)
            elif forgotten:
                worker.send((Kind.FORGET, forgotten))

    def _room(self) -> int:
        for worker in list(self._crew.workers):
            if self._left(worker) == 0 and not worker.outstanding:
                self._crew.remove(worker, EXIT_S)
        while len(self._crew.workers) < self.workers:
            self._add_worker()
        _, depth = self._sizes()
        return sum(self._capacity(worker, depth) for worker in self._crew.workers)

    def _submit(self, tickets: Sequence[Ticket]) -> None:
        batch, depth = self._sizes()
        waiting = list(reversed(tickets))
        while waiting:
            worker = max(self._crew.workers, key=lambda one: self._capacity(one, depth))
            count = max(1, min(batch, self._capacity(worker, depth), len(waiting)))
            self._send_tasks(worker, [waiting.pop() for _ in range(count)])

    def _sizes(self) -> tuple[int, int]:
        """Return how many tasks go in a message, and how many a worker may hold."""
        remaining = None if self._run is None else self._run.source.remaining
        batch = self._batches.batch(remaining, self.workers)
        return batch, self._batches.depth(batch, remaining, self.workers)

    def _capacity(self, worker: WorkerHandle, depth: int) -> int:
        return int(max(0, min(depth, self._left(worker)) - len(worker.outstanding)))

    def _left(self, worker: WorkerHandle) -> float:
        """Return how many more tasks a worker may run before it is replaced."""
        if self.recycle_after is None or self._folding:
            return math.inf
        return max(0, self.recycle_after - worker.num_done)

    def _send_tasks(self, worker: WorkerHandle, tickets: list[Ticket]) -> None:
        if worker.map_number != self._number:
            worker.map_number = self._number
            task_number, task, task_buffers = self._task
            if worker.task_number != task_number:
                worker.task_number = task_number
                worker.send((Kind.TASK, task), task_buffers)
            worker.send(*self._map)
        entries: list[tuple[int, Parcel]] = []
        buffers: list[memoryview] = []
        for ticket in tickets:
            try:
                entries.append((ticket.index, self._pack_item(ticket.item, buffers)))
            except Exception as error:  # noqa: BLE001 - user code runs in pickling
                failure = Failure.of(error, "has an item that cannot be sent to a worker")
                self._ready.append(Outcome(ticket.index, failure=failure))
            else:
                worker.outstanding[ticket.index] = ticket
        if entries:
            freed = worker.slots.take_released()
            worker.send((Kind.TASKS, self._number, entries, freed), buffers)

    def _pack_item(self, item: Any, buffers: list[memoryview]) -> Parcel:
        if type(item) in ATOMS:
            return Parcel(item)
        payload, own = self._open_downlink().pack(item)
        # What the socket does not take at once is sent later, when the item may have changed.
        buffers += [memoryview(bytes(buffer)) for buffer in own]
        return Parcel(None, payload, [buffer.nbytes for buffer in own])

    def _completed(self) -> list[Outcome]:
        if not self._ready:
            self._receive(self._poll_s())
        outcomes, self._ready = self._ready, []
        return outcomes

    def _end(self, ending: Ending) -> Sequence[Outcome]:
        workers = list(self._crew.workers)
        if ending is Ending.INTERRUPTED:
            # A message may have been cut short anywhere: none of them can be trusted.
            for worker in workers:
                self._crew.remove(worker)
        elif ending is Ending.FAILED:
            for worker in workers:
                worker.control.stop(self._number)
            deadline = time.monotonic() + _GRACE_S
            while self._busy() and (left := deadline - time.monotonic()) > 0:
                self._receive(left)
            for worker in self._busy():
                self._crew.remove(worker)
        for worker in self._crew.workers:
            worker.folded.clear()
        outcomes, self._ready = self._ready, []
        self._map = (), []
        return outcomes

    def _busy(self) -> list[WorkerHandle]:
        return [one for one in self._crew.workers if one.outstanding or one.outbox]

    def _partials(self) -> Iterable[Any]:
        waiting = [worker for worker in self._crew.workers if worker.folded]
        for worker in waiting:
            worker.send((Kind.COLLECT, self._number))
        while any(worker.folded and not worker.gone for worker in waiting) and not self._ready:
            self._receive(self._poll_s())
        collected, self._collected = self._collected, []
        return collected

    # -- messages -------------------------------------------------------------------------------

    def _poll_s(self) -> float:
        return _PATIENT_S if self.timeout is None else min(_POLL_S, self.timeout / 4)

    def _receive(self, timeout_s: float) -> None:
        """Wait for messages, handle them, and deal with workers that are gone or late."""
        for worker, head, blob in self._crew.poll(timeout_s):
            kind = head[0]
            content: Any = head[1:]
            if kind == Kind.DONE:
                self._take_results(worker, *content, blob=blob)
            elif kind == Kind.PARTIAL:
                self._take_partial(worker, *content, blob=blob)
            else:
                worker.ready = True
        for worker in list(self._crew.workers):
            if worker.gone and worker.ready:
                self._lose(worker)
            elif self.timeout is not None:
                self._check_time(worker, self.timeout)

    def _take_results(
        self,
        worker: WorkerHandle,
        number: int,
        entries: list[tuple[int, bool, Parcel | None]],
        seconds: float,
        discarded: list[int],
        refusal: str,
        blob: memoryview,
    ) -> None:
        parcels = [parcel for _, _, parcel in entries if parcel is not None]
        opened = iter(self._open_parcels(worker, parcels, blob))
        for index, ok, parcel in entries:
            ticket = worker.outstanding.pop(index)
            if parcel is None:
                continue  # the map had failed
            value, error = next(opened)
            if error is not None:
                failure = Failure.of(error, "has a result that cannot be unpacked")
                self._ready.append(Outcome(index, failure=failure))
            elif ok:
                self._ready.append(Outcome(index, value))
                if self._folding:
                    worker.folded.append(ticket)
            else:
                self._ready.append(Outcome(index, failure=value))
        worker.num_done += len(entries)
        worker.slots.discard(discarded)
        self._batches.observe(len(entries), seconds)
        if refusal:
            self._open_downlink().warn(refusal)

    def _open_parcels(
        self, worker: WorkerHandle, parcels: list[Parcel], blob: memoryview
    ) -> Iterator[tuple[Any, Exception | None]]:
        for parcel, inline in zip(parcels, split_among(parcels, blob), strict=True):
            try:
                buffers = worker.slots.buffers(parcel.slot, parcel.sizes) if parcel.slot else inline
                yield open_parcel(parcel, buffers), None
            except Exception as error:  # noqa: BLE001 - user code runs in unpickling
                yield None, error

    def _take_partial(
        self, worker: WorkerHandle, number: int, ok: bool, parcel: Parcel, blob: memoryview
    ) -> None:
        ((value, error),) = self._open_parcels(worker, [parcel], blob)
        if error is None and ok:
            self._collected.append(value)
            worker.folded.clear()
            return
        failure = value if error is None else Failure.of(error)
        failure.action = "folded into a partial reducer that cannot be sent"
        self._blame(worker.folded[0], failure)

    # -- losses ---------------------------------------------------------------------------------

    def _check_time(self, worker: WorkerHandle, timeout: float) -> None:
        running = worker.control.running
        ticket = worker.outstanding.get(running) if running is not None else None
        if ticket is None or worker.control.running_s <= timeout:
            return
        error = TaskTimeoutError(
            f"{name_task(ticket.index, ticket.item)} ran longer than the timeout of {timeout:g} s "
            f"on backend {self.backend!r}; its worker (pid {worker.pid}) was ended.",
            index=ticket.index,
            item=client_of(ticket.item),
        )
        self._drop(worker, ticket, error)

    def _lose(self, worker: WorkerHandle) -> None:
        """Deal with a worker that ended by itself."""
        running = worker.control.running
        ticket = None if running is None else worker.outstanding.get(running)
        if ticket is None and worker.folded:
            ticket = worker.folded[0]
        died = WorkerDiedError("", index=-1)
        if ticket is not None:
            died = WorkerDiedError(
                "", index=ticket.index, item=client_of(ticket.item), pid=worker.pid
            )
        died.exitcode = self._drop(worker, ticket, died)
        what = describe_exit(died.exitcode)
        if ticket is None:
            self._idle_deaths += 1
            if self._idle_deaths > _MAX_IDLE_DEATHS * self.workers:
                raise ExecutorError(
                    f"worker processes end before they run a task: the last {what}. "
                    "Their own messages are on stderr."
                )
            return
        died.args = (
            f"the worker (pid {worker.pid}) {what} while it ran "
            f"{name_task(ticket.index, ticket.item)} on backend {self.backend!r}."
            f"{_HINTS.get(died.exitcode, '')} retries={self.retries + 1} would run the task "
            "once more.",
        )

    def _drop(self, worker: WorkerHandle, ticket: Ticket | None, error: ExecutorError) -> int:
        """End a worker; blame one of its tasks and put the others back."""
        code = self._crew.remove(worker, EXIT_S if worker.gone else 0.0)
        if self._run is not None:
            others = [*worker.outstanding.values(), *worker.folded]
            self._run.requeue(one for one in others if one is not ticket)
            if ticket is not None:
                self._blame(ticket, Failure(error))
        return code

    def _blame(self, ticket: Ticket, failure: Failure) -> None:
        if self._run is not None:
            self._run.flying[ticket.index] = ticket
        self._ready.append(Outcome(ticket.index, failure=failure))


_HINTS = {-signal.SIGKILL: " SIGKILL is often the system's answer to too little memory."}


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Turn any error of pickling into one that says what could not be sent."""
    try:
        yield
    except Exception as error:
        raise pickle.PicklingError(
            f"{what} must be picklable to reach the workers, got "
            f"{type(error).__name__}: {error}. Leave open files, locks, generators and sockets "
            "out, or use the backend 'threads'."
        ) from error
