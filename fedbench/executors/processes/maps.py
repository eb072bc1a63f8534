"""The maps of the ``processes`` backend: which worker gets which task, and what a loss means."""

from __future__ import annotations

import math
import os
import time
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from fedbench.errors import ExecutorError, WorkerDiedError
from fedbench.executors.ambient import Ambient
from fedbench.executors.engine import Ending, Run
from fedbench.executors.hooks import Job
from fedbench.executors.losses import not_begun, not_sent, ran_too_long
from fedbench.executors.processes.broadcast import Downlink
from fedbench.executors.processes.dispatch import BatchSize, BatchSizes
from fedbench.executors.processes.launch import (
    START_S,
    Launcher,
    cannot_get_ready,
    cannot_start,
    describe_exit,
    search_path,
)
from fedbench.executors.processes.memory import Arena
from fedbench.executors.processes.pool import EXIT_S, Crew, WorkerHandle, kill_all
from fedbench.executors.processes.protocol import ATOMS, Kind, Parcel, Slot
from fedbench.executors.processes.results import fill_in, open_answers
from fedbench.executors.runner import Failure, Outcome, Ticket
from fedbench.executors.unpicklable import cannot_be_sent, sending

__all__ = ["Maps"]

_GRACE_S = 1.0
"""How long the tasks that run may go on after another has failed."""
_POLL_S = 0.2
"""How often time-outs are looked at, at least."""
_BEGIN_S = 5.0
"""How long a worker has for what is not a task even if the time-out is shorter: on a busy machine
it may not get a core at once."""
_PATIENT_S = 60.0
_MAX_IDLE_DEATHS = 3
"""Workers that may die in one map without running anything, per worker."""


class Maps:
    """Runs the maps of one executor, one after another, on workers that live as long as it does.

    The methods are the hooks of :class:`~fedbench.executors.hooks.BackendHooks`.

    Parameters
    ----------
    launcher : Launcher
        Starts the workers.
    workers : int
        Number of processes.
    timeout : float or None
        Seconds after which a task's worker is ended and the map fails.
    retries : int
        How often a task is run again when its worker died; for messages.
    recycle_after : int or None
        Tasks after which a worker is replaced by a fresh one.

    Raises
    ------
    ResourceError
        If the system does not provide the shared memory.
    """

    def __init__(
        self,
        launcher: Launcher,
        *,
        workers: int,
        timeout: float | None,
        retries: int,
        recycle_after: int | None,
    ) -> None:
        self.workers = workers
        self.timeout = timeout
        self.retries = retries
        self.recycle_after = recycle_after
        try:
            self.downlink = Downlink(Arena())
        except OSError as error:
            raise cannot_start(error) from error
        self.crew = Crew(launcher)
        self._run: Run | None = None
        self._known_sizes = BatchSizes()
        self._batches = BatchSize()
        self._batch = self._depth = 1
        self._number = 0
        self._task: tuple[int, Parcel, list[memoryview]] = (0, Parcel(), [])
        self._map: tuple[tuple[Any, ...], list[memoryview]] = ((), [])
        self._folding = self._collecting = False
        self._ready: list[Outcome] = []
        self._collected: list[Any] = []
        self._idle_deaths = 0
        # Also runs when the program ends without close(), or drops the executor.
        weakref.finalize(self, kill_all, self.crew.workers, os.getpid())

    def close(self) -> None:
        """End the workers and give back the shared memory."""
        try:
            self.crew.stop()
        finally:
            self.downlink.arena.close()

    def fill(self) -> None:
        """Start the workers that are missing."""
        while len(self.crew.workers) < self.workers:
            self.crew.add(self.downlink.arena)

    # -- one map --------------------------------------------------------------------------------

    def begin(self, job: Job, run: Run | None) -> None:
        """Make `job` known to the workers."""
        downlink = self.downlink
        self._run = run
        self._number += 1
        self._folding = job.reducer is not None
        self._ready, self._collected, self._idle_deaths = [], [], 0
        self._collecting = False
        with sending("the task", job.task):
            self._prepare_task(*downlink.pack(job.task))
        broadcast = reducer = None
        buffers: list[memoryview] = []
        if job.has_broadcast:
            with sending("the broadcast", job.broadcast):
                broadcast, buffers = downlink.place_broadcast(job.broadcast)
        if self._folding:
            with sending("the reducer", job.reducer):
                payload, reducer_buffers = downlink.pack(job.reducer)
            reducer = Parcel(None, payload, [buffer.nbytes for buffer in reducer_buffers])
            buffers += reducer_buffers
        head = (Kind.MAP, self._number, search_path(), Ambient.capture(), broadcast, reducer)
        self._map = head, buffers
        self._tend_workers(downlink)

    def _prepare_task(self, payload: bytes, buffers: list[memoryview]) -> None:
        """Note the task; one with the same bytes as the last need not be sent again."""
        self._batches = self._known_sizes.of(payload)
        number, last, _ = self._task
        if buffers or payload != last.payload:
            sizes = [buffer.nbytes for buffer in buffers]
            self._task = number + 1, Parcel(None, payload, sizes), buffers

    def _tend_workers(self, downlink: Downlink) -> None:
        """Replace workers that ended between maps, and pass on what the living must forget."""
        forgotten, downlink.forgotten = downlink.forgotten, []
        # One that still owes answers was left so by an interrupt while a map ended.
        self.crew.dismiss([one for one in self.crew.workers if one.has_ended() or one.outstanding])
        if forgotten:
            for worker in self.crew.workers:
                worker.send((Kind.FORGET, forgotten))

    def room(self) -> int:
        """Return how many tasks can be submitted, after starting the workers that are missing."""
        for worker in list(self.crew.workers):
            if self._left(worker) == 0 and not worker.outstanding:
                self.crew.remove(worker, EXIT_S)
        self.fill()
        self._plan_sizes()
        return sum(self._capacity(worker) for worker in self.crew.workers)

    def submit(self, tickets: Sequence[Ticket]) -> None:
        """Send tasks to the workers with the most room."""
        waiting = list(reversed(tickets))
        while waiting:
            worker = max(self.crew.workers, key=self._capacity)
            count = max(1, min(self._batch, self._capacity(worker), len(waiting)))
            self._send_tasks(worker, [waiting.pop() for _ in range(count)])

    def _plan_sizes(self) -> None:
        """Decide how many tasks go in a message, and how many a worker may hold."""
        remaining = None if self._run is None else self._run.source.remaining
        self._batch = self._batches.batch(remaining, self.workers)
        self._depth = self._batches.depth(self._batch, remaining, self.workers)

    def _capacity(self, worker: WorkerHandle) -> int:
        return int(max(0, min(self._depth, self._left(worker)) - len(worker.outstanding)))

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
        if not worker.outstanding:
            worker.active_at = time.monotonic()
        entries: list[tuple[int, Parcel]] = []
        buffers: list[memoryview] = []
        for ticket in tickets:
            try:
                entries.append((ticket.index, self._pack_item(ticket.item, buffers)))
            except Exception as error:  # noqa: BLE001 - user code runs in pickling
                failure = cannot_be_sent(error, "an item", ticket.item)
                self._ready.append(Outcome(ticket.index, failure=failure))
            else:
                worker.outstanding[ticket.index] = ticket
        if entries:
            freed = worker.slots.take_released()
            worker.send((Kind.TASKS, self._number, entries, freed), buffers)

    def _pack_item(self, item: Any, buffers: list[memoryview]) -> Parcel:
        if type(item) in ATOMS:
            return Parcel(item)
        payload, own = self.downlink.pack(item)
        # What the socket does not take at once is sent later, when the item may have changed.
        buffers += [memoryview(bytes(buffer)) for buffer in own]
        return Parcel(None, payload, [buffer.nbytes for buffer in own])

    def completed(self) -> list[Outcome]:
        """Wait for outcomes and return them."""
        if not self._ready:
            self._receive(self._poll_s())
        outcomes, self._ready = self._ready, []
        return outcomes

    def end(self, ending: Ending) -> Sequence[Outcome]:
        """Finish the map and return outcomes that still arrived."""
        workers = list(self.crew.workers)
        if ending is Ending.INTERRUPTED:
            # A message may have been cut short anywhere: none of them can be trusted.
            self.crew.dismiss(workers)
        elif ending is Ending.FAILED:
            for worker in workers:
                worker.control.stop(self._number)
            deadline = time.monotonic() + _GRACE_S
            while self._busy() and (left := deadline - time.monotonic()) > 0:
                self._receive(left)
            self.crew.dismiss(self._busy())
        for worker in self.crew.workers:
            worker.folded.clear()
        outcomes, self._ready = self._ready, []
        self._map = (), []
        self._run = None
        return outcomes

    def _busy(self) -> list[WorkerHandle]:
        return [one for one in self.crew.workers if one.outstanding or one.outbox]

    def partials(self) -> Iterable[Any]:
        """Return what the workers folded since the last call."""
        waiting = [worker for worker in self.crew.workers if worker.folded]
        for worker in waiting:
            worker.active_at = time.monotonic()
            worker.send((Kind.COLLECT, self._number))
        self._collecting = True
        while any(worker.folded and not worker.gone for worker in waiting) and not self._ready:
            self._receive(self._poll_s())
        self._collecting = False
        collected, self._collected = self._collected, []
        return collected

    # -- messages -------------------------------------------------------------------------------

    def _poll_s(self) -> float:
        return _PATIENT_S if self.timeout is None else min(_POLL_S, self.timeout / 4)

    def _receive(self, timeout_s: float) -> None:
        """Wait for messages, handle them, and deal with workers that are gone or late."""
        for worker, head, blob in self.crew.poll(timeout_s):
            kind = head[0]
            content = head[1:]
            if kind == Kind.DONE:
                self._take_results(worker, blob, *content)
            elif kind == Kind.PARTIAL:
                self._take_partial(worker, blob, *content)
            else:
                worker.ready = True
        for worker in list(self.crew.workers):
            if worker.gone and self._run is not None:
                self._lose(worker)
            elif not worker.ready:
                self._check_start(worker)
            elif self.timeout is not None:
                self._check_time(worker, self.timeout)

    def _take_results(
        self,
        worker: WorkerHandle,
        blob: memoryview,
        number: int,
        entries: list[tuple[int, bool, Parcel | None]],
        seconds: float,
        discarded: list[int],
        refusal: str,
        slot: Slot | None,
    ) -> None:
        if number != self._number:
            return  # not of a task of this map, whoever sent it
        if any(index not in worker.outstanding for index, _, _ in entries):
            self.crew.remove(worker)
            raise ExecutorError(
                "a worker must answer for the tasks that it was given, got another answer from "
                f"pid {worker.pid}. A task must not write to descriptors that it did not open."
            )
        opened = iter(open_answers(worker, entries, blob, slot))
        for index, _, parcel in entries:
            ticket = worker.outstanding.pop(index)
            if parcel is None:
                continue  # skipped, because the map had failed
            outcome = next(opened)
            self._ready.append(outcome)
            if self._folding and outcome.failure is None:
                worker.folded.append(ticket)
        worker.num_done += len(entries)
        worker.slots.discard(discarded)
        self._batches.observe(len(entries), seconds)
        if refusal:
            self.downlink.warn(refusal)

    def _take_partial(
        self, worker: WorkerHandle, blob: memoryview, number: int, ok: bool, parcel: Parcel
    ) -> None:
        (outcome,) = open_answers(worker, [(0, ok, parcel)], blob)
        if number != self._number or not worker.folded:
            return  # asked for twice, because another worker died in between
        if outcome.failure is None:
            self._collected.append(outcome.value)
            worker.folded.clear()
        else:
            outcome.failure.action = "was folded into a partial reducer that cannot be sent"
            self._blame(worker.folded[0], outcome.failure)

    def _check_start(self, worker: WorkerHandle) -> None:
        if time.monotonic() - worker.began > START_S:
            raise cannot_get_ready()

    # -- losses ---------------------------------------------------------------------------------

    def _check_time(self, worker: WorkerHandle, timeout: float) -> None:
        """End a worker that takes too long for the task that it runs, or to come to its next."""
        running = worker.control.running(self._number)
        ticket = worker.outstanding.get(running) if running is not None else None
        limit, late = timeout, ran_too_long
        if ticket is None:
            if worker.outstanding:
                ticket, late = next(iter(worker.outstanding.values())), not_begun
            elif self._collecting and worker.folded:
                ticket, late = worker.folded[0], not_sent
            else:
                return
            limit = max(timeout, START_S if worker.control.preparing else _BEGIN_S)
        if worker.stands_still_s > limit:
            self._drop(worker, ticket, late(ticket, limit, f"pid {worker.pid}"))

    def _lose(self, worker: WorkerHandle) -> None:
        """Deal with a worker that ended by itself."""
        running = worker.control.running(self._number)
        ticket = None if running is None else worker.outstanding.get(running)
        if ticket is None and worker.folded:
            ticket = worker.folded[0]
        died = WorkerDiedError("", index=-1 if ticket is None else ticket.index)
        code = self._drop(worker, ticket, died)
        if ticket is not None:
            fill_in(died, ticket, worker, code, self.retries)
            return
        self._idle_deaths += 1
        if self._idle_deaths > _MAX_IDLE_DEATHS * self.workers:
            raise ExecutorError(
                f"worker processes end before they run a task: the last {describe_exit(code)}. "
                "Their own messages are on stderr."
            )

    def _drop(
        self, worker: WorkerHandle, ticket: Ticket | None, error: ExecutorError
    ) -> int | None:
        """End a worker; blame one of its tasks and put the others back."""
        code = self.crew.remove(worker, EXIT_S if worker.gone else 0.0)
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
