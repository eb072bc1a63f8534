"""Fixtures shared by all tests: executors, and checks that nothing is left behind."""

import importlib.util
import signal
import time
from pathlib import Path

import hypothesis
import psutil
import pytest

from fedbench.executors import EXECUTORS, make_executor
from tests.xdist_groups import group, pytest_xdist_make_scheduler  # noqa: F401  (a hook)

# Another program may run for a while whenever an example is timed.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A job that a script starts in the background ignores Ctrl-C, and so would every program that
    # the tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """Begin with what takes long and would else end the run alone; stable, so the rest stays."""
    last_files = ["tests/workloads/test_accuracy.py", "tests/verification/test_matrix.py"]
    order = {name: place for place, name in enumerate(["packaging", "ray", *last_files])}
    items.sort(key=lambda item: order.get(group(item.nodeid), len(order)))


WORKERS = {"sequential": None}
"""Workers of the shared executors; two where the backend allows a choice."""


def _backend_params():
    for name in EXECUTORS:
        marks = []
        if name == "ray":
            marks = [
                pytest.mark.ray,
                pytest.mark.skipif(
                    importlib.util.find_spec("ray") is None,
                    reason="the extra 'ray' is not installed",
                ),
            ]
        yield pytest.param(name, marks=marks)


BACKENDS = list(_backend_params())


@pytest.fixture(params=BACKENDS)
def backend(request):
    """Each registered backend in turn."""
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    return request.param


@pytest.fixture(scope="session")
def ray_cluster():
    """One local Ray cluster for the whole session: that of an executor which stays open."""
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    with make_executor("ray", 1, object_store_memory=400 * 2**20) as executor:
        yield executor


@pytest.fixture(scope="session")
def shared_executors():
    """Open executors by backend, made on first use and closed at the end of the session."""
    executors = {}
    yield executors
    for executor in executors.values():
        executor.close()


@pytest.fixture
def executor(backend, shared_executors):
    """An open executor of each backend, shared by the tests that leave it usable."""
    if backend not in shared_executors:
        shared_executors[backend] = make_executor(backend, WORKERS.get(backend, 2))
        shared_executors[backend].start()
    return shared_executors[backend]


@pytest.fixture
def new_executor(backend, no_leaks):
    """A function that opens an executor of each backend for one test alone."""
    executors = []

    def open_executor(workers=None, **options):
        workers = WORKERS.get(backend, 2) if workers is None else workers
        executor = make_executor(backend, workers, **options)
        executors.append(executor)
        executor.start()
        return executor

    yield open_executor
    for executor in executors:
        executor.close()


@pytest.fixture
def no_leaks():
    """Fail the test if it leaves a child process, or a mapped segment of /dev/shm."""
    before = _footprint()
    yield
    deadline = time.monotonic() + 20
    while (extra := _difference(_footprint(), before)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not extra, f"left behind: {extra}"


def _footprint():
    children = {
        child.pid: child.name()
        for child in psutil.Process().children(recursive=True)
        if child.is_running() and not _belongs_to_ray(child)
    }
    # Only what this process maps: other programs of the machine use /dev/shm too.
    maps = Path("/proc/self/maps")
    segments = set()
    if maps.exists():
        lines = maps.read_text().splitlines()
        segments = {line.split()[-1] for line in lines if "/dev/shm/" in line}
    return {"children": children, "segments": segments}


def _belongs_to_ray(process):
    try:
        names = [process.name(), *(parent.name() for parent in process.parents())]
    except psutil.Error:
        return True  # it ended while we looked
    return any(name.startswith(("ray", "raylet", "gcs_server")) for name in names)


def _difference(after, before):
    return {
        kind: extra
        for kind in after
        if (extra := {key for key in after[kind] if key not in before[kind]})
    }
