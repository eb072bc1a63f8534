"""A round of every algorithm on one workload: what each costs beside FedAvg.

``pytest benchmarks/bench_algorithms.py`` times rounds on `sequential`, where nothing but the
algorithm differs; start-up and the first round are not timed.
"""

import pytest

import fedbench
from fedbench.algorithms import ALGORITHMS

WORKLOAD = "digits-logreg"


@pytest.mark.parametrize("algorithm", ALGORITHMS.names())
def test_round(benchmark, algorithm):
    """Time a round, aggregation included."""
    benchmark.group = f"round of {WORKLOAD}, sequential"
    with fedbench.Simulation(WORKLOAD, algorithm=algorithm) as simulation:
        benchmark.pedantic(simulation.run_round, rounds=5, warmup_rounds=1)
