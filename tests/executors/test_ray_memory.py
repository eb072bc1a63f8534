"""How the ray backend hands out memory, and what its board tells."""

import os
import time

import numpy as np
import pytest
import torch

pytest.importorskip("ray", reason="the extra 'ray' is not installed")

from fedbench.executors.ray.board import Board
from fedbench.executors.ray.memory import Lender, PrivateMemory, private_copies

LARGE = 1 << 20


def stored(size, value):
    """Like an object in Ray's store: read-only and aligned."""
    array = np.frombuffer(bytearray(size + 64), np.uint8)
    start = -array.ctypes.data % 64
    array = array[start : start + size]
    array[:] = value
    array.setflags(write=False)
    return array


def as_tensor(view):
    return torch.frombuffer(view, dtype=torch.uint8)


def test_private_copies_are_writable_aligned_and_apart():
    sources = [stored(7, 1), stored(100, 2), stored(0, 0), stored(3, 3)]
    copies = [np.frombuffer(view, np.uint8) for view in private_copies(sources)]
    for source, copy in zip(sources, copies, strict=True):
        np.testing.assert_array_equal(copy, source)
        assert copy.flags.writeable
        assert not copy.size or copy.ctypes.data % 64 == 0
        copy[:] = 9
    assert [source.sum() for source in sources] == [7, 200, 0, 9]


def test_a_lender_lends_up_to_its_limit_and_copies_beyond():
    lender = Lender(3 * LARGE)
    first, second = stored(2 * LARGE, 1), stored(2 * LARGE, 2)
    one = as_tensor(lender.views([first])[0])
    two = as_tensor(lender.views([second])[0])
    assert one.data_ptr() == first.ctypes.data
    assert two.data_ptr() != second.ctypes.data
    assert two.eq(2).all()
    one.add_(1)  # the receiver owns what it gets
    assert first[0] == 2
    del one
    again = as_tensor(lender.views([second])[0])
    assert again.data_ptr() == second.ctypes.data


def test_a_view_keeps_its_object():
    lender = Lender(4 * LARGE)
    view = as_tensor(lender.views([stored(LARGE, 5)])[0])
    stored(LARGE, 6)
    assert view.eq(5).all()


@pytest.mark.parametrize("size", [0, 1, 1000, LARGE - 1])
def test_small_objects_are_copied(size):
    source = stored(size, 4)
    copy = np.frombuffer(Lender(10 * LARGE).views([source])[0], np.uint8)
    np.testing.assert_array_equal(copy, source)
    assert not size or copy.ctypes.data != source.ctypes.data


def test_an_object_that_is_not_aligned_is_copied():
    source = stored(2 * LARGE, 4)[8:]
    view = as_tensor(Lender(10 * LARGE).views([source])[0])
    assert view.data_ptr() % 64 == 0
    assert view.eq(4).all()


def test_private_memory_is_used_again_only_when_nobody_looks():
    memory = PrivateMemory()
    first = as_tensor(memory.copies([stored(5000, 1)])[0])
    address = first.data_ptr()
    second = as_tensor(memory.copies([stored(5000, 2)])[0])
    assert second.data_ptr() != address
    assert first.eq(1).all()
    address = second.data_ptr()
    kept = second[10:20]
    del second
    third = as_tensor(memory.copies([stored(5000, 3)])[0])
    assert kept.eq(2).all()
    del third, kept
    fourth = as_tensor(memory.copies([stored(4000, 4)])[0])
    assert fourth.eq(4).all()
    assert fourth.data_ptr() % 64 == 0


def test_private_memory_comes_back():
    memory = PrivateMemory()
    addresses = {as_tensor(memory.copies([stored(5000, n)])[0]).data_ptr() for n in range(5)}
    assert len(addresses) == 1
    large = as_tensor(memory.copies([stored(20_000_000, 1)])[0])
    assert large.eq(1).all()
    assert memory.copies([]) == []


def test_a_board_is_shared_by_its_path():
    board, fd, where = Board.create()
    try:
        other = Board.find(*where)
        assert Board.find(where[0], b"another token...") is None
        assert Board.find(f"/proc/{os.getpid()}/fd/99999", where[1]) is None
    finally:
        os.close(fd)
    assert (board.running, board.stopped(1)) == (-1, False)
    other.begin(7)
    assert board.running == 7
    time.sleep(0.01)
    assert board.running_s >= 0.01
    board.stop(3)
    assert [other.stopped(number) for number in (2, 3, 4)] == [True, True, False]
    board.rest()
    assert other.running == -1
