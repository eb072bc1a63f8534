"""Means of sparse and 8-bit updates against dense torch operations.

``pytest benchmarks/bench_compressed.py`` times the means. Run as a program, it times them and their
peers in turns on one thread each and fails if a promised ratio is missed.
"""

import argparse
import functools
import sys

import numpy as np
import pytest
import torch
from interleaved import interleaved, ratios, table

from fedbench import aggregation
from fedbench.aggregation import QuantizedUpdate, SparseUpdate

CLIENTS = 10
SIZE = 11_689_512  # parameters of ResNet-18
DENSITY = 0.01
WEIGHTS = [float(w) for w in np.random.default_rng(1).integers(50, 1000, CLIENTS)]


def sparse_candidates(index_dtype=torch.int64, *, ordered=True):
    """The sparse mean and its peers; all write into a buffer that is reused."""
    generator = torch.Generator().manual_seed(0)
    updates = []
    for _ in range(CLIENTS):
        indices = torch.randperm(SIZE, generator=generator)[: int(SIZE * DENSITY)]
        indices = (indices.sort().values if ordered else indices).to(index_dtype)
        updates.append(SparseUpdate(indices, torch.randn(len(indices), generator=generator), SIZE))
    out, dense = torch.empty(SIZE), torch.empty(SIZE)
    total = sum(WEIGHTS)

    def index_add():
        dense.zero_()
        for update, weight in zip(updates, WEIGHTS, strict=True):
            dense.index_add_(0, update.indices, update.values, alpha=weight / total)

    def densify():
        dense.zero_()
        for update, weight in zip(updates, WEIGHTS, strict=True):
            full = torch.zeros(SIZE)
            full[update.indices.long()] = update.values
            dense.add_(full, alpha=weight / total)

    return {
        "fedbench sparse_mean": functools.partial(
            aggregation.sparse_mean, updates, WEIGHTS, out=out
        ),
        "torch index_add_": index_add,
        "torch dense copy, add_": densify,
    }


def quantized_candidates():
    """The mean of 8-bit updates and its peer."""
    generator = torch.Generator().manual_seed(0)
    updates = [
        QuantizedUpdate(
            torch.randint(-127, 128, (SIZE,), generator=generator, dtype=torch.int8), 0.01 * (k + 1)
        )
        for k in range(CLIENTS)
    ]
    out, dense = torch.empty(SIZE), torch.empty(SIZE)
    total = sum(WEIGHTS)

    def convert_and_add():
        dense.zero_()
        for update, weight in zip(updates, WEIGHTS, strict=True):
            dense.add_(update.values.float(), alpha=weight * update.scale / total)

    return {
        "fedbench quantized_mean": functools.partial(
            aggregation.quantized_mean, updates, WEIGHTS, out=out
        ),
        "torch x.float(), add_": convert_and_add,
    }


CASES = {
    "top 1 %, sorted int64": (sparse_candidates, 1.5),
    "top 1 %, sorted int32": (functools.partial(sparse_candidates, torch.int32), 1.5),
    "top 1 %, unsorted int64": (functools.partial(sparse_candidates, ordered=False), 1.5),
    "int8": (quantized_candidates, 12.0),
}


@pytest.mark.parametrize("case", CASES)
def test_compressed_mean(benchmark, case):
    candidates = CASES[case][0]()
    benchmark.pedantic(next(iter(candidates.values())), rounds=5, warmup_rounds=1)


def main():
    """Print the tables; return the number of missed ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    aggregation.set_num_threads(arguments.threads)
    torch.set_num_threads(arguments.threads)
    missed = 0
    for case, (make, least) in CASES.items():
        candidates = make()
        seconds = interleaved(candidates, arguments.repeats)
        reference, *peers = candidates
        title = f"{case}, {CLIENTS} clients x {SIZE}, ms (at least {least} x)"
        print(table(title, seconds, reference, unit=1e3))
        missed += sum(ratios(seconds, reference)[peer] < least for peer in peers)
    print(f"{missed} promised ratios missed")
    return missed


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
