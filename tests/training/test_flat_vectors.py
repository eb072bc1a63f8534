"""Passes over large flat vectors give torch's bits."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbench import aggregation
from fedbench._native import core
from fedbench.training import copy_vector, subtract_vectors

LARGE = 8 * 2**20


@pytest.fixture(autouse=True, scope="module")
def several_threads():
    """Split every large vector, also on a machine with one processor."""
    before = aggregation.get_num_threads()
    aggregation.set_num_threads(3)
    yield
    aggregation.set_num_threads(before)


DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64]
SPECIAL = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-45, -1e-40, 3e38, -3e38]


def vector(num_bytes, dtype, shift=0, seed=0):
    """Return a vector of random numbers and special ones that begins `shift` elements in."""
    count = num_bytes // dtype.itemsize
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(count + shift, generator=generator)
    where = torch.randint(count + shift, (1000,), generator=generator)
    values[where] = torch.tensor(SPECIAL).repeat(112)[:1000]
    if not dtype.is_floating_point:
        values = values.nan_to_num(0, 9, -9)
    return values.to(dtype)[shift:]


def bits(tensor):
    return tensor.contiguous().view(torch.uint8)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_bytes", [0, 640, LARGE - 64, LARGE, LARGE + 4096 + 24])
def test_copies_are_exact(dtype, num_bytes):
    source = vector(num_bytes, dtype, shift=1)
    to = torch.zeros_like(source)
    version = to._version
    copy_vector(to, source)
    assert torch.equal(bits(to), bits(source))
    assert to._version > version


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_bytes", [0, 640, LARGE - 64, LARGE, LARGE + 4096 + 24])
def test_differences_are_those_of_torch(dtype, num_bytes):
    a, b = vector(num_bytes, dtype, 1, seed=1), vector(num_bytes, dtype, 2, seed=2)
    out = torch.empty_like(a)
    version = out._version
    assert subtract_vectors(a, b, out) is out
    expected = a - b
    assert torch.equal(torch.isnan(out), torch.isnan(expected))
    number = ~torch.isnan(out)
    assert torch.equal(bits(out[number]), bits(expected[number]))
    assert out._version > version


@given(
    count=st.integers(0, 20_000),
    shifts=st.tuples(*[st.integers(0, 20)] * 3),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_the_kernels_keep_to_their_vectors(count, shifts, dtype):
    a, b, room = (torch.randn(count + shift + 20, dtype=dtype) for shift in shifts)
    kept = room.clone()
    out = room[shifts[2] : shifts[2] + count]
    left, right = a[shifts[0] :][:count], b[shifts[1] :][:count]
    core.subtract(out.numpy(), left.numpy(), right.numpy())
    kept[shifts[2] : shifts[2] + count] = left - right
    assert torch.equal(room, kept)


def test_subnormal_numbers_follow_the_calling_thread():
    a = torch.full((LARGE // 4,), 1.5e-38)
    b = torch.full_like(a, 1.4e-38)
    assert subtract_vectors(a, b, torch.empty_like(a)).ne(0).all()
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers to zero")
    try:
        flushed = subtract_vectors(a, b, torch.empty_like(a))
    finally:
        torch.set_flush_denormal(False)
    assert flushed.eq(0).all()


def test_what_the_kernels_cannot_read_is_left_to_torch():
    a = torch.randn(LARGE // 2)[::2]
    b = torch.randn(LARGE // 4)
    out = torch.empty_like(b)
    assert torch.equal(subtract_vectors(a, b, out), a - b)
    copy_vector(out, a)
    assert torch.equal(out, a)
    negative = torch._neg_view(b)
    assert torch.equal(subtract_vectors(negative, b, out), -2 * b)
    copy_vector(out, negative)
    assert torch.equal(out, -b)
    wide = torch.empty(LARGE // 4, dtype=torch.float64)
    copy_vector(wide, b)
    assert torch.equal(wide, b.double())


def test_vectors_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="to, a and b must be of one size, got 3, 4 and 3"):
        core.subtract(*(torch.zeros(n).numpy() for n in (3, 4, 3)))
    askew = np.zeros(13, np.uint8)[1:].view(np.float32)
    with pytest.raises(ValueError, match="to, a and b must be aligned to their elements"):
        core.subtract(np.zeros(3, np.float32), askew, np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="both buffers must have as many bytes, got 12 and 16"):
        core.copy(torch.zeros(3).numpy(), torch.zeros(4).numpy())
    with pytest.raises(ValueError, match="both buffers must be C-contiguous"):
        core.copy(torch.zeros(4).numpy(), torch.zeros(8).numpy()[::2])
