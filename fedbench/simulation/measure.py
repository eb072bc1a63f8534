"""Times, bytes and mean metrics of a round."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

from fedbench.simulation.client_task import ClientResult

__all__ = ["PhaseClock", "mean_metrics", "round_seconds"]


class PhaseClock:
    """Adds up seconds by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time the body of a ``with`` statement under `name`."""
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def mean_metrics(results: Sequence[ClientResult]) -> dict[str, float]:
    """Return the mean of every client metric, weighted by samples, in the plan's order."""
    sums: dict[str, float] = {}
    weights: dict[str, int] = {}
    for result in results:
        for name, value in result.metrics.items():
            sums[name] = sums.get(name, 0.0) + value * result.num_samples
            weights[name] = weights.get(name, 0) + result.num_samples
    return {name: sums[name] / weights[name] for name in sums if weights[name]}


def round_seconds(
    clock: PhaseClock, results: Sequence[ClientResult], total: float
) -> dict[str, float]:
    """Return the seconds of every phase of a round and of the whole."""
    return {
        "broadcast": clock.seconds["broadcast"],
        "train": sum(result.train_s for result in results),
        "uplink": sum(result.uplink_s for result in results),
        "aggregate": clock.seconds["aggregate"],
        "evaluate": clock.seconds.get("evaluate", 0.0),
        "total": total,
    }
