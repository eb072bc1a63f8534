"""The hooks of the ``ray`` backend: which worker gets which task, and what a loss means."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ray

from fedbench.errors import ExecutorError, WorkerDiedError
from fedbench.executors.ambient import Ambient
from fedbench.executors.base import Executor
from fedbench.executors.checks import check_count
from fedbench.executors.engine import Ending
from fedbench.executors.hooks import Job
from fedbench.executors.losses import not_begun, not_sent, ran_too_long, tried
from fedbench.executors.packing import pack
from fedbench.executors.processes.dispatch import BatchSize
from fedbench.executors.processes.launch import search_path
from fedbench.executors.processes.protocol import ATOMS, Parcel, open_parcel
from fedbench.executors.ray.cluster import Cluster, Placement, check_resources, join
from fedbench.executors.ray.crew import Call, Crew, Kind, Residents, Worker, describe_loss
from fedbench.executors.ray.memory import Array, Lender, Message, as_arrays, split
from fedbench.executors.runner import Failure, Outcome, Ticket, client_of, name_task
from fedbench.executors.unpicklable import cannot_be_sent, sending

__all__ = ["RayExecutor"]

_GRACE_S = 1.0
"""How long the tasks that run may go on after another has failed."""
_POLL_S = 0.2
"""How often time-outs are looked at, at least."""
_PATIENT_S = 5.0
_BEGIN_S = 30.0
"""How long a worker has for what is not a task even if the time-out is shorter: Ray moves data."""
_BATCH_S = 0.004
"""Work in a call: several times what the call costs."""
_LONG_S = 1.0
"""Tasks of this length are not queued: the call's way to the worker is nothing against it."""
_MAX_IDLE_DEATHS = 3
"""Workers that may die in one map without running anything, per worker."""
_LENT_SHARE = 4
"""One over the share of the object store that results may occupy while the caller keeps them."""


class RayExecutor(Executor):
    """Runs tasks in actors of a Ray cluster.

    Parameters
    ----------
    workers : int, optional
        Number of actors; by default what this machine offers.
    intraop_threads : int, default 1
        Torch's threads inside one task.
    retries : int, default 0
        How often a task is run again when its worker or node died.
    timeout : float, optional
        Seconds after which a task's worker is ended and the map fails.
    address : str, optional
        ``"host:port"`` of a running cluster, ``"auto"`` for the one on this machine, or
        ``"local"`` to start one. By default: the connection that this process has, the
        environment variable ``RAY_ADDRESS``, or a new local cluster, in this order. A cluster
        that was not started here is never stopped.
    resources_per_worker : mapping of str to float, optional
        What each worker reserves on the cluster, by Ray's names, e.g. ``{"CPU": 2, "GPU": 0.5}``.
        By default one CPU, and nothing on a cluster that an executor of this process started.
        A cluster that is started for this executor has the CPUs and custom resources for it.
    object_store_memory : int, optional
        Bytes of the object store of a cluster that is started; by default Ray's choice.

    Notes
    -----
    fedbench, the same torch build, and the modules that tasks use must be installed on all nodes.
    What a task prints goes to Ray's log files.
    """

    backend = "ray"
    folds_in_workers = True

    def __init__(
        self,
        workers: int | None = None,
        *,
        intraop_threads: int = 1,
        retries: int = 0,
        timeout: float | None = None,
        address: str | None = None,
        resources_per_worker: Mapping[str, float] | None = None,
        object_store_memory: int | None = None,
    ) -> None:
        super().__init__(workers, intraop_threads=intraop_threads, retries=retries, timeout=timeout)
        if address is not None and not isinstance(address, str):
            raise TypeError(f"address must be text or None, got {address!r}.")
        self.address = address
        self.resources_per_worker = check_resources(resources_per_worker)
        self.object_store_memory = (
            None
            if object_store_memory is None
            else check_count("object_store_memory", object_store_memory, 1)
        )
        self._cluster: Cluster | None = None
        self._crew: Crew | None = None
        self._residents = Residents()
        self._lender = Lender(0)
        self._batches = BatchSize(_BATCH_S, _LONG_S)
        self._measured = False
        self._number = 0
        self._job: Any = None
        self._job_residents: dict[int, Any] = {}
        self._folding = False
        self._ready: list[Outcome] = []
        self._collected: list[Any] = []
        self._idle_deaths = 0

    # -- life -----------------------------------------------------------------------------------

    def _start_workers(self) -> None:
        resources = self.resources_per_worker
        self._cluster = join(self.address, self.workers, self.object_store_memory, resources)
        if resources is None:
            resources = {} if self._cluster.started else {"CPU": 1.0}
        self._lender = Lender(self._cluster.store_bytes // _LENT_SHARE)
        placement = Placement(self.workers, resources, own_cluster=self._cluster.started)
        self._crew = Crew(placement, self.workers, self.intraop_threads)
        self._crew.start()

    def _stop_workers(self) -> None:
        crew, self._crew = self._crew, None
        cluster, self._cluster = self._cluster, None
        try:
            if crew is not None:
                crew.stop()
            self._residents.clear()
        finally:
            if cluster is not None:
                cluster.leave()

    def _open_crew(self) -> Crew:
        if self._crew is None:
            raise RuntimeError("the executor is not started")
        return self._crew

    # -- one map --------------------------------------------------------------------------------

    def _begin(self, job: Job) -> None:
        crew = self._open_crew()
        for worker in crew.busy():
            # It still owes answers of a map that is over, which would pass for those of this one.
            crew.remove(worker)
        self._number += 1
        self._folding = job.reducer is not None
        self._ready, self._collected, self._idle_deaths = [], [], 0
        self._batches, self._measured = BatchSize(_BATCH_S, _LONG_S), False
        self._job_residents = {}
        buffers: list[Array] = []
        with sending("the task", job.task):
            task = self._pack(job.task, buffers, self._job_residents)
        broadcast = reducer = None
        if job.has_broadcast:
            with sending("the broadcast", job.broadcast):
                broadcast = self._pack(job.broadcast, buffers, self._job_residents)
        if self._folding:
            with sending("the reducer", job.reducer):
                reducer = self._pack(job.reducer, buffers, self._job_residents)
        head = (search_path(), Ambient.capture(), task, broadcast, reducer)
        self._job = ray.put(Message(pickle.dumps(head, protocol=5), buffers))
        crew.forget(self._residents.take_forgotten())

    def _pack(self, value: Any, buffers: list[Array], residents: dict[int, Any]) -> Parcel:
        """Return `value` as a parcel; add its buffers and the residents that it needs."""
        if type(value) in ATOMS:
            return Parcel(value)
        payload, own = pack(value, self._residents.reducer(residents))
        arrays = as_arrays(own)
        buffers += arrays
        return Parcel(None, payload, [array.nbytes for array in arrays])

    def _room(self) -> int:
        crew = self._open_crew()
        crew.fill()
        while not any(worker.ready for worker in crew.workers):
            crew.check_start()
            self._receive(1.0)
            crew.fill()
        _, depth = self._sizes()
        return sum(self._capacity(worker, depth) for worker in crew.workers)

    def _sizes(self) -> tuple[int, int]:
        """Return how many tasks go in a call, and how many a worker may hold."""
        remaining = None if self._run is None else self._run.source.remaining
        batch = self._batches.batch(remaining, self.workers)
        if not self._measured and (remaining is None or remaining <= 2 * self.workers):
            # One queued behind a task of unknown length might end the map later than need be.
            return batch, batch
        return batch, self._batches.depth(batch, remaining, self.workers)

    def _capacity(self, worker: Worker, depth: int) -> int:
        if not worker.ready:
            return 0
        if worker.board is None:
            # Without the board a lost call tells nothing about the tasks inside.
            depth = min(depth, 2)
        return max(0, depth - worker.num_outstanding)

    def _submit(self, tickets: Sequence[Ticket]) -> None:
        batch, depth = self._sizes()
        waiting = list(reversed(tickets))
        while waiting:
            worker = max(self._open_crew().workers, key=lambda one: self._capacity(one, depth))
            size = batch if worker.board is not None else 1
            count = max(1, min(size, self._capacity(worker, depth), len(waiting)))
            self._send_tasks(worker, [waiting.pop() for _ in range(count)])

    def _send_tasks(self, worker: Worker, tickets: list[Ticket]) -> None:
        if worker.map_number != self._number:
            worker.map_number = self._number
            worker.begin(self._job, self._job_residents)
        entries: list[tuple[int, Parcel]] = []
        sent: list[Ticket] = []
        buffers: list[Array] = []
        residents: dict[int, Any] = {}
        for ticket in tickets:
            try:
                entries.append((ticket.index, self._pack(ticket.item, buffers, residents)))
            except Exception as error:  # noqa: BLE001 - user code runs in pickling
                failure = cannot_be_sent(error, "an item", ticket.item)
                self._ready.append(Outcome(ticket.index, failure=failure))
            else:
                sent.append(ticket)
        if entries:
            worker.run(self._number, pickle.dumps(entries, protocol=5), buffers, residents, sent)

    def _completed(self) -> list[Outcome]:
        if not self._ready:
            self._receive(_PATIENT_S)
        outcomes, self._ready = self._ready, []
        return outcomes

    def _end(self, ending: Ending) -> Sequence[Outcome]:
        crew = self._open_crew()
        if ending is Ending.INTERRUPTED:
            for worker in crew.busy():
                crew.remove(worker)
        elif ending is Ending.FAILED:
            for worker in crew.busy():
                worker.stop(self._number)
            deadline = time.monotonic() + _GRACE_S
            while crew.busy() and (left := deadline - time.monotonic()) > 0:
                self._receive(left, ending=True)
            for worker in crew.busy():
                crew.remove(worker)
        for worker in crew.workers:
            worker.folded.clear()
        outcomes, self._ready = self._ready, []
        self._job, self._job_residents = None, {}
        return outcomes

    def _partials(self) -> Iterable[Any]:
        crew = self._open_crew()
        for worker in crew.workers:
            if worker.folded:
                worker.collect()
        while any(worker.folded for worker in crew.workers) and not self._ready:
            self._receive(_PATIENT_S)
        collected, self._collected = self._collected, []
        return collected

    # -- answers --------------------------------------------------------------------------------

    def _receive(self, timeout_s: float, *, ending: bool = False) -> None:
        """Wait for answers, handle them, and deal with workers that are gone or late."""
        crew = self._open_crew()
        if self.timeout is not None:
            timeout_s = min(timeout_s, _POLL_S, self.timeout / 4)
        for worker in crew.wait(timeout_s):
            call = worker.calls[0]
            answer = crew.answer(worker)
            if isinstance(answer, Exception):
                self._lose(worker, answer, ending=ending)
                continue
            worker.finish_call()
            if call.kind is Kind.HELLO:
                worker.greet(answer)
            elif call.kind is Kind.RUN:
                self._take_results(worker, call, answer)
            elif call.kind is Kind.COLLECT:
                self._take_partial(worker, answer)
        if self.timeout is not None and not ending:
            for worker in list(crew.workers):
                self._check_time(worker, self.timeout)

    def _take_results(
        self, worker: Worker, call: Call, answer: tuple[bytes, list[Array]] | Failure
    ) -> None:
        if isinstance(answer, Failure):
            for ticket in call.tickets:
                self._ready.append(Outcome(ticket.index, failure=answer))
            return
        head, buffers = answer
        entries, seconds = pickle.loads(head)
        self._batches.observe(len(entries), seconds)
        self._measured = True
        groups = split(buffers, [parcel or Parcel() for _, _, parcel in entries])
        for ticket, (index, ok, parcel), own in zip(call.tickets, entries, groups, strict=True):
            if parcel is None:
                continue  # the map had failed
            try:
                value = open_parcel(parcel, self._lender.views(own))
            except Exception as error:  # noqa: BLE001 - user code runs in unpickling
                failure = Failure.of(error, "has a result that cannot be unpacked")
                self._ready.append(Outcome(index, failure=failure))
                continue
            if not ok:
                self._ready.append(Outcome(index, failure=value))
                continue
            self._ready.append(Outcome(index, value))
            if self._folding:
                worker.folded.append(ticket)

    def _take_partial(self, worker: Worker, answer: tuple[bytes, list[Array]] | Failure) -> None:
        if not isinstance(answer, Failure):
            head, buffers = answer
            ((_, ok, parcel),), _ = pickle.loads(head)
            try:
                value = open_parcel(parcel, self._lender.views(buffers))
            except Exception as error:  # noqa: BLE001 - user code runs in unpickling
                ok, value = False, Failure.of(error)
            if ok:
                self._collected.append(value)
                worker.folded.clear()
                return
            failure: Failure = value
        else:
            failure = answer
        failure.action = "folded into a partial reducer that cannot be sent"
        self._blame(worker.folded[0], failure)

    # -- losses ---------------------------------------------------------------------------------

    def _check_time(self, worker: Worker, timeout: float) -> None:
        """End a worker that takes too long for the task that it runs, or to come to its next."""
        ticket, seconds = worker.running_ticket(), worker.running_s()
        limit, late = timeout, ran_too_long
        if ticket is None:
            ticket, seconds = worker.expected_ticket(), worker.head_s()
            limit = max(timeout, worker.head_limit_s(_BEGIN_S))
            late = not_sent if ticket in worker.folded else not_begun
        if ticket is not None and seconds > limit and not worker.has_answered():
            self._drop(worker, ticket, late(ticket, limit, worker.place))

    def _lose(self, worker: Worker, error: Exception, *, ending: bool) -> None:
        """Deal with a worker that ended by itself."""
        if ending:
            self._open_crew().remove(worker)
            return
        ticket = worker.running_ticket()
        if ticket is None and worker.folded:
            ticket = worker.folded[0]
        if ticket is None:
            self._drop(worker, None, None)
            self._idle_deaths += 1
            if self._idle_deaths > _MAX_IDLE_DEATHS * self.workers:
                raise ExecutorError(
                    f"Ray's workers end before they run a task: the last ({worker.place}) "
                    f"{describe_loss(error)}."
                )
            return
        died = WorkerDiedError(
            f"the worker ({worker.place}) {describe_loss(error)} while it ran "
            f"{name_task(ticket.index, ticket.item)}. {tried(ticket, self.retries)}",
            index=ticket.index,
            item=client_of(ticket.item),
            pid=worker.hello.pid if worker.hello is not None else None,
        )
        self._drop(worker, ticket, died)

    def _drop(self, worker: Worker, ticket: Ticket | None, error: ExecutorError | None) -> None:
        """End a worker; blame one of its tasks and put the others back."""
        self._open_crew().remove(worker)
        if self._run is None:
            return
        others = [*worker.outstanding(), *worker.folded]
        self._run.requeue(one for one in others if one is not ticket)
        if ticket is not None and error is not None:
            self._blame(ticket, Failure(error))

    def _blame(self, ticket: Ticket, failure: Failure) -> None:
        if self._run is not None:
            self._run.flying[ticket.index] = ticket
        self._ready.append(Outcome(ticket.index, failure=failure))
