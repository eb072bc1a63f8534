"""The streaming mean against a float32 accumulator that is not reproducible.

``pytest benchmarks/bench_streaming.py`` times adding and rounding. Run as a program, it times
them and torch's ``add_`` in turns on one thread each, and fails if the promised ratio is missed.
"""

import argparse
import functools
import sys

import numpy as np
import pytest
import torch
from interleaved import interleaved, ratios, table

from fedbench import aggregation
from fedbench.aggregation import StreamingMean

SIZES = (1_000_000, 11_689_512)
MOST = 4.0


def row(size, dtype=torch.float32):
    """Normal numbers."""
    rng = np.random.default_rng(0)
    return torch.from_numpy(rng.standard_normal(size) * 0.05).to(dtype)


def add_candidates(size):
    """Adding one update of each kind."""
    update = row(size)
    accumulator = torch.zeros(size)
    integer, real = StreamingMean(update), StreamingMean(update)
    double, brain = row(size, torch.float64), row(size, torch.bfloat16)
    doubles, brains = StreamingMean(double), StreamingMean(brain)
    batch = StreamingMean(update)
    return {
        "torch float32 add_": functools.partial(accumulator.add_, update, alpha=137.0),
        "add float32, integer weight": functools.partial(integer.add, update, 137),
        "add float32, real weight": functools.partial(real.add, update, 0.137),
        "add bfloat16, integer weight": functools.partial(brains.add, brain, 137),
        "add float64, integer weight": functools.partial(doubles.add, double, 137),
        "add_many float32 x 4": functools.partial(batch.add_many, [update] * 4, [1, 2, 3, 4]),
        "result float32": functools.partial(filled(update).result, out=torch.empty(size)),
    }


def filled(update):
    """A mean with three updates in it."""
    mean = StreamingMean(update)
    for weight in (3, 5, 11):
        mean.add(update, weight)
    return mean


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "operation", ["add float32, integer weight", "add float32, real weight", "result float32"]
)
def test_streaming(benchmark, size, operation):
    benchmark(add_candidates(size)[operation])


def main():
    """Print the tables; return the number of missed ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    aggregation.set_num_threads(1)
    torch.set_num_threads(1)
    missed = 0
    for size in SIZES:
        seconds = interleaved(add_candidates(size), repeats)
        title = f"{size} coordinates, microseconds (add float32: at most {MOST})"
        print(table(title, seconds, "torch float32 add_"))
        missed += ratios(seconds, "torch float32 add_")["add float32, integer weight"] > MOST
        mean = filled(row(size))
        print(f"  {mean.nbytes / size:.2f} bytes of state per coordinate")
    print(f"{missed} promised ratios missed")
    return missed


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
