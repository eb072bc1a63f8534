"""The contract of all executors, on every backend: results, callbacks, look-ahead, costs."""

import itertools
import random
import threading
import time

import numpy as np
import pytest
import torch

from fedbench.errors import ClientTaskError, NestedExecutorError
from fedbench.executors import Resident
from fedbench.executors.sequential import SequentialExecutor

from .tasks import sleep_and_return, square


def test_map_returns_results_in_the_order_of_the_items(executor):
    rng = random.Random(3)
    items = [(rng.random() * 0.01, value) for value in range(24)]
    assert executor.map(sleep_and_return, items) == list(range(24))


def test_map_returns_results_in_order_when_the_first_task_is_the_slowest(executor):
    items = [((8 - value) * 0.01, value) for value in range(8)]
    assert executor.map(sleep_and_return, items) == list(range(8))


def test_imap_yields_in_the_order_of_the_items(executor):
    rng = random.Random(4)
    items = [(rng.random() * 0.01, value) for value in range(24)]
    assert list(executor.imap(sleep_and_return, items)) == list(range(24))


@pytest.mark.parametrize("items", [[], (), iter(())], ids=["list", "tuple", "iterator"])
def test_no_items_give_no_results(executor, items):
    items = list(items) if isinstance(items, list | tuple) else iter(())
    assert executor.map(square, items) == []
    assert list(executor.imap(square, [])) == []


def test_many_small_tasks(executor):
    assert executor.map(square, range(2000)) == [item * item for item in range(2000)]


def test_lambdas_closures_and_local_classes_work(executor):
    offset = 5

    class Local:
        def __init__(self, value):
            self.value = value

        def __eq__(self, other):
            return type(self) is type(other) and self.value == other.value

        __hash__ = None

    assert executor.map(lambda item: Local(item.value + offset), [Local(1), Local(2)]) == [
        Local(6),
        Local(7),
    ]


def test_none_is_a_result(executor):
    assert executor.map(lambda item: None, range(3)) == [None, None, None]


def test_any_iterable_is_accepted(executor):
    assert executor.map(square, {2: "two", 3: "three"}) == [4, 9]
    assert executor.map(square, np.arange(3)) == [0, 1, 4]


def test_results_of_tensors_and_arrays(executor):
    def make(item):
        return {
            "float": torch.full((3, item), float(item)),
            "half": torch.ones(2, dtype=torch.bfloat16),
            "int": torch.tensor(item),
            "empty": torch.zeros(0, 3),
            "bool": torch.tensor([True, False]),
            "transposed": torch.arange(6.0).reshape(2, 3).t(),
            "array": np.arange(item, dtype=np.int16),
            "nested": [(torch.ones(1), "text")],
        }

    for item, result in enumerate(executor.map(make, range(4))):
        expected = make(item)
        assert result.keys() == expected.keys()
        for name in ("float", "half", "int", "empty", "bool", "transposed"):
            assert result[name].dtype == expected[name].dtype
            assert result[name].stride() == expected[name].stride()
            assert torch.equal(result[name], expected[name])
        np.testing.assert_array_equal(result["array"], expected["array"])
        assert torch.equal(result["nested"][0][0], torch.ones(1))


def test_large_results_are_owned_by_the_receiver(executor):
    size = 300_000  # over a megabyte: beyond what a transport would send inline
    kept = []
    for repeat in range(4):
        results = executor.map(lambda item: torch.full((size,), float(item)), range(6))
        kept.append((repeat, results))
        for result in results[::2]:
            result.add_(0.5)  # the receiver may write to what it owns
    for _, results in kept:
        for item, result in enumerate(results):
            expected = float(item) + (0.5 if item % 2 == 0 else 0.0)
            assert result.eq(expected).all()


def test_on_result_runs_once_per_task_on_the_calling_thread(executor):
    seen = []
    here = threading.current_thread()

    def on_result(index, result):
        seen.append((index, result, threading.current_thread() is here))

    results = executor.map(square, range(20), on_result=on_result)
    assert sorted(seen) == [(index, results[index], True) for index in range(20)]


def test_on_result_comes_before_the_last_task_ends(executor):
    order = []
    executor.map(
        sleep_and_return,
        [(0.0, "first"), *[(0.1, "later")] * 7],
        on_result=lambda index, result: order.append((index, time.monotonic())),
    )
    assert order[0][1] < order[-1][1]


def test_an_exception_in_on_result_fails_the_map(executor):
    def on_result(index, result):
        if index == 2:
            raise KeyError("no such client")

    with pytest.raises(ClientTaskError, match="client task 2 failed in on_result") as caught:
        executor.map(square, range(50), on_result=on_result)
    assert isinstance(caught.value.__cause__, KeyError)
    assert executor.map(square, [3]) == [9]


def test_on_result_may_not_call_the_executor(executor):
    with pytest.raises(ClientTaskError) as caught:
        executor.map(square, range(4), on_result=lambda *_: executor.map(square, [1]))
    assert isinstance(caught.value.__cause__, NestedExecutorError)
    assert executor.map(square, [3]) == [9]


def counted(items, pulled):
    for item in items:
        pulled.append(item)
        yield item


def test_map_pulls_a_generator_within_the_look_ahead(executor):
    pulled, done = [], []

    def on_result(index, result):
        done.append(index)
        assert len(pulled) <= len(done) + 4 * executor.workers

    assert executor.map(square, counted(range(200), pulled), on_result=on_result)[-1] == 199**2
    assert len(done) == 200


@pytest.mark.parametrize("window", [None, 1, 3])
def test_imap_pulls_within_its_window(executor, window):
    pulled = []
    iterator = executor.imap(square, counted(itertools.count(), pulled), window=window)
    limit = window or 4 * executor.workers
    for taken, result in enumerate(itertools.islice(iterator, 50)):
        assert result == taken**2
        assert len(pulled) <= taken + 1 + limit
    iterator.close()
    assert executor.map(square, [3]) == [9]


def test_an_abandoned_imap_leaves_the_executor_usable(executor):
    for result in executor.imap(square, itertools.count()):
        if result > 100:
            break
    assert executor.map(square, [3]) == [9]


def test_an_unused_imap_does_not_block_the_executor(executor):
    executor.imap(square, [1, 2])
    assert executor.map(square, [3]) == [9]


def test_costs_dispatch_the_longest_first_and_change_no_result(backend, new_executor):
    executor = new_executor(1)
    costs = [1.0, 5.0, 3.0, 2.0, 4.0]
    order = []
    results = executor.map(
        square, range(5), costs=costs, on_result=lambda index, result: order.append(index)
    )
    assert results == [0, 1, 4, 9, 16]
    assert order == [1, 4, 2, 3, 0]
    assert list(executor.imap(square, iter(range(5)), costs=iter(costs))) == results


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ([1.0], "costs must hold one number per item, got 1 costs for 3 items"),
        ([1.0] * 4, "costs must hold one number per item, got 4 costs for 3 items"),
        ([1.0, -2.0, 1.0], r"costs\[1\] must be a finite number that is not negative, got -2.0"),
        ([1.0, float("nan"), 1.0], r"costs\[1\] must be a finite number"),
        ([1.0, "big", 1.0], r"costs\[1\] must be a finite number"),
    ],
)
def test_wrong_costs_are_refused(executor, costs, message):
    with pytest.raises(ValueError, match=message):
        executor.map(square, range(3), costs=costs)
    assert executor.map(square, [3]) == [9]


@pytest.mark.parametrize("num_costs", [1, 4])
def test_costs_from_a_generator_must_match_the_items_too(executor, num_costs):
    with pytest.raises(ValueError, match="costs must hold one number per item"):
        executor.map(square, iter(range(3)), costs=iter([1.0] * num_costs))
    assert executor.map(square, [3]) == [9]


def test_values_of_nothing_but_empty_arrays_arrive(executor, recwarn):
    empty = {"w": np.zeros((0, 3)), "b": torch.zeros(0)}
    resident = Resident(np.zeros(0))

    def task(broadcast, item):
        shapes = [broadcast["w"].shape, tuple(broadcast["b"].shape), item.shape]
        return shapes, resident.value.shape, np.zeros((2, 0)), [np.zeros(0)]

    for shapes, held, array, several in executor.map(task, [np.zeros(0)] * 3, broadcast=empty):
        assert shapes == [(0, 3), (0,), (0,)]
        assert held == (0,)
        assert array.shape == (2, 0)
        assert several[0].shape == (0,)
    assert executor.map(lambda item: np.zeros(0), [1, 2])[1].shape == (0,)
    assert not [w for w in recwarn if "shared memory" in str(w.message)]


def test_a_backend_without_room_for_a_while_runs_every_task():
    """As one whose workers are all being replaced."""

    class Hesitant(SequentialExecutor):
        refusals = 0

        def _room(self):
            self.refusals += 1
            return 0 if self.refusals % 3 else super()._room()

        def _completed(self):
            return super()._completed() if self._waiting else []

    with Hesitant() as executor:
        assert executor.map(square, range(5)) == [0, 1, 4, 9, 16]
        assert list(executor.imap(square, range(5))) == [0, 1, 4, 9, 16]
