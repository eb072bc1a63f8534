"""Transport and isolation keep values, dtypes, layouts and ties, and align all memory."""

import dataclasses
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbench.executors.guard import Guarded, aligned_bytes, isolate, named_arrays
from fedbench.executors.packing import pack, unpack
from fedbench.executors.processes.memory import lay_out
from fedbench.executors.processes.protocol import Parcel, frame, split, split_among

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.int64,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
]


def move(value):
    """Pack, move the buffers to aligned memory as a transport does, and unpack."""
    payload, buffers = pack(value)
    blob = aligned_bytes(lay_out([buffer.nbytes for buffer in buffers])[1])
    moved = split(blob, [buffer.nbytes for buffer in buffers])
    for target, source in zip(moved, buffers, strict=True):
        target[:] = source
    return unpack(payload, moved)


WAYS = [pytest.param(move, id="transport"), pytest.param(isolate, id="isolate")]


@st.composite
def tensors(draw):
    """Tensors of any kind, shape and layout: views, gaps, permutations, offsets."""
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    dtype = draw(st.sampled_from(DTYPES))
    numbers = torch.arange(1 + 7 * int(np.prod([size + 2 for size in shape])))
    base = (numbers % 97).to(dtype)[draw(st.integers(0, 1)) :]
    tensor = base[: int(np.prod(shape))].reshape(shape)
    if draw(st.booleans()) and shape:
        tensor = tensor.permute(draw(st.permutations(range(len(shape)))))
    for dim, size in enumerate(tensor.shape):
        step = draw(st.integers(1, 2))
        start = draw(st.integers(0, max(0, size - 1)))
        tensor = tensor[(slice(None),) * dim + (slice(start, None, step),)]
    if draw(st.booleans()) and tensor.is_floating_point() and dtype.itemsize > 1:
        tensor = tensor.detach().requires_grad_()
    return tensor


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=150)
@given(tensor=tensors())
def test_any_tensor_arrives_as_it_was(way, tensor):
    arrived = way({"t": tensor})["t"]
    assert arrived.dtype == tensor.dtype
    assert arrived.shape == tensor.shape
    assert arrived.requires_grad == tensor.requires_grad
    assert bytes_of(arrived) == bytes_of(tensor)
    if arrived.numel():
        assert arrived.data_ptr() % 64 == 0
        assert arrived.data_ptr() != tensor.data_ptr()
        # Both ways must lay tensors out alike, or results would differ between backends.
        assert arrived.stride() == isolate(tensor).stride()
        assert not arrived._is_view()


def bytes_of(tensor):
    plain = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())
    return plain.reshape(-1).view(torch.uint8).tolist() if plain.numel() else []


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=50)
@given(
    shape=st.lists(st.integers(0, 4), max_size=3),
    dtype=st.sampled_from(["<f4", "<f8", ">i4", "u1", "?", "<c8", "<U3", "<M8[s]", "i2,f8"]),
    fortran=st.booleans(),
)
def test_any_array_arrives_as_it_was(way, shape, dtype, fortran):
    array = np.zeros(shape, dtype=dtype, order="F" if fortran else "C")
    if dtype in {"<f4", "<f8", ">i4", "u1"}:
        array[...] = np.arange(array.size).reshape(shape)
    arrived = way([array])[0]
    assert (arrived.dtype, arrived.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(arrived, array)
    if arrived.size and array.dtype.kind in "fiubc":
        assert arrived.ctypes.data % 64 == 0
        assert arrived.flags.c_contiguous == array.flags.c_contiguous
        assert arrived.flags.f_contiguous == array.flags.f_contiguous


@pytest.mark.parametrize("way", WAYS)
def test_conjugate_and_negative_views_arrive(way):
    tensor = torch.tensor([1 + 2j, 3 - 1j])
    for lazy in (tensor.conj(), tensor.conj().imag):
        arrived = way(lazy)
        assert torch.equal(arrived, lazy)
        assert torch.equal(arrived + 0, lazy + 0)


@pytest.mark.parametrize("way", WAYS)
def test_ties_are_kept_and_overlaps_are_not(way):
    tensor = torch.arange(6.0)
    value = {
        "a": tensor,
        "b": tensor,
        "c": tensor.view(6),
        "part": tensor[1:],
    }
    arrived = way(value)
    assert arrived["a"] is arrived["b"]
    assert arrived["a"].data_ptr() == arrived["c"].data_ptr()
    arrived["a"].zero_()
    assert arrived["part"].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert tensor.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize("way", WAYS)
def test_modules_and_parameters_arrive(way):
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    arrived = way(model)
    for name, value in model.state_dict().items():
        assert torch.equal(arrived.state_dict()[name], value)
    assert all(parameter.requires_grad for parameter in arrived.parameters())
    assert type(arrived[0].weight) is torch.nn.Parameter


@pytest.mark.parametrize("way", WAYS)
def test_sparse_tensors_arrive(way):
    sparse = torch.eye(3).to_sparse()
    assert torch.equal(way(sparse).to_dense(), torch.eye(3))


def test_isolation_copies_containers_and_passes_what_cannot_be_pickled():
    lock = threading.Lock()
    value = {"list": [1, {2}], "lock": lock, "tuple": (1, 2)}
    copied = isolate(value)
    copied["list"][1].add(3)
    copied["list"].append(4)
    assert value["list"] == [1, {2}]
    assert copied["lock"] is lock


def test_every_tensor_of_a_nested_value_has_a_name():
    @dataclasses.dataclass
    class Box:
        inner: object

    value = {"a": [torch.ones(1), Box((np.ones(1),))], "m": torch.nn.Linear(1, 1)}
    assert [name for name, _ in named_arrays(value)] == [
        "broadcast['a'][0]",
        "broadcast['a'][1].inner[0]",
        "broadcast['m'].weight",
        "broadcast['m'].bias",
    ]


def test_many_written_entries_are_listed_briefly():
    guarded = Guarded({number: torch.zeros(1) for number in range(9)})
    for tensor in guarded.value.values():
        tensor.add_(1)
    assert str(guarded.violation()).count("broadcast[") == 5
    assert "and 4 more" in str(guarded.violation())


@settings(max_examples=100)
@given(
    sizes=st.lists(st.lists(st.integers(0, 200), max_size=3), max_size=4),
    in_slot=st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_frames_are_cut_where_they_were_joined(sizes, in_slot):
    parcels = [
        Parcel(None, b"", own, (0, 0, 0) if slot else None)
        for own, slot in zip(sizes, in_slot, strict=False)
    ]
    inline = [
        [bytes([place + 1]) * size for place, size in enumerate(parcel.sizes)]
        for parcel in parcels
        if not parcel.slot
    ]
    joined = b"".join(frame(("head",), [memoryview(one) for own in inline for one in own])[1:])
    found = [
        [bytes(buffer) for buffer in own]
        for own, parcel in zip(split_among(parcels, memoryview(joined)), parcels, strict=True)
        if not parcel.slot
    ]
    if joined:
        assert found == inline


def test_empty_buffers_that_travel_alone_arrive():
    parcels = [Parcel(None, b"", [0, 0]), Parcel(None, b"", []), Parcel(None, b"", [0])]
    found = list(split_among(parcels, memoryview(b"")))
    assert [[bytes(buffer) for buffer in own] for own in found] == [[b"", b""], [], [b""]]
