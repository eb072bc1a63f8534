"""The correctly rounded mean against torch's and numpy's ways to average updates.

``pytest benchmarks/bench_mean.py`` times the mean. Run as a program, it times mean and peers
in turns on the same number of threads, prints how many times longer the peers take, and fails if a
promised ratio is missed.
"""

import argparse
import functools
import multiprocessing
import statistics
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
import torch
from interleaved import interleaved, ratios, table

from fedbench import aggregation

SHAPES = {"11.7M x 10": (11_689_512, 10), "1M x 32": (1_000_000, 32), "10k x 32": (10_000, 32)}
# How many times longer each peer must take at least, by shape. At 1M x 32 the careful sum is not
# one of them: what it adds stays in the caches there, and a fifth of its time is too short for a
# thread to read the updates (see bench_plain_mean.cpp).
PROMISED = {
    "11.7M x 10": {
        "torch add_ loop": 1.5,
        "numpy layer by layer": 5,
        "numpy sum, careful": 5,
        "numpy.average of stack": 15,
    },
    "1M x 32": {"torch add_ loop": 1.5, "numpy layer by layer": 5, "numpy.average of stack": 15},
    "10k x 32": {"torch add_ loop": 1.5},
}
# Calls that are timed together: so many that the first, with nothing in the caches, hardly counts.
CALLS = {"10k x 32": 200}


def updates(size, clients):
    """Normal float32 updates and random sample counts."""
    rng = np.random.default_rng(0)
    rows = [(rng.standard_normal(size) * 0.05).astype(np.float32) for _ in range(clients)]
    return [torch.from_numpy(row) for row in rows], rng.integers(50, 1000, clients).tolist()


def torch_loop(out, rows, weights, total):
    """acc += w x, client after client, into reused memory like ours."""
    out.zero_()
    for row, weight in zip(rows, weights, strict=True):
        out.add_(row, alpha=weight / total)
    return out


def numpy_layers(updates, weights, total):
    """The usual numpy code: weigh the layers of all clients, then add up layer by layer."""
    weighted = [
        [layer * weight for layer in layers]
        for layers, weight in zip(updates, weights, strict=True)
    ]
    return [functools.reduce(np.add, layers) / total for layers in zip(*weighted, strict=True)]


def numpy_sum(rows, weights, total):
    """The same with one product at a time, which takes less memory."""
    return sum(weight * row for weight, row in zip(weights, rows, strict=True)) / np.float32(total)


def read_once(rows):
    """Sum each update with torch: a pass that does little more than read."""
    return [row.sum() for row in rows]


def mean_candidates(shape):
    """The mean into reused memory, its peers, and a pass that only reads the updates."""
    rows, weights = updates(*SHAPES[shape])
    total = sum(weights)
    arrays = [row.numpy() for row in rows]
    out = torch.empty_like(rows[0])
    return {
        "fedbench mean": functools.partial(aggregation.mean, rows, weights, out=out),
        "torch add_ loop": functools.partial(
            torch_loop, torch.empty_like(out), rows, weights, total
        ),
        # Torch's threads wait busily for a while after their work: not right before our turn.
        "reading the updates once": functools.partial(read_once, rows),
        "numpy layer by layer": functools.partial(
            numpy_layers, [[array] for array in arrays], weights, total
        ),
        "numpy sum, careful": functools.partial(numpy_sum, arrays, weights, total),
        "numpy.average of stack": lambda: np.average(np.stack(arrays), axis=0, weights=weights),
    }


def equal_candidates(clients):
    """Equal weights: ties are common, and must not cost more than torch's loop."""
    rows, _ = updates(11_689_512, clients)
    out = torch.empty_like(rows[0])
    return {
        "fedbench mean": functools.partial(aggregation.mean, rows, out=out),
        "torch add_ loop": functools.partial(
            torch_loop, torch.empty_like(out), rows, [1] * clients, clients
        ),
    }


def layered_candidates():
    """ResNet-18's 62 tensors, averaged in place, against one flat buffer of the same size."""
    shapes = resnet18_shapes()
    flat, weights = updates(sum(map(np.prod, shapes)), 10)
    splits = [torch.split(row, [int(np.prod(shape)) for shape in shapes]) for row in flat]
    states = [{str(i): part.reshape(shapes[i]) for i, part in enumerate(parts)} for parts in splits]
    out = torch.empty_like(flat[0])
    state_out = {str(i): torch.empty(shape) for i, shape in enumerate(shapes)}
    return {
        "fedbench mean, flat": functools.partial(aggregation.mean, flat, weights, out=out),
        "fedbench mean, state dicts": functools.partial(
            aggregation.mean, states, weights, out=state_out
        ),
    }


def resnet18_shapes():
    """Shapes of ResNet-18's parameters: 62 tensors, 11,689,512 numbers."""
    shapes = [(64, 3, 7, 7), (64,), (64,)]
    channels = 64
    for width in (64, 128, 256, 512):
        for block in range(2):
            shapes += [(width, channels, 3, 3), (width,), (width,)]
            shapes += [(width, width, 3, 3), (width,), (width,)]
            if block == 0 and width != 64:
                shapes += [(width, channels, 1, 1), (width,), (width,)]
            channels = width
    return [*shapes, (1000, 512), (1000,)]


def narrow_candidates(dtype):
    """16-bit updates against converting each with torch and adding it in float32."""
    rows, weights = updates(11_689_512, 10)
    rows = [row.to(dtype) for row in rows]
    total = sum(weights)
    out = torch.empty_like(rows[0])
    acc = torch.empty(rows[0].shape)

    def convert_and_add():
        acc.zero_()
        for row, weight in zip(rows, weights, strict=True):
            acc.add_(row.float(), alpha=weight / total)
        return acc

    return {
        "fedbench mean": functools.partial(aggregation.mean, rows, weights, out=out),
        "torch float() and add_": convert_and_add,
    }


def two_threads_ratio(repeats):
    """Time of two Python threads with a set each, over that of one after the other."""
    sets = [updates(1_000_000, 16) for _ in range(2)]
    outs = [torch.empty(1_000_000) for _ in range(2)]

    def work(i):
        for _ in range(5):
            aggregation.mean(*sets[i], out=outs[i])

    def serial():
        work(0)
        work(1)

    def together():
        threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return interleaved({"one after the other": serial, "two Python threads": together}, repeats)


@pytest.mark.parametrize("shape", SHAPES)
def test_mean(benchmark, shape):
    benchmark(mean_candidates(shape)["fedbench mean"])


@pytest.mark.parametrize("clients", [2, 4, 10])
def test_equal_weights(benchmark, clients):
    benchmark(equal_candidates(clients)["fedbench mean"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_narrow_types(benchmark, dtype):
    benchmark(narrow_candidates(dtype)["fedbench mean"])


def test_state_dicts(benchmark):
    benchmark(layered_candidates()["fedbench mean, state dicts"])


def bandwidth_candidates():
    """The mean of ten updates beside a copy of one: what the memory gives."""
    rows, weights = updates(*SHAPES["11.7M x 10"])
    out, target = torch.empty_like(rows[0]), torch.empty_like(rows[0])
    return {
        "fedbench mean": functools.partial(aggregation.mean, rows, weights, out=out),
        "torch copy_": functools.partial(target.copy_, rows[0]),
    }


def bandwidth_table(title, repeats):
    """Gigabytes read and written per second."""
    seconds = interleaved(bandwidth_candidates(), repeats)
    size, clients = SHAPES["11.7M x 10"]
    moved = {"fedbench mean": (clients + 1) * size * 4, "torch copy_": 2 * size * 4}
    rates = {name: moved[name] / statistics.median(seconds[name]) / 1e9 for name in moved}
    lines = [f"  {name:44s} {rate:12.1f}" for name, rate in rates.items()]
    share = rates["fedbench mean"] / rates["torch copy_"]
    return "\n".join([title, *lines, f"  the mean moves {share:.0%} of what a copy moves"])


def report(title, candidates, promised, repeats, calls=1):
    """Print a table; return how many promised ratios it misses."""
    seconds = interleaved(candidates, repeats, calls)
    reference = next(iter(candidates))
    print(table(title, seconds, reference))
    relative = ratios(seconds, reference)
    return sum(relative[peer] < least for peer, least in promised.items())


def measure(threads, repeats):
    """Print the tables for a number of threads; return how many promised ratios they miss."""
    missed = 0
    aggregation.set_num_threads(threads)
    torch.set_num_threads(threads)
    label = f"microseconds on {threads} thread(s)"
    for shape, promised in PROMISED.items():
        title = f"{shape} float32, sample counts, {label}: at least {promised}"
        candidates, calls = mean_candidates(shape), CALLS.get(shape, 1)
        missed += report(title, candidates, promised, repeats, calls)
    for clients in (2, 4, 10):
        title = f"11.7M x {clients} float32, equal weights, {label}: at least 1"
        missed += report(title, equal_candidates(clients), {"torch add_ loop": 1}, repeats)
    for dtype in (torch.bfloat16, torch.float16):
        title = f"11.7M x 10 {dtype}, {label}: at least 10"
        promised = {"torch float() and add_": 10}
        missed += report(title, narrow_candidates(dtype), promised, repeats)
    print(bandwidth_table(f"GB/s, 11.7M x 10 float32, {threads} thread(s)", repeats))
    seconds = interleaved(layered_candidates(), repeats)
    print(table(f"ResNet-18 x 10, {label}: at most 1.05", seconds, "fedbench mean, flat"))
    relative = ratios(seconds, "fedbench mean, flat")["fedbench mean, state dicts"]
    return missed + (relative > 1.05)


def main():
    """Print the tables; return the number of missed ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    # Processes of their own: torch's conversions would be given memory that was freed before. New
    # memory is most of their work, as it is in a program that converts an update now and then.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as processes:
        repeats = [options.repeats] * len(options.threads)
        missed = sum(processes.map(measure, options.threads, repeats))
    aggregation.set_num_threads(1)
    seconds = two_threads_ratio(options.repeats)
    print(table("two sets of 1M x 16, microseconds: at most 0.75", seconds, "one after the other"))
    missed += ratios(seconds, "one after the other")["two Python threads"] > 0.75
    print(f"{missed} promised ratios missed ({time.strftime('%Y-%m-%d')})")
    return missed


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
