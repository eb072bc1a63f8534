"""Folding updates in the workers, so that one partial a worker travels and not every update."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from fedbench.aggregation import StreamingMean
from fedbench.algorithms import Reduction, Update, Updates
from fedbench.executors import Executor
from fedbench.simulation.client_task import ClientItem, ClientResult
from fedbench.simulation.rounds import Dispatch, mapped
from fedbench.simulation.vectorized import ChunkResult

__all__ = ["ReducedUpdates", "ReducingTask", "UpdateReducer", "pays", "reduced", "trained"]

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
    integers : {"max", "server", "sum"}
        What becomes of integer buffers.
    """

    order_independent = True

    def __init__(self, reduction: Mapping[str, Reduction], integers: str = "max") -> None:
        self.reduction = reduction
        self.integers = integers
        rule = "sum" if integers == "sum" else "max"
        self.means = {
            name: StreamingMean(entry.like, integers=rule) for name, entry in reduction.items()
        }
        self.count = 0

    def empty(self) -> UpdateReducer:
        """Return a reducer of the same entries without any update."""
        return UpdateReducer(self.reduction, self.integers)

    def add(self, *updates: Update | None) -> None:
        """Add the entries of updates; a client that sent nothing adds nothing."""
        for update in updates:
            if update is None:
                continue
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
        super().__init__((), (), integers=reducer.integers)
        self._reducer = reducer

    def __len__(self) -> int:
        return self._reducer.count

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(
            "the updates of this round were folded in the workers and cannot be read one by one. "
            "Let the algorithm's reduction() return None."
        )

    def carries(self, name: str) -> bool:
        """Return whether the updates had the entry `name`."""
        return name in self._reducer.reduction

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
    """A client task whose updates are folded where they were made."""

    task: Callable[..., Any]

    def __call__(
        self, down: Mapping[str, Any], job: Any
    ) -> tuple[tuple[Update | None, ...], ClientResult | ChunkResult]:
        """Return the contribution to the reducer, and the rest as the report."""
        done = self.task(down, job)
        if isinstance(done, ChunkResult):
            updates = tuple(result.update for result in done.clients())
            return updates, dataclasses.replace(done, deltas=None)
        return (done.update,), dataclasses.replace(done, update=None)


def reduced(
    executor: Executor, work: Dispatch, down: Mapping[str, Any], reduction: Mapping[str, Reduction]
) -> tuple[list[ClientResult], Updates]:
    """Run the client tasks of a round and return their reports and the folded updates."""
    reports: dict[int, Any] = {}
    reducer = executor.map_reduce(
        ReducingTask(work.task),
        work.jobs,
        UpdateReducer(reduction, work.integers),
        broadcast=down,
        on_result=reports.__setitem__,
        costs=work.costs,
    )
    done = [reports[index] for index in range(len(work.jobs))]
    return work.in_plan_order(done), ReducedUpdates(reducer)


def trained(
    executor: Executor,
    work: Dispatch,
    items: Sequence[ClientItem],
    down: Mapping[str, Any],
    reduction: Mapping[str, Reduction] | None,
    asked: bool | None,
) -> tuple[list[ClientResult], Updates, bool]:
    """Run the client tasks of a round; return results, updates, and whether workers folded them.

    They do if the algorithm has a `reduction` and it is `asked` for, or None is asked and it pays.
    """
    if reduction is not None and (asked or pays(executor, reduction, len(items))):
        return *reduced(executor, work, down, reduction), True
    return *mapped(executor, work, items, down), False
