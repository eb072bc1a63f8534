"""The walk through what an object holds, and which memory is whose."""

import logging
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fedbench.executors.guard import GENERATORS
from fedbench.legacy.memory import (
    Snapshot,
    memory_of,
    overlap,
    random_state_of,
    restore_random_state,
    walk,
)
from fedbench.legacy.sharing import Lent, copied, lend


def test_everything_is_found_once_by_path():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model(torch.ones(3, 2)).sum().backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.step()
    node = SimpleNamespace(
        model=model,
        again=model,
        optimizer=optimizer,
        parts={"a": [torch.ones(1), (np.zeros(2), None)]},
        counter=3,
    )
    found = [path for path, _ in walk(node)]
    assert len(set(found)) == len(found)
    for path in (
        "model.0.weight",
        "model.0.weight.grad",
        "model.1.running_mean",
        "model.1.num_batches_tracked",
        "model.1.training",
        "optimizer.param_groups[0]['lr']",
        "optimizer.state[0, 3]['momentum_buffer']",
        "parts['a'][1][0]",
        "counter",
    ):
        assert path in found
    assert not any(path.startswith("again.") for path in found)


def test_data_sets_loggers_and_others_are_not_entered():
    other = SimpleNamespace(secret=torch.ones(1))
    node = SimpleNamespace(
        dataset=SimpleNamespace(inputs=torch.ones(3)),
        _logger_manager=SimpleNamespace(lines=[]),
        log=logging.getLogger("x"),
        friend=other,
        loader=DataLoader(TensorDataset(torch.ones(4)), generator=torch.Generator()),
        function=test_everything_is_found_once_by_path,
    )
    found = {path for path, _ in walk(node, {id(other)})}
    assert found == {
        "",
        "loader",
        "loader.dataset",
        "loader.generator",
        "loader.sampler.generator",
    }


@given(
    st.integers(0, 5), st.integers(0, 5), st.integers(0, 5), st.integers(0, 5), st.integers(1, 3)
)
def test_overlap_is_that_of_the_elements(a, b, c, d, step):
    base = torch.arange(12)
    left, right = base[min(a, b) : max(a, b) + 1], base[min(c, d) : max(c, d) + 1]
    expected = bool(set(left.tolist()) & set(right.tolist()))
    assert overlap(left, right) == overlap(right, left) == expected
    assert overlap(left.numpy(), right.numpy()) == expected
    reversed_view = base.numpy()[max(a, b) :: -1]
    touches = bool(set(reversed_view.tolist()) & set(right.tolist()))
    assert overlap(reversed_view, right.numpy()) == touches
    strided = base[::step]
    assert overlap(strided, strided)


def test_views_have_the_memory_of_their_base():
    base, array = torch.zeros(4), np.zeros(4)
    assert memory_of(base) == memory_of(base[1:]) != memory_of(base.clone())
    assert memory_of(array) == memory_of(array[1:]) != memory_of(array.copy())
    assert memory_of(torch.zeros(0)) is memory_of(3) is memory_of(nn.Linear(1, 1)) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v["tensor"].data.add_(1),
        lambda v: v["array"].__setitem__(0, 1.0),
        lambda v: v["list"].append(1),
        lambda v: v["list"].__setitem__(0, 1.0),
        lambda v: v["dict"].update(x=2),
        lambda v: setattr(v["object"], "lr", 3),
        lambda v: v["random"].random(),
    ],
)
def test_a_snapshot_notices_writes(change):
    value = {
        "tensor": torch.zeros(2),
        "array": np.zeros(2),
        "list": [0.5],
        "dict": {"x": 1},
        "object": SimpleNamespace(lr=1),
        "random": random.Random(0),
    }
    snapshots = {name: Snapshot(part) for name, part in value.items()}
    assert not any(snapshot.has_changed() for snapshot in snapshots.values())
    change(value)
    assert sum(snapshot.has_changed() for snapshot in snapshots.values()) == 1


def test_a_snapshot_of_a_class_is_about_its_own_attributes():
    class Counted:
        total = 0

    snapshot = Snapshot(Counted)
    Counted.__annotations__ = {"total": int}
    assert not snapshot.has_changed()
    Counted.total = 1
    assert snapshot.has_changed()


@pytest.mark.parametrize(
    ("generator", "draw"),
    [
        (torch.Generator(), lambda g: torch.rand(3, generator=g).tolist()),
        (np.random.default_rng(1), lambda g: g.random(3).tolist()),
        (np.random.RandomState(1), lambda g: g.standard_normal(3).tolist()),
        (random.Random(1), lambda g: [g.gauss(0, 1) for _ in range(3)]),
    ],
    ids=[kind.__name__ for kind in GENERATORS],
)
def test_the_state_of_a_generator_can_be_restored(generator, draw):
    draw(generator)
    state = random_state_of(generator)
    first = draw(generator)
    assert random_state_of(generator) != state
    restore_random_state(generator, state)
    assert draw(generator) == first


class Kind(dict):
    """A message class of its own."""


def test_a_lent_message_keeps_its_kind_and_copies_what_is_anothers():
    mine, theirs = torch.zeros(2), nn.Parameter(torch.ones(2))
    message = Kind(a=[mine, theirs], b=(np.ones(1), "x"), c=None)
    delivered, lent = lend(message, {memory_of(theirs): Lent("the server's w", may_keep=False)})
    assert type(delivered) is Kind
    assert list(lent) == ["['a'][1]"]
    assert delivered["a"] is not message["a"]
    assert delivered["a"][0] is mine
    assert isinstance(delivered["a"][1], nn.Parameter)
    assert memory_of(delivered["a"][1]) != memory_of(theirs)
    assert torch.equal(delivered["a"][1], theirs)
    assert delivered["b"][0] is message["b"][0]


def test_modules_and_graphs_in_messages_are_copied_by_value():
    weight = torch.ones(2, requires_grad=True)
    grown = weight * 2
    clone = copied([grown], lambda array: True)[0]
    assert clone.grad_fn is None
    assert clone.tolist() == [2.0, 2.0]
    model = nn.Linear(1, 1)
    assert copied({"m": model}, lambda array: False)["m"] is not model
