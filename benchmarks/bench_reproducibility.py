"""What reproducibility costs: streams, scopes, digests, and level L1 on whole client tasks.

``pytest benchmarks/bench_reproducibility.py`` times the parts. Run as a program, it measures the
overhead of L1 with the generator scope over the same client task on the global generators. Both
take turns in one process, on one model, so that memory and caches are the same; torch's draws are
redirected only in the turns of L1.
"""

import argparse
import contextlib
import functools
import statistics
import time
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from fedbench import models
from fedbench.data import ClientData
from fedbench.reproducibility import (
    digest,
    generator_scope,
    numpy_generator,
    python_random,
    redirect_global_generators,
    redirect_torch,
    seed_torch_generator,
    stream_key,
    torch_generator,
)
from fedbench.training import LOSSES, LocalWork, WorkerModel, local_sgd


def _dropout_mlp():
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
    )


# name: (model, batch size)
TASKS = {
    "logistic regression, batch 10": (functools.partial(models.logistic_regression, 784, 10), 10),
    "FedAvg CNN, batch 20": (models.fedavg_cnn, 20),
    "MLP with two dropouts, batch 10": (_dropout_mlp, 10),
}
LEVELS = ("L0", "L1", "L1 with check")
SAMPLES = 100


class Task:
    """One epoch of a client with 100 samples of MNIST's shape."""

    def __init__(self, name, level):
        build, batch_size = TASKS[name]
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(SAMPLES, 1, 28, 28, generator=generator)
        self.data = ClientData(inputs, torch.randint(10, (SAMPLES,), generator=generator))
        self.model = WorkerModel(build())
        self.work = LocalWork(epochs=1, batch_size=batch_size, lr=0.01)
        self.level = level

    def __call__(self, client):
        """Train once, as the given client."""
        scope = nullcontext()
        generator = _no_generator
        if self.level != "L0":
            generator = functools.partial(torch_generator, 0, "shuffle", client, 0)
            scope = generator_scope(0, client, 0, check=self.level.endswith("check"))
        with scope:
            return local_sgd(
                self.model, self.data, self.work, LOSSES.load("cross_entropy"), generator
            )


def _no_generator(epoch):
    return None


@contextlib.contextmanager
def _as_if_no_scope_had_been_entered():
    redirect_torch._library._destroy()
    redirect_torch._library = None
    try:
        yield
    finally:
        redirect_torch.install_torch()


def _cpu_seconds(task, count):
    """Return the time of one task; of the processor, as other programs are not to count."""
    start = time.thread_time()
    for client in range(count):
        task(client)
    return (time.thread_time() - start) / count


def measure_overhead(name, level, turns, block_s=0.03):
    """Return the CPU seconds of tasks on the global generators and at `level`, by turn."""
    redirect_global_generators()
    task = Task(name, level)
    count = max(1, round(block_s / _cpu_seconds(task, 3)))
    seconds = {"L0": [], level: []}
    for turn in range(turns):
        for each in ("L0", level) if turn % 2 else (level, "L0"):
            task.level = each
            with _as_if_no_scope_had_been_entered() if each == "L0" else nullcontext():
                task(0)  # the first one after a change finds cold caches
                seconds[each].append(_cpu_seconds(task, count))
    return seconds["L0"], seconds[level]


def main():
    """Print the table of the guide."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=200, help="turns of each (default 200)")
    turns = parser.parse_args().turns
    print("| client task | global generators, ms | level | overhead, fastest tenth | median |")
    print("| --- | --- | --- | --- | --- |")
    for name in TASKS:
        for level in LEVELS[1:]:
            bare, scoped = measure_overhead(name, level, turns)
            # Other programs only ever slow a turn down, by what they do to the caches.
            fastest = [statistics.quantiles(each, n=10)[0] for each in (bare, scoped)]
            ratios = [b / a for a, b in zip(bare, scoped, strict=True)]
            print(
                f"| {name} | {1e3 * fastest[0]:.2f} | {level} "
                f"| {100 * (fastest[1] / fastest[0] - 1):+.1f} % "
                f"| {100 * (statistics.median(ratios) - 1):+.1f} % |",
                flush=True,
            )


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", TASKS)
def test_client_task(benchmark, name, level):
    benchmark(Task(name, level), 1)


def test_stream_key(benchmark):
    benchmark(stream_key, 0, "shuffle", "client-17", 3)


@pytest.mark.parametrize("make", [torch_generator, numpy_generator, python_random])
def test_generator(benchmark, make):
    benchmark(make, 0, "shuffle", "client-17", 3)


def test_reseeding_a_torch_generator(benchmark):
    benchmark(seed_torch_generator, torch.Generator(), 0, "shuffle", "client-17", 3)


@pytest.mark.parametrize("check", [False, True])
def test_empty_scope(benchmark, check):
    def enter_and_leave():
        with generator_scope(0, "client-17", 3, check=check):
            pass

    benchmark(enter_and_leave)


def test_draw_in_a_scope(benchmark):
    with generator_scope(0, "client-17", 3):
        benchmark(torch.rand, 10)


def test_draw_outside_of_scopes(benchmark):
    with generator_scope(0, "client-17", 3):
        pass
    benchmark(torch.rand, 10)


def test_digest_of_a_large_state(benchmark):
    state = {f"layer{index}.weight": torch.zeros(1_000_000) for index in range(10)}
    benchmark(digest, state)


def test_digest_of_many_small_entries(benchmark):
    state = {f"layer{index}.weight": torch.zeros(10) for index in range(200)}
    benchmark(digest, state)


if __name__ == "__main__":
    main()
