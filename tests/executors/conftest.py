"""Fixtures of the tests of the processes backend."""

import pytest

from fedbench.executors import make_executor


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
