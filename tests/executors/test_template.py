"""The template process that workers are forked from: its faults, and what workers share."""

import gc
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
import torch

from fedbench.errors import ExecutorError, ResourceError, TaskTimeoutError, WorkerDiedError
from fedbench.executors.processes import launch, pool
from fedbench.executors.processes.protocol import Kind, Parcel
from fedbench.executors.processes.worker import Worker

from .scripts import GUARD_S, Program, run, wait_until
from .tasks import square


def template_of(executor):
    """Return the process that the workers of an executor are forked from."""
    return psutil.Process(executor._launcher._template._process.pid)


def kill(process):
    process.kill()
    wait_until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)


def test_a_template_killed_before_the_first_map_is_replaced(processes):
    executor = processes()
    template = template_of(executor)
    kill(template)
    assert executor.map(square, range(8)) == [item * item for item in range(8)]
    assert template_of(executor).pid != template.pid


def test_a_template_killed_between_maps_is_replaced_with_its_workers(processes):
    executor = processes()
    before = set(executor.map(lambda item: time.sleep(0.05) or os.getpid(), range(8)))
    kill(template_of(executor))
    after = set(executor.map(lambda item: time.sleep(0.05) or os.getpid(), range(8)))
    assert not before & after
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in before))


def kill_the_template_once(marker):
    def task(item):
        if item == 3 and not marker.exists():
            marker.touch()
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(600)
        return item

    return task


def test_a_template_killed_in_a_map_is_a_lost_worker(processes, tmp_path):
    executor = processes()
    with pytest.raises(WorkerDiedError, match="the process that workers are forked from") as caught:
        executor.map(kill_the_template_once(tmp_path / "marker"), range(8))
    assert (caught.value.index, caught.value.exitcode) == (3, None)
    assert executor.map(square, range(4)) == [0, 1, 4, 9]


def test_tasks_lost_with_the_template_are_run_again(processes, tmp_path):
    executor = processes(retries=2)
    task = kill_the_template_once(tmp_path / "marker")
    assert executor.map(task, range(8)) == list(range(8))


def test_workers_are_clean_of_the_caller_and_of_each_other(processes, monkeypatch):
    monkeypatch.setattr(launch, "of_the_caller", True, raising=False)
    monkeypatch.setenv("OF_THE_CALLER", "yes")

    def task(item):
        time.sleep(0.1)
        return {
            "pid": os.getpid(),
            "group": os.getpgid(0),
            "numpy": np.random.random(),
            "python": random.random(),
            "torch": torch.rand(()).item(),
            "clean": not hasattr(launch, "of_the_caller"),
            "environment": os.environ["OF_THE_CALLER"],
            "sigchld": signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL,
            "threads of the template": len(os.listdir(f"/proc/{os.getppid()}/task")),
        }

    facts = processes(2).map(task, range(4))
    by_pid = {one["pid"]: one for one in facts}
    first, second = by_pid.values()
    for generator in ("python", "numpy", "torch"):
        assert first[generator] != second[generator]
    for one in facts:
        assert one["group"] == one["pid"]
        assert one["clean"]
        assert one["environment"] == "yes"
        assert one["sigchld"]
        assert one["threads of the template"] == 1


def test_a_recycled_worker_is_a_fork_of_a_clean_template(processes):
    executor = processes(1, recycle_after=1)

    def task(item):
        seen = getattr(launch, "mark", None)
        launch.mark = item
        return seen, os.getppid()

    descriptors = []
    results = []
    for result in executor.imap(task, range(10)):
        results.append(result)
        descriptors.append(template_of(executor).num_fds())
    assert results == [(None, template_of(executor).pid)] * 10
    assert descriptors[-1] <= descriptors[0]


def test_more_intraop_threads_mean_fresh_interpreters(processes):
    executor = processes(2, intraop_threads=2)

    def task(item):
        return torch.get_num_threads(), "template import main" in " ".join(sys.orig_argv)

    assert executor.map(task, range(4)) == [(2, False)] * 4
    with pytest.raises(WorkerDiedError, match="killed by SIGKILL"):
        executor.map(lambda item: os.kill(os.getpid(), signal.SIGKILL), range(2))
    assert executor.map(square, range(4)) == [0, 1, 4, 9]


THREADED = """
import sys
from fedbench.executors import make_executor
if __name__ == "__main__":
    def task(item):
        return "template import main" in " ".join(sys.orig_argv)
    with make_executor("processes", 2) as executor:
        print(executor.map(task, range(3)))
"""


THREAD = """
import threading, time
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
"""


@pytest.mark.parametrize(("code", "forked"), [("", True), (THREAD, False)], ids=["none", "one"])
def test_a_template_with_a_further_thread_does_not_fork(tmp_path, code, forked):
    (tmp_path / "sitecustomize.py").write_text(code)
    out = run(THREADED, tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert out == f"{[forked] * 3}\n"


HANGS_ONCE = """
import os, sys, time
if "template import main" in " ".join(sys.orig_argv) and not os.path.exists("seen"):
    open("seen", "w").close()
    time.sleep(600)
"""

SLOW_START = """
import os, signal, threading
from fedbench.executors import make_executor
if __name__ == "__main__":
    with make_executor("processes", 2) as executor:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            executor.map(abs, range(3))
        except KeyboardInterrupt:
            print("interrupted")
        print(executor.map(abs, range(3)))
"""


def test_an_interrupt_while_the_workers_start_leaves_an_executor_that_works(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(HANGS_ONCE)
    out = run(SLOW_START, tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert out == "interrupted\n[0, 1, 2]\n"


def test_workers_that_cannot_start_are_an_error_of_the_first_map(processes, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/false")
        executor = processes()
        with pytest.raises(ExecutorError, match="ended with exit code 1 while it started"):
            executor.map(square, range(4))
    assert executor.map(square, range(4)) == [0, 1, 4, 9]


def test_workers_that_do_not_get_ready_are_an_error(processes, monkeypatch, tmp_path):
    stuck = tmp_path / "python"
    stuck.write_text("#!/bin/sh\nexec sleep 600\n")
    stuck.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(stuck))
    monkeypatch.setattr(launch, "START_S", 0.3)
    executor = processes()
    with pytest.raises(ResourceError, match="must be ready within"):
        executor.map(square, range(4))


def test_workers_that_cannot_be_replaced_are_an_error(processes, monkeypatch):
    executor = processes(retries=100)
    assert executor.map(square, range(4)) == [0, 1, 4, 9]
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ExecutorError, match="ended with exit code 1 while it started"):
        executor.map(lambda item: os.kill(os.getppid(), signal.SIGKILL) or time.sleep(600), [1])


DYING = """
from fedbench.errors import ExecutorError
from fedbench.executors import make_executor
if __name__ == "__main__":
    with make_executor("processes", 2, intraop_threads=2) as executor:
        try:
            executor.map(abs, range(4))
        except ExecutorError as error:
            print(error)
"""


def test_workers_that_die_before_they_run_anything_are_an_error(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\nif 'worker import main' in ' '.join(sys.orig_argv):\n    os._exit(7)\n"
    )
    out = run(DYING, tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert "end before they run a task: the last ended with exit code 7" in out


UNINTERRUPTIBLE = """
import ctypes, sys, time
from fedbench.executors import make_executor
if __name__ == "__main__":
    with make_executor("processes", 2) as executor:
        executor.map(abs, range(2))
        def task(item):
            if item == 0:
                time.sleep(1)
                print("busy", flush=True)
                time.sleep(600)
            ctypes.PyDLL(None).sleep(600)  # never lets another thread of its process run
        executor.map(task, range(2))
"""


def test_killing_the_caller_ends_even_a_worker_that_cannot_look(tmp_path):
    program = Program(UNINTERRUPTIBLE, tmp_path)
    program.wait_for_line("busy")
    program.process.kill()
    program.finish()
    program.assert_no_descendants()


def test_what_a_task_started_ends_with_its_killed_worker(processes):
    executor = processes(1)

    def task(item):
        child = subprocess.Popen(["sleep", "600"])
        return child.pid, os.getpid()

    ((child, worker),) = executor.map(task, [1])
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: not psutil.pid_exists(child))
    assert executor.map(square, [3]) == [9]


def test_what_got_the_id_of_a_lost_worker_is_not_killed(processes, monkeypatch):
    executor = processes(1)
    (pid,) = executor.map(lambda item: os.getpid(), [0])
    killed = []
    monkeypatch.setattr(launch, "kill_group", killed.append)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not psutil.pid_exists(pid))
    monkeypatch.setattr(launch, "start_time", lambda _: 7)  # as if another process had it now
    assert executor.map(square, [3]) == [9]
    # The same after the end of the template, which can tell nothing any more.
    kill(template_of(executor))
    assert executor.map(square, [3]) == [9]
    executor.close()
    assert pid not in killed


def test_a_stopped_template_does_not_hold_up_the_end_of_each_worker(processes, monkeypatch):
    executor = processes(4)
    executor.map(square, range(8))
    waits = []
    receive = launch._Template._receive

    def count(self, timeout_s):
        waits.append(timeout_s)
        return receive(self, timeout_s)

    monkeypatch.setattr(launch._Template, "_receive", count)
    template = template_of(executor)
    template.suspend()
    executor.close()
    assert sum(waits) < 2 * pool.EXIT_S
    wait_until(lambda: not template.is_running())


CLOSED = """
import os, sys
from fedbench.executors import make_executor
if __name__ == "__main__":
    def task(item):
        os.write(1, b"of a task")
        os.write(2, b"of a task")
        return item
    with make_executor("processes", 2, intraop_threads=int(sys.argv[1])) as executor:
        found = executor.map(task, range(4))
    with open("found", "w") as file:
        print(found, file=file)
"""

PRINTS_IN_TEMPLATE = """
import os, sys
if "template import main" in " ".join(sys.orig_argv):
    os.write(1, b"of an import")
"""


@pytest.mark.parametrize(
    ("intraop_threads", "closing"),
    [
        (1, "<&- >&-"),
        (1, "<&- >&- 2>&-"),
        (2, "<&- >&- 2>&-"),
        pytest.param(1, "2>&-", marks=pytest.mark.slow),
        pytest.param(2, "<&- >&-", marks=pytest.mark.slow),
        pytest.param(2, "2>&-", marks=pytest.mark.slow),
    ],
)
def test_closed_standard_streams_are_no_harm(tmp_path, closing, intraop_threads):
    (tmp_path / "program.py").write_text(CLOSED)
    # What an import prints in the template may not come to the caller as a message.
    (tmp_path / "sitecustomize.py").write_text(PRINTS_IN_TEMPLATE)
    command = f'exec "{sys.executable}" program.py {intraop_threads} {closing}'
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, env=environment, check=True, timeout=GUARD_S
    )
    assert (tmp_path / "found").read_text() == "[0, 1, 2, 3]\n"


HOLDS = """
import ctypes, os, sys, time
from fedbench.executors import make_executor
if __name__ == "__main__":
    with make_executor("processes", 1, intraop_threads=int(sys.argv[1])) as executor:
        executor.map(abs, range(2))
        def task(item):
            print("busy", flush=True)
            ctypes.PyDLL(None).sleep(600)  # never lets another thread of its process run
        executor.map(task, range(1))
"""


@pytest.mark.parametrize("intraop_threads", ["1", "2"])
def test_a_worker_that_cannot_look_ends_with_its_template(tmp_path, intraop_threads):
    program = Program(HOLDS, tmp_path, intraop_threads)
    program.wait_for_line("busy")
    os.kill(program.process.pid, signal.SIGSTOP)
    (template,) = psutil.Process(program.process.pid).children()
    template.kill()
    os.kill(program.process.pid, signal.SIGKILL)
    program.finish()
    program.assert_no_descendants()


STARTS_ANOTHER = """
import subprocess, sys, time
from fedbench.executors import make_executor
if __name__ == "__main__":
    with make_executor("processes", 1, intraop_threads=int(sys.argv[1])) as executor:
        executor.map(abs, range(2))
        def task(item):
            subprocess.Popen(["sleep", "600"])
            print("busy", flush=True)
            time.sleep(600)
        executor.map(task, range(1))
"""


@pytest.mark.parametrize("intraop_threads", ["1", "2"])
def test_what_a_task_started_ends_if_template_and_caller_are_killed(tmp_path, intraop_threads):
    program = Program(STARTS_ANOTHER, tmp_path, intraop_threads)
    program.wait_for_line("busy")
    assert "sleep" in [process.name() for process in program.descendants]
    os.kill(program.process.pid, signal.SIGSTOP)  # so that it cannot clean up in between
    (template,) = psutil.Process(program.process.pid).children()
    template.kill()
    os.kill(program.process.pid, signal.SIGKILL)
    program.finish()
    program.assert_no_descendants()


IMPORTS_LONG = """
import importlib, sys, time
if "template import main" in " ".join(sys.orig_argv):
    def import_module(name):
        open("importing", "w").close()
        time.sleep(600)
    importlib.import_module = import_module
"""

STARTS = """
import pathlib, time
from fedbench.executors import make_executor
if __name__ == "__main__":
    with make_executor("processes", 1) as executor:
        while not pathlib.Path("importing").exists():
            time.sleep(0.05)
        print("importing", flush=True)
        executor.map(abs, range(2))
"""


def test_killing_the_caller_ends_a_template_that_imports(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(IMPORTS_LONG)
    program = Program(STARTS, tmp_path, env={"PYTHONPATH": str(tmp_path)})
    program.wait_for_line("importing")
    assert len(program.descendants) == 1
    program.process.kill()
    program.finish()
    program.assert_no_descendants()


def answer_for(number, index):
    """Return a task that sends an answer of its own making."""

    def task(item):
        (own,) = [one for one in gc.get_objects() if type(one) is Worker]
        own._send((Kind.DONE, number, [(index, True, Parcel("wrong"))], 0.0, [], "", None))
        return item

    return task


def test_answers_for_other_tasks_are_refused(processes):
    executor = processes(1)
    assert executor.map(answer_for(0, 1), range(2)) == [0, 1]  # of another map
    with pytest.raises(ExecutorError, match="must answer for the tasks that it was given"):
        executor.map(answer_for(2, 99), range(2))
    assert executor.map(square, range(3)) == [0, 1, 4]


def test_a_template_killed_while_it_replaces_another_is_replaced_too(processes, tmp_path):
    (tmp_path / "python").write_text(
        f'#!/bin/sh\n[ -e seen ] && exec "{sys.executable}" "$@"\ntouch seen; kill -9 $$\n'
    )
    (tmp_path / "python").chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        executor = processes(1)
        kill(template_of(executor))
        patch.setattr(sys, "executable", str(tmp_path / "python"))
        assert executor.map(square, range(3)) == [0, 1, 4]


def test_a_replaced_template_is_like_the_first(processes, tmp_path, monkeypatch):
    monkeypatch.setenv("AT_THE_START", "yes")
    monkeypatch.chdir(tmp_path)
    executor = processes(1)
    monkeypatch.delenv("AT_THE_START")
    monkeypatch.chdir("/")
    kill(template_of(executor))
    found = executor.map(lambda item: (os.environ["AT_THE_START"], os.getcwd()), [0])
    assert found == [("yes", str(tmp_path))]


def test_a_removed_current_folder_is_no_harm(processes, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    monkeypatch.setattr(sys, "path", ["", b"bytes", *sys.path])
    executor = processes(1)
    assert executor.map(square, [2]) == [4]
    (tmp_path / "gone").rmdir()
    assert executor.map(square, [3]) == [9]
    assert processes(1).map(square, [3]) == [9]


def test_a_task_that_leaves_its_group_ends_with_its_worker(processes):
    executor = processes(1, timeout=0.5)

    def task(item):
        os.setpgid(0, os.getpgid(os.getppid()))
        time.sleep(600)

    template = template_of(executor)
    with pytest.raises(TaskTimeoutError):
        executor.map(task, [0])
    assert executor.map(square, [3]) == [9]
    assert template_of(executor).pid == template.pid


def test_blocked_signals_of_the_caller_are_no_harm(processes):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        executor = processes(1)
        blocked = executor.map(lambda item: signal.pthread_sigmask(signal.SIG_BLOCK, ()), [0])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert signal.SIGCHLD not in blocked[0]


def test_threads_that_a_task_sets_are_set_back(processes):
    executor = processes(1)
    executor.map(lambda item: torch.set_num_threads(2), [0])
    assert executor.map(lambda item: torch.get_num_threads(), [0]) == [1]


MAKES_EXECUTORS = """
import sys
if "template import main" in " ".join(sys.orig_argv):
    import importlib
    from fedbench.errors import NestedExecutorError
    from fedbench.executors import make_executor
    import_module = importlib.import_module
    def shadow(name):
        importlib.import_module = import_module
        try:
            make_executor("processes", 1).start()
        except NestedExecutorError:
            open("refused", "w").close()
        return import_module(name)
    importlib.import_module = shadow
"""

ONE_MAP = """
from fedbench.executors import make_executor
if __name__ == "__main__":
    with make_executor("processes", 1) as executor:
        print(executor.map(abs, range(2)))
"""


def test_what_the_template_imports_makes_no_executor(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(MAKES_EXECUTORS)
    assert run(ONE_MAP, tmp_path, env={"PYTHONPATH": str(tmp_path)}) == "[0, 1]\n"
    assert (tmp_path / "refused").exists()
