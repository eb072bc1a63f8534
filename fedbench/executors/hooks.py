"""What a backend implements, and when each hook is called.

:class:`fedbench.executors.engine.Run` drives the hooks, always on the thread that entered the
executor, in this order::

    _start_workers
      _begin(job)                       one map
        _room -> _submit(tickets)       as long as there is room and there are tasks
        _completed -> outcomes          wait for at least one task
      _partials                         map_reduce, when the workers folded
      _end(ending)
    _stop_workers
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedbench.executors.engine import Ending
    from fedbench.executors.runner import Outcome, Reducer, Ticket

__all__ = ["BackendHooks", "Job"]


@dataclass(frozen=True)
class Job:
    """What all tasks of one map share.

    Parameters
    ----------
    task : callable
        ``task(item)``, or ``task(broadcast, item)`` when `has_broadcast`.
    broadcast : object
        As the caller gave it; the backend isolates it.
    has_broadcast : bool
        Whether a broadcast was given; ``None`` is none.
    reducer : Reducer, optional
        An empty one to fold with, in ``map_reduce``.
    """

    task: Callable[..., Any]
    broadcast: Any = None
    has_broadcast: bool = False
    reducer: Reducer | None = None


class BackendHooks(abc.ABC):
    """The hooks of one backend."""

    @abc.abstractmethod
    def _start_workers(self) -> None:
        """Start `workers` workers; the first map may have to wait until they are ready."""

    @abc.abstractmethod
    def _stop_workers(self) -> None:
        """End all workers, those of a failed start included, and free what they used."""

    @abc.abstractmethod
    def _begin(self, job: Job) -> None:
        """Make `job` known to the workers, replacing dead ones; no task has come yet."""

    @abc.abstractmethod
    def _room(self) -> int:
        """Return how many tasks can be submitted now without waiting in vain."""

    @abc.abstractmethod
    def _submit(self, tickets: Sequence[Ticket]) -> None:
        """Take tasks, at most :meth:`_room` of them."""

    @abc.abstractmethod
    def _completed(self) -> list[Outcome]:
        """Wait until at least one submitted task has an outcome; the caller owns the list.

        A lost worker gives a failed outcome with a `WorkerDiedError` for the task that it ran;
        what else it held goes to ``self._run.requeue``. An empty list means: ask for room again.
        """

    @abc.abstractmethod
    def _end(self, ending: Ending) -> Sequence[Outcome]:
        """Finish the map as `ending` says and return outcomes that still arrived."""

    def _partials(self) -> Iterable[Any]:
        """Return what the workers folded since the last call, if `folds_in_workers`.

        What a worker that died had folded goes back to the run; this is called again then.
        """
        return ()
