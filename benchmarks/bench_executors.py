"""Executors against their peers: overhead per task, transport of a large model, start-up.

Each test times our backends and the peers in turns, in one run, prints the medians and ratios and
keeps them in the ``extra_info`` of the benchmark. Run with ``-s`` to see the tables.
"""

import concurrent.futures
import contextlib
import functools
import multiprocessing
import operator
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.multiprocessing

from fedbench.executors import empty_result, make_executor

from .interleaved import interleaved, ratios, table

WORKERS = 2
MODEL_SIZE = 11_700_000  # float32 numbers, as many as ResNet-18 has: 45 MB

no_op = operator.pos
add_half = functools.partial(operator.add, np.float32(0.5))


def add_half_in_result(broadcast, item):
    return torch.add(broadcast, 0.5, out=empty_result(broadcast.shape))


def add_half_in_shared_memory(tensor):
    """The peer's way to save a copy, the one of torch's own data loaders."""
    storage = tensor.new_empty(0)._typed_storage()._new_shared(tensor.numel(), device="cpu")
    return torch.add(tensor, 0.5, out=tensor.new_empty(0).set_(storage).resize_(tensor.shape))


def consume(results):
    for _ in results:
        pass


@pytest.fixture(scope="module")
def pools():
    """All pools that are compared, warm."""
    spawn = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        found = {
            "sequential": enter(make_executor("sequential")),
            "threads": enter(make_executor("threads", WORKERS)),
            "processes": enter(make_executor("processes", WORKERS)),
            "ThreadPoolExecutor": enter(concurrent.futures.ThreadPoolExecutor(WORKERS)),
            "multiprocessing.Pool": enter(spawn.Pool(WORKERS)),
            "ProcessPoolExecutor": enter(
                concurrent.futures.ProcessPoolExecutor(WORKERS, mp_context=spawn)
            ),
            "torch.multiprocessing.Pool": enter(
                torch.multiprocessing.get_context("spawn").Pool(WORKERS)
            ),
        }
        loky = pytest.importorskip("loky", reason="the peer loky is not installed")
        found["loky"] = loky.ProcessPoolExecutor(WORKERS)
        stack.callback(found["loky"].shutdown, kill_workers=True)
        yield found


def run_no_ops(pool, count):
    """Return a function that runs no-op tasks on a pool, by its fastest in-order call."""
    if hasattr(pool, "map_reduce") or not hasattr(pool, "imap"):
        return lambda: consume(pool.map(no_op, range(count)))
    return lambda: consume(pool.imap(no_op, range(count)))


def record(benchmark, title, seconds, reference, **scale):
    print("\n" + table(title, seconds, reference, **scale))
    benchmark.extra_info["ratios"] = {"reference": reference, **ratios(seconds, reference)}


def test_no_op_tasks(benchmark, pools):
    """Microseconds per task; at most 30 for threads and 60 for processes are wanted."""
    count, repeats = (1000, 7) if benchmark.enabled else (20, 1)
    candidates = {name: run_no_ops(pool, count) for name, pool in pools.items()}
    imap = pools["processes"].imap
    candidates["processes, imap"] = lambda: consume(imap(no_op, range(count)))
    seconds = interleaved(candidates, repeats)
    record(benchmark, "no-op tasks, us per task", seconds, "processes", per=count)
    benchmark.pedantic(candidates["processes"], rounds=repeats)


def test_large_model_down_and_up(benchmark, pools):
    """Milliseconds per task that gets a 45 MB broadcast and returns a 45 MB update.

    Tasks that make their result in the memory through which it travels spare a copy; that row is
    the one to compare, also with the peer that can do the same.
    """
    size, count, repeats = (MODEL_SIZE, 12, 5) if benchmark.enabled else (1000, 4, 1)
    model = torch.randn(size)
    shared = model.clone().share_memory_()
    array = model.numpy()
    one, two = torch.empty_like(model), torch.empty_like(model)

    def two_copies():
        for _ in range(count):
            one.copy_(model)
            two.copy_(one)

    def ours(backend, task=lambda broadcast, item: broadcast + 0.5):
        return lambda: consume(pools[backend].imap(task, range(count), broadcast=model))

    torch_pool, futures_pool = pools["torch.multiprocessing.Pool"], pools["ProcessPoolExecutor"]
    candidates = {
        "two memory copies": two_copies,
        "sequential": ours("sequential"),
        "threads": ours("threads"),
        "processes, result copied": ours("processes"),
        "processes": ours("processes", add_half_in_result),
        "torch.multiprocessing.Pool": lambda: consume(torch_pool.imap(add_half, [shared] * count)),
        "torch.multiprocessing.Pool, in shared memory": lambda: consume(
            torch_pool.imap(add_half_in_shared_memory, [shared] * count)
        ),
        "ProcessPoolExecutor": lambda: consume(futures_pool.map(add_half, [array] * count)),
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seconds = interleaved(candidates, repeats)
    finally:
        torch.set_num_threads(threads)
    record(benchmark, "45 MB down and up, ms per task", seconds, "processes", per=count, unit=1e3)
    benchmark.pedantic(candidates["processes"], rounds=repeats)


def test_many_small_tensors(benchmark, pools):
    """Milliseconds per task with a state of 60 tensors of 1000 numbers, both ways."""
    count, repeats = (200, 5) if benchmark.enabled else (4, 1)
    state = {f"layer{number}.weight": torch.randn(1000) for number in range(60)}
    task = lambda state, item: {name: value + 0.5 for name, value in state.items()}  # noqa: E731
    candidates = {
        backend: functools.partial(pools[backend].map, task, range(count), broadcast=state)
        for backend in ("sequential", "threads", "processes")
    }
    seconds = interleaved(candidates, repeats)
    record(benchmark, "60 small tensors, us per task", seconds, "sequential", per=count)
    benchmark.pedantic(candidates["processes"], rounds=repeats)


def test_start_up(benchmark):
    """Two workers and a first map on them, against two bare interpreters that import torch."""
    repeats = 3 if benchmark.enabled else 1

    def bare():
        programs = [
            subprocess.Popen([sys.executable, "-c", "import torch"]) for _ in range(WORKERS)
        ]
        for program in programs:
            program.wait()

    def ours(**options):
        with make_executor("processes", WORKERS, **options) as executor:
            executor.map(no_op, range(WORKERS))

    candidates = {
        "two bare interpreters": bare,
        "processes": ours,
        # These import each on their own.
        "processes, two intra-op threads": functools.partial(ours, intraop_threads=2),
    }
    seconds = interleaved(candidates, repeats)
    record(benchmark, "start-up, s", seconds, "two bare interpreters", unit=1)
    benchmark.pedantic(ours, rounds=1)


def test_replacing_a_worker(benchmark):
    """Milliseconds per task with a new worker for each, against a bare interpreter with torch."""
    count, repeats = (10, 3) if benchmark.enabled else (2, 1)
    with make_executor("processes", 1, recycle_after=1) as executor:
        executor.map(no_op, range(2))
        candidates = {
            "bare interpreter": lambda: subprocess.run(
                [sys.executable, "-c", "import torch"], check=True
            ),
            "new worker": lambda: executor.map(no_op, range(count)),
        }
        seconds = interleaved(candidates, repeats)
        seconds["new worker"] = [one / count for one in seconds["new worker"]]
        record(benchmark, "a new worker, ms", seconds, "bare interpreter", unit=1e3)
        benchmark.pedantic(candidates["new worker"], rounds=1)
