"""Rounds of 100 clients out of 100, 10,000 and a million that are registered.

``python benchmarks/bench_population.py`` prints, for each population, the processor time that its
data and its simulation take to make (once) and that a round takes (the median), the peak of the
memory that Python holds for a round, and the number of clients that have a state.
``pytest benchmarks/bench_population.py`` times single rounds.
"""

import argparse
import functools
import statistics
import time
import tracemalloc

import numpy as np
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


def timed(call):
    """Return the result of a call and the seconds of processor time that it took."""
    begin = time.process_time()
    result = call()
    return result, time.process_time() - begin


def peak_of(simulation):
    """Return the largest number of bytes that Python held for a round."""
    tracemalloc.start()
    try:
        simulation.run_round()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args(arguments).rounds
    made, seconds = {}, {count: [] for count in POPULATIONS}
    simulations = {}
    for count in POPULATIONS:
        make = functools.partial(fedbench.Simulation, workload_of(count))
        simulations[count], made[count] = timed(make)
        simulations[count].executor.start()
        simulations[count].run_round()  # the first touch of everything
    for _ in range(rounds):  # in turn, so that what else the machine does hits all alike
        for count, simulation in simulations.items():
            seconds[count].append(timed(simulation.run_round)[1])
    print(f"{'clients':>9} {'made once, s':>13} {'round, s':>9} {'peak, kB':>9} {'states':>7}")
    for count, simulation in simulations.items():
        middle, peak = statistics.median(seconds[count]), peak_of(simulation) / 1e3
        states = len(simulation.client_states)
        print(f"{count:>9,} {made[count]:>13.2f} {middle:>9.4f} {peak:>9.0f} {states:>7}")
        simulation.close()


if __name__ == "__main__":
    main()
