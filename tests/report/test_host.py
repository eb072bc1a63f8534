"""The process around a contender: results, failures, death, time-out, and nothing left behind."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from fedbench.report.host import ContenderError, Host

CONTENDER = """
import os, subprocess, sys, time
from fedbench.errors import ResourceError

class Fake:
    def __init__(self, marker):
        self.marker = marker
    def pid(self): return os.getpid()
    def echo(self): return {"marker": self.marker}
    def allocate(self):
        self.block = bytearray(80_000_000)
        self.block[::4096] = b"x" * len(self.block[::4096])
        time.sleep(0.5)
    def fail(self): raise ValueError("two\\nlines and\\ttabs")
    def refuse(self): raise ResourceError("Not enough memory.")
    def hang(self): time.sleep(600)
    def die(self): print("last words", flush=True); os.kill(os.getpid(), 9)
    def leave(self): os._exit(3)
    def spawn(self):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                                 start_new_session=True)
        return child.pid
    def close(self):
        with open(self.marker, "w") as stream: stream.write("closed")
    def modules(self): return sorted(sys.modules)
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Return a contender whose class the host's process can import."""
    (tmp_path / "fake_contender.py").write_text(CONTENDER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "fake_contender", raising=False)
    from fake_contender import Fake

    return Fake(str(tmp_path / "marker"))


@pytest.fixture
def host(fake):
    host = Host(fake, timeout_s=60)
    yield host
    host.close(at_once=True)


def is_alive(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def wait_for_end(pid):
    deadline = time.monotonic() + 60
    while is_alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_steps_run_in_a_process_of_their_own(host, fake):
    assert host.call("echo") == {"marker": fake.marker}
    assert host.call("pid") == host.pid != os.getpid()


def test_closing_closes_the_contender_and_ends_the_process(host, fake):
    host.call("pid")
    host.close()
    assert Path(fake.marker).read_text() == "closed"
    assert not is_alive(host.pid)
    host.close()


def test_a_failure_is_one_line_with_the_traceback_beside_it(host):
    with pytest.raises(ContenderError) as caught:
        host.call("fail")
    assert str(caught.value) == "ValueError: two lines and tabs"
    assert "raise ValueError" in caught.value.details
    assert host.call("echo")  # the process can go on


def test_our_own_errors_speak_for_themselves(host):
    with pytest.raises(ContenderError) as caught:
        host.call("refuse")
    assert str(caught.value) == "Not enough memory."


def test_a_killed_process_is_named_with_its_signal_and_last_words(host):
    with pytest.raises(ContenderError, match="the process ended in die with signal SIGKILL") as e:
        host.call("die")
    assert e.value.details == "last words"
    with pytest.raises(ContenderError, match="ended"):
        host.call("echo")


def test_a_process_that_exits_is_named_with_its_code(host):
    with pytest.raises(ContenderError, match="the process ended in leave with exit code 3"):
        host.call("leave")


def test_a_step_that_takes_too_long_is_stopped_with_its_children(fake):
    host = Host(fake, timeout_s=60)
    child = host.call("spawn")
    host._timeout_s = 0.5
    with pytest.raises(ContenderError, match=r"hang took longer than 0\.5 s and was stopped"):
        host.call("hang")
    wait_for_end(child)
    assert not is_alive(host.pid)
    host.close()


@pytest.mark.parametrize("at_once", [True, False])
def test_closing_ends_children_in_other_sessions(host, at_once):
    child = host.call("spawn")
    assert is_alive(child)
    host.close(at_once=at_once)
    wait_for_end(child)


def test_memory_is_watched_when_asked(host):
    host.call("pid")
    assert host.peak_memory_bytes is None
    host.call("pid", watch_memory=True)
    before = host.peak_memory_bytes
    host.call("allocate")
    assert host.peak_memory_bytes == before
    host.call("pid", watch_memory=True)
    assert 75_000_000 < host.peak_memory_bytes - before < 120_000_000


def test_the_process_ends_when_its_parent_is_killed(fake, tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import sys, time
            sys.path.insert(0, {str(tmp_path)!r})
            from fake_contender import Fake
            from fedbench.report.host import Host
            host = Host(Fake({fake.marker!r}), timeout_s=60)
            print(host.call("pid"), flush=True)
            time.sleep(600)
            """
        )
    )
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE)
    pid = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    wait_for_end(pid)
    assert Path(fake.marker).read_text() == "closed"


def test_descriptors_do_not_pile_up(fake):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        Host(fake, timeout_s=60).close(at_once=True)
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_process_holds_nothing_that_the_contender_did_not_import(host):
    assert {"pandas", "torch", "tqdm", "click"}.isdisjoint(host.call("modules"))
