"""How many tasks go into one message."""

import pytest

from fedbench.executors import make_executor
from fedbench.executors.processes.dispatch import BATCH_S, BatchSize, BatchSizes


def test_the_first_batch_of_an_unknown_task_is_one_task():
    size = BatchSize()
    assert size.batch(1000, 2) == 1
    assert size.depth(1, 1000, 2) == 2


@pytest.mark.parametrize(("share", "expected"), [(0.1, 10), (0.5, 2), (1.0, 1), (30.0, 1)])
def test_a_batch_holds_a_fixed_amount_of_work(share, expected):
    size = BatchSize()
    size.observe(1, share * BATCH_S * 0.999)
    assert size.batch(1000, 2) == expected


def test_batches_get_smaller_towards_the_end_so_that_no_worker_waits_long():
    size = BatchSize()
    size.observe(1000, 1e-6)
    sizes = [size.batch(remaining, 2) for remaining in (None, 1000, 100, 20, 4, 1)]
    assert sizes == [64, 64, 25, 5, 1, 1]


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
