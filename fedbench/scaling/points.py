"""The jobs of the study, and the process that runs their rounds."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from fedbench.report.processes import cpu_seconds, descendants

__all__ = ["Point", "Sample", "ScalingRun"]

_FEATURES = 32
_CLASSES = 10
_SAMPLES = 32  # of each client: four steps of a batch of eight
_BATCH = 8


@dataclass(frozen=True)
class Point:
    """One job: a perceptron with one hidden layer on random data.

    Parameters
    ----------
    clients : int
        Registered clients.
    cohort : int
        Clients in a round.
    width : int
        Units of the hidden layer, which determine the size of the model.
    """

    clients: int
    cohort: int
    width: int

    @property
    def params(self) -> int:
        """Parameters of the model."""
        return (_FEATURES + 1) * self.width + (self.width + 1) * _CLASSES

    def simulation(self, executor: Any, seed: int) -> Any:
        """Return a simulation of this job on `executor`."""
        from fedbench import Simulation, models
        from fedbench.peers.workloads import random_workload

        workload = random_workload(
            "scaling",
            functools.partial(models.mlp, _FEATURES, _CLASSES, hidden=(self.width,)),
            batch_size=_BATCH,
            clients=self.clients,
            cohort_size=self.cohort,
            shape=(_FEATURES,),
            classes=_CLASSES,
            samples=_SAMPLES,
        )
        return Simulation(workload, executor=executor, seed=seed)


@dataclass(frozen=True)
class Sample:
    """One round.

    Parameters
    ----------
    round_s : float
        Wall seconds.
    task_s : float
        Seconds inside client tasks, summed over the clients.
    cpu_s : float
        CPU seconds of all processes.
    """

    round_s: float
    task_s: float
    cpu_s: float


class ScalingRun:
    """Runs rounds of one point after the other; lives in a process of its own.

    Parameters
    ----------
    points : sequence of Point
        The jobs.
    workers : int
        Workers of the backend `processes`.
    rounds : int
        Timed rounds in each :meth:`run`, after one that warms up.
    seed : int
        Seed of all simulations.
    """

    def __init__(self, points: Sequence[Point], workers: int, rounds: int, seed: int) -> None:
        self._points, self._workers = tuple(points), workers
        self._rounds, self._seed = rounds, seed
        self._executor: Any = None
        self._simulations: Iterator[Any] = iter(())

    def prepare(self) -> None:
        """Start the workers and make the simulations."""
        from fedbench import make_executor

        self._executor = make_executor("processes", self._workers)
        self._executor.start()
        made = [point.simulation(self._executor, self._seed) for point in self._points]
        self._simulations = itertools.cycle(made)

    def run(self) -> list[Sample]:
        """Return samples of the next point; the first comes again after the last."""
        simulation = next(self._simulations)
        simulation.run_round()
        return [self._sample(simulation) for _ in range(self._rounds)]

    def _sample(self, simulation: Any) -> Sample:
        processes: list[psutil.Process] = descendants()
        before, begin = cpu_seconds(processes), time.perf_counter()
        record = simulation.run_round()
        end = time.perf_counter()
        return Sample(end - begin, record.task_s, cpu_seconds(processes) - before)

    def close(self) -> None:
        """Close the executor; safe at any time."""
        if self._executor is not None:
            self._executor.close()
