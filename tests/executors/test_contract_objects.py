"""The contract of all executors, on every backend: instances of any class in items and broadcasts.

What a task does to them must neither reach the caller nor other tasks, and its result must be that
of any other backend.
"""

import array
import collections
import dataclasses
import enum
import functools
import types

import numpy as np
import pytest
import torch

from fedbench.errors import BroadcastModifiedError, ClientTaskError
from fedbench.executors import Resident


class Counter:
    def __init__(self, counter=0):
        self.counter = counter
        self.weights = np.zeros(3)
        self.history = []
        self.parent = None

    def step(self):
        self.counter += 1
        self.weights[0] += 1
        self.history.append(self.counter)
        return self.counter, float(self.weights[0]), list(self.history)

    def state(self):
        return self.counter, self.weights.tolist(), list(self.history)


class Slotted:
    __slots__ = ("__weakref__", "counter", "tensor")

    def __init__(self):
        self.counter = 0
        self.tensor = torch.zeros(2)

    def step(self):
        self.counter += 1
        self.tensor.add_(1)
        return self.counter, self.tensor.tolist()

    def state(self):
        return self.counter, self.tensor.tolist()


class Derived(Slotted):
    """Slots of the base and a dict of its own."""

    def __init__(self):
        super().__init__()
        self.notes = {"steps": [0]}

    def step(self):
        self.notes["steps"].append(1)
        return super().step(), list(self.notes["steps"])

    def state(self):
        return super().state(), list(self.notes["steps"])


class Settings(dict):
    """A container with attributes."""

    def __init__(self):
        super().__init__(rate=[0.1])
        self.tags = []

    def step(self):
        self["rate"].append(0.2)
        self.tags.append("t")
        return dict(self), list(self.tags)

    def state(self):
        return dict(self), list(self.tags)


class Guarded:
    """Attributes behind a property and a __setattr__ that refuses."""

    def __init__(self):
        object.__setattr__(self, "_values", [])

    def __setattr__(self, name, value):
        raise AttributeError(name)

    @property
    def values(self):
        return self._values

    def step(self):
        self.values.append(1)
        return list(self.values)

    def state(self):
        return list(self.values)


class Reduced:
    """Knows itself how to be pickled: without its cache."""

    def __init__(self, values=()):
        self.values = list(values)
        self.cache = None

    def __reduce__(self):
        return Reduced, (self.values,)

    def step(self):
        self.values.append(len(self.values))
        found = self.values, self.cache
        self.cache = 7
        return found

    def state(self):
        return list(self.values), self.cache


class Stateful:
    def __init__(self):
        self.values = [0]

    def __getstate__(self):
        return {"packed": self.values}

    def __setstate__(self, state):
        self.values = state["packed"]

    def step(self):
        self.values.append(1)
        return list(self.values)

    def state(self):
        return list(self.values)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    values: list = dataclasses.field(default_factory=list)

    def step(self):
        self.values.append(1)
        return list(self.values)

    def state(self):
        return list(self.values)


class Wrapped:
    """A value of another type, with what a task does to it and what it looks like."""

    def __init__(self, value, step, look):
        self.value, self._step, self._look = value, step, look

    def step(self):
        self._step(self.value)
        return self._look(self.value)

    def state(self):
        return self._look(self.value)


def of_objects():
    cells = np.empty(2, dtype=object)
    cells[0], cells[1] = [0], Counter()
    return cells


def train(value):
    model, optimizer = value
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


MAKERS = {
    "plain": Counter,
    "slots": Slotted,
    "derived": Derived,
    "dict subclass": Settings,
    "own setattr": Guarded,
    "reduce": Reduced,
    "getstate": Stateful,
    "frozen dataclass": Frozen,
    "namespace": lambda: Wrapped(
        types.SimpleNamespace(x=[0]), lambda n: n.x.append(1), lambda n: list(n.x)
    ),
    "deque": lambda: Wrapped(collections.deque([1], 3), lambda d: d.append(2), list),
    "bytearray": lambda: Wrapped(bytearray(b"a"), lambda b: b.append(66), bytes),
    "array": lambda: Wrapped(array.array("d", [1.0]), lambda a: a.append(2.0), list),
    "defaultdict": lambda: Wrapped(
        collections.defaultdict(list), lambda d: d["new"].append(1), lambda d: sorted(d.items())
    ),
    "counter": lambda: Wrapped(collections.Counter("aab"), lambda c: c.update("b"), dict),
    "set of objects": lambda: Wrapped(
        {Counter()}, lambda s: [c.step() for c in s], lambda s: [c.state() for c in s]
    ),
    "key": lambda: Wrapped(
        {Counter(): 1}, lambda d: [c.step() for c in d], lambda d: [c.state() for c in d]
    ),
    "object array": lambda: Wrapped(
        of_objects(),
        lambda a: (a[0].append(1), a[1].step()),
        lambda a: (list(a[0]), a[1].state()),
    ),
    "partial": lambda: Wrapped(
        functools.partial(sorted, [3, 1]), lambda p: p.args[0].append(2), lambda p: p()
    ),
    "method": lambda: Wrapped(Counter().step, lambda m: m(), lambda m: m.__self__.state()),
    "parameter": lambda: Wrapped(
        torch.nn.Parameter(torch.ones(2)), lambda p: p.data.add_(1), lambda p: p.tolist()
    ),
    "module": lambda: Wrapped(
        torch.nn.BatchNorm1d(2), lambda m: m(torch.ones(2, 2)), lambda m: m.running_mean.tolist()
    ),
    "model and optimizer": lambda: Wrapped(
        (model := zeroed(), torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)),
        train,
        lambda pair: [p.tolist() for p in pair[0].parameters()],
    ),
}


def zeroed():
    model = torch.nn.Linear(2, 1)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    return model


def step_twice(item):
    return item.step(), item.step()


@pytest.mark.parametrize("kind", MAKERS)
def test_an_item_of_any_class_belongs_to_its_task(executor, kind):
    item, before = MAKERS[kind](), MAKERS[kind]().state()
    expected = MAKERS[kind]()
    expected = step_twice(expected)
    assert executor.map(step_twice, [item, [item][0], item]) == [expected] * 3
    assert item.state() == before


def test_a_closure_is_passed_and_an_enum_member_stays_itself(executor):
    class Color(enum.Enum):
        RED = 1

    box = types.SimpleNamespace(color=Color.RED, function=lambda x: x + 1)
    task = lambda item: (item.color is Color.RED, item.function(1))  # noqa: E731
    assert executor.map(task, [box, box]) == [(True, 2)] * 2


def test_shared_references_and_cycles_stay_in_an_item(executor):
    one, other = Counter(1), Counter(2)
    one.parent, other.parent = other, one
    ring = []
    ring.append((ring,))
    item = {"pair": (one, other), one: "by key", "set": {one}, "ring": ring}

    def task(item):
        one, other = item["pair"]
        ring = item["ring"]
        return (
            one.parent is other,
            other.parent is one,
            item[one],
            item["set"] == {one},
            ring[0][0] is ring,
        )

    assert executor.map(task, [item, item]) == [(True, True, "by key", True, True)] * 2


def test_arrays_of_an_instance_are_aligned_and_tied(executor):
    def make():
        box = types.SimpleNamespace(whole=torch.arange(9.0)[1:], array=np.arange(9.0)[1:])
        box.again = box.whole.detach()
        return box

    def task(box):
        box.whole.add_(1)
        offsets = box.whole.data_ptr() % 64, box.array.ctypes.data % 64
        return offsets, box.again.tolist()

    expected = [((0, 0), [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0])] * 2
    assert executor.map(task, [make(), make()]) == expected


def test_a_read_only_array_stays_so(executor):
    def make():
        whole = np.arange(6.0)
        whole.setflags(write=False)
        return types.SimpleNamespace(whole=whole, part=whole[::2])

    # Numpy pickles what has gaps by its values.
    task = lambda box: (box.whole.flags.writeable, box.part.flags.writeable)  # noqa: E731
    assert executor.map(task, [make(), make()]) == [(False, True)] * 2


def test_a_resident_in_an_item_is_not_copied(executor):
    resident = Resident([1, 2])
    items = [types.SimpleNamespace(data=resident, client_id=number) for number in range(2)]
    task = lambda item: item.data.value[item.client_id]  # noqa: E731
    assert executor.map(task, items) == [1, 2]


# What a task may do to the broadcast, and the name of what it wrote to.
WRITES = {
    "attribute": (Counter, lambda b: setattr(b, "counter", 5), "broadcast.counter"),
    "new attribute": (Counter, lambda b: setattr(b, "extra", 5), "broadcast.extra"),
    "deleted attribute": (Counter, lambda b: delattr(b, "counter"), "broadcast.counter"),
    "array": (Counter, lambda b: b.weights.__setitem__(0, 1), "broadcast.weights"),
    "list": (Counter, lambda b: b.history.append(1), "broadcast.history"),
    "slot": (Slotted, lambda b: setattr(b, "counter", 5), "broadcast.counter"),
    "tensor in a slot": (Slotted, lambda b: b.tensor.add_(1), "broadcast.tensor"),
    "attribute of a dict": (Settings, lambda b: b.tags.append(1), "broadcast.tags"),
    "frozen dataclass": (Frozen, lambda b: b.values.append(1), "broadcast.values"),
    "namespace": (lambda: types.SimpleNamespace(x=1), lambda b: setattr(b, "x", 2), "broadcast.x"),
    "deque": (lambda: [collections.deque()], lambda b: b[0].append(1), r"broadcast\[0\]"),
    "bytearray": (lambda: [bytearray(2)], lambda b: b[0].append(1), r"broadcast\[0\]"),
    "nested": (
        lambda: {"a": types.SimpleNamespace(inner=Counter())},
        lambda b: b["a"].inner.step(),
        r"broadcast\['a'\].inner",
    ),
    "object array": (of_objects, lambda b: b[1].history.append(1), r"broadcast\[1\].history"),
}


@pytest.mark.parametrize("kind", WRITES)
def test_a_write_to_an_instance_in_the_broadcast_is_found(executor, kind):
    make, write, name = WRITES[kind]

    def task(broadcast, item):
        if item:
            write(broadcast)

    with pytest.raises(ClientTaskError, match=name) as failed:
        executor.map(task, [0, 0, 1], broadcast=make())
    assert failed.value.index == 2
    assert isinstance(failed.value.__cause__, BroadcastModifiedError)
    assert executor.map(lambda b, i: i, [3], broadcast=make()) == [3]


def test_what_is_computed_when_it_is_first_read_is_not_written(executor):
    # Its attribute `probs` is stored by the first who reads it, like a cached property.
    distribution = torch.distributions.Categorical(logits=torch.zeros(2))
    task = lambda b, item: b.probs.tolist()  # noqa: E731
    assert executor.map(task, [0, 1, 2], broadcast=distribution) == [[0.5, 0.5]] * 3


def test_a_module_of_the_broadcast_may_be_put_into_another_mode(executor):
    task = lambda model, item: model.eval()(torch.ones(1, 2)).tolist()  # noqa: E731
    assert executor.map(task, range(3), broadcast=zeroed()) == [[[0.0]]] * 3


def test_results_that_are_part_of_the_broadcast_are_copies_of_each_other(executor):
    broadcast = {"counter": Counter(), "list": [1]}
    task = lambda b, item: (b["counter"], b["list"])  # noqa: E731
    first, second = executor.map(task, range(2), broadcast=broadcast)
    first[0].step()
    first[1].append(2)
    assert second[0].state() == (0, [0.0, 0.0, 0.0], [])
    assert second[1] == broadcast["list"] == [1]
    assert broadcast["counter"].state() == (0, [0.0, 0.0, 0.0], [])
