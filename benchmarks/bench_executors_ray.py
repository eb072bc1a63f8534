"""The ``ray`` executor against Ray used by hand: tasks without work, and a large model.

Each test times our backends and the peers in turns, in one run on one cluster, prints the medians
and ratios and keeps them in the ``extra_info`` of the benchmark. Run with ``-s`` to see the tables.
"""

import functools
from collections import deque

import pytest
import torch

from fedbench.executors import empty_result, make_executor

from .interleaved import interleaved, ratios, table

ray = pytest.importorskip("ray", reason="the extra 'ray' is not installed")

pytestmark = pytest.mark.ray

WORKERS = 2
MODEL_SIZE = 11_700_000  # float32 numbers, as many as ResNet-18 has: 45 MB
STORE = 2**30


def no_op(item):
    return item


def add_in_result(broadcast, item):
    return torch.add(broadcast, item, out=empty_result(broadcast.shape))


class Actor:
    """What one writes by hand: the broadcast comes as an argument that was put once."""

    def no_op(self, item):
        return item

    def add(self, array, item):
        return (torch.from_numpy(array) + item).numpy()


@pytest.fixture(scope="module")
def executor():
    with make_executor("ray", WORKERS, object_store_memory=STORE) as executor:
        yield executor


@pytest.fixture(scope="module")
def processes():
    with make_executor("processes", WORKERS) as executor:
        yield executor


@pytest.fixture(scope="module")
def actors(executor):
    """Hand-written actors on the executor's cluster."""
    kind = ray.remote(num_cpus=0)(Actor)
    actors = [kind.remote() for _ in range(WORKERS)]
    ray.get([actor.no_op.remote(0) for actor in actors])
    yield actors
    for actor in actors:
        ray.kill(actor)


def record(benchmark, title, seconds, **scale):
    print("\n" + table(title, seconds, "ray", **scale))
    benchmark.extra_info["ratios"] = {"reference": "ray", **ratios(seconds, "ray")}


def test_no_op_tasks(benchmark, executor, processes, actors):
    """Microseconds per task; Ray's own ways have no bound on what waits."""
    count, repeats = (1000, 7) if benchmark.enabled else (20, 1)
    pool = ray.util.ActorPool(actors)
    remote = ray.remote(num_cpus=0)(no_op)
    candidates = {
        "ray": lambda: executor.map(no_op, range(count)),
        "processes": lambda: processes.map(no_op, range(count)),
        "actors, all submitted at once": lambda: ray.get(
            [actors[item % WORKERS].no_op.remote(item) for item in range(count)]
        ),
        "ActorPool.map": lambda: list(
            pool.map(lambda actor, item: actor.no_op.remote(item), range(count))
        ),
        "tasks, all submitted at once": lambda: ray.get([remote.remote(i) for i in range(count)]),
    }
    for run in candidates.values():
        assert run() == list(range(count))
    seconds = interleaved(candidates, repeats)
    record(benchmark, "no-op tasks, us per task", seconds, per=count)
    benchmark.pedantic(candidates["ray"], rounds=repeats)


def by_hand(actors, model, count):
    """Two calls per actor on their way, results taken in order."""
    reference = ray.put(model.numpy())
    waiting, found = deque(), []
    for item in range(count):
        if len(waiting) == 2 * WORKERS:
            found.append(float(ray.get(waiting.popleft())[0]))
        waiting.append(actors[item % WORKERS].add.remote(reference, item))
    return found + [float(ray.get(one)[0]) for one in waiting]


def test_large_model_down_and_up(benchmark, executor, processes, actors):
    """Milliseconds per task that gets a 45 MB broadcast and returns a 45 MB update."""
    size, count, repeats = (MODEL_SIZE, 12, 7) if benchmark.enabled else (1000, 4, 1)
    model = torch.zeros(size)

    def ours(executor, task=torch.add):
        results = executor.imap(task, range(count), broadcast=model, window=2 * WORKERS)
        return [float(result[0]) for result in results]

    candidates = {
        "ray": functools.partial(ours, executor),
        "processes, result copied": functools.partial(ours, processes),
        "processes": functools.partial(ours, processes, add_in_result),
        "actors, broadcast put once": functools.partial(by_hand, actors, model, count),
    }
    for run in candidates.values():
        assert run() == [float(item) for item in range(count)]
    seconds = interleaved(candidates, repeats)
    record(benchmark, "45 MB down and up, ms per task", seconds, per=count, unit=1e3)
    benchmark.pedantic(candidates["ray"], rounds=repeats)
