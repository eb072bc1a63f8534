"""Fused optimiser steps against the same operations one after another.

``pytest benchmarks/bench_fused.py`` times the steps. Run as a program, it times them and their
peers in turns on one thread each.
"""

import argparse
import functools

import numpy as np
import pytest
import torch
from interleaved import interleaved, table

from fedbench import aggregation

SIZES = (10_000, 1_000_000, 11_689_512)


def vectors(count, size):
    """Random float32 vectors."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=generator) for _ in range(count)]


def fedadam_candidates(size):
    """FedAdam in place."""
    x, update, m, v = vectors(4, size)
    v = v.abs()
    arrays = [t.clone().numpy() for t in (x, update, m, v)]

    def torch_sequence():
        m.mul_(0.9).add_(update * (1 - 0.9))
        v.mul_(0.99).add_((m * m).mul_(1 - 0.99))
        x.add_((m * 0.1).div_(v.sqrt().add_(1e-3)))

    def numpy_sequence():
        a, b, c, d = arrays
        c[:] = 0.9 * c + (1 - 0.9) * b
        d[:] = 0.99 * d + (1 - 0.99) * (c * c)
        a[:] = a + 0.1 * c / (np.sqrt(d) + np.float32(1e-3))

    return {
        "fedbench fedadam_step": functools.partial(
            aggregation.fedadam_step, *(t.clone() for t in (x, update, m, v))
        ),
        "torch, one operation at a time": torch_sequence,
        "numpy, one operation at a time": numpy_sequence,
    }


def sgd_candidates(size):
    """A local step with momentum, weight decay, a proximal term and a control variate."""
    x, gradient, velocity, anchor, correction = vectors(5, size)
    own = [t.clone() for t in (x, gradient)]

    def torch_sequence():
        d = gradient + x * 1e-4
        d.add_((x - anchor).mul_(0.1)).add_(correction)
        velocity.mul_(0.9).add_(d)
        x.sub_(velocity * 1e-6)

    return {
        "fedbench sgd_step": functools.partial(
            aggregation.sgd_step,
            *own,
            lr=1e-6,
            momentum=0.9,
            velocity=velocity.clone(),
            weight_decay=1e-4,
            proximal=0.1,
            anchor=anchor,
            correction=correction,
        ),
        "torch, one operation at a time": torch_sequence,
    }


STEPS = {"FedAdam": fedadam_candidates, "local SGD, all terms": sgd_candidates}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("step", STEPS)
def test_step(benchmark, step, size):
    benchmark.pedantic(next(iter(STEPS[step](size).values())), rounds=10, warmup_rounds=1)


def main():
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    aggregation.set_num_threads(arguments.threads)
    torch.set_num_threads(arguments.threads)
    for name, make in STEPS.items():
        for size in SIZES:
            candidates = make(size)
            seconds = interleaved(candidates, arguments.repeats)
            title = f"{name}, {size} float32, us"
            print(table(title, seconds, next(iter(candidates))))


if __name__ == "__main__":
    main()
