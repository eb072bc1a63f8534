"""The contract of all executors: every test here runs on every registered backend."""

import collections
import dataclasses
import itertools
import os
import random
import signal
import threading
import time

import numpy as np
import pytest
import torch

from fedbench.errors import (
    BroadcastModifiedError,
    ClientTaskError,
    ExecutorClosedError,
    ExecutorError,
    NestedExecutorError,
)
from fedbench.executors import Resident, make_executor


def square(item):
    return item * item


def sleep_and_return(item):
    delay, value = item
    time.sleep(delay)
    return value


class TwoArgumentError(Exception):
    def __init__(self, left, right):
        super().__init__(f"{left} and {right}")
        self.left = left


@dataclasses.dataclass
class Order:
    client_id: int
    data: torch.Tensor | None = None


# -- results -------------------------------------------------------------------------------------


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


# -- callbacks -----------------------------------------------------------------------------------


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


# -- failures ------------------------------------------------------------------------------------


def fail_at_three(item):
    if item == 3:
        raise ZeroDivisionError("three")
    return item


def test_a_failing_task_is_named_with_its_traceback(executor):
    with pytest.raises(ClientTaskError, match=r"client task 3 failed.*ZeroDivisionError") as caught:
        executor.map(fail_at_three, range(8))
    error = caught.value
    assert error.index == 3
    assert error.item == 3
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert "fail_at_three" in error.worker_traceback
    assert executor.map(square, range(3)) == [0, 1, 4]


def test_a_failing_task_is_named_by_its_client_id(executor):
    def fail(item):
        raise ValueError("bad data")

    with pytest.raises(ClientTaskError, match=r"client task 0 \(client_id 17\)") as caught:
        executor.map(fail, [Order(17)])
    assert caught.value.item == 17


def test_imap_raises_the_failure(executor):
    iterator = executor.imap(fail_at_three, range(8))
    with pytest.raises(ClientTaskError) as caught:
        list(iterator)
    assert caught.value.index == 3
    assert executor.map(square, [3]) == [9]


def test_the_lowest_failed_index_is_raised_and_the_others_are_listed(new_executor):
    executor = new_executor()

    def fail(item):
        time.sleep(0.3 if item == 0 else 0.25)
        raise ValueError(f"item {item}")

    with pytest.raises(ClientTaskError) as caught:
        executor.map(fail, range(6))
    failed = [caught.value.index, *caught.value.other_failures]
    assert failed == sorted(failed)
    assert caught.value.index == 0
    assert str(caught.value.__cause__) == "item 0"


def test_no_more_tasks_start_after_a_failure(executor):
    pulled = []

    def items():
        for item in range(10_000):
            pulled.append(item)
            yield item

    with pytest.raises(ClientTaskError):
        executor.map(fail_at_three, items())
    assert len(pulled) < 200


def test_every_task_failing_is_an_error(executor):
    with pytest.raises(ClientTaskError):
        executor.map(lambda item: 1 / 0, range(8))


@pytest.mark.parametrize(
    "make_error",
    [
        lambda: TwoArgumentError("this", "that"),
        lambda: SystemExit(3),
        lambda: GeneratorExit(),
        lambda: StopIteration("early"),
        lambda: OSError(2, "No such file", "data.npz"),
        lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    ],
    ids=["two-arguments", "SystemExit", "GeneratorExit", "StopIteration", "OSError", "Unicode"],
)
def test_exceptions_of_any_kind_arrive(executor, make_error):
    expected = make_error()

    def fail(item):
        raise make_error()

    with pytest.raises(ClientTaskError) as caught:
        executor.map(fail, range(2))
    cause = caught.value.__cause__
    assert type(cause) is type(expected)
    assert cause.args == expected.args
    assert executor.map(square, [3]) == [9]


def test_an_exception_with_an_attribute_that_cannot_be_pickled_arrives(executor):
    def fail(item):
        error = TwoArgumentError("this", "that")
        error.lock = threading.Lock()
        raise error

    with pytest.raises(ClientTaskError, match="TwoArgumentError: this and that") as caught:
        executor.map(fail, range(2))
    assert type(caught.value.__cause__) is TwoArgumentError
    assert caught.value.__cause__.left == "this"
    assert executor.map(square, [3]) == [9]


def test_an_exception_of_a_class_made_in_the_task_arrives(executor):
    def fail(item):
        class OnlyThereError(Exception):
            pass

        raise OnlyThereError("made in the task")

    with pytest.raises(ClientTaskError, match="OnlyThereError: made in the task") as caught:
        executor.map(fail, range(2))
    assert type(caught.value.__cause__).__name__ in {"OnlyThereError", "RemoteError"}


def test_a_generator_that_raises_ends_the_map_with_its_error(executor):
    def items():
        yield from range(5)
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        executor.map(square, items())
    with pytest.raises(OSError, match="the disk is gone"):
        list(executor.imap(square, items()))
    assert executor.map(square, [3]) == [9]


# -- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, -1, 1.5])
def test_bad_worker_counts_are_refused(backend, workers):
    with pytest.raises(ValueError, match="workers must be a positive integer"):
        make_executor(backend, workers)


@pytest.mark.parametrize("workers", ["2", True, [2]])
def test_worker_counts_of_a_wrong_type_are_refused(backend, workers):
    with pytest.raises(TypeError, match="workers must be a positive integer"):
        make_executor(backend, workers)


def test_unknown_options_are_refused_with_the_known_ones(backend):
    with pytest.raises(TypeError, match=r"intraop_threads.*got 'thread'"):
        make_executor(backend, thread=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"intraop_threads": 0}, "intraop_threads must be a positive integer"),
        ({"retries": -1}, "retries must be an integer that is not negative"),
    ],
)
def test_bad_options_are_refused(backend, options, message):
    with pytest.raises(ValueError, match=message):
        make_executor(backend, **options)


def test_wrong_arguments_of_map_are_refused(executor):
    with pytest.raises(TypeError, match="task must be callable, got int"):
        executor.map(3, [1])
    with pytest.raises(TypeError, match="items must be an iterable, got int"):
        executor.map(square, 3)
    with pytest.raises(TypeError, match="on_result must be callable"):
        executor.map(square, [1], on_result="print")
    with pytest.raises(ValueError, match="window must be a positive integer"):
        executor.imap(square, [1], window=0)
    assert executor.map(square, [3]) == [9]


# -- life ----------------------------------------------------------------------------------------


def test_one_item_and_more_workers_than_items(backend, new_executor):
    executor = new_executor(None if backend == "sequential" else 3)
    assert executor.map(square, [3]) == [9]


def test_closing_twice_is_fine_and_a_closed_executor_refuses_work(new_executor):
    executor = new_executor()
    assert executor.map(square, [3]) == [9]
    executor.close()
    executor.close()
    for use in (
        lambda: executor.map(square, [1]),
        lambda: executor.imap(square, [1]),
        executor.start,
    ):
        with pytest.raises(ExecutorClosedError, match="is closed"):
            use()
    with pytest.raises(RuntimeError, match="is closed"), executor:
        pass


def test_an_executor_must_be_started(backend):
    executor = make_executor(backend)
    with pytest.raises(ExecutorClosedError, match="is not started"):
        executor.map(square, [1])
    executor.close()


def test_starting_twice_is_fine_and_startup_is_timed(new_executor):
    executor = new_executor()
    startup_s = executor.startup_s
    executor.start()
    assert executor.startup_s == startup_s >= 0


def test_an_exception_inside_the_with_block_passes_through(backend, no_leaks):
    executor = make_executor(backend)

    def use():
        with executor:
            executor.map(square, [1])
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        use()
    with pytest.raises(ExecutorClosedError):
        executor.map(square, [1])


def test_closing_in_a_callback_ends_the_map_with_an_error(new_executor):
    executor = new_executor()
    with pytest.raises(ExecutorError):
        executor.map(square, range(100), on_result=lambda *_: executor.close())


def test_two_executors_are_alive_at_once(executor, new_executor):
    other = new_executor()
    assert executor.map(square, range(4)) == other.map(square, range(4)) == [0, 1, 4, 9]


def test_use_from_another_thread_is_refused(executor):
    errors = []

    def use():
        try:
            executor.map(square, [1])
        except ExecutorError as error:
            errors.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join(60)
    assert "on the thread that entered it" in str(errors[0])
    assert executor.map(square, [3]) == [9]


def test_use_while_a_map_is_running_is_refused(executor):
    iterator = executor.imap(square, range(10))
    assert next(iterator) == 0
    with pytest.raises(NestedExecutorError, match="finish one map before the next"):
        executor.map(square, [1])
    assert list(iterator) == [item * item for item in range(1, 10)]
    assert executor.map(square, [3]) == [9]


def test_nested_use_is_refused(executor):
    with pytest.raises(ClientTaskError) as caught:
        executor.map(lambda item: executor.map(square, [item]), range(2))
    assert isinstance(caught.value.__cause__, NestedExecutorError)

    def open_another(item):
        with make_executor("sequential") as inner:
            return inner.map(square, [item])

    with pytest.raises(ClientTaskError) as caught:
        executor.map(open_another, range(2))
    assert isinstance(caught.value.__cause__, NestedExecutorError)
    assert executor.map(square, [3]) == [9]


# -- look-ahead ----------------------------------------------------------------------------------


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


# -- costs ---------------------------------------------------------------------------------------


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


# -- broadcast -----------------------------------------------------------------------------------

Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass(frozen=True)
class Parameters:
    weight: torch.Tensor
    name: str


def make_broadcast():
    base = torch.arange(40.0)
    shared = torch.ones(7)
    return {
        "view": base[3:17],
        "strided": base[::3],
        "transposed": base.reshape(5, 8).t(),
        "images": torch.arange(48.0)
        .reshape(2, 2, 3, 4)
        .contiguous(memory_format=torch.channels_last),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "empty": torch.zeros(0, 4),
        "half": torch.ones(5, dtype=torch.bfloat16),
        "mask": torch.tensor([True, False, True]),
        "complex": torch.ones(3, dtype=torch.complex64),
        "grad": torch.ones(2, requires_grad=True),
        "array": np.arange(9, dtype=np.float32)[1:],
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "pair": Pair(torch.ones(1), [torch.zeros(2), "text"]),
        "parameters": Parameters(torch.full((3,), 4.0), "w"),
        "tied": (shared, shared),
        "plain": {"rate": 0.1, "names": ("a", "b")},
    }


def describe(broadcast, item):
    """Return everything that a task can tell about the broadcast."""
    from fedbench.executors.guard import named_arrays

    found = {}
    for name, array in named_arrays(broadcast):
        if isinstance(array, np.ndarray):
            address, values = array.ctypes.data, array.tolist()
            layout = (array.strides, str(array.dtype))
        else:
            address, values = array.data_ptr(), array.detach().tolist()
            layout = (array.stride(), str(array.dtype), array.requires_grad)
        found[name] = (address % 64 if values else 0, layout, values)
    tied = broadcast["tied"]
    return found, tied[0].data_ptr() == tied[1].data_ptr(), broadcast["plain"], item


def test_a_broadcast_arrives_whole_and_aligned(executor):
    broadcast = make_broadcast()
    results = executor.map(describe, range(3), broadcast=broadcast)
    with make_executor("sequential") as reference:
        expected = reference.map(describe, range(3), broadcast=broadcast)
    assert results == expected
    found, tied, plain, _ = results[0]
    assert tied
    assert plain == {"rate": 0.1, "names": ("a", "b")}
    assert all(offset == 0 for offset, _, _ in found.values())
    assert found["broadcast['view']"][2] == list(range(3, 17))
    assert found["broadcast['images']"][1][0] == (24, 1, 8, 2)
    assert found["broadcast['transposed']"][1][0] == (1, 8)


def test_a_broadcast_may_be_a_tensor_a_module_or_false(executor):
    assert executor.map(lambda b, i: float(b.sum()) + i, [1, 2], broadcast=torch.ones(3)) == [4, 5]
    assert executor.map(lambda b, i: (b, i), [1], broadcast=False) == [(False, 1)]
    linear = torch.nn.Linear(2, 1)
    with torch.no_grad():
        expected = linear(torch.ones(2)).tolist()
    run = lambda model, item: model(torch.ones(2)).tolist()  # noqa: E731
    assert executor.map(run, [1, 2], broadcast=linear) == [expected, expected]


WRITES = {
    "in place": lambda b: b["model"]["layer.weight"].add_(1),
    "through a view": lambda b: b["model"]["layer.weight"][0].zero_(),
    "by index": lambda b: b["model"]["layer.weight"].__setitem__(0, 1.0),
    "requires_grad": lambda b: b["model"]["layer.weight"].requires_grad_(),
}


@pytest.mark.parametrize("kind", WRITES)
def test_a_write_to_the_broadcast_fails_the_task_and_names_the_entry(executor, kind):
    weight = torch.ones(4, 3)
    broadcast = {"model": {"layer.weight": weight, "layer.bias": torch.zeros(3)}}
    write = WRITES[kind]

    def task(broadcast, item):
        if item == 1:
            write(broadcast)
        return broadcast["model"]["layer.weight"].sum().item()

    with pytest.raises(ClientTaskError, match=r"\['layer.weight'\]") as caught:
        executor.map(task, range(3), broadcast=broadcast)
    assert caught.value.index == 1
    assert isinstance(caught.value.__cause__, BroadcastModifiedError)
    assert "layer.bias" not in str(caught.value)
    assert weight.eq(1).all()
    assert not weight.requires_grad
    read = lambda broadcast, item: float(broadcast["model"]["layer.weight"].sum())  # noqa: E731
    assert executor.map(read, range(4), broadcast=broadcast) == [12.0] * 4


def test_a_write_to_an_array_of_the_broadcast_fails_the_task(executor):
    array = np.ones(4)

    def task(broadcast, item):
        broadcast["rates"][0] = 7.0

    with pytest.raises(ClientTaskError, match=r"broadcast\['rates'\]") as caught:
        executor.map(task, range(2), broadcast={"rates": array})
    assert isinstance(caught.value.__cause__, BroadcastModifiedError)
    assert array.tolist() == [1.0] * 4


def test_a_result_that_is_part_of_the_broadcast_is_a_copy(executor):
    weight = torch.ones(4)
    task = lambda broadcast, item: {"same": broadcast["w"], "view": broadcast["w"][1:]}  # noqa: E731
    results = executor.map(task, range(4), broadcast={"w": weight})
    results[0]["same"].zero_()
    results[1]["view"].zero_()
    assert weight.eq(1).all()
    assert results[2]["same"].eq(1).all()
    assert results[3]["view"].eq(1).all()


def test_the_caller_may_change_the_broadcast_between_maps(executor):
    weight = torch.zeros(100_000)
    for repeat in range(5):
        weight.fill_(repeat)
        read = lambda broadcast, item: float(broadcast.mean())  # noqa: E731
        assert executor.map(read, range(3), broadcast=weight) == [repeat] * 3


def test_an_item_belongs_to_its_task(executor):
    item = Order(3, torch.ones(4))

    def task(item):
        item.data.add_(1)
        return item.data, item.data.data_ptr() % 64

    results = executor.map(task, [item, item])
    assert item.data.eq(1).all()
    assert all(result.eq(2).all() and offset == 0 for result, offset in results)


def test_items_are_aligned(executor):
    base = torch.arange(40.0)
    items = [(base[start:], np.arange(9.0)[1:]) for start in range(4)]
    offsets = executor.map(lambda item: (item[0].data_ptr() % 64, item[1].ctypes.data % 64), items)
    assert offsets == [(0, 0)] * 4


# -- resident constants --------------------------------------------------------------------------


def test_a_resident_is_there_in_every_task(executor):
    data = Resident({"x": torch.arange(10.0), "name": "digits"})

    def task(item, data=data):
        return float(data.value["x"][item]), data.value["name"]

    for _ in range(2):
        assert executor.map(task, range(4)) == [(float(item), "digits") for item in range(4)]


# -- ambient state -------------------------------------------------------------------------------


def ambient(item):
    tiny = 5e-324
    return (
        torch.is_grad_enabled(),
        str(torch.get_default_dtype()),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_inference_mode_enabled(),
        tiny * float(1 + 0 * item) == 0.0,
        float(torch.tensor(1e-310, dtype=torch.float64) * 1) == 0.0,
        torch.get_num_threads(),
    )


def test_the_ambient_state_of_the_caller_holds_in_the_tasks(executor):
    plain = (True, "torch.float32", "highest", False, False, False, False, False, 1)
    assert set(executor.map(ambient, range(6))) == {plain}
    try:
        torch.set_default_dtype(torch.float64)
        torch.set_float32_matmul_precision("high")
        torch.use_deterministic_algorithms(True)
        torch.set_flush_denormal(True)
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            found = set(executor.map(ambient, range(6)))
    finally:
        torch.set_flush_denormal(False)
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision("highest")
        torch.set_default_dtype(torch.float32)
    assert found == {(False, "torch.float64", "high", True, True, False, True, True, 1)}
    with torch.inference_mode():
        assert {values[5] for values in executor.map(ambient, range(6))} == {True}
    assert set(executor.map(ambient, range(6))) == {plain}


def parent_state():
    return (
        torch.get_num_threads(),
        torch.get_rng_state().tolist(),
        np.random.get_state()[1].tolist(),
        random.getstate(),
        signal.getsignal(signal.SIGINT),
        dict(os.environ),
    )


def test_the_state_of_the_parent_is_left_alone(backend, new_executor):
    before = parent_state()
    executor = new_executor(intraop_threads=1)
    executor.map(square, range(4))
    executor.close()
    assert parent_state() == before


def test_intraop_threads_are_set_in_tasks_only(new_executor):
    executor = new_executor(intraop_threads=2)
    here = torch.get_num_threads()
    seen = []
    inside = executor.map(
        lambda item: torch.get_num_threads(),
        range(4),
        on_result=lambda *_: seen.append(torch.get_num_threads()),
    )
    assert inside == [2] * 4
    assert seen == [here] * 4
    assert torch.get_num_threads() == here


# -- map_reduce ----------------------------------------------------------------------------------


class ExactSum:
    """A sum of integers: order cannot matter."""

    order_independent = True

    def __init__(self, total=0, count=0):
        self.total, self.count = total, count

    def empty(self):
        return ExactSum()

    def add(self, value, weight=1):
        self.total += value * weight
        self.count += 1

    def merge(self, other):
        self.total += other.total
        self.count += other.count


def contribute(item):
    return (item, 2), f"report {item}"


def test_map_reduce_folds_every_contribution_once(executor):
    reports = {}
    reducer = ExactSum(total=5)
    folded = executor.map_reduce(contribute, range(100), reducer, on_result=reports.__setitem__)
    assert folded is reducer
    assert (folded.total, folded.count) == (5 + 2 * sum(range(100)), 100)
    assert reports == {item: f"report {item}" for item in range(100)}


def test_map_reduce_of_nothing(executor):
    assert executor.map_reduce(contribute, [], ExactSum(total=5)).total == 5


def test_map_reduce_with_a_broadcast_and_costs(executor):
    task = lambda broadcast, item: ((int(broadcast[item]),), None)  # noqa: E731
    folded = executor.map_reduce(
        task, iter(range(10)), ExactSum(), broadcast=torch.arange(10), costs=range(10)
    )
    assert folded.total == 45


def test_a_failed_map_reduce_leaves_the_reducer_as_it_was(executor):
    def task(item):
        return (fail_at_three(item),), None

    reducer = ExactSum(total=5)
    with pytest.raises(ClientTaskError):
        executor.map_reduce(task, range(8), reducer)
    assert (reducer.total, reducer.count) == (5, 0)
    assert executor.map_reduce(contribute, range(3), reducer).total == 5 + 2 * 3


@pytest.mark.parametrize("result", [3, (1, 2), ((1,),), [(1,), 2]], ids=str)
def test_a_map_reduce_task_must_return_a_contribution_and_a_report(executor, result):
    with pytest.raises(ClientTaskError, match=r"must be \(contribution, report\)"):
        executor.map_reduce(lambda item: result, range(2), ExactSum())
    assert executor.map(square, [3]) == [9]


def test_a_reducer_must_be_order_independent(executor):
    class Ordered(ExactSum):
        order_independent = False

    with pytest.raises(TypeError, match="order_independent"):
        executor.map_reduce(contribute, [1], Ordered())
    with pytest.raises(TypeError, match="empty, add and merge, got list without empty, add"):
        executor.map_reduce(contribute, [1], [])
