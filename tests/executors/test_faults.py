"""Faults injected on purpose: lost workers, interrupts, exhausted resources, killed callers."""

import ctypes
import multiprocessing
import os
import pickle
import resource
import signal
import sys
import threading
import time

import psutil
import pytest
import torch

from fedbench.errors import (
    ClientTaskError,
    ExecutorError,
    TaskTimeoutError,
    WorkerDiedError,
)
from fedbench.executors import make_executor

from .scripts import Program, run, wait_until

POOLS = ["threads", "processes"]


@pytest.fixture
def processes(no_leaks):
    """A function that opens a processes executor for one test."""
    executors = []

    def open_executor(workers=2, **options):
        executors.append(make_executor("processes", workers, **options))
        executors[-1].start()
        return executors[-1]

    yield open_executor
    for executor in executors:
        executor.close()


@pytest.fixture(scope="module")
def shared():
    """A processes executor for all tests that leave it usable: starting one takes long."""
    with make_executor("processes", 2) as executor:
        yield executor


def square(item):
    return item * item


# -- lost workers --------------------------------------------------------------------------------

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

    with pytest.raises(WorkerDiedError, match=rf"{words} while it ran client task 2") as caught:
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
            task, range(16), Total(), on_result=lambda index, report: reports.append(index)
        )
        assert (total.total, total.count) == (sum(range(16)), 16)
        assert sorted(reports) == list(range(16))  # each once, although some ran twice


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


def test_retries_are_bounded(processes):
    executor = processes(retries=2)
    with pytest.raises(WorkerDiedError, match="client task 1"):
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


def test_a_worker_killed_after_it_folded_costs_nothing_but_time(processes):
    executor = processes(retries=1)
    pids = set(executor.map(lambda item: time.sleep(0.05) or os.getpid(), range(8)))
    done = []

    def on_result(index, report):
        done.append(index)
        if len(done) == 10:
            os.kill(min(pids), signal.SIGKILL)

    total = executor.map_reduce(
        lambda item: ((item,), None), range(40), Total(), on_result=on_result
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


def test_workers_that_cannot_start_are_an_error(processes, monkeypatch, capfd):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ExecutorError, match="ended with exit code 1 while it started"):
        processes()


def test_an_interpreter_that_does_not_exist_is_an_error(processes, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(ExecutorError, match="could not be started"):
        processes()


# -- things that cannot be pickled ---------------------------------------------------------------


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


def test_a_result_that_cannot_be_unpickled_is_named(shared):
    class Bomb:
        def __reduce__(self):
            return int, ("no number",)

    with pytest.raises(ClientTaskError, match="has a result that cannot be unpacked"):
        shared.map(lambda item: Bomb(), range(3))
    with pytest.raises(ClientTaskError, match="client task 0 failed"):
        shared.map(lambda item: 1, [Bomb()])
    assert shared.map(square, [3]) == [9]


# -- time-outs and recycling ---------------------------------------------------------------------


def test_a_late_task_is_ended_and_named(processes):
    executor = processes(timeout=0.5)
    with pytest.raises(TaskTimeoutError, match=r"client task 2 ran longer than"):
        executor.map(lambda item: time.sleep(600 if item == 2 else 0), range(8))
    assert executor.map(square, range(3)) == [0, 1, 4]


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


# -- shared memory and descriptors ---------------------------------------------------------------

SHORT_OF_MEMORY = """
import resource, sys, warnings, torch
from fedbench.executors import make_executor
if __name__ == "__main__":
    if sys.argv[1] == "start":  # workers inherit the limit
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    with warnings.catch_warnings(record=True) as caught, make_executor("processes", 2) as executor:
        warnings.simplefilter("always")
        if sys.argv[1] == "later":
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        for repeat in range(3):
            weight = torch.full((1_000_000,), float(repeat))
            results = executor.map(lambda b, i: b + i, range(6), broadcast=weight)
            assert all(result.eq(repeat + i).all() for i, result in enumerate(results))
    print(len(caught), caught[0].message)
"""


@pytest.mark.parametrize("when", ["start", "later"])
def test_too_little_shared_memory_is_slower_and_warns_once(tmp_path, when):
    out = run(SHORT_OF_MEMORY, tmp_path, when)
    assert out.startswith("1 shared memory is short")


FEW_DESCRIPTORS = """
import os, resource, torch
from fedbench.executors import make_executor
if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    def task(broadcast, item):
        return [torch.full((1000,), float(item + part)) for part in range(50)]
    with make_executor("processes", 2) as executor:
        executor.map(task, range(4), broadcast=torch.ones(10_000))
        before = len(os.listdir("/proc/self/fd"))
        kept = executor.map(task, range(500), broadcast=torch.ones(10_000))
        assert len(os.listdir("/proc/self/fd")) == before
    for item, parts in enumerate(kept):
        assert all(part.eq(item + number).all() for number, part in enumerate(parts))
    print("kept", len(kept))
"""


def test_many_kept_results_need_few_descriptors(tmp_path):
    assert run(FEW_DESCRIPTORS, tmp_path) == "kept 500\n"


EXHAUSTED = """
import os, resource
from fedbench.errors import ExecutorError
from fedbench.executors import make_executor
if __name__ == "__main__":
    make_executor("threads", 1).start()  # imports everything
    import fedbench.executors.processes.executor
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    held = []
    while True:
        try:
            held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            break
    try:
        make_executor("processes", 2).start()
    except (ExecutorError, OSError) as error:
        for fd in held:
            os.close(fd)
        print(type(error).__name__, error)
"""


def test_no_descriptors_left_is_an_error(tmp_path):
    out = run(EXHAUSTED, tmp_path)
    assert "ResourceError" in out
    assert "ulimit -n" in out


# -- interrupts and ends of the caller -----------------------------------------------------------

SLEEPERS = """
import sys, time
from fedbench.executors import make_executor
if __name__ == "__main__":
    executor = make_executor(sys.argv[1], None if sys.argv[1] == "sequential" else 2)
    with executor:
        print("ready", flush=True)
        executor.map(lambda item: time.sleep(0.0 if item < 2 else 600), range(100),
                     on_result=lambda index, result: index == 1 and print("busy", flush=True))
"""


@pytest.mark.parametrize("target", ["group", "parent"])
@pytest.mark.parametrize("backend", ["sequential", *POOLS])
def test_ctrl_c_ends_the_program_at_once(tmp_path, backend, target):
    program = Program(SLEEPERS, tmp_path, backend)
    program.wait_for_line("busy")
    time.sleep(0.3)
    send = os.killpg if target == "group" else os.kill
    send(program.process.pid, signal.SIGINT)
    begin = time.monotonic()
    code, _, err = program.finish()
    assert code in (130, -signal.SIGINT)
    assert "KeyboardInterrupt" in err
    assert time.monotonic() - begin < 30  # promised: 3
    program.assert_no_descendants()


GO_ON = """
import signal, sys, threading, time, os
from fedbench.executors import make_executor
if __name__ == "__main__":
    started = []
    with make_executor(sys.argv[1], None if sys.argv[1] == "sequential" else 2) as executor:
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        def task(item):
            started.append(item)
            time.sleep(1.5)
        try:
            executor.map(task, range(100))
        except KeyboardInterrupt:
            print("interrupted")
        seen = len(started)
        print(executor.map(lambda item: item + 1, range(5)))
        time.sleep(2.0)
        print("none started later", len(started) == seen)
"""


@pytest.mark.parametrize("backend", ["sequential", *POOLS])
def test_after_a_caught_interrupt_the_executor_works_on(tmp_path, backend):
    assert run(GO_ON, tmp_path, backend).splitlines() == [
        "interrupted",
        "[1, 2, 3, 4, 5]",
        "none started later True",
    ]


def test_killing_the_caller_ends_the_workers(tmp_path):
    program = Program(SLEEPERS, tmp_path, "processes")
    program.wait_for_line("busy")
    assert len(program.descendants) == 2
    before = set(os.listdir("/dev/shm"))
    program.process.kill()
    program.finish()
    program.assert_no_descendants()
    assert set(os.listdir("/dev/shm")) <= before


FORKED = """
import os, signal, sys, time
from fedbench.executors import make_executor
if __name__ == "__main__":
    executor = make_executor("processes", 2)
    executor.start()
    child = os.fork()
    if child == 0:  # holds a copy of every descriptor
        time.sleep(60)
        os._exit(0)
    print("busy", flush=True)
    print(child, flush=True)
    time.sleep(600)
"""


def test_workers_end_even_if_a_forked_child_holds_their_sockets(tmp_path):
    program = Program(FORKED, tmp_path)
    program.wait_for_line("busy")
    child = int(program.process.stdout.readline())
    program.descendants = [one for one in program.descendants if one.pid != child]
    program.process.kill()
    program.process.wait()
    program.assert_no_descendants()
    os.kill(child, signal.SIGKILL)
    program.finish()


NO_CLOSE = """
import sys
from fedbench.executors import make_executor
executor = make_executor(sys.argv[1], None if sys.argv[1] == "sequential" else 2)
executor.start()
print(executor.map(lambda item: item + 1, range(3)), flush=True)
iterator = executor.imap(lambda item: item + 1, range(100))
print(next(iterator), flush=True)
print("ready", flush=True)
"""


@pytest.mark.parametrize("backend", ["sequential", *POOLS])
def test_a_program_may_end_without_closing(tmp_path, backend):
    program = Program(NO_CLOSE, tmp_path, backend)
    program.wait_for_line("ready")
    code, _, err = program.finish()
    assert (code, err) == (0, "")
    program.assert_no_descendants()


def test_a_dropped_executor_ends_its_workers(processes):
    executor = make_executor("processes", 1)
    executor.start()
    (pid,) = executor.map(lambda item: os.getpid(), [1])
    del executor
    wait_until(lambda: not psutil.pid_exists(pid))


# -- programs of all kinds -----------------------------------------------------------------------

MAIN_FUNCTIONS = """
from fedbench.executors import make_executor

OFFSET = 10

class Update:
    def __init__(self, value):
        self.value = value

def task(update):
    return Update(update.value + OFFSET)

with make_executor("processes", 2) as executor:
    results = executor.map(task, [Update(1), Update(2)])
    print([type(result) is Update and result.value for result in results])
"""


@pytest.mark.parametrize("stdin_code", [False, True], ids=["file", "stdin"])
def test_functions_and_classes_of_main_work_without_a_guard(tmp_path, stdin_code):
    assert run(MAIN_FUNCTIONS, tmp_path, stdin_code=stdin_code) == "[11, 12]\n"


BESIDE = """
import os
import helper_beside
from fedbench.executors import make_executor
if __name__ == "__main__":
    os.chdir("/")
    with make_executor("processes", 2) as executor:
        print(executor.map(helper_beside.triple, range(3)))
"""


def test_modules_beside_the_script_are_found(tmp_path):
    (tmp_path / "helper_beside.py").write_text("def triple(x):\n    return 3 * x\n")
    assert run(BESIDE, tmp_path) == "[0, 3, 6]\n"


OPENMP_FIRST = """
import torch
from fedbench.executors import make_executor
if __name__ == "__main__":
    torch.set_num_threads(2)
    a = torch.ones(512, 512)
    expected = float(torch.einsum("ij,jk->ik", a, a).sum())
    with make_executor("processes", 2) as executor:
        results = executor.map(lambda i: float(torch.einsum("ij,jk->ik", a, a).sum()), range(8))
    print(set(results) == {expected})
"""


def test_the_caller_may_have_used_openmp_before(tmp_path):
    assert run(OPENMP_FIRST, tmp_path) == "True\n"


TWENTY_MAPS = """
import warnings
warnings.simplefilter("error")
import torch
from fedbench.executors import make_executor
if __name__ == "__main__":
    with make_executor("processes", 2) as executor:
        for repeat in range(20):
            executor.map(lambda b, i: b * i, range(6), broadcast=torch.ones(50_000))
    print("done")
"""


def test_many_maps_are_silent(tmp_path):
    assert run(TWENTY_MAPS, tmp_path) == "done\n"


DATA_LOADERS = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset
from fedbench.executors import make_executor
def task(item):
    loader = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=2, num_workers=2)
    return sum(float(batch.sum()) for (batch,) in loader)
if __name__ == "__main__":
    with make_executor(sys.argv[1], 2) as executor:
        print(executor.map(task, range(3)))
"""


@pytest.mark.parametrize("backend", POOLS)
def test_a_task_may_use_a_data_loader_with_workers(tmp_path, backend):
    assert run(DATA_LOADERS, tmp_path, backend) == "[28.0, 28.0, 28.0]\n"


PRINTS = """
from fedbench.executors import make_executor
if __name__ == "__main__":
    def task(item):
        print("line of client", item)
    with make_executor("processes", 2) as executor:
        executor.map(task, range(200))
"""


def test_output_of_tasks_comes_in_whole_lines(tmp_path):
    lines = run(PRINTS, tmp_path).splitlines()
    assert sorted(lines) == sorted(f"line of client {item}" for item in range(200))


def test_a_process_started_by_a_task_ends_with_its_worker(processes):
    executor = processes(1)

    def task(item):
        child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))
        child.start()
        return child.pid

    (pid,) = executor.map(task, [1])
    assert psutil.pid_exists(pid)
    executor.close()
    wait_until(lambda: not psutil.pid_exists(pid))
