"""The actor: receives tasks, runs them and returns their results."""

from __future__ import annotations

import os
import pickle
import platform
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import ray
import torch

from fedbench._native import core
from fedbench.executors.allocator import keep_freed_memory
from fedbench.executors.ambient import set_intraop_threads
from fedbench.executors.guard import Guarded
from fedbench.executors.nesting import mark_worker_process
from fedbench.executors.packing import pack, portable_failure
from fedbench.executors.processes.protocol import ATOMS, Parcel, open_parcel
from fedbench.executors.ray.board import Board
from fedbench.executors.ray.memory import (
    Array,
    Message,
    PrivateMemory,
    as_arrays,
    private_copies,
    split,
    unpack_shared,
)
from fedbench.executors.resident import Resident
from fedbench.executors.runner import Failure, Outcome, TaskRunner
from fedbench.executors.unpicklable import cannot_be_sent

__all__ = ["Hello", "RayWorker", "build", "load_resident"]


class Hello(NamedTuple):
    """What a worker says of itself."""

    pid: int
    node_id: str
    host: str
    has_board: bool
    build: tuple[str, str, str]
    """Versions of Python and torch, and torch's CPU capability: all decide results."""


_residents: dict[int, Resident[Any]] = {}


def load_resident(key: int) -> Any:
    """Return a resident constant that was sent to this worker before."""
    return _residents[key]


class RayWorker:
    """What a worker remembers between calls.

    Parameters
    ----------
    intraop_threads : int
        Torch's threads inside one task.
    board : tuple of str and bytes
        Where :meth:`Board.find` may find this worker's board.
    """

    def __init__(self, intraop_threads: int, board: tuple[str, bytes]) -> None:
        mark_worker_process()
        keep_freed_memory()
        set_intraop_threads(intraop_threads)
        core.limit_threads(intraop_threads)  # the other CPUs may be given to others
        self._board = Board.find(*board)
        self._memory = PrivateMemory()
        self._runner = TaskRunner(_no_task)
        self._reducer: Any = None
        self._error: BaseException | None = None
        """Why the tasks of this map cannot run."""

    def hello(self) -> Hello:
        """Say that this worker is ready, and what it is."""
        context = ray.get_runtime_context()
        return Hello(
            os.getpid(),
            context.get_node_id(),
            platform.node(),
            self._board is not None,
            build(),
        )

    def begin(self, job: list[Any], residents: dict[int, Any], forgotten: list[int]) -> None:
        """Get ready for a map.

        Parameters
        ----------
        job : list of one ObjectRef
            Of a :class:`Message` whose head holds the search path, the ambient state, and the
            parcels of task, broadcast and reducer. (In a list, because Ray would fetch it anew
            for each call.)
        residents : dict of int to ObjectRef
            The constants that the task needs, by key.
        forgotten : list of int
            Keys of constants that are gone.
        """
        if self._board is not None:
            self._board.prepare()
        self._runner = TaskRunner(_no_task)
        self._reducer = self._error = None
        for key in forgotten:
            _residents.pop(key, None)
        try:
            message: Message = ray.get(job[0])
            path, ambient, task, broadcast, reducer = pickle.loads(message.head)
            sys.path[:] = path
            ambient.apply()
            self._keep(residents)
            self._prepare(message.buffers, task, broadcast, reducer)
        except BaseException as error:  # noqa: BLE001 - the failure of every task of the map
            self._error = error

    def run(
        self,
        number: int,
        head: bytes,
        buffers: Sequence[Array] = (),
        residents: dict[int, Any] | None = None,
    ) -> tuple[bytes, list[Array]]:
        """Run tasks of map `number` and return the head and buffers of their results."""
        if residents:
            self._keep(residents)
        entries: list[tuple[int, Parcel]] = pickle.loads(head)
        answer = _Answer(alone=len(entries) == 1)
        groups = split(buffers, [parcel for _, parcel in entries])
        for (index, parcel), own in zip(entries, groups, strict=True):
            if answer.failed or (self._board is not None and self._board.stopped(number)):
                answer.skip(index)
                continue
            if self._board is not None:
                self._board.begin(index)
            answer.add(self._run_task(index, parcel, own))
        return answer.take()

    def collect(self) -> tuple[bytes, list[Array]]:
        """Return what was folded, and start anew."""
        answer = _Answer(alone=True)
        answer.add(Outcome(0, self._runner.partial))
        self._runner.partial = self._reducer.empty()
        return answer.take()

    def _keep(self, residents: dict[int, Any]) -> None:
        for key, reference in residents.items():
            if key not in _residents:
                message: Message = ray.get(reference)
                resident = Resident(unpack_shared(message))
                resident.key = key
                _residents[key] = resident

    def _prepare(
        self, buffers: list[Array], task: Parcel, broadcast: Parcel | None, reducer: Parcel | None
    ) -> None:
        parcels = [task, broadcast or Parcel(), reducer or Parcel()]
        copies = [private_copies, self._memory.copies, private_copies]
        values = [
            open_parcel(parcel, copy(own))
            for parcel, copy, own in zip(parcels, copies, split(buffers, parcels), strict=True)
        ]
        self._reducer = values[2]
        self._runner = TaskRunner(
            values[0],
            None if broadcast is None else Guarded(values[1]),
            None if reducer is None else self._reducer.empty(),
        )

    def _run_task(self, index: int, parcel: Parcel, buffers: Sequence[Array]) -> Outcome:
        try:
            if self._error is not None:
                raise self._error
            return self._runner.run(index, open_parcel(parcel, private_copies(buffers)))
        except BaseException as error:  # noqa: BLE001 - reported as the task's failure
            return Outcome(index, failure=Failure.of(error))


def build() -> tuple[str, str, str]:
    """Return what decides the bits of results apart from the code: interpreter, torch, CPU."""
    return platform.python_version(), torch.__version__, torch.backends.cpu.get_cpu_capability()


class _Answer:
    """Results on their way to the caller.

    Parameters
    ----------
    alone : bool
        Whether there will be one result, so that no later task can write to memory that it shows.
    """

    def __init__(self, *, alone: bool) -> None:
        self._alone = alone
        self._began = time.perf_counter()
        self._entries: list[tuple[int, bool, Parcel | None]] = []
        self._buffers: list[Array] = []
        self.failed = False

    def skip(self, index: int) -> None:
        """Answer for a task that was not run."""
        self._entries.append((index, True, None))

    def add(self, outcome: Outcome) -> None:
        """Pack the outcome of a task; one that cannot be packed becomes a failure."""
        failure = outcome.failure
        parcel = Parcel(outcome.value)
        if failure is None and type(outcome.value) not in ATOMS:
            try:
                parcel = self._pack(outcome.value)
            except BaseException as error:  # noqa: BLE001 - user code runs in pickling
                what = f"a result of type {type(outcome.value).__name__}"
                failure = cannot_be_sent(error, what, outcome.value)
        if failure is not None:
            self.failed = True
            parcel = self._pack(portable_failure(failure))
        self._entries.append((outcome.index, failure is None, parcel))

    def take(self) -> tuple[bytes, list[Array]]:
        """Return the head and the buffers."""
        seconds = time.perf_counter() - self._began
        return pickle.dumps((self._entries, seconds), protocol=5), self._buffers

    def _pack(self, value: Any) -> Parcel:
        payload, buffers = pack(value)
        arrays = as_arrays(buffers if self._alone else (bytes(buffer) for buffer in buffers))
        self._buffers += arrays
        return Parcel(None, payload, [array.nbytes for array in arrays])


def _no_task(*args: Any) -> Any:
    raise RuntimeError("the worker was given no task")
