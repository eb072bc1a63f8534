"""Faults injected on purpose: interrupts, and callers that end without a word."""

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from fedbench.executors import make_executor

from .scripts import Program, run, wait_until

POOLS = ["threads", "processes"]

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
    assert len(program.descendants) == 3  # two workers, and what they are forked from
    for worker in program.descendants:  # what has no name cannot stay behind
        assert "/dev/shm/" not in Path(f"/proc/{worker.pid}/maps").read_text()
    program.process.kill()
    program.finish()
    program.assert_no_descendants()


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


def test_a_dropped_executor_ends_its_threads():
    executor = make_executor("threads", 2)
    executor.start()
    (worker,) = executor.map(lambda item: threading.get_ident(), [1])
    (thread,) = [thread for thread in threading.enumerate() if thread.ident == worker]
    del executor
    thread.join(60)
    assert not thread.is_alive()


SLOW_END = """
import atexit, os, signal, sys, time
import psutil
from fedbench.executors import make_executor
def interrupt_at_the_end(caller):
    atexit.register(time.sleep, 600)
    atexit.register(os.kill, caller, signal.SIGINT)
if __name__ == "__main__":
    recycle_after = 1 if sys.argv[1] == "recycle" else None
    executor = make_executor("processes", 1, recycle_after=recycle_after)
    try:
        with executor:
            executor.map(interrupt_at_the_end, [os.getpid()])
            executor.close()
    except KeyboardInterrupt:
        print("interrupted")
    executor.close()
    print(psutil.wait_procs(psutil.Process().children(recursive=True), timeout=50)[1])
"""


@pytest.mark.parametrize("place", ["recycle", "close"])
def test_an_interrupt_while_a_worker_ends_leaves_no_process(tmp_path, place):
    assert run(SLOW_END, tmp_path, place) == "interrupted\n[]\n"
