"""Dicts, lists and sets of the broadcast are read-only as its tensors are."""

import pytest

from fedbench.errors import BroadcastModifiedError, ClientTaskError


def append(broadcast, item):
    broadcast["nested"]["seen"].append(item)


def insert(broadcast, item):
    broadcast["new"] = item


def replace(broadcast, item):
    broadcast["nested"]["number"] = item


def remove(broadcast, item):
    del broadcast["nested"]["number"]


def add(broadcast, item):
    broadcast["names"].add(item)


def read(broadcast, item):
    return len(broadcast["nested"]["seen"]) + len(broadcast["names"])


@pytest.mark.parametrize(
    ("task", "entry"),
    [
        (append, r"broadcast\['nested'\]\['seen'\]"),
        (insert, r"got a write to broadcast\."),
        (replace, r"broadcast\['nested'\]\."),
        (remove, r"broadcast\['nested'\]\."),
        (add, r"broadcast\['names'\]"),
    ],
)
def test_a_write_fails_the_task_and_is_never_seen(executor, task, entry):
    broadcast = {"nested": {"seen": [1], "number": 2}, "names": {"a"}}
    with pytest.raises(ClientTaskError) as caught:
        executor.map(task, range(4), broadcast=broadcast)
    assert isinstance(caught.value.__cause__, BroadcastModifiedError)
    with pytest.raises(BroadcastModifiedError, match=entry):
        raise caught.value.__cause__
    assert broadcast == {"nested": {"seen": [1], "number": 2}, "names": {"a"}}
    assert executor.map(read, range(3), broadcast=broadcast) == [2, 2, 2]
