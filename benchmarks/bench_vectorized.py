"""Vectorised clients against the plain loop and against clients one by one.

``python benchmarks/bench_vectorized.py`` times rounds of the plain hand-written loop and of
simulations in turn and prints the speedup over the plain loop: the median of the ratios of
neighbouring rounds, and the middle half of them. ``pytest benchmarks/bench_vectorized.py`` times
single rounds.
"""

import argparse
import dataclasses
import functools
import sys
from pathlib import Path

import pytest
import torch

import fedbench
from fedbench import models
from fedbench.data import ArrayDataset
from fedbench.peers.plain import PlainLoop

sys.path.insert(0, str(Path(__file__).parent))
from bench_rounds import speedups
from interleaved import interleaved
from round_workloads import ROUND_WORKLOADS, make_workload


def mlp():
    """Return the perceptron 784-200-200-10, 50 clients of 100 samples, batch 10."""
    return make_workload(
        "mlp",
        functools.partial(models.mlp, 784, 10),
        batch_size=10,
        lr=0.01,
        shape=(784,),
        classes=10,
        clients=50,
        samples=100,
    )


def small_mlp():
    """Return the perceptron 64-200-200-10, 100 clients of 20 samples, batch 10."""
    return make_workload(
        "small-mlp",
        functools.partial(models.mlp, 64, 10),
        batch_size=10,
        lr=0.01,
        shape=(64,),
        classes=10,
        clients=100,
        samples=20,
    )


def dirichlet_data(seed=0, *, features=784, clients=100, samples=100, alpha=0.3):
    """Return random samples in Dirichlet(`alpha`) shares: sizes from a few to hundreds."""
    generator = torch.Generator().manual_seed(seed)
    total = clients * samples
    inputs = torch.randn(total, features, generator=generator)
    targets = torch.randint(0, 10, (total,), generator=generator)
    data = ArrayDataset(inputs, targets, inputs[:16], targets[:16], 10)
    return data.federate("dirichlet", clients, seed=seed, alpha=alpha, min_size=2)


def unequal(make):
    """Return a workload whose clients have Dirichlet shares of as many samples."""

    def workload():
        base = make()
        features = base.dataset().inputs.shape[1]
        samples = len(base.dataset().targets) // base.cohort_size
        data = functools.partial(
            dirichlet_data, features=features, clients=base.cohort_size, samples=samples
        )
        return dataclasses.replace(base, name=f"{base.name}-dirichlet", dataset=data)

    return workload


WORKLOADS = {
    "logreg": ROUND_WORKLOADS["logreg"],
    "logreg-dirichlet": unequal(ROUND_WORKLOADS["logreg"]),
    "mlp": mlp,
    "mlp-dirichlet": unequal(mlp),
    "small-mlp": small_mlp,
}

SIDES = {
    "sequential": {"executor": "sequential"},
    "processes": {"executor": "processes", "workers": 2},
    "sequential+vectorized": {"executor": "sequential", "vectorized": True},
    "threads+vectorized": {"executor": "threads", "workers": 2, "vectorized": True},
    "processes+vectorized": {"executor": "processes", "workers": 2, "vectorized": True},
}


@pytest.mark.parametrize("side", ["sequential", "sequential+vectorized"])
def test_round(benchmark, side):
    """Time one round of each side."""
    benchmark.group = "round of logreg"
    with fedbench.Simulation(ROUND_WORKLOADS["logreg"](), **SIDES[side]) as simulation:
        benchmark.pedantic(simulation.run_round, rounds=3, warmup_rounds=1)


def compare(name, repeats):
    """Return the seconds of every side in turn, and how far each ends from `sequential`."""
    workload = WORKLOADS[name]()
    torch.set_num_threads(1)
    loop = PlainLoop(workload)
    simulations = {
        side: fedbench.Simulation(workload, **options) for side, options in SIDES.items()
    }
    try:
        sides = {"plain": lambda: loop.run_round(range(workload.cohort_size))}
        sides |= {side: simulation.run_round for side, simulation in simulations.items()}
        seconds = interleaved(sides, repeats)
        states = {side: simulation.model_state() for side, simulation in simulations.items()}
    finally:
        for simulation in simulations.values():
            simulation.close()
    reference = states["sequential"]
    apart = {
        side: max(float((state[key] - reference[key]).abs().max()) for key in reference)
        for side, state in states.items()
    }
    return seconds, apart


def main():
    """Print the table of the chosen workloads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(WORKLOADS), metavar="WORKLOAD")
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    for name in arguments.names:
        seconds, apart = compare(name, arguments.repeats)
        largest = max(apart.values())
        print(f"{name}: {arguments.repeats} rounds, largest difference {largest:.1e}")
        print(speedups(seconds))


if __name__ == "__main__":
    main()
