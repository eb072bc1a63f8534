"""The contract of all executors, on every backend: ambient state."""

import os
import random
import signal

import numpy as np
import pytest
import torch

from fedbench import aggregation
from fedbench.executors import make_executor
from fedbench.executors.resources import available_cpus

from .tasks import square


def ambient(item):
    tiny = 5e-324
    return (
        torch.is_grad_enabled(),
        str(torch.get_default_dtype()),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_inference_mode_enabled(),
        tiny * float(1 + 0 * item) == 0.0,
        float(torch.tensor(1e-310, dtype=torch.float64) * 1) == 0.0,
        torch.get_num_threads(),
    )


def test_the_ambient_state_of_the_caller_holds_in_the_tasks(executor):
    plain = (True, "torch.float32", "highest", False, False, False, False, False, 1)
    assert set(executor.map(ambient, range(6))) == {plain}
    try:
        torch.set_default_dtype(torch.float64)
        torch.set_float32_matmul_precision("high")
        torch.use_deterministic_algorithms(True)
        torch.set_flush_denormal(True)
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            found = set(executor.map(ambient, range(6)))
    finally:
        torch.set_flush_denormal(False)
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision("highest")
        torch.set_default_dtype(torch.float32)
    assert found == {(False, "torch.float64", "high", True, True, False, True, True, 1)}
    with torch.inference_mode():
        assert {values[5] for values in executor.map(ambient, range(6))} == {True}
    assert set(executor.map(ambient, range(6))) == {plain}


def test_the_default_device_of_the_caller_holds_in_the_tasks(executor):
    def task(broadcast, item):
        return torch.empty(2).device.type, float(broadcast[item]), broadcast.device.type

    try:
        torch.set_default_device("meta")
        weight = torch.arange(4.0, device="cpu")
        found = executor.map(task, range(3), broadcast=weight)
    finally:
        torch.set_default_device("cpu")
    assert found == [("meta", float(item), "cpu") for item in range(3)]
    assert executor.map(lambda item: torch.empty(2).device.type, [1]) == ["cpu"]


def parent_state():
    return (
        torch.get_num_threads(),
        torch.get_rng_state().tolist(),
        np.random.get_state()[1].tolist(),
        random.getstate(),
        signal.getsignal(signal.SIGINT),
        dict(os.environ),
    )


def test_the_state_of_the_parent_is_left_alone(backend, new_executor):
    before = parent_state()
    executor = new_executor(intraop_threads=1)
    executor.map(square, range(4))
    executor.close()
    assert parent_state() == before


def test_intraop_threads_are_set_in_tasks_only(new_executor):
    executor = new_executor(intraop_threads=2)
    here = torch.get_num_threads()
    seen = []
    inside = executor.map(
        lambda item: torch.get_num_threads(),
        range(4),
        on_result=lambda *_: seen.append(torch.get_num_threads()),
    )
    assert inside == [2] * 4
    assert seen == [here] * 4
    assert torch.get_num_threads() == here


def test_kernels_use_the_share_of_their_worker(backend, new_executor):
    executor = new_executor()
    here = aggregation.get_num_threads()
    share = min(here, 1 if backend == "ray" else max(1, available_cpus() // executor.workers))
    assert executor.map(lambda item: aggregation.get_num_threads(), range(4)) == [share] * 4
    assert aggregation.get_num_threads() == here


def test_more_workers_than_cores_have_one_thread_each(backend, new_executor):
    """Eight workers of two threads each on a small machine take longer than one worker."""
    if backend == "sequential":
        pytest.skip("sequential has one worker")
    if backend == "ray":
        pytest.skip("Ray starts no more workers than it has processors")
    many = new_executor(8)
    matrix = torch.rand(64, 64, generator=torch.Generator().manual_seed(0))
    task = lambda b, i: (torch.get_num_threads(), torch.matrix_power(b, i + 1))  # noqa: E731
    results = many.map(task, range(16), broadcast=matrix)
    assert [threads for threads, _ in results] == [1] * 16
    with make_executor("sequential") as one:
        expected = one.map(task, range(16), broadcast=matrix)
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(results, expected, strict=True))
