"""Faults injected on purpose: workers that die, hang or are replaced."""

import ctypes
import os
import resource
import signal
import sys
import time

import psutil
import pytest
import torch

from fedbench.errors import ClientTaskError, ExecutorError, TaskTimeoutError, WorkerDiedError
from fedbench.executors import make_executor
from fedbench.executors.processes import maps
from fedbench.executors.processes.control import ControlPage
from fedbench.executors.processes.memory import Arena

from .scripts import suspend, wait_until
from .tasks import ExactSum, SlowToUnpack, square

ENDS = {
    "SIGKILL": (lambda: os.kill(os.getpid(), signal.SIGKILL), -signal.SIGKILL, "killed by SIGKILL"),
    "segfault": (lambda: ctypes.string_at(0), -signal.SIGSEGV, "killed by SIGSEGV"),
    "exit 0": (lambda: os._exit(0), 0, "ended with exit code 0"),
}


@pytest.mark.parametrize("kind", ENDS)
def test_a_lost_worker_is_named_and_the_executor_stays_usable(shared, kind):
    end, exitcode, words = ENDS[kind]

    def task(item):
        if item == 2:
            end()
        return item

    with pytest.raises(
        WorkerDiedError, match=rf"{words} while it ran client task 2.*tried once.*retries=1"
    ) as caught:
        shared.map(task, range(8))
    error = caught.value
    assert (error.index, error.item, error.exitcode) == (2, 2, exitcode)
    assert isinstance(error.pid, int)
    assert shared.map(square, range(8)) == [item * item for item in range(8)]


def test_a_lost_worker_in_a_batch_of_tiny_tasks_is_named(shared):
    shared.map(square, range(500))  # lets the batches grow

    def task(item):
        if item == 333:
            os._exit(3)
        return item

    with pytest.raises(WorkerDiedError) as caught:
        shared.map(task, range(1000))
    assert caught.value.index == 333


@pytest.mark.parametrize("how", ["map", "imap", "map_reduce"])
def test_retries_run_lost_tasks_again(processes, tmp_path, how):
    executor = processes(retries=1)

    def task(item):
        marker = tmp_path / f"{item}"
        if item in (2, 9) and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return item if how != "map_reduce" else ((item,), item)

    if how == "map":
        assert executor.map(task, range(16)) == list(range(16))
    elif how == "imap":
        assert list(executor.imap(task, range(16))) == list(range(16))
    else:
        reports = []
        total = executor.map_reduce(
            task, range(16), ExactSum(), on_result=lambda index, report: reports.append(index)
        )
        assert (total.total, total.count) == (sum(range(16)), 16)
        assert sorted(reports) == list(range(16))  # each once, although some ran twice


def test_retries_are_bounded(processes):
    executor = processes(retries=2)
    words = r"client task 1\. It was tried 3 times \(retries=2\) .* run it with workers=1\."
    with pytest.raises(WorkerDiedError, match=words):
        executor.map(lambda item: os._exit(1) if item == 1 else item, range(4))


def test_a_worker_killed_between_maps_is_replaced(shared):
    victims = shared.map(lambda item: time.sleep(0.05) or os.getpid(), range(8))
    for pid in set(victims):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(psutil.pid_exists(pid) and not zombie(pid) for pid in set(victims)))
    survivors = shared.map(lambda item: os.getpid(), range(8))
    assert not set(victims) & set(survivors)


def zombie(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("kill_at", [10, 40], ids=["midway", "before the partials"])
def test_a_worker_killed_after_it_folded_costs_nothing_but_time(processes, kill_at):
    executor = processes(retries=1)
    pids = set(executor.map(lambda item: time.sleep(0.05) or os.getpid(), range(8)))
    done = []

    def on_result(index, report):
        done.append(index)
        if len(done) == kill_at:
            os.kill(min(pids), signal.SIGKILL)

    total = executor.map_reduce(
        lambda item: ((item,), None), range(40), ExactSum(), on_result=on_result
    )
    assert (total.total, total.count) == (sum(range(40)), 40)
    assert sorted(done) == list(range(40))


def test_a_task_out_of_memory_is_an_error(shared):

    def task(item):
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, resource.RLIM_INFINITY))
        if item == 1:
            return bytearray(64 << 30)
        return item

    with pytest.raises((ClientTaskError, WorkerDiedError)) as caught:
        shared.map(task, range(4))
    assert caught.value.index == 1


def test_an_interpreter_that_does_not_exist_is_an_error(processes, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(ExecutorError, match="could not be started"):
        processes()


def test_a_late_task_is_ended_and_named(processes):
    executor = processes(timeout=0.5)
    with pytest.raises(
        TaskTimeoutError, match=r"client task 2 ran longer than.*Raise timeout=,.*retries="
    ):
        executor.map(lambda item: time.sleep(600 if item == 2 else 0), range(8))
    assert executor.map(square, range(3)) == [0, 1, 4]


@pytest.fixture
def impatient(processes, monkeypatch):
    """A function that opens an executor whose time-outs of half a second hold for all it does."""
    monkeypatch.setattr(maps, "_BEGIN_S", 0.5)
    return lambda workers: processes(workers, timeout=0.5)


def test_a_worker_stopped_while_it_was_idle_is_ended_and_its_task_named(impatient):
    executor = impatient(2)
    pids = set(executor.map(lambda item: time.sleep(0.05) or os.getpid(), range(8)))
    victim = max(pids)
    suspend(victim)
    words = rf"client task \d was not begun within 0.5 s; its worker \(pid {victim}\) was ended"
    with pytest.raises(TaskTimeoutError, match=words):
        executor.map(square, range(8))
    assert not psutil.pid_exists(victim)
    assert executor.map(square, range(8)) == [item * item for item in range(8)]


@pytest.mark.parametrize("batch", [1, 3])
def test_a_worker_stopped_between_two_tasks_is_ended(impatient, monkeypatch, batch):
    executor = impatient(1)
    monkeypatch.setattr(maps.BatchSize, "batch", lambda *_: batch)

    def task(item):
        if item == 4:
            time.sleep(0.05)  # so long that the answers so far are sent before the next task
            ControlPage.begin = lambda *_: os.kill(os.getpid(), signal.SIGSTOP)
        return item

    done = []
    with pytest.raises(TaskTimeoutError, match="client task 5 was not begun") as caught:
        executor.map(task, range(12), on_result=lambda index, _: done.append(index))
    assert caught.value.index == 5
    assert done == [0, 1, 2, 3, 4]


def test_a_worker_stopped_before_it_sent_its_partial_reducer_is_ended(impatient):
    executor = impatient(1)

    def on_result(index, pid):
        if index == 7:
            suspend(pid)

    total = ExactSum()
    with pytest.raises(TaskTimeoutError, match="folded into a partial reducer not sent within"):
        executor.map_reduce(
            lambda item: ((item,), os.getpid()), range(8), total, on_result=on_result
        )
    assert total.count == 0
    assert executor.map(square, [3]) == [9]


def test_a_caller_that_takes_its_time_is_no_reason_for_blame(impatient):
    executor = impatient(2)
    large = torch.ones(2_000_000)  # more than a socket takes: it waits for the caller too
    results = executor.map(
        lambda item: item[0] + 1,
        [large.mul(item) for item in range(6)],
        on_result=lambda index, result: time.sleep(0.8),
    )
    assert results == [item + 1 for item in range(6)]


def test_what_a_worker_imports_for_a_task_has_the_time_of_a_start(impatient, monkeypatch):
    executor = impatient(1)
    assert executor.map(SlowToUnpack(1.5), range(3)) == [0, 1, 2]
    monkeypatch.setattr(maps, "START_S", 0.7)
    with pytest.raises(TaskTimeoutError, match=r"client task 0 was not begun within 0\.7 s"):
        executor.map(SlowToUnpack(600), range(3))
    assert executor.map(square, [3]) == [9]


@pytest.mark.parametrize("backend", ["sequential", "threads"])
def test_backends_that_cannot_end_a_task_refuse_a_timeout(backend):
    with pytest.raises(ValueError, match=r"timeout must be None.*cannot"):
        make_executor(backend, timeout=1.0)


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), float("inf")])
def test_bad_timeouts_are_refused(timeout):
    with pytest.raises(ValueError, match="timeout must be a positive finite number"):
        make_executor("processes", timeout=timeout)


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_are_recycled(processes, workers):
    executor = processes(workers, recycle_after=2)
    pids = executor.map(lambda item: os.getpid(), range(10))
    assert len(pids) == 10
    assert max(pids.count(pid) for pid in pids) <= 2


def test_results_outlive_their_recycled_worker(processes):
    executor = processes(1, recycle_after=1)
    results = []
    for result in executor.imap(lambda item: torch.full((100_000,), float(item)), range(4)):
        time.sleep(0.05)
        results.append(result)
    executor.close()
    assert all(result.eq(item).all() for item, result in enumerate(results))


def test_a_worker_that_runs_a_task_of_another_map_is_no_reason_for_blame():
    page = ControlPage(Arena(), create=True)
    page.begin(1, 2)
    assert page.running(1) == 2
    assert page.running(2) is None
    page.rest()
    assert page.running(1) is None
