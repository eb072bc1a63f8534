"""Folding updates in the workers, so that one partial a worker travels and not every update."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from fedbench.aggregation import StreamingMean
from fedbench.algorithms import Reduction, Update, Updates
from fedbench.executors import Executor
from fedbench.simulation.client_task import ClientItem, ClientResult, ClientTask

__all__ = ["ReducedUpdates", "ReducingTask", "UpdateReducer", "pays", "reduced"]

_SHARE_OF_MEMORY = 0.1


def pays(executor: Executor, reduction: Mapping[str, Reduction], num_updates: int) -> bool:
    """Return whether workers should fold the updates of a round.

    Folding exactly costs a worker more than handing an update over in shared memory, and the
    batch mean on the server is quicker than the workers' exact sums. What folding saves is
    memory: it pays when the updates of the round together would take a large part of it.
    """
    if not executor.folds_in_workers:
        return False
    update_bytes = sum(entry.num_bytes for entry in reduction.values())
    return num_updates * update_bytes > _SHARE_OF_MEMORY * psutil.virtual_memory().available


class UpdateReducer:
    """The exact sums of the entries of many updates; its result depends on no order.

    Parameters
    ----------
    reduction : mapping of str to Reduction
        What the algorithm reads of the updates.
    """

    order_independent = True

    def __init__(self, reduction: Mapping[str, Reduction]) -> None:
        self.reduction = reduction
        self.means = {name: StreamingMean(entry.like) for name, entry in reduction.items()}
        self.count = 0

    def empty(self) -> UpdateReducer:
        """Return a reducer of the same entries without any update."""
        return UpdateReducer(self.reduction)

    def add(self, update: Update | None) -> None:
        """Add the entries of an update; a client that sent nothing adds nothing."""
        if update is None:
            return
        for name, entry in self.reduction.items():
            weight = update.num_samples if entry.weighting == "samples" else 1
            self.means[name].add(update.tensors[name], weight)
        self.count += 1

    def merge(self, other: UpdateReducer) -> None:
        """Add everything that `other` has added."""
        for name, mean in self.means.items():
            mean.merge(other.means[name])
        self.count += other.count


class ReducedUpdates(Updates):
    """Updates of which only the sums are left."""

    def __init__(self, reducer: UpdateReducer) -> None:
        super().__init__((), ())
        self._reducer = reducer

    def __len__(self) -> int:
        return self._reducer.count

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(
            "the updates of this round were folded in the workers and cannot be read one by one. "
            "Let the algorithm's reduction() return None."
        )

    def mean(
        self, name: str, weighting: str = "samples", *, total_weight: float | None = None
    ) -> Any:
        """Return the mean of an entry, with the bits that :class:`Updates` gives."""
        entry = self._reducer.reduction.get(name)
        if entry is None or entry.weighting != weighting:
            raise TypeError(
                f"the algorithm asked for the {weighting!r} mean of {name!r}, which its "
                f"reduction() does not announce. Add the entry there."
            )
        return self._reducer.means[name].result(total_weight=total_weight)


@dataclass(frozen=True)
class ReducingTask:
    """A client task whose update is folded where it was made."""

    task: ClientTask

    def __call__(
        self, down: Mapping[str, Any], item: ClientItem
    ) -> tuple[tuple[Update | None], ClientResult]:
        """Return the contribution to the reducer, and the rest as the report."""
        result = self.task(down, item)
        return (result.update,), dataclasses.replace(result, update=None)


def reduced(
    executor: Executor,
    task: ClientTask,
    items: Sequence[ClientItem],
    down: Mapping[str, Any],
    reduction: Mapping[str, Reduction],
    costs: Sequence[float] | None,
) -> tuple[list[ClientResult], Updates]:
    """Run the client tasks of a round and return their reports and the folded updates."""
    reports: dict[int, ClientResult] = {}
    reducer = executor.map_reduce(
        ReducingTask(task),
        items,
        UpdateReducer(reduction),
        broadcast=down,
        on_result=reports.__setitem__,
        costs=costs,
    )
    return [reports[index] for index in range(len(items))], ReducedUpdates(reducer)
