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

import fedbench
from fedbench import models
from fedbench.data import ArrayDataset
from fedbench.peers.workloads import random_workload

sys.path.insert(0, str(Path(__file__).parent))
from bench_rounds import compare, speedups
from round_workloads import ROUND_WORKLOADS


def mlp(name, features, clients, samples):
    """Return the perceptron with two hidden layers of 200, batch 10."""
    return random_workload(
        name,
        functools.partial(models.mlp, features, 10),
        batch_size=10,
        shape=(features,),
        classes=10,
        clients=clients,
        samples=samples,
    )


def dirichlet_shares(seed=0, *, equal, alpha=0.3):
    """Return the samples of `equal` in Dirichlet(`alpha`) shares: from a few to hundreds."""
    data = equal(seed)
    arrays = ArrayDataset(
        data.inputs, data.targets, data.test_inputs, data.test_targets, data.num_classes
    )
    return arrays.federate("dirichlet", data.num_clients, seed=seed, alpha=alpha, min_size=2)


def unequal(make):
    """Return a workload whose clients have Dirichlet shares of the same samples."""

    def workload():
        base = make()
        data = functools.partial(dirichlet_shares, equal=base.dataset)
        return dataclasses.replace(base, name=f"{base.name}-dirichlet", dataset=data)

    return workload


large_mlp = functools.partial(mlp, "mlp", 784, clients=50, samples=100)

WORKLOADS = {
    "logreg": ROUND_WORKLOADS["logreg"],
    "logreg-dirichlet": unequal(ROUND_WORKLOADS["logreg"]),
    "mlp": large_mlp,
    "mlp-dirichlet": unequal(large_mlp),
    "small-mlp": functools.partial(mlp, "small-mlp", 64, clients=100, samples=20),
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


def largest_distance(states):
    """Return how far the model of any side ends from that of `sequential`."""
    reference = states["sequential"]
    return max(
        float((state[key] - reference[key]).abs().max())
        for state in states.values()
        for key in reference
    )


def main():
    """Print the table of the chosen workloads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(WORKLOADS), metavar="WORKLOAD")
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    for name in arguments.names:
        seconds, states = compare(
            WORKLOADS[name](), SIDES, arguments.repeats, fedbench.Simulation.model_state
        )
        print(
            f"{name}: {arguments.repeats} rounds, largest difference {largest_distance(states):.1e}"
        )
        print(speedups(seconds))


if __name__ == "__main__":
    main()
