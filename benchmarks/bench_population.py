"""Rounds of 100 clients out of 100, 10,000 and a million that are registered.

``python benchmarks/bench_population.py`` prints, for each population, the seconds that its data
and its simulation take to make (once), the median seconds of a round, and the memory of Python
and of the process that rounds add. ``pytest benchmarks/bench_population.py`` times single rounds.
"""

import argparse
import functools
import gc
import statistics
import time
import tracemalloc

import numpy as np
import psutil
import pytest
import torch

import fedbench
from fedbench.data import FederatedDataset
from fedbench.models import logistic_regression
from fedbench.workloads import Workload

COHORT, FEATURES, CLASSES = 100, 20, 5
POPULATIONS = (100, 10_000, 1_000_000)


def one_sample_each(seed=0, *, num_clients):
    """Return clients with a sample each, so that a million of them fit in memory."""
    generator = torch.Generator().manual_seed(seed)
    return FederatedDataset(
        torch.randn(num_clients, FEATURES, generator=generator),
        torch.randint(0, CLASSES, (num_clients,), generator=generator),
        np.arange(num_clients).reshape(-1, 1),
        test_inputs=torch.randn(100, FEATURES, generator=generator),
        test_targets=torch.randint(0, CLASSES, (100,), generator=generator),
        num_classes=CLASSES,
    )


def workload_of(num_clients):
    return Workload(
        name=f"population-{num_clients}",
        description="logistic regression, a sample for each client",
        dataset=functools.partial(one_sample_each, num_clients=num_clients),
        model=functools.partial(logistic_regression, FEATURES, CLASSES),
        algorithm="scaffold",
        cohort_size=COHORT,
        rounds=1,
        lr=0.1,
        batch_size=10,
    )


@pytest.mark.parametrize("num_clients", POPULATIONS[:2])
def test_round(benchmark, num_clients):
    """Time a round of 100 stateful clients."""
    benchmark.group = "round of 100 clients"
    with fedbench.Simulation(workload_of(num_clients)) as simulation:
        benchmark.pedantic(simulation.run_round, rounds=3, warmup_rounds=1)


def measure(num_clients, rounds):
    """Return seconds to make a simulation and of its rounds, and the memory that rounds add."""
    begin = time.perf_counter()
    simulation = fedbench.Simulation(workload_of(num_clients))
    made = time.perf_counter() - begin
    seconds = []
    with simulation:
        simulation.run_round()
        gc.collect()
        before = psutil.Process().memory_info().rss
        for _ in range(rounds):
            begin = time.perf_counter()
            simulation.run_round()
            seconds.append(time.perf_counter() - begin)
        resident = psutil.Process().memory_info().rss - before
        tracemalloc.start()
        simulation.run_round()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return made, statistics.median(seconds), resident, peak, len(simulation.client_states)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args(arguments).rounds
    measure(POPULATIONS[0], 1)  # imports, and the first touch of torch's kernels
    print(f"{'clients':>9} {'make s':>8} {'round s':>8} {'RSS MB':>8} {'peak kB':>8} {'states':>7}")
    for num_clients in POPULATIONS:
        made, seconds, resident, peak, states = measure(num_clients, rounds)
        row = f"{num_clients:>9,} {made:>8.2f} {seconds:>8.4f} {resident / 1e6:>8.1f}"
        print(f"{row} {peak / 1e3:>8.0f} {states:>7}")


if __name__ == "__main__":
    main()
