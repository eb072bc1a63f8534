"""How many tasks a worker is given at a time."""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["BATCH_S", "BatchSize", "BatchSizes"]

BATCH_S = 0.01
"""A batch should hold about this much work: far more than a message costs, too little to wait."""
_LEAST_S = 0.002
"""So much work makes a batch near the end too: a worker may wait so long for another."""
_MAX_BATCH = 64
_LONG_S = 0.1
"""A worker that runs tasks of this length loses nothing by waiting for each."""
_LONGER_WEIGHT = 0.25
"""How far to follow tasks that took longer than before; others are believed at once, because a
busy machine makes tasks seem long and nothing makes them seem short."""
_KNOWN_TASKS = 16
"""Tasks whose length is remembered: some more than a round has kinds of."""


class BatchSize:
    """Follows how long tasks take and tells how many to send at once and to keep queued.

    Parameters
    ----------
    batch_s : float
        Work that a batch should hold.
    long_s : float
        Length of tasks from which on none is queued.
    """

    def __init__(self, batch_s: float = BATCH_S, long_s: float = _LONG_S) -> None:
        self._batch_s = batch_s
        self._long_s = long_s
        self._task_s: float | None = None

    def observe(self, num_tasks: int, seconds: float) -> None:
        """Learn that a worker spent `seconds` on `num_tasks` tasks."""
        task_s = seconds / max(1, num_tasks)
        if self._task_s is None or task_s < self._task_s:
            self._task_s = task_s
        else:
            self._task_s += _LONGER_WEIGHT * (task_s - self._task_s)

    def batch(self, remaining: int | None, workers: int) -> int:
        """Return how many tasks go into one message.

        Parameters
        ----------
        remaining : int or None
            Tasks that have not been sent, where that is known.
        workers : int
            Among which they will be shared.
        """
        if self._task_s is None:
            return 1
        task_s = max(self._task_s, 1e-9)
        size = min(_MAX_BATCH, int(self._batch_s / task_s))
        if remaining is not None:
            fair = -(-remaining // workers)
            size = min(size, max(fair // 2, min(fair, int(_LEAST_S / task_s))))
        return max(1, size)

    def depth(self, batch: int, remaining: int | None, workers: int) -> int:
        """Return how many tasks a worker may hold: one batch that runs and perhaps one more.

        A queued task saves the worker from waiting for the caller, but a task that is queued
        behind a long one while another worker is idle is late: so none near the end.
        """
        if batch == 1 and remaining is not None and remaining <= workers:
            return 1
        if self._task_s is not None and self._task_s > self._long_s:
            return 1
        return 2 * batch


class BatchSizes:
    """Remembers from map to map how long each task took."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, BatchSize] = OrderedDict()

    def of(self, payload: bytes) -> BatchSize:
        """Return the batch size of the task with this payload, as far as maps have taught it."""
        # Two payloads of one hash would share a hint, which costs a moment and no result.
        key = hash(payload)
        size = self._known.setdefault(key, BatchSize())
        self._known.move_to_end(key)
        if len(self._known) > _KNOWN_TASKS:
            self._known.popitem(last=False)
        return size
