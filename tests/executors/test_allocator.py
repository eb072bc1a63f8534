"""Freed memory is used again where client tasks run, instead of being mapped and zeroed anew."""

import os
import platform
import resource
import subprocess
import sys
import threading

import pytest
import torch

from fedbench.executors import allocator
from fedbench.executors.allocator import KeptMemory, _holders
from fedbench.executors.processes.memory import Arena
from fedbench.executors.processes.slots import SlotReader, SlotWriter

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc's allocator has these settings"
)

PAGE = resource.getpagesize()
BLOCK = 4 * 2**20
BLOCKS = 12


def new_pages(_):
    """Return how many pages were mapped in the last of some steps that use the same memory."""
    for _ in range(6):
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        blocks = [torch.ones(BLOCK // 4) for _ in range(BLOCKS)]
        found = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before
        del blocks
    return found


SOME = 4 * BLOCK // PAGE
"""Pages of some of the blocks: fewer than these mean that most were used again. (A thread's heaps
hold 64 MiB each, so that a block now and then starts a new one.)"""

PAGES = f"""
import sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
from fedbench.executors import make_executor
from test_allocator import new_pages
outside = new_pages(0)
with make_executor("sequential") as outer:
    with make_executor("threads", 1) as inner:
        both = [*outer.map(new_pages, [0]), *inner.map(new_pages, [0])]
    one = outer.map(new_pages, [0])
print(outside, *both, *one, new_pages(0))
"""
"""New pages outside of executors, in two of them, in the outer one alone, and outside again."""


RESULTS = """
import resource
from fedbench._native import core
from fedbench.executors import make_executor

def new_pages():
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        core.allocate(600 * 2**20)[::4096] = 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

outside = new_pages()
with make_executor("sequential"):
    inside = new_pages()
print(outside, inside, new_pages())
"""
"""New pages of a second block of results of 600 MiB outside of executors, inside, and outside."""


def printed_in_a_fresh_process(script, **variables):
    """Return the numbers that a script prints where nothing else set the allocator."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(word) for word in done.stdout.split()]


def test_the_caller_keeps_freed_memory_while_an_executor_is_open():
    _, outer, inner, alone, _ = printed_in_a_fresh_process(PAGES)
    assert max(outer, inner, alone) < SOME


def test_the_memory_of_results_is_kept_while_an_executor_is_open():
    if allocator._memory() < 8 * 601 * 2**20:
        pytest.skip("this machine has too little memory to keep 600 MiB of it")
    outside, inside, again = printed_in_a_fresh_process(RESULTS)
    assert min(outside, again) >= 300 > inside


def test_settings_of_the_environment_stand():
    _, *inside, _ = printed_in_a_fresh_process(
        PAGES, MALLOC_TRIM_THRESHOLD_="131072", MALLOC_TOP_PAD_="0"
    )
    assert min(inside) > SOME


def test_tasks_use_freed_memory_again(executor):
    if os.environ.keys() & {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "GLIBC_TUNABLES"}:
        pytest.skip("the environment sets the allocator itself")
    assert max(executor.map(new_pages, range(4))) < SOME


def test_the_last_of_several_holders_lets_go(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "fedbench.executors.allocator._set", lambda options, **given: seen.append(given)
    )
    monkeypatch.setattr(_holders, "count", 0)
    one, two = KeptMemory(), KeptMemory()
    for holder in (one, one, two):
        holder.hold()
    assert len(seen) == 1
    one.release()
    one.release()
    assert len(seen) == 1
    two.release()
    assert seen[1:] == [{"trim": True}]


def test_a_holder_that_is_dropped_lets_go(monkeypatch):
    monkeypatch.setattr("fedbench.executors.allocator._set", lambda options, **given: None)
    monkeypatch.setattr(_holders, "count", 0)
    holder = KeptMemory()
    holder.hold()
    assert _holders.count == 1
    del holder
    assert _holders.count == 0


def test_a_fork_while_another_thread_has_the_lock_does_not_hang_the_child():
    with _holders.lock:
        child = os.fork()
        if not child:
            # The lock of the parent counts as another thread's once it is a new one.
            taken = threading.Thread(target=KeptMemory().hold)
            taken.start()
            taken.join(20)
            os._exit(int(taken.is_alive()))
        _, status = os.waitpid(child, 0)
    assert status == 0


GIVEN_BACK = f"""
import sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
import psutil, torch
from fedbench.executors import make_executor
from test_allocator import BLOCK
def task(_):
    return len([torch.ones(BLOCK // 4) for _ in range(64)])
with make_executor("threads", 2) as executor:
    assert executor.map(task, range(4)) == [64] * 4
    held = psutil.Process().memory_info().rss
print((held - psutil.Process().memory_info().rss) // 2**20)
"""


def test_what_was_kept_is_given_back_at_the_end():
    (megabytes,) = printed_in_a_fresh_process(GIVEN_BACK)
    assert megabytes > 100


def fill(writer, reader, count, num_bytes):
    """Return views of `count` results of that size, all held at once."""
    payload = memoryview(bytearray(num_bytes))
    return [reader.view(writer.place([payload])) for _ in range(count)]


def test_a_round_uses_the_slots_of_the_last_one_again():
    arena = Arena()
    writer, reader = SlotWriter(arena), SlotReader(arena)
    first = fill(writer, reader, 20, 8 * 2**20)
    end = os.fstat(arena.fd).st_size
    del first
    writer.free(reader.take_released())
    second = fill(writer, reader, 20, 8 * 2**20)
    assert len(second) == 20
    assert os.fstat(arena.fd).st_size == end
    assert not writer.discarded


def test_slots_that_a_round_did_not_need_are_given_back_before_the_next():
    arena = Arena()
    writer, reader = SlotWriter(arena), SlotReader(arena)
    for count, discarded in [(7, 0), (5, 0), (5, 2), (0, 2), (5, 2), (1, 2), (1, 4)]:
        writer.begin_map()
        views = fill(writer, reader, count, 2**20)
        assert len(views) == count
        assert len(writer.discarded) == discarded
        del views
        writer.free(reader.take_released())


def test_free_slots_give_way_to_a_result_that_fits_none(monkeypatch):
    arena = Arena()
    writer, reader = SlotWriter(arena), SlotReader(arena)
    views = fill(writer, reader, 3, 2**20)
    del views
    writer.free(reader.take_released())
    allocate = arena.allocate

    def short_of_memory(num_bytes):
        if len(writer.discarded) < 3:
            raise OSError("no memory is left")
        return allocate(num_bytes)

    monkeypatch.setattr(arena, "allocate", short_of_memory)
    assert len(fill(writer, reader, 1, 16 * 2**20)) == 1
    assert sorted(writer.discarded) == [0, 1, 2]


def test_without_room_a_result_is_refused_with_the_reason(monkeypatch):
    arena = Arena()
    writer = SlotWriter(arena)

    def none(num_bytes):
        raise OSError("no memory is left")

    monkeypatch.setattr(arena, "allocate", none)
    assert writer.place([memoryview(bytearray(2**20))]) is None
    assert writer.refusal == "no memory is left"
