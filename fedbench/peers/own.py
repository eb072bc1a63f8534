"""fedbench's own rows: the same job on its backends."""

from __future__ import annotations

import time
from typing import Any

from fedbench.environment import package_version
from fedbench.peers.job import Job, Outcome
from fedbench.registry import DISTRIBUTION

__all__ = ["processes", "sequential", "threads", "vectorized"]


def sequential(job: Job) -> Outcome:
    """Run the job on the backend `sequential`."""
    return _run(job, "sequential", None)


def threads(job: Job) -> Outcome:
    """Run the job on the backend `threads`."""
    return _run(job, "threads", job.workers)


def processes(job: Job) -> Outcome:
    """Run the job on the backend `processes`."""
    return _run(job, "processes", job.workers)


def vectorized(job: Job) -> Outcome:
    """Run the job on the backend `processes` with stacked clients."""
    return _run(job, "processes", job.workers, vectorized=True)


def _run(job: Job, backend: str, workers: int | None, **options: Any) -> Outcome:
    from fedbench import make_executor

    ends = []
    # First of all: its workers import what they need while this process does, and loads the data.
    with make_executor(backend, workers) as executor:
        from fedbench import Simulation

        simulation = Simulation(job.load(), executor=executor, seed=job.seed, **options)
        for _ in range(job.rounds):
            simulation.run_round()
            ends.append(time.perf_counter())
        state = {name: value.numpy() for name, value in simulation.model_state().items()}
    return Outcome(tuple(ends), state, package_version(DISTRIBUTION) or "")
