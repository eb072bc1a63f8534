"""How many tasks go into one message, and how their results travel."""

import numpy as np
import pytest

from fedbench.executors import make_executor
from fedbench.executors.processes.dispatch import BATCH_S, BatchSize, BatchSizes
from fedbench.executors.processes.protocol import Kind
from fedbench.executors.processes.slots import SLOT_THRESHOLD
from fedbench.executors.processes.worker import _Answer
from fedbench.executors.runner import Outcome


def test_the_first_batch_of_an_unknown_task_is_one_task():
    size = BatchSize()
    assert size.batch(1000, 2) == 1
    assert size.depth(1, 1000, 2) == 2


@pytest.mark.parametrize(("share", "expected"), [(0.1, 10), (0.5, 2), (1.0, 1), (30.0, 1)])
def test_a_batch_holds_a_fixed_amount_of_work(share, expected):
    size = BatchSize()
    size.observe(1, share * BATCH_S * 0.999)
    assert size.batch(1000, 2) == expected


@pytest.mark.parametrize(
    ("task_s", "expected"),
    [(1e-6, [64, 64, 50, 10, 2, 1]), (1e-3, [10, 10, 10, 5, 2, 1]), (5e-3, [2, 2, 2, 2, 1, 1])],
)
def test_batches_get_smaller_towards_the_end_so_that_no_worker_waits_long(task_s, expected):
    size = BatchSize()
    size.observe(1, task_s)
    assert [size.batch(remaining, 2) for remaining in (None, 1000, 100, 20, 4, 1)] == expected


def test_short_tasks_are_believed_at_once_and_long_ones_by_and_by():
    size = BatchSize()
    size.observe(1, BATCH_S / 4.5)
    size.observe(10, 10 * BATCH_S / 20.5)
    assert size.batch(1000, 2) == 20
    size.observe(1, BATCH_S)
    assert 2 <= size.batch(1000, 2) < 20
    for _ in range(100):
        size.observe(1, BATCH_S)
    assert size.batch(1000, 2) == 1


def test_a_long_task_is_never_queued_behind_another():
    size = BatchSize()
    size.observe(1, 1.0)
    assert size.depth(size.batch(1000, 2), 1000, 2) == 1


def test_lengths_are_remembered_for_each_task():
    sizes = BatchSizes()
    sizes.of(b"short").observe(100, 100 * BATCH_S / 20.1)
    assert sizes.of(b"other").batch(1000, 2) == 1
    assert sizes.of(b"short").batch(1000, 2) == 20


def test_memory_of_tasks_is_bounded():
    sizes = BatchSizes()
    sizes.of(b"first").observe(1, 1e-6)
    for number in range(100):
        sizes.of(b"%d" % number)
    assert len(sizes._known) < 20
    assert sizes.of(b"first").batch(1000, 2) == 1


def test_a_task_that_turns_long_after_short_ones_still_runs_on_all_workers():
    def pid_after(seconds):
        import os
        import time

        time.sleep(seconds)
        return os.getpid()

    with make_executor("processes", workers=2) as executor:
        executor.map(pid_after, [0.0] * 200)
        pids = executor.map(pid_after, [0.01] * 20)
    assert len(set(pids)) == 2
    assert min(pids.count(pid) for pid in set(pids)) >= 5


def test_small_results_that_travel_together_stay_as_they_are_while_any_is_held():
    def filled(number):
        return np.full(4000, number, np.int64), str(number)

    held = []
    with make_executor("processes", workers=2) as executor:
        for start in range(0, 3000, 300):
            results = executor.map(filled, range(start, start + 300))
            held += results[::50]
    assert [text for _, text in held] == [str(number) for number in range(0, 3000, 50)]
    assert all(np.array_equal(array, np.full(4000, int(text))) for array, text in held)


@pytest.mark.parametrize("has_room", [True, False])
def test_small_results_go_through_the_socket_where_there_is_no_slot(has_room):
    class Slots:
        discarded, refusal = (), ""

        def place(self, buffers):
            self.refusal = "" if has_room else "no room"
            return (0, 0, 2**20) if has_room else None

    slots = Slots()
    answer = _Answer(1, slots)
    for index in range(4):
        answer.add(Outcome(index, np.zeros(SLOT_THRESHOLD // 3, np.uint8)))
    head, buffers = answer.take()
    assert head[0] == Kind.DONE
    assert head[-2:] == ("", (0, 0, 2**20) if has_room else None)
    assert len(buffers) == (0 if has_room else 4)
    assert not slots.refusal
