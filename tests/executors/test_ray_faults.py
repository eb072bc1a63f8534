"""The ray backend under faults: lost workers, late tasks, values that cannot travel."""

import ctypes
import gc
import os
import pickle
import signal
import sys
import threading
import time

import numpy as np
import psutil
import pytest
import torch

from fedbench.errors import ClientTaskError, ExecutorError, TaskTimeoutError, WorkerDiedError
from fedbench.executors import Resident, make_executor

pytest.importorskip("ray", reason="the extra 'ray' is not installed")

from fedbench.executors.ray import executor as ray_executor
from fedbench.executors.ray.board import Board
from fedbench.executors.runner import Ticket

from .scripts import suspend, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


@pytest.fixture(scope="module")
def executor(ray_cluster):
    with make_executor("ray", 2) as executor:
        yield executor


@pytest.fixture(scope="module")
def patient(ray_cluster):
    with make_executor("ray", 2, retries=1) as executor:
        yield executor


def square(item):
    return item * item


def await_all_workers(executor):
    """Wait until replacements of workers that were ended have come."""
    pid = lambda item: time.sleep(0.05) or os.getpid()  # noqa: E731
    wait_until(lambda: len(set(executor.map(pid, range(8)))) == executor.workers)


# -- lost workers --------------------------------------------------------------------------------

ENDS = {
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: ctypes.string_at(0),
    "exit 0": lambda: os._exit(0),
}


@pytest.mark.parametrize("kind", ENDS)
def test_a_lost_worker_is_named_and_the_executor_stays_usable(executor, kind):
    end = ENDS[kind]

    def task(item):
        if item == 2:
            end()
        return item

    message = r"worker \(pid \d+ on .*\) died.* while it ran client task 2.*tried once.*retries=1"
    with pytest.raises(WorkerDiedError, match=message) as caught:
        executor.map(task, range(8))
    assert (caught.value.index, caught.value.item) == (2, 2)
    assert isinstance(caught.value.pid, int)
    assert executor.map(square, range(8)) == [item * item for item in range(8)]


def test_a_lost_worker_in_a_batch_of_tiny_tasks_is_named(executor):
    def task(item):
        if item == 333:
            os._exit(3)
        return item

    with pytest.raises(WorkerDiedError) as caught:
        executor.map(task, range(1000))
    assert caught.value.index == 333


def test_a_lost_worker_is_named_without_shared_memory_too(ray_cluster, monkeypatch):
    """As with workers on other machines, where no board can be seen."""
    create = Board.create

    def create_out_of_reach():
        board, fd, _ = create()
        return board, fd, ("/nonexistent", b"")

    monkeypatch.setattr(Board, "create", create_out_of_reach)

    def task(item):
        time.sleep(0.01)  # the answer for the task before gets out
        if item == 9:
            os._exit(3)
        return item

    with make_executor("ray", 1) as executor:
        assert executor.map(square, range(100)) == [item * item for item in range(100)]
        with pytest.raises(WorkerDiedError) as caught:
            executor.map(task, range(20))
        assert caught.value.index == 9
        with pytest.raises(ClientTaskError, match="client task 3"):
            executor.map(lambda item: 1 / (item - 3), range(8))


class Total:
    order_independent = True

    def __init__(self):
        self.total = self.count = 0

    def empty(self):
        return Total()

    def add(self, value):
        self.total += value
        self.count += 1

    def merge(self, other):
        self.total += other.total
        self.count += other.count


@pytest.mark.parametrize("how", ["map", "imap", "map_reduce"])
def test_retries_run_lost_tasks_again(patient, tmp_path, how):
    def task(item):
        marker = tmp_path / f"{item}"
        if item in (2, 9) and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return item if how != "map_reduce" else ((item,), item)

    if how == "map":
        assert patient.map(task, range(16)) == list(range(16))
    elif how == "imap":
        assert list(patient.imap(task, range(16))) == list(range(16))
    else:
        reports = []
        total = patient.map_reduce(
            task, range(16), Total(), on_result=lambda index, report: reports.append(index)
        )
        assert (total.total, total.count) == (sum(range(16)), 16)
        assert sorted(reports) == list(range(16))  # each once, although some ran twice


def test_retries_are_bounded(patient):
    words = r"client task 1\. It was tried 2 times \(retries=1\) .* run it with workers=1\."
    with pytest.raises(WorkerDiedError, match=words):
        patient.map(lambda item: os._exit(1) if item == 1 else item, range(4))


def test_workers_killed_between_maps_are_replaced(executor):
    pids = set(executor.map(lambda item: time.sleep(0.05) or os.getpid(), range(8)))
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
    assert not pids & set(executor.map(lambda item: os.getpid(), range(8)))


def test_a_worker_that_owes_answers_of_an_earlier_map_is_replaced(executor):
    await_all_workers(executor)
    late = executor._crew.workers[0]
    late.run(0, pickle.dumps([]), [], {}, [Ticket(index, None) for index in range(4)])
    assert executor.map(square, range(8)) == [item * item for item in range(8)]
    assert late not in executor._crew.workers


def test_what_a_killed_worker_had_folded_is_folded_again(patient):
    """The worker is killed after its last task, when only it knows the contributions."""
    pids = set()

    def on_result(index, pid):
        pids.add(pid)
        if index == 39:
            os.kill(pid, signal.SIGKILL)

    total = patient.map_reduce(
        lambda item: ((item,), os.getpid()), range(40), Total(), on_result=on_result
    )
    assert (total.total, total.count) == (sum(range(40)), 40)


def test_a_worker_that_dies_before_it_runs_anything_is_an_error(executor):
    class Deadly:
        def __reduce__(self):
            return os._exit, (5,)

        def __call__(self, item):
            return item

    with pytest.raises(ExecutorError, match="end before they run a task"):
        executor.map(Deadly(), range(4))
    assert executor.map(square, [3]) == [9]


# -- late tasks ----------------------------------------------------------------------------------


def test_a_late_task_is_named_and_its_worker_ended(ray_cluster):
    with make_executor("ray", 2, timeout=2.0) as executor:
        pids = executor.map(lambda item: time.sleep(0.01) or os.getpid(), range(4))

        def task(item):
            if item == 3:
                time.sleep(600)
            return item

        with pytest.raises(
            TaskTimeoutError, match=r"client task 3 ran longer than.* 2 s.*Raise timeout="
        ) as caught:
            executor.map(task, range(6))
        assert caught.value.index == 3
        wait_until(lambda: not all(os.path.exists(f"/proc/{pid}") for pid in set(pids)))
        assert executor.map(square, range(4)) == [0, 1, 4, 9]


def test_a_worker_stopped_while_it_was_idle_is_ended_and_its_task_named(ray_cluster, monkeypatch):
    monkeypatch.setattr(ray_executor, "_BEGIN_S", 2.0)
    with make_executor("ray", 1, timeout=1.0) as executor:
        (pid,) = executor.map(lambda item: os.getpid(), [0])
        suspend(pid)
        with pytest.raises(TaskTimeoutError, match=r"client task 0 was not begun within 2 s"):
            executor.map(square, range(4))
        monkeypatch.undo()
        wait_until(lambda: not psutil.pid_exists(pid))
        assert executor.map(square, range(4)) == [0, 1, 4, 9]


def test_a_worker_stopped_before_it_sent_its_partial_reducer_is_ended(ray_cluster, monkeypatch):
    monkeypatch.setattr(ray_executor, "_BEGIN_S", 2.0)

    def on_result(index, pid):
        if index == 7:
            suspend(pid)

    with make_executor("ray", 1, timeout=1.0) as executor:
        total = Total()
        with pytest.raises(TaskTimeoutError, match="folded into a partial reducer not sent within"):
            executor.map_reduce(
                lambda item: ((item,), os.getpid()), range(8), total, on_result=on_result
            )
        assert total.count == 0
        assert executor.map(square, [3]) == [9]


def test_time_spent_in_the_caller_is_not_the_tasks(ray_cluster):
    with make_executor("ray", 1, timeout=1.0) as executor:
        results = executor.map(square, range(6), on_result=lambda index, _: time.sleep(1.2))
        assert results == [item * item for item in range(6)]


def test_a_failure_ends_the_tasks_that_run(executor, tmp_path):
    def task(item):
        if item == 1:
            time.sleep(0.2)
            raise ValueError("early")
        time.sleep(30)
        (tmp_path / "late").touch()

    await_all_workers(executor)
    with pytest.raises(ClientTaskError, match="client task 1"):
        executor.map(task, range(8))
    assert executor.map(square, range(8)) == [item * item for item in range(8)]
    assert not (tmp_path / "late").exists()


# -- values that cannot travel -------------------------------------------------------------------


class Unpicklable:
    def __getstate__(self):
        raise KeyError("no state")


def test_a_task_that_cannot_be_sent_is_an_error(executor):
    lock = threading.Lock()
    with pytest.raises(pickle.PicklingError, match="the task must be"):
        executor.map(lambda item: lock, range(10))
    with pytest.raises(pickle.PicklingError, match="the broadcast must be"):
        executor.map(lambda b, item: item, range(10), broadcast={"lock": threading.Lock()})
    assert executor.map(square, [3]) == [9]


def test_an_item_that_cannot_be_sent_fails_its_task(executor):
    with pytest.raises(ClientTaskError, match="client task 1 has an item") as caught:
        executor.map(lambda item: 0, [1, Unpicklable(), 3])
    assert isinstance(caught.value.__cause__, KeyError)
    assert executor.map(square, [3]) == [9]


def test_a_result_that_cannot_be_sent_fails_its_task(executor):
    with pytest.raises(ClientTaskError, match=r"client task 0 has a result of type.*lock"):
        executor.map(lambda item: threading.Lock(), [1])
    with pytest.raises(ClientTaskError, match="has a result that cannot be unpacked") as caught:
        executor.map(lambda item: FailsToLoad(), [1])
    assert isinstance(caught.value.__cause__, LookupError)
    assert executor.map(square, [3]) == [9]


class FailsToLoad:
    def __reduce__(self):
        return _fail_to_load, ()


def _fail_to_load():
    raise LookupError("not here")


def test_a_partial_reducer_that_cannot_be_sent_is_an_error(executor):
    class Stuck(Total):
        def empty(self):
            return Stuck()

        def __getstate__(self):
            if self.count:
                raise KeyError("no state")
            return self.__dict__

    with pytest.raises(ClientTaskError, match="cannot be sent") as caught:
        executor.map_reduce(lambda item: ((item,), None), range(4), Stuck())
    assert isinstance(caught.value.__cause__, KeyError)
    assert executor.map(square, [3]) == [9]


# -- what travels --------------------------------------------------------------------------------


def test_results_of_many_tensors_can_all_be_kept(executor):
    def task(item):
        return {str(n): torch.full((300 + n,), float(item + n)) for n in range(50)}

    kept = executor.map(task, range(100))
    for item, result in enumerate(kept):
        for n in range(50):
            assert result[str(n)].eq(item + n).all()
            assert result[str(n)].data_ptr() % 64 == 0


def test_large_results_kept_beyond_the_store_stay_as_they_are(executor):
    """The store of the session's cluster has 400 MB; a share of it is lent, the rest copied."""
    size = 4 * 2**20
    make = lambda item: torch.full((size,), float(item))  # noqa: E731
    kept = [
        result for base in range(0, 32, 8) for result in executor.imap(make, range(base, base + 8))
    ]
    for item, result in enumerate(kept):
        assert result.data_ptr() % 64 == 0
        assert result[0] == result[-1] == item
        result.add_(1)
    assert [float(result.min()) for result in kept] == [item + 1.0 for item in range(32)]


def test_results_of_one_call_do_not_share_memory_that_a_later_task_writes(executor):
    model = torch.zeros(600)

    def task(item, model=model):
        model.fill_(item)
        return model

    for item, result in enumerate(executor.map(task, range(500))):
        assert result.eq(item).all()


def test_a_resident_is_sent_once_and_forgotten_with_its_owner(executor):
    puts = executor._residents._references
    before = len(puts)
    data = Resident({"x": torch.arange(300_000.0), "y": np.arange(5)})
    sums = [
        executor.map(lambda item, data=data: float(data.value["x"][item]), range(4))
        for _ in range(3)
    ]
    assert sums == [[0.0, 1.0, 2.0, 3.0]] * 3
    assert len(puts) == before + 1
    # An item may bring one as well, also to workers that have seen the task before.
    assert executor.map(lambda item: int(item[0].value["y"].sum()), [(data, 1)] * 6) == [10] * 6
    with pytest.raises(ClientTaskError, match="read-only"):
        executor.map(lambda item: item.value["y"].fill(1), [data] * 2)
    del data
    gc.collect()  # the error's traceback still knew it
    assert len(puts) == before
    assert executor.map(square, range(4)) == [0, 1, 4, 9]


def test_modules_on_the_callers_path_are_found_in_another_folder(executor, tmp_path, monkeypatch):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "only_here_for_ray.py").write_text(
        "def triple(item):\n    return 3 * item\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path / "lib"), *sys.path])
    import only_here_for_ray

    monkeypatch.chdir(tmp_path)
    assert executor.map(only_here_for_ray.triple, range(3)) == [0, 3, 6]


def test_tasks_have_the_priority_of_the_caller(executor):
    assert set(executor.map(lambda item: os.nice(0), range(4))) == {os.nice(0)}


def test_wrong_options_are_refused():
    with pytest.raises(TypeError, match="address must be text"):
        make_executor("ray", address=6379)
    with pytest.raises(TypeError, match="resources_per_worker must be a mapping"):
        make_executor("ray", resources_per_worker=2)
    with pytest.raises(ValueError, match=r"resources_per_worker must map names.*'CPU': -1"):
        make_executor("ray", resources_per_worker={"CPU": -1})
    with pytest.raises(ValueError, match="object_store_memory must be a positive integer"):
        make_executor("ray", object_store_memory=0)


def test_an_executor_for_another_cluster_is_refused(ray_cluster):
    executor = make_executor("ray", 1, address="127.0.0.1:1")
    with pytest.raises(ExecutorError, match="that this process is connected to"):
        executor.start()


def test_resources_that_the_cluster_lacks_are_named(ray_cluster):
    executor = make_executor("ray", 3, resources_per_worker={"CPU": 1, "tpu_core": 2})
    message = r"3 workers with 1 CPU, 2 tpu_core each, together 3 CPU, 6 tpu_core, got . CPU, 0 tpu"
    with pytest.raises(RuntimeError, match=message):
        executor.start()
