"""Robust rules against numpy, torch and scipy.

``pytest benchmarks/bench_robust.py`` times the rules. Run as a program, it times rules and peers in
turns on one thread each, prints how many times longer the peers take, and fails if a promised
ratio is missed.
"""

import argparse
import functools
import sys

import numpy as np
import pytest
import torch
from interleaved import interleaved, ratios, table
from scipy.stats import trim_mean

from fedbench import aggregation

# clients: (coordinates, least ratio of the median, least ratio of the trimmed mean)
SHAPES = {9: (300_000, 40, 30), 32: (200_000, 17, 14), 100: (100_000, 8, 8)}
RULES = {
    "krum": {"num_byzantine": 3},
    "multi_krum": {"num_byzantine": 3},
    "bulyan": {"num_byzantine": 3},
    "mean_around_median": {"num_byzantine": 3},
    "geometric_median": {},
    "centered_clip": {"clip_radius": 10.0},
}


def stack(clients, size, dtype=np.float32):
    """Normal updates, one per client."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal(size).astype(dtype) for _ in range(clients)]


def median_candidates(clients):
    """The median and its peers on updates that lie apart, as clients send them."""
    rows = stack(clients, SHAPES[clients][0])
    joined = np.stack(rows)
    tensor = torch.from_numpy(joined)
    return {
        "fedbench median": functools.partial(aggregation.median, rows),
        "numpy.median (stacked already)": functools.partial(np.median, joined, axis=0),
        "torch.median (stacked already, lower)": functools.partial(torch.median, tensor, dim=0),
    }


def trimmed_candidates(clients):
    """The trimmed mean and its peer, a fifth trimmed on each side."""
    rows = stack(clients, SHAPES[clients][0])
    joined = np.stack(rows)
    trimmed = int(0.2 * clients)
    return {
        "fedbench trimmed_mean": functools.partial(
            aggregation.trimmed_mean, rows, num_trimmed=trimmed
        ),
        "scipy.stats.trim_mean (stacked already)": functools.partial(
            trim_mean, joined, 0.2, axis=0
        ),
    }


@pytest.fixture
def one_thread():
    threads = aggregation.get_num_threads(), torch.get_num_threads()
    aggregation.set_num_threads(1)
    torch.set_num_threads(1)
    yield
    aggregation.set_num_threads(threads[0])
    torch.set_num_threads(threads[1])


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("clients", SHAPES)
def test_median(benchmark, clients):
    benchmark(median_candidates(clients)["fedbench median"])


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("clients", SHAPES)
def test_trimmed_mean(benchmark, clients):
    benchmark(trimmed_candidates(clients)["fedbench trimmed_mean"])


@pytest.mark.parametrize("rule", RULES)
def test_rule(benchmark, rule):
    rows = stack(20, 100_000)
    benchmark(functools.partial(aggregation.RULES.load(rule), rows, **RULES[rule]))


def main():
    """Print the table; return the number of missed ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    aggregation.set_num_threads(1)
    torch.set_num_threads(1)
    missed = 0
    for clients, (size, *promised) in SHAPES.items():
        for make, least in zip((median_candidates, trimmed_candidates), promised, strict=True):
            candidates = make(clients)
            seconds = interleaved(candidates, repeats)
            reference, *peers = candidates
            title = f"{clients} clients x {size} float32, ns per coordinate (at least {least} x)"
            print(table(title, seconds, reference, per=size, unit=1e9))
            missed += sum(ratios(seconds, reference)[peer] < least for peer in peers)
    print(f"{missed} promised ratios missed")
    return missed


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
