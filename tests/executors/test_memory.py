"""Memory stays flat over many rounds, in the caller and in the workers."""

import itertools
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from fedbench.executors import make_executor

BACKENDS = ["sequential", "threads", "processes"]


def open_executor(backend):
    return make_executor(backend, None if backend == "sequential" else 2)


def memory_mb():
    """Return the memory of this process and its children, in MB: theirs, and what they share.

    Not the pages of files: of a library that other programs have loaded, too, everyone's share
    grows when one of them ends.
    """
    total = 0
    this = psutil.Process()
    for process in [this, *this.children(recursive=True)]:
        try:
            text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended, or waits to be reaped: it has no memory
        for line in text.splitlines():
            if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                total += int(line.split()[1])
    return total / 1024


def rounds(executor, num_rounds, num_clients, size):
    """Run rounds that keep one model and nothing else; return the memory after each."""
    model = torch.zeros(size)
    after = []
    for _ in range(num_rounds):
        updates = executor.imap(
            lambda broadcast, client: broadcast + 1.0, range(num_clients), broadcast=model
        )
        total = torch.zeros(size)
        for update in updates:
            total += update
        model = total / num_clients
        after.append(memory_mb())
    assert model.eq(num_rounds).all()
    return after


@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_is_flat_over_rounds(backend):
    with open_executor(backend) as executor:
        after = rounds(executor, 40, 6, 1_000_000)
    # The allocator takes some rounds to have as many blocks as are ever in use at once. One update
    # is 4 MB: were one kept in each of the last 20 rounds, it would be 80 MB.
    assert min(after[-4:]) < max(after[16:20]) + 30


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_is_flat_over_fifty_rounds_of_a_large_model(backend):
    with open_executor(backend) as executor:
        after = rounds(executor, 50, 8, 11_700_000)
    assert after[-1] < 1.05 * max(after[4:8])


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_of_temporaries_is_given_back_or_used_again(backend):
    def task(item):
        return float(torch.ones(25_000_000).mul_(2).mean())

    with open_executor(backend) as executor:
        after = []
        for _ in range(50):
            assert executor.map(task, range(8)) == [2.0] * 8
            after.append(memory_mb())
    assert after[-1] < 1.05 * max(after[4:8])


@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_is_flat_while_lists_of_results_come_and_go(backend):
    with open_executor(backend) as executor:
        after = []
        for _ in range(20):
            results = executor.map(lambda item: torch.full((500_000,), float(item)), range(12))
            assert [float(result[-1]) for result in results] == list(range(12))
            after.append(memory_mb())
            del results
    assert min(after[-4:]) < max(after[6:10]) + 30


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_endless_generator_of_large_items_is_pulled_with_a_bound(backend):
    """A million arrays of a megabyte are offered, a few hundred taken."""
    pulled = []

    def items():
        for number in range(1_000_000):
            pulled.append(number)
            yield np.full(131_072, number, dtype=np.float64)

    with open_executor(backend) as executor:
        results = executor.imap(lambda item: float(item.mean()), items())
        for taken, result in enumerate(itertools.islice(results, 300)):
            assert result == taken
            assert len(pulled) <= taken + 1 + 4 * executor.workers
            if taken == 100:
                before = memory_mb()
        assert memory_mb() < before + 50
        results.close()
