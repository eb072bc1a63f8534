import os
import subprocess
import sys

import psutil
import pytest

from fedbench.report.processes import PeakMemory, cpu_seconds, family, memory_bytes

READY = "print('ready', flush=True); import time; time.sleep(600)"


def child(code):
    process = subprocess.Popen([sys.executable, "-c", code + READY], stdout=subprocess.PIPE)
    process.stdout.readline()
    return process


@pytest.fixture
def children():
    """Return a function that starts a process; all end with the test."""
    started = []

    def start(code=""):
        started.append(child(code))
        return psutil.Process(started[-1].pid)

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_cpu_time_of_other_processes_is_counted(children):
    busy = children("import time; t = time.process_time()\nwhile time.process_time() < t + .3: 0\n")
    idle = children()
    alone = cpu_seconds([])
    together = cpu_seconds([busy, idle])
    assert 0.25 < together - alone < 5


def test_cpu_time_of_an_ended_process_is_an_error(children):
    process = children()
    process.kill()
    psutil.wait_procs([process])
    with pytest.raises(psutil.NoSuchProcess):
        cpu_seconds([process])


def test_private_memory_adds_up(children):
    plain = children()
    large = children("block = b'x' * 50_000_000;")
    difference = memory_bytes([plain, large]) - memory_bytes([plain])
    assert 50_000_000 <= difference < 80_000_000


def test_shared_memory_counts_once(children):
    path = "/dev/shm/fedbench-test-memory"
    code = (
        f"import mmap; f = open({path!r}, 'r+b'); m = mmap.mmap(f.fileno(), 0);s = sum(m[::4096]);"
    )
    with open(path, "wb") as stream:
        stream.write(b"x" * 50_000_000)
    try:
        plain = memory_bytes([children()])
        sharing = [children(code), children(code)]
        together = memory_bytes(sharing)
    finally:
        os.unlink(path)
    assert 45_000_000 < together - plain < 80_000_000


def test_files_count_once_whoever_else_has_them_mapped(children):
    first = children()
    before = memory_bytes([first])
    others = [children() for _ in range(4)]
    # Proportional shares of the interpreter's pages fall with every further process.
    assert memory_bytes([first]) == pytest.approx(before, rel=0.02)
    assert memory_bytes([first, others[0]]) < 2 * before


def test_ended_processes_hold_no_memory(children):
    process = children()
    process.kill()
    psutil.wait_procs([process])
    assert memory_bytes([process]) == 0
    assert family(process.pid) == []


def test_the_peak_is_kept(children):
    members = [children("block = b'x' * 50_000_000;")]
    peak = PeakMemory(lambda: members)
    assert peak.peak_bytes is None
    peak.observe()
    highest = peak.peak_bytes
    members[:] = []
    peak.observe()
    assert peak.peak_bytes == highest > 50_000_000
