"""Faults injected on purpose: what cannot be sent to a worker or back."""

import functools
import pickle
import re
import threading
import types

import pytest
import torch
from torch.nn.utils import parametrizations

from fedbench.errors import ClientTaskError

from .tasks import square


@pytest.fixture(params=["processes", pytest.param("ray", marks=pytest.mark.ray)])
def shipping(request, shared):
    """An executor of each backend that pickles what it sends."""
    if request.param == "processes":
        return shared
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    return request.getfixturevalue("ray_cluster")


class Unpicklable:
    def __getstate__(self):
        raise ValueError("this state is secret")


def test_a_task_that_cannot_be_pickled_is_an_error(shared):
    lock = threading.Lock()
    with pytest.raises(pickle.PicklingError, match=r"the task must be picklable.*lock"):
        shared.map(lambda item: lock.locked(), range(10))
    with pytest.raises(pickle.PicklingError, match=r"the broadcast must be picklable.*lock"):
        shared.map(lambda lock, item: item, range(10), broadcast=lock)
    assert shared.map(square, [3]) == [9]


def test_an_item_that_cannot_be_pickled_is_named(shared):
    with pytest.raises(ClientTaskError, match="client task 1 has an item that cannot be sent") as e:
        shared.map(lambda item: 1, [1, Unpicklable(), 3])
    assert isinstance(e.value.__cause__, ValueError)
    assert shared.map(square, [3]) == [9]


def test_a_result_that_cannot_be_pickled_is_named(shared):
    with pytest.raises(ClientTaskError, match="a result of type lock that cannot be sent") as e:
        shared.map(lambda item: threading.Lock(), range(3))
    assert isinstance(e.value.__cause__, TypeError)
    assert shared.map(square, [3]) == [9]


def test_a_result_whose_pickling_exits_is_named(shared):
    class Exits:
        def __reduce__(self):
            raise SystemExit(4)

    with pytest.raises(ClientTaskError, match="a result of type Exits that cannot be sent"):
        shared.map(lambda item: Exits(), range(3))
    assert shared.map(square, [3]) == [9]


def test_a_result_that_cannot_be_unpickled_is_named(shared):
    class Bomb:
        def __reduce__(self):
            return int, ("no number",)

    with pytest.raises(ClientTaskError, match="has a result that cannot be unpacked"):
        shared.map(lambda item: Bomb(), range(3))
    with pytest.raises(ClientTaskError, match="client task 0 failed"):
        shared.map(lambda item: 1, [Bomb()])
    assert shared.map(square, [3]) == [9]


LOCK = threading.Lock()


class Locked:
    lock = threading.Lock()


def parents():
    """Two that hold each other, and one of them what cannot be sent."""
    one, other = types.SimpleNamespace(), types.SimpleNamespace()
    one.other, other.one, other.hook = other, one, (x for x in ())
    return one


# What cannot be sent, and the words for the part of it that is to blame.
PARTS = {
    "itself": (threading.Lock, "its type lock"),
    "entry": (lambda: {"rate": 1, "hook": LOCK}, "['hook'] of type lock"),
    "deep": (
        lambda: [0, {"a": types.SimpleNamespace(x=(1, LOCK))}],
        "[1]['a'].x[1] of type lock",
    ),
    "cycle": (parents, ".other.hook of type generator"),
    "variable": (lambda: (lambda lock: lambda: lock)(LOCK), "variable 'lock' of type lock"),
    "global": (lambda: [lambda: LOCK], "[0] global 'LOCK' of type lock"),
    "default": (lambda: lambda x=LOCK: x, "its defaults[0][0] of type lock"),
    "class": (Locked, "class Locked.lock of type lock"),
    "partial": (lambda: functools.partial(print, LOCK), ".args[0] of type lock"),
    "method": (lambda: types.MethodType(print, LOCK), ".__self__ of type lock"),
    "state": (Unpicklable, "its type Unpicklable"),
    "state in a class of its own": (
        lambda: {"model": parametrizations.weight_norm(torch.nn.Linear(2, 1))},
        "['model'] of type ParametrizedLinear",
    ),
}


@pytest.mark.parametrize("kind", PARTS)
def test_the_part_that_cannot_be_sent_is_named(shipping, kind):
    make, words = PARTS[kind]
    part = re.escape(words)
    with pytest.raises(
        pickle.PicklingError, match=rf"(?s)the broadcast must be .* got {part}: .*make"
    ):
        shipping.map(lambda b, item: item, range(3), broadcast=make())
    with pytest.raises(
        ClientTaskError, match=rf"(?s)client task 1 has an item .* of {part}, .*make"
    ):
        shipping.map(lambda item: 1, [1, make(), 3])
    assert shipping.map(square, [3]) == [9]


def test_the_part_of_a_result_that_cannot_be_sent_is_named(shipping):
    part = re.escape("['hooks'][0] of type lock")
    with pytest.raises(ClientTaskError, match=rf"type dict that cannot .* of {part}, .*make"):
        shipping.map(lambda item: {"hooks": [threading.Lock()]}, range(3))


def test_what_is_nested_too_deeply_is_named_by_a_short_path(shipping):
    deep = LOCK
    for _ in range(100):
        deep = [deep]
    words = r"of \[0\]\[0\][^ ]* \.\.\. [^ ]*\[0\]\[0\] of type lock,"
    with pytest.raises(ClientTaskError, match=words) as caught:
        shipping.map(lambda item: 1, [deep])
    assert len(str(caught.value)) < 600


def test_a_class_with_a_cached_property_can_be_sent(shipping):
    class Lazy:
        def __init__(self, value):
            self.value = value

        @functools.cached_property
        def double(self):
            return 2 * self.value

    assert shipping.map(lambda lazy: lazy.double, [Lazy(1), Lazy(2)]) == [2, 4]
    assert shipping.map(lambda b, item: b.double + item, range(2), broadcast=Lazy(3)) == [6, 7]


def test_a_chain_that_is_too_long_to_be_sent_is_called_so(shipping):
    chain = []
    for _ in range(5000):
        chain = [chain]
    words = r"because of a chain of objects that is too long, .* Send a list of them\."
    with pytest.raises(ClientTaskError, match=words):
        shipping.map(lambda item: 1, [chain])
