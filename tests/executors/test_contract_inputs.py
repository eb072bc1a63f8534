"""The contract of all executors, on every backend: what a task reads."""

import collections
import dataclasses
import random

import numpy as np
import pytest
import torch

from fedbench.errors import BroadcastModifiedError, ClientTaskError
from fedbench.executors import Resident, make_executor

from .tasks import Order

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


# Torch warns where it makes them, and where it pickles them.
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")
@pytest.mark.parametrize("count", [5, 5 * 2**20], ids=["small", "large"])
def test_a_broadcast_may_be_quantized(executor, count):
    quantized = torch.quantize_per_tensor(torch.ones(count), 0.5, 0, torch.qint8)
    run = lambda b, item: (int(b.int_repr().long().sum()), b.q_scale())  # noqa: E731
    assert executor.map(run, [1, 2], broadcast=quantized) == [(2 * count, 0.5)] * 2


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


def test_a_write_that_goes_unnoticed_does_not_reach_the_next_map(executor):
    weight = torch.ones(100_000)

    def write(broadcast, item):
        broadcast.data.zero_()  # does not count as a write to torch

    executor.map(write, range(4), broadcast=weight)
    assert weight.eq(1).all()
    read = lambda broadcast, item: float(broadcast.mean())  # noqa: E731
    assert executor.map(read, range(4), broadcast=weight) == [1.0] * 4


def test_the_caller_may_change_the_broadcast_between_maps(executor):
    weight = torch.zeros(100_000)
    for repeat in range(5):
        weight.fill_(repeat)
        read = lambda broadcast, item: float(broadcast.mean())  # noqa: E731
        assert executor.map(read, range(3), broadcast=weight) == [repeat] * 3


def test_tasks_do_not_see_what_on_result_does_to_the_broadcast(executor):
    weight, counts = torch.zeros(3), [0]

    def on_result(index, result):
        weight.add_(1)
        counts[0] += 1

    task = lambda b, item: (float(b[0][0]), b[1][0])  # noqa: E731
    for repeat in range(10):
        expected = [(100.0 * repeat, 100 * repeat)] * 100
        broadcast = (weight, counts)
        assert executor.map(task, range(100), broadcast=broadcast, on_result=on_result) == expected


def test_an_item_belongs_to_its_task(executor):
    item = Order(3, torch.ones(4))

    def task(item):
        item.data.add_(1)
        return item.data, item.data.data_ptr() % 64

    results = executor.map(task, [item, item])
    assert item.data.eq(1).all()
    assert all(result.eq(2).all() and offset == 0 for result, offset in results)


def test_an_item_may_hold_itself(executor):
    order = Order(3)
    order.data = [{"order": order}]
    assert executor.map(lambda item: item.data[0]["order"] is item, [order, order]) == [True, True]


GENERATORS = {
    "torch": (
        lambda: torch.Generator().manual_seed(5),
        lambda g: float(torch.rand((), generator=g)),
    ),
    "numpy": (lambda: np.random.default_rng(5), lambda g: float(g.random())),
    "numpy-legacy": (lambda: np.random.RandomState(5), lambda g: float(g.random_sample())),
    "python": (lambda: random.Random(5), lambda g: g.random()),
}


@pytest.mark.parametrize("kind", GENERATORS)
def test_a_random_generator_as_an_item_belongs_to_its_task(executor, kind):
    make, draw = GENERATORS[kind]
    generator = make()
    expected = draw(make())
    for _ in range(2):
        assert executor.map(draw, [generator, generator]) == [expected] * 2
    assert draw(generator) == expected


@pytest.mark.parametrize("kind", GENERATORS)
def test_drawing_from_a_random_generator_of_the_broadcast_is_a_write(executor, kind):
    make, draw = GENERATORS[kind]
    with pytest.raises(ClientTaskError) as failed:
        executor.map(lambda b, i: draw(b["rng"]), range(2), broadcast={"rng": make()})
    assert isinstance(failed.value.__cause__, BroadcastModifiedError)
    assert "broadcast['rng']" in str(failed.value.__cause__)


def test_items_are_aligned(executor):
    base = torch.arange(40.0)
    items = [(base[start:], np.arange(9.0)[1:]) for start in range(4)]
    offsets = executor.map(lambda item: (item[0].data_ptr() % 64, item[1].ctypes.data % 64), items)
    assert offsets == [(0, 0)] * 4


def test_a_resident_is_there_in_every_task(executor):
    data = Resident({"x": torch.arange(10.0), "name": "digits"})

    def task(item, data=data):
        return float(data.value["x"][item]), data.value["name"]

    for _ in range(2):
        assert executor.map(task, range(4)) == [(float(item), "digits") for item in range(4)]
