"""One task at a time in the calling thread: the reference for every other backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedbench.executors.allocator import KeptMemory
from fedbench.executors.ambient import intraop_scope
from fedbench.executors.base import Executor
from fedbench.executors.checks import refuse_timeout
from fedbench.executors.engine import Ending
from fedbench.executors.guard import Guarded, isolate
from fedbench.executors.hooks import Job
from fedbench.executors.runner import Failure, Outcome, TaskRunner, Ticket

__all__ = ["SequentialExecutor"]


_IDLE = TaskRunner(lambda item: item)
"""Stands in between maps, so that no task or broadcast is kept alive."""


class SequentialExecutor(Executor):
    """Runs each task in the calling thread when its result is needed.

    Parameters
    ----------
    workers : int, optional
        Must be 1 or left out.
    intraop_threads : int, default 1
        Torch's threads while a task runs; the caller's number is restored after each.
    retries : int, default 0
        Without effect: no worker can die.
    timeout : None
        Refused: a thread cannot be ended from outside.
    """

    backend = "sequential"

    def __init__(
        self,
        workers: int | None = None,
        *,
        intraop_threads: int = 1,
        retries: int = 0,
        timeout: float | None = None,
    ) -> None:
        refuse_timeout(self.backend, timeout, "the calling thread cannot end its own task.")
        super().__init__(
            1 if workers is None else workers, intraop_threads=intraop_threads, retries=retries
        )
        if self.workers != 1:
            raise ValueError(
                f"workers must be 1 on backend 'sequential', got {self.workers}. "
                "Leave it out, or choose a parallel backend."
            )
        self._runner = _IDLE
        self._waiting: list[Ticket] = []
        self._memory = KeptMemory()

    def _start_workers(self) -> None:
        self._memory.hold()

    def _stop_workers(self) -> None:
        self._memory.release()

    def _begin(self, job: Job) -> None:
        self._runner = TaskRunner(
            job.task, Guarded.copy_of(job.broadcast) if job.has_broadcast else None
        )

    def _room(self) -> int:
        return 1 - len(self._waiting)

    def _submit(self, tickets: Sequence[Ticket]) -> None:
        self._waiting = list(tickets)

    def _completed(self) -> list[Outcome]:
        ticket = self._waiting.pop()
        try:
            item: Any = isolate(ticket.item)
        except Exception as error:  # noqa: BLE001 - code of the item's class runs in copying
            return [Outcome(ticket.index, failure=Failure.of(error))]
        with intraop_scope(self.intraop_threads):
            return [self._runner.run(ticket.index, item)]

    def _end(self, ending: Ending) -> Sequence[Outcome]:
        self._runner = _IDLE
        self._waiting = []
        return ()
