"""The ``processes`` backend: its options, and the life of its workers.

This module does not import torch: it is imported after the workers were started, so that they
import it at the same time.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fedbench.executors.base import Executor
from fedbench.executors.checks import check_count
from fedbench.executors.processes.launch import Launcher

if TYPE_CHECKING:
    from fedbench.executors.engine import Ending
    from fedbench.executors.hooks import Job
    from fedbench.executors.processes.maps import Maps
    from fedbench.executors.runner import Outcome, Ticket

__all__ = ["ProcessExecutor"]


class ProcessExecutor(Executor):
    """Runs tasks in processes that live as long as the executor.

    Starting it does not wait for them: they import what they need while the caller goes on. The
    first map waits for them, and raises if they cannot start.

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
        super().__init__(workers, intraop_threads=intraop_threads, retries=retries, timeout=timeout)
        self.recycle_after = (
            None if recycle_after is None else check_count("recycle_after", recycle_after, 1)
        )
        self._launcher: Launcher | None = None
        self._maps: Maps | None = None

    def _start_workers(self) -> None:
        self._launcher = Launcher(self.workers, self.intraop_threads)
        # Also runs when the program ends without close(), or drops the executor.
        weakref.finalize(self, self._launcher.close)
        # Imports torch, which must not wait for the first map: one that is interrupted and then
        # imported again crashes.
        from fedbench.executors.processes.maps import Maps

        self._maps = Maps(
            self._launcher,
            workers=self.workers,
            timeout=self.timeout,
            retries=self.retries,
            recycle_after=self.recycle_after,
        )
        if not self._launcher.shares_imports:
            self._maps.fill()  # each worker imports on its own, and may as well begin now

    def _stop_workers(self) -> None:
        maps, self._maps = self._maps, None
        launcher, self._launcher = self._launcher, None
        try:
            if maps is not None:
                maps.close()
        finally:  # also after an interrupt: no process stays
            if launcher is not None:
                launcher.close()

    def _open_maps(self) -> Maps:
        if self._maps is None:
            raise RuntimeError("the executor is not started")
        return self._maps

    def _begin(self, job: Job) -> None:
        self._open_maps().begin(job, self._run)

    def _room(self) -> int:
        return self._open_maps().room()

    def _submit(self, tickets: Sequence[Ticket]) -> None:
        self._open_maps().submit(tickets)

    def _completed(self) -> list[Outcome]:
        return self._open_maps().completed()

    def _end(self, ending: Ending) -> Sequence[Outcome]:
        return self._open_maps().end(ending)

    def _partials(self) -> Iterable[Any]:
        return self._open_maps().partials()
