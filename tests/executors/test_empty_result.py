"""Results that a task makes in the memory through which they travel."""

import os
import threading

import numpy as np
import pytest
import torch

from fedbench.executors import empty_result
from fedbench.executors.packing import pack, unpack
from fedbench.executors.processes.memory import Arena
from fedbench.executors.processes.protocol import split
from fedbench.executors.processes.slots import SlotReader, SlotWriter

SIZE = 2**19  # float32 numbers: 2 MiB

kept = []


def plus(broadcast, item):
    return torch.add(broadcast, item, out=empty_result(broadcast.shape))


def among_others(broadcast, item):
    return {
        "before": torch.full((5,), float(item)),
        "large": plus(broadcast, item),
        "behind": np.arange(3) + item,
        "word": "x" * item,
    }


def kept_and_written_to(broadcast, item):
    kept.append(plus(broadcast, item))
    for old in kept[:-1]:
        old.fill_(-1.0)
    return kept[-1]


def a_part(broadcast, item):
    return plus(broadcast, item)[1:-1]


def cut_up(broadcast, item):
    result = plus(broadcast, item)
    head, tail = result.split([len(result) - 1000, 1000])
    return {"head": head, "other": torch.full((2000,), float(item)), "tail": tail}


def head_then_whole(broadcast, item):
    if item:
        return kept[-1]
    kept.append(plus(broadcast, 1))
    return kept[-1][:-1000], torch.full((2000,), 7.0)


def the_same_twice(broadcast, item):
    result = plus(broadcast, item)
    return [result, result, result.numpy()]


def two(broadcast, item):
    return plus(broadcast, item), plus(broadcast, 2 * item)


def from_other_threads(broadcast, item):
    results = []
    thread = threading.Thread(target=lambda: results.append(plus(broadcast, item)))
    thread.start()
    thread.join()
    return results[0]


def after_a_fork(broadcast, item):
    pid = os.fork()
    if pid == 0:
        plus(broadcast, 7).fill_(7.0)
        os._exit(0)
    result = plus(broadcast, item)
    assert os.waitpid(pid, 0)[1] == 0
    return result


@pytest.fixture
def model():
    return torch.arange(SIZE, dtype=torch.float32)


@pytest.mark.parametrize("task", [plus, from_other_threads, kept_and_written_to])
def test_a_result_is_what_the_task_wrote_and_stays_so(executor, model, task):
    """Also when it is kept while many more are made, here and where the task ran."""
    held = executor.map(task, range(3), broadcast=model)
    want = [model + item for item in range(3)]
    if task is kept_and_written_to and executor.backend in ("sequential", "threads"):
        want = held  # there the task and the caller hold one object
    for _ in range(4):
        executor.map(plus, range(3), broadcast=model)
    assert all(map(torch.equal, held, want))


@pytest.mark.parametrize("item", [3, 100_000], ids=["small", "large"])
def test_what_else_is_in_the_result_travels_too(executor, model, item):
    for _ in range(3):
        (found,) = executor.map(among_others, [item], broadcast=model)
        assert torch.equal(found["before"], torch.full((5,), float(item)))
        assert torch.equal(found["large"], model + item)
        assert np.array_equal(found["behind"], np.arange(3) + item)
        assert found["word"] == "x" * item


def test_parts_pairs_and_ties(executor, model):
    (part,) = executor.map(a_part, [1], broadcast=model)
    assert torch.equal(part, (model + 1)[1:-1])
    for tied in executor.map(the_same_twice, range(3), broadcast=model):
        assert tied[0].data_ptr() == tied[1].data_ptr()
        assert np.array_equal(tied[0].numpy(), tied[2])
    for item, (one, other) in enumerate(executor.map(two, range(3), broadcast=model)):
        assert torch.equal(one, model + item)
        assert torch.equal(other, model + 2 * item)


def test_parts_of_one_tensor_with_others_between_them(executor, model):
    for item, found in enumerate(executor.map(cut_up, range(3), broadcast=model)):
        assert torch.equal(found["head"], (model + item)[:-1000])
        assert torch.equal(found["other"], torch.full((2000,), float(item)))
        assert torch.equal(found["tail"], (model + item)[-1000:])


def test_the_rest_of_a_tensor_that_a_task_keeps_is_not_written_to(processes, model):
    head, whole = processes(1).map(head_then_whole, range(2), broadcast=model)
    assert torch.equal(head[0], (model + 1)[:-1000])
    assert torch.equal(whole, model + 1)


def test_a_process_that_the_task_forks_is_lent_nothing(processes, model):
    executor = processes(1)
    for item, found in enumerate(executor.map(after_a_fork, range(3), broadcast=model)):
        assert torch.equal(found, model + item)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32, torch.bool])
def test_every_dtype_and_shape(processes, dtype):
    executor = processes(1)
    shape = (3, 2**20)
    task = lambda _: empty_result(shape, dtype).fill_(1)  # noqa: E731
    (found,) = executor.map(task, [0])
    assert found.dtype == dtype
    assert torch.equal(found, torch.ones(shape, dtype=dtype))


@pytest.mark.parametrize("shape", [0, 7, (), (2, 0), [2, 3], torch.Size([4]), (2**18, 2)])
def test_outside_of_workers_it_is_an_empty_tensor(shape):
    result = empty_result(shape, torch.float64)
    assert result.shape == torch.empty(shape).shape
    assert result.dtype == torch.float64
    assert result.device.type == "cpu"


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ((2.5,), TypeError, "shape must be an integer or a sequence of integers, got 2.5"),
        (("ab",), TypeError, "shape must be an integer or a sequence of integers, got 'ab'"),
        (((2, -1),), ValueError, r"shape must have no negative entry, got \(2, -1\)"),
        ((2, "float32"), TypeError, "dtype must be a torch.dtype such as torch.float32, got 'fl"),
    ],
)
def test_wrong_arguments_are_named(arguments, kind, words):
    with pytest.raises(kind, match=words):
        empty_result(*arguments)


# -- slots ---------------------------------------------------------------------------------------


def tensor_in(memory):
    return torch.frombuffer(memory, dtype=torch.float32)


def send(writer, reader, holder):
    """Move the value that `holder` alone holds, and return its slot and what arrives."""
    payload, buffers = pack(holder.pop())
    sizes = [buffer.nbytes for buffer in buffers]
    slot = writer.place(buffers)
    return slot, unpack(payload, split(reader.view(slot), sizes))


@pytest.fixture
def slots():
    arena = Arena()
    yield SlotWriter(arena), SlotReader(arena)
    arena.close()


def test_a_lent_slot_is_handed_over_without_a_copy(slots, model):
    writer, reader = slots
    for _ in range(5):
        holder = [tensor_in(writer.lend(4 * SIZE)).copy_(model)]
        slot, found = send(writer, reader, holder)
        assert slot.number == 0
        assert torch.equal(found, model)
        del found
        writer.free(reader.take_released())


def test_a_slot_that_is_looked_at_in_the_worker_is_copied(slots, model):
    writer, reader = slots
    looked_at = tensor_in(writer.lend(4 * SIZE)).copy_(model)
    slot, found = send(writer, reader, [looked_at])
    looked_at.fill_(0.0)
    assert slot.number == 1
    assert torch.equal(found, model)
    # Once nothing else looks at it, it goes as it is.
    holder = [looked_at]
    del looked_at
    slot, found = send(writer, reader, holder)
    assert slot.number == 0
    assert torch.equal(found, torch.zeros(SIZE))


def test_a_slot_that_is_let_go_while_it_is_copied_is_not_the_copy(slots, model, monkeypatch):
    """The garbage collector and other threads drop tensors at any time."""
    writer, reader = slots
    looked_at = [tensor_in(writer.lend(4 * SIZE)).copy_(model)]
    take = writer._take

    def let_go(length):
        looked_at.clear()
        return take(length)

    monkeypatch.setattr(writer, "_take", let_go)
    slot, found = send(writer, reader, [looked_at[0]])
    assert slot.number == 1
    assert torch.equal(found, model)


def test_what_fits_around_a_lent_tensor_goes_with_it(slots, model):
    writer, reader = slots
    for count, number in [(1, 0), (16_000, 0), (17_000, 1)]:
        small = torch.arange(count, dtype=torch.float32)
        holder = [(small, tensor_in(writer.lend(4 * SIZE)).copy_(model), small + 1)]
        slot, found = send(writer, reader, holder)
        assert slot.number == number
        assert all(map(torch.equal, found, (small, model, small + 1)))
        del found
        writer.free(reader.take_released())


def test_a_slot_that_was_lent_for_nothing_is_lent_again(slots):
    writer, _ = slots
    addresses = set()
    for _ in range(5):
        memory = writer.lend(4 * SIZE)
        addresses.add(tensor_in(memory).data_ptr())
        del memory
        writer.begin_map()
    assert len(addresses) == 1
    assert not writer.discarded


def test_nothing_is_lent_where_there_is_no_memory(slots, monkeypatch):
    writer, _ = slots

    def none(num_bytes):
        raise OSError("no memory is left")

    monkeypatch.setattr(writer._arena, "allocate", none)
    assert writer.lend(2**20) is None
    assert writer.refusal == ""
