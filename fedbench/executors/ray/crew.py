"""The caller's record of its Ray workers: what each was given, and what became of it."""

from __future__ import annotations

import enum
import os
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray import exceptions

from fedbench.errors import ExecutorError, ResourceError
from fedbench.executors.packing import pack
from fedbench.executors.ray.board import Board
from fedbench.executors.ray.cluster import PLACEMENT_S, Placement
from fedbench.executors.ray.memory import Array, Message, as_arrays
from fedbench.executors.ray.worker import Hello, RayWorker, build, load_resident
from fedbench.executors.resident import Resident
from fedbench.executors.runner import Failure, Ticket

__all__ = ["Call", "Crew", "Kind", "Residents", "Worker", "describe_loss"]

_END_S = 5.0
"""How long the end of all workers may take to be noticed."""
_START_S = 120.0
"""How long a worker may take to import what it needs, once it has its place."""

_LOSSES = (
    exceptions.RayActorError,
    exceptions.WorkerCrashedError,
    exceptions.NodeDiedError,
    exceptions.OutOfMemoryError,
    exceptions.ObjectLostError,
    exceptions.OwnerDiedError,
)
"""What Ray raises when the worker, its node, or its answer is gone."""


class Kind(enum.Enum):
    """What a call is about."""

    HELLO = 1
    BEGIN = 2
    RUN = 3
    COLLECT = 4


@dataclass
class Call:
    """A call to a worker whose answer has not been handled."""

    kind: Kind
    reference: Any
    tickets: list[Ticket] = field(default_factory=list)


class Worker:
    """An actor and what it has been given.

    Parameters
    ----------
    position : int
        Its place among the workers.
    actor : ActorHandle
        Of a :class:`RayWorker`.
    board : Board
        Shared with the actor if that turns out to run on this machine.
    board_fd : int
        Its descriptor, kept open until the actor has looked for it.
    """

    def __init__(self, position: int, actor: Any, board: Board, board_fd: int) -> None:
        self.position = position
        self.hello: Hello | None = None
        self.created = time.monotonic()
        self.calls: deque[Call] = deque()
        self.map_number = 0
        self.folded: list[Ticket] = []
        """Tasks whose contributions only this worker has."""
        self.forgotten: list[int] = []
        self.board: Board | None = board
        self._board_fd = board_fd
        self._actor = actor
        self._head_since = self.created
        self._add(Call(Kind.HELLO, actor.hello.remote()))

    @property
    def ready(self) -> bool:
        """Whether the actor has said hello."""
        return self.hello is not None

    @property
    def place(self) -> str:
        """Where the worker runs, for messages."""
        if self.hello is None:
            return "not started yet"
        return f"pid {self.hello.pid} on {self.hello.host}"

    @property
    def num_outstanding(self) -> int:
        """How many tasks the worker has not answered."""
        return sum(len(call.tickets) for call in self.calls)

    def outstanding(self) -> list[Ticket]:
        """Return the tasks that the worker has not answered, in its order."""
        return [ticket for call in self.calls for ticket in call.tickets]

    def greet(self, hello: Hello) -> None:
        """Note that the actor is ready."""
        self.hello = hello
        self.close_board_fd()
        if not hello.has_board:
            self.board = None
        if hello.build != build():
            warnings.warn(
                f"the Ray worker on {hello.host} has Python, torch and CPU capability "
                f"{hello.build}, the calling process has {build()}: results may differ from the "
                "other backends in the last bits.",
                RuntimeWarning,
                stacklevel=2,
            )

    def begin(self, job: Any, residents: dict[int, Any]) -> None:
        """Make a map known to the actor, which is idle."""
        forgotten, self.forgotten = self.forgotten, []
        if self.board is not None:
            self.board.rest()
        self._add(Call(Kind.BEGIN, self._actor.begin.remote([job], residents, forgotten)))

    def run(
        self,
        number: int,
        head: bytes,
        buffers: list[Array],
        residents: dict[int, Any],
        tickets: list[Ticket],
    ) -> None:
        """Have the actor run tasks."""
        arguments: list[Any] = [number, head]
        if buffers or residents:
            arguments += [buffers, residents]
        self._add(Call(Kind.RUN, self._actor.run.remote(*arguments), tickets))

    def collect(self) -> None:
        """Ask for the partial reducer."""
        self._add(Call(Kind.COLLECT, self._actor.collect.remote()))

    def stop(self, number: int) -> None:
        """Make the actor skip the tasks of a map that it has not begun."""
        if self.board is not None:
            self.board.stop(number)

    def kill(self) -> list[Any]:
        """End the actor and return references that are ready when this process knows of its end."""
        self.close_board_fd()
        if not ray.is_initialized():
            return []
        ray.kill(self._actor)
        return [self._actor.hello.remote()]  # which fails once the end is known

    def finish_call(self) -> None:
        """Take the first call off the list."""
        self.calls.popleft()
        self._head_since = time.monotonic()

    def running_ticket(self) -> Ticket | None:
        """Return the task that the actor runs, or ran when it died, if that is known."""
        if self.board is None:
            # Nobody is to blame for the loss of a worker that had not got ready for the map.
            return next(iter(self.calls[0].tickets), None) if self.calls else None
        running = self.board.running
        return next((one for one in self.outstanding() if one.index == running), None)

    def running_s(self) -> float:
        """Return for how many seconds the running task has been running.

        Without a board it is the time since the answer before was handled here, which is less.
        """
        return self.head_s() if self.board is None else self.board.running_s

    def expected_ticket(self) -> Ticket | None:
        """Return the task that the first call is about, or the calls behind it wait for."""
        if not self.calls:
            return None
        waiting = self.folded if self.calls[0].kind is Kind.COLLECT else self.outstanding()
        return next(iter(waiting), None)

    def head_s(self) -> float:
        """Return for how many seconds the first call has been the first."""
        return time.monotonic() - self._head_since

    def head_limit_s(self, begin_s: float) -> float:
        """Return how long the first call may take: `begin_s` unless it imports what tasks need."""
        imports = self.calls and self.calls[0].kind is Kind.BEGIN
        known = self.board is None or self.board.preparing
        return _START_S if imports and known else begin_s

    def has_answered(self) -> bool:
        """Return whether an answer is here and only waits to be handled."""
        references = [call.reference for call in self.calls]
        return bool(ray.wait(references, timeout=0)[0])

    def close_board_fd(self) -> None:
        """Close the board's descriptor; what is mapped stays."""
        if self._board_fd >= 0:
            os.close(self._board_fd)
            self._board_fd = -1

    def _add(self, call: Call) -> None:
        if not self.calls:
            self._head_since = time.monotonic()
        self.calls.append(call)


class Crew:
    """All workers of one executor.

    Parameters
    ----------
    placement : Placement
        Where they go.
    size : int
        How many there should be.
    intraop_threads : int
        Torch's threads inside one task.
    """

    def __init__(self, placement: Placement, size: int, intraop_threads: int) -> None:
        self.workers: list[Worker] = []
        self._placement = placement
        self._size = size
        self._intraop_threads = intraop_threads
        self._actor_class = ray.remote(RayWorker)

    def start(self) -> None:
        """Start all workers and wait until they are ready.

        Raises
        ------
        ResourceError
            If the cluster has no room for them, or they take too long.
        ExecutorError
            If they cannot run.
        """
        self._placement.wait()
        self.fill()
        while not all(worker.ready for worker in self.workers):
            self.check_start()
            for worker in self.wait(1.0):
                answer = self.answer(worker)
                if isinstance(answer, Exception):
                    raise ExecutorError(
                        f"a Ray worker could not start: {answer}\nfedbench must be installed on "
                        "every node of the cluster, in the same version."
                    ) from answer
                worker.finish_call()
                worker.greet(answer)

    def fill(self) -> None:
        """Start workers in place of those that are gone."""
        taken = {worker.position for worker in self.workers}
        for position in range(self._size):
            if position not in taken:
                board, fd, where = Board.create()
                options = self._placement.options(position)
                actor = self._actor_class.options(
                    max_restarts=0, max_task_retries=0, enable_task_events=False, **options
                ).remote(self._intraop_threads, where)
                self.workers.append(Worker(position, actor, board, fd))

    def check_start(self) -> None:
        """Raise if a worker has been starting for too long."""
        for worker in self.workers:
            waited = time.monotonic() - worker.created
            if worker.ready or waited < PLACEMENT_S:
                continue
            if not self._placement.is_complete:
                raise self._placement.refusal()
            if waited > _START_S:
                raise ResourceError(
                    f"a Ray worker must start within {_START_S:.0f} s, got none. The cluster is "
                    "overloaded, or an import in the worker waits for something."
                )

    def busy(self) -> list[Worker]:
        """Return the workers that are at work or have work waiting."""
        return [worker for worker in self.workers if worker.ready and worker.calls]

    def wait(self, timeout_s: float) -> list[Worker]:
        """Wait for an answer and return the workers whose first call has one."""
        waiting = {worker.calls[0].reference: worker for worker in self.workers if worker.calls}
        if not waiting:
            return []
        references = list(waiting)
        found, rest = ray.wait(references, num_returns=1, timeout=timeout_s)
        if found and rest:
            found += ray.wait(rest, num_returns=len(rest), timeout=0)[0]
        return [waiting[reference] for reference in found]

    def answer(self, worker: Worker) -> Any:
        """Return what the first call of a worker gave.

        That is a :class:`Failure` if the call could not be made or answered, and an exception of
        Ray's if the worker is gone.
        """
        call = worker.calls[0]
        try:
            return ray.get(call.reference)
        except _LOSSES as error:
            return error
        except exceptions.RayError as error:
            if call.kind in (Kind.HELLO, Kind.BEGIN):
                return error
            return Failure.of(error, "could not be sent through Ray")

    def forget(self, keys: Sequence[int]) -> None:
        """Have the workers drop resident constants."""
        for worker in self.workers:
            worker.forgotten += keys

    def remove(self, worker: Worker) -> list[Any]:
        """End a worker; return what :meth:`Worker.kill` does."""
        self.workers.remove(worker)
        return worker.kill()

    def stop(self) -> None:
        """End all workers, wait until Ray has noticed, and give their places back.

        Ray handles the end of an actor in a thread that outlives ``ray.shutdown()``, by then with
        freed memory: a program that went straight on to its end has crashed there.
        """
        try:
            ends = [end for worker in list(self.workers) for end in self.remove(worker)]
            if ends:
                ray.wait(ends, num_returns=len(ends), timeout=_END_S)
        finally:
            self._placement.release()


class Residents:
    """The caller's side of resident constants: each is put into the store once."""

    def __init__(self) -> None:
        self._references: dict[int, Any] = {}
        self._forgotten: list[int] = []

    def reducer(self, needed: dict[int, Any]) -> Callable[[Resident[Any]], tuple[Any, ...]]:
        """Return a reducer for :func:`pack` that notes in `needed` what the workers must get."""

        def reduce(resident: Resident[Any]) -> tuple[Any, ...]:
            key = resident.key
            if key not in self._references:
                payload, buffers = pack(resident.value)
                self._references[key] = ray.put(Message(payload, as_arrays(buffers)))
                weakref.finalize(resident, _forget, weakref.ref(self), key).atexit = False
            needed[key] = self._references[key]
            return load_resident, (key,)

        return reduce

    def take_forgotten(self) -> list[int]:
        """Return the keys of constants that are gone, each once."""
        forgotten, self._forgotten = self._forgotten, []
        return forgotten

    def clear(self) -> None:
        """Let go of everything in the store."""
        self._references.clear()


def _forget(reference: weakref.ref[Residents], key: int) -> None:
    residents = reference()
    if residents is not None and residents._references.pop(key, None) is not None:
        residents._forgotten.append(key)


def describe_loss(error: Exception) -> str:
    """Return in words what became of a worker."""
    if isinstance(error, exceptions.OutOfMemoryError):
        return "was ended by Ray because its node ran short of memory"
    if isinstance(error, exceptions.NodeDiedError) or "node has died" in str(error):
        return "died with its node"
    if isinstance(error, exceptions.ObjectLostError):
        return "is gone together with its result"
    return "died (killed, crashed, or out of memory)"
