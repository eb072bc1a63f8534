"""Whole rounds against the plain hand-written loop, on every backend.

``python benchmarks/bench_rounds.py`` times rounds of the plain loop and of the simulation in turn
and prints the speedup over the plain loop: the median of the ratios of neighbouring rounds, and
the middle half of them. A name may also be that of a registered workload, ``built-in`` is all of
those: the first clients of each, one local epoch. ``pytest benchmarks/bench_rounds.py`` times
single rounds.
"""

import argparse
import contextlib
import dataclasses
import statistics
import sys
from pathlib import Path

import pytest
import torch

import fedbench
from fedbench.executors import EXECUTORS
from fedbench.simulation.participation import Weighted
from fedbench.workloads import WORKLOADS, load

sys.path.insert(0, str(Path(__file__).parent))
from interleaved import interleaved
from plain_process import PlainProcess
from round_workloads import ROUND_WORKLOADS

SMOKE = ("logreg",)


@pytest.mark.parametrize("name", SMOKE)
@pytest.mark.parametrize("backend", ["plain", "sequential", "threads", "processes"])
def test_round(benchmark, name, backend):
    """Time one round of each side."""
    workload = ROUND_WORKLOADS[name]()
    benchmark.group = f"round of {name}"
    if backend == "plain":
        with PlainProcess(workload) as loop:
            benchmark.pedantic(loop.run_round, rounds=3)
        return
    workers = None if backend == "sequential" else 2
    with fedbench.Simulation(workload, executor=backend, workers=workers) as simulation:
        benchmark.pedantic(simulation.run_round, rounds=3, warmup_rounds=1)


def compare(workload, sides, repeats, read):
    """Time rounds of the plain loop and of simulations in turn.

    Parameters
    ----------
    workload : Workload
        What all of them run.
    sides : dict of str to dict
        Options of each simulation, by name.
    repeats : int
        Timed rounds of each.
    read : callable
        What to take of each simulation at the end.

    Returns
    -------
    tuple
        The seconds of every side, the plain loop first, and what was read, both by name.
    """
    torch.set_num_threads(1)
    cohort = range(workload.cohort_size)
    num_clients = workload.dataset().num_clients
    first = Weighted([float(client in cohort) for client in range(num_clients)])
    with contextlib.ExitStack() as stack:
        plain = stack.enter_context(PlainProcess(workload))
        simulations = {
            name: stack.enter_context(fedbench.Simulation(workload, participation=first, **options))
            for name, options in sides.items()
        }
        runs = {"plain": plain.run_round}
        runs |= {name: simulation.run_round for name, simulation in simulations.items()}
        seconds = interleaved(runs, repeats)
        return seconds, {name: read(simulation) for name, simulation in simulations.items()}


def find(name):
    """Return the workload of that name, with the local work of the plain loop: one epoch."""
    if name in ROUND_WORKLOADS:
        return ROUND_WORKLOADS[name]()
    return dataclasses.replace(load(name), local_epochs=1)


def speedups(seconds):
    """Return lines with the median of each side and its speedup over the plain loop."""
    lines = []
    for name, values in seconds.items():
        ratios = [plain / own for plain, own in zip(seconds["plain"], values, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        lines.append(
            f"  {name:12s} {statistics.median(values) * 1e3:9.1f} ms"
            f"   {middle:5.2f} x plain ({low:.2f} to {high:.2f})"
        )
    return "\n".join(lines)


def main():
    """Print the table of the chosen workloads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(ROUND_WORKLOADS), metavar="WORKLOAD")
    parser.add_argument("--backend", nargs="*", default=["sequential", "threads", "processes"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    for backend in arguments.backend:
        EXECUTORS.entry(backend)
    sides = {
        backend: {
            "executor": backend,
            "workers": None if backend == "sequential" else arguments.workers,
        }
        for backend in arguments.backend
    }
    names = [
        name
        for given in arguments.names
        for name in (WORKLOADS if given == "built-in" else [given])
    ]
    for name in names:
        seconds, digests = compare(
            find(name), sides, arguments.repeats, fedbench.Simulation.state_digest
        )
        bits = "the same bits" if len(set(digests.values())) == 1 else "DIFFERENT BITS"
        print(f"{name}: {arguments.repeats} rounds, {arguments.workers} workers, {bits}")
        print(speedups(seconds))


if __name__ == "__main__":
    main()
