"""Faults injected on purpose: what cannot be sent to a worker or back."""

import pickle
import threading

import pytest

from fedbench.errors import ClientTaskError

from .tasks import square


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
