"""Inspecting many small arrays at once finds what inspecting each of them finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbench import aggregation
from fedbench._native import core
from fedbench.aggregation import _arrays
from fedbench.aggregation._arrays import Buffer, describe, describe_alike
from fedbench.aggregation._outputs import nbytes, refuse_overlap
from tests.aggregation.test_hostile_inputs import WITHOUT_MEMORY

SHAPES: list[tuple[int, ...]] = [(), (0,), (5,), (2, 3), (2, 0, 3), (1, 4)]
TORCH_DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.fixture(params=["exchange table", "python"])
def inspect(request, monkeypatch):
    if request.param == "exchange table" and _arrays.exchange_api() is None:
        pytest.skip("this torch has no __dlpack_c_exchange_api__ (2.10 and newer have)")
    if request.param == "python":
        monkeypatch.setattr(_arrays, "exchange_api", lambda: None)
    return describe_alike


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_tensors_are_found_as_they_are(inspect, shape, dtype) -> None:
    tensors = [torch.ones(shape, dtype=dtype) for _ in range(3)]
    alike = inspect(tensors)
    assert alike.first == describe(tensors[0], "x")
    assert alike.addresses == [tensor.data_ptr() for tensor in tensors]


def test_views_and_tensors_with_gradients_are_plain(inspect) -> None:
    base = torch.arange(12.0).reshape(4, 3)
    assert inspect([base[1], base[3]]).addresses == [base[1].data_ptr(), base[3].data_ptr()]
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    assert inspect(parameters).addresses == [p.data_ptr() for p in parameters]
    assert inspect([torch.ones(2, requires_grad=True) * 2]) is not None


@pytest.mark.parametrize("shape", [(0, 2), (2, 0, 3)])
def test_empty_tensors_are_plain_whatever_their_strides(inspect, shape) -> None:
    tensor = torch.from_numpy(np.ones(shape, np.float32))  # whose strides are 0
    assert inspect([tensor]).first == describe(tensor, "x")


@pytest.mark.parametrize("make", WITHOUT_MEMORY)
def test_tensors_without_memory_are_left_to_the_slow_way(inspect, make) -> None:
    assert inspect([make()]) is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: [torch.ones(2, 3).T],
        lambda: [torch.ones(4)[::2]],
        lambda: [torch._neg_view(torch.ones(2))],
        lambda: [torch.ones(2), torch.ones(3)],
        lambda: [torch.ones(2), torch.ones(2, 1)],
        lambda: [torch.ones(2), torch.ones(2).double()],
        lambda: [torch.ones(2), torch.nn.Parameter(torch.ones(2))],
        lambda: [torch.ones(2), np.ones(2, np.float32)],
        lambda: [torch.ones(2), None],
        lambda: [torch.ones(2, dtype=torch.int64)],
        lambda: [torch.ones(2, dtype=torch.complex64)],
        lambda: [torch.ones(2).to_sparse()],
        lambda: [torch.ones(2, device="meta")],
        lambda: [None],
        lambda: [np.ones(2), np.ones(3)],
        lambda: [np.ones(2), np.ones(2, np.float32)],
        lambda: [np.ones(2, np.int64)],
        lambda: [np.ones(2, np.complex64)],
        lambda: [np.ones(2, np.longdouble)],
        lambda: [np.ones(2, ">f4")],
        lambda: [np.ones((2, 3)).T],
        lambda: [np.frombuffer(b"\0" * 9, np.uint8)[1:].view(np.float32)],
        lambda: [np.ma.masked_array([1.0])],
        lambda: [np.ones(2), torch.ones(2).double()],
    ],
)
def test_everything_else_is_left_to_the_slow_way(inspect, make) -> None:
    assert inspect(make()) is None


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES)
def test_numpy_arrays_are_found_as_they_are(shape, dtype) -> None:
    arrays = [np.ones(shape, dtype) for _ in range(3)]
    arrays[1].flags.writeable = False
    alike = describe_alike(arrays)
    assert alike is not None
    assert alike.first[1:] == describe(arrays[0], "x")[1:]
    assert alike.addresses == [a.__array_interface__["data"][0] for a in arrays]


@pytest.mark.parametrize("copied", [False, True])
def test_results_do_not_depend_on_the_way_of_inspection(inspect, copied) -> None:
    rng = np.random.default_rng(0)
    rows = [torch.from_numpy(rng.standard_normal((6, 5)).astype(np.float32)) for _ in range(4)]
    expected = aggregation.mean([row.numpy() for row in rows], [1, 2, 3, 4])
    given = [row.T.contiguous().T if copied else row for row in rows]
    assert torch.equal(aggregation.mean(given, [1, 2, 3, 4]), torch.from_numpy(expected))


def test_the_exchange_table_must_be_a_capsule() -> None:
    with pytest.raises(TypeError):
        core.plain_torch_rows([torch.ones(2)], None)


def _buffer(base: np.ndarray[Any, Any], start: int, size: int) -> Buffer:
    return describe(base[start : start + size], "x")


@given(
    outs=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 8)), min_size=1, max_size=4),
    rows=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 8)), max_size=6),
)
def test_overlaps_are_found(outs: list[tuple[int, int]], rows: list[tuple[int, int]]) -> None:
    base = np.zeros(50, np.float32)
    targets = [(f"out[{i}]", _buffer(base, *span)) for i, span in enumerate(outs)]
    inputs = [_buffer(base, *span) for span in rows]
    bad = [
        i
        for i, (start, size) in enumerate(outs)
        if any(max(start, a) < min(start + size, a + n) for a, n in rows)
    ]
    handles, sizes = [b.handle for b in inputs], [nbytes(b) for b in inputs]
    if not bad:
        refuse_overlap(targets, handles, sizes, "the updates")
        return
    with pytest.raises(
        ValueError, match=rf"out\[{bad[0]}\] must not share memory with the updates"
    ):
        refuse_overlap(targets, handles, sizes, "the updates")
