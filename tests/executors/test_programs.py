"""Programs of all kinds that use executors."""

import multiprocessing
import time

import psutil
import pytest

from .scripts import Program, run, wait_until

POOLS = ["threads", "processes"]

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


def test_functions_of_an_interactive_session_work(tmp_path):
    program = Program(MAIN_FUNCTIONS, tmp_path, stdin_code=True, interpreter_options=["-i"])
    code, out, err = program.finish()
    assert (code, out) == (0, "[11, 12]\n")
    assert "Traceback" not in err


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


TRACEBACK = """
from fedbench.executors import make_executor
if __name__ == "__main__":
    def look_up_missing_client(item):
        return {1: 1, 2: 2}[item]
    with make_executor("processes", 2) as executor:
        executor.map(look_up_missing_client, range(3))
"""


def test_the_traceback_of_a_worker_is_shown_without_any_set_up(tmp_path):
    code, _, err = Program(TRACEBACK, tmp_path).finish()
    assert code == 1
    assert "client task 0 failed" in err
    assert "in look_up_missing_client" in err
    assert "KeyError: 0" in err


RESIDENT = """
import gc, os, torch
from fedbench.executors import Resident, make_executor
if __name__ == "__main__":
    data = Resident(torch.ones(1_000_000))
    def task(item, data=data):
        return os.getpid(), id(data.value), float(data.value.sum())
    with make_executor("processes", 2) as executor:
        seen = [one for _ in range(5) for one in executor.map(task, range(20))]
        places = {(pid, place) for pid, place, _ in seen}
        assert len(places) == len({pid for pid, _ in places}), "built more than once in a worker"
        assert {total for _, _, total in seen} == {1e6}
        held = os.stat(f"/proc/self/fd/{executor._maps.downlink.arena.fd}").st_blocks
        del data, task
        executor.map(abs, range(4))
        gc.collect()
        executor.map(abs, range(4))
        given_back = held - os.stat(f"/proc/self/fd/{executor._maps.downlink.arena.fd}").st_blocks
        print(given_back * 512 >= 4_000_000)
"""


def test_a_resident_travels_once_and_its_memory_is_given_back(tmp_path):
    assert run(RESIDENT, tmp_path) == "True\n"


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


def test_many_maps_are_silent_and_never_fork(tmp_path):
    options = ["-W", "error::DeprecationWarning:__main__", "-W", "error::DeprecationWarning:os"]
    assert run(TWENTY_MAPS, tmp_path, interpreter_options=options) == "done\n"


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


@pytest.mark.parametrize("options", [[], ["-u"]], ids=["buffered", "unbuffered"])
def test_output_of_tasks_comes_in_whole_lines(tmp_path, options):
    lines = run(PRINTS, tmp_path, interpreter_options=options).splitlines()
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
