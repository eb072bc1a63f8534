"""Faults injected on purpose: too little shared memory, too few descriptors."""

import os

import pytest
import torch

from .scripts import run

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


def test_descriptors_and_processes_are_given_back(processes):
    def life():
        executor = processes(1)
        executor.map(lambda b, i: b + i, range(4), broadcast=torch.ones(100_000))
        executor.close()
        return len(os.listdir("/proc/self/fd"))

    assert life() == life()
