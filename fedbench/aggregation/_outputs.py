"""Where results are written: fresh memory, and the checks of arrays that callers give."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedbench._native import POOLED_BYTES, core
from fedbench.aggregation._arrays import (
    Buffer,
    address,
    describe,
    describe_alike,
    is_tensor,
    item_size,
    name_of,
)


def empty(kind: str, shape: tuple[int, ...], dtype: str) -> Any:
    """Return an uninitialised array of `kind` (``"numpy"`` or ``"torch"``)."""
    if kind == "numpy":
        item = np.dtype(dtype)
        size = math.prod(shape) * item.itemsize
        if size < POOLED_BYTES:
            return np.empty(shape, dtype=item)
        return _pooled(size, shape, dtype).view(item).reshape(shape)
    import torch

    torch_dtype = getattr(torch, dtype)
    size = math.prod(shape) * torch_dtype.itemsize
    if size < POOLED_BYTES:
        return torch.empty(shape, dtype=torch_dtype, device="cpu")
    return torch.from_numpy(_pooled(size, shape, dtype)).view(torch_dtype).reshape(shape)


def _pooled(size: int, shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    try:
        return core.allocate(size)
    except MemoryError as error:
        raise MemoryError(
            f"a result of shape {shape} and dtype {dtype} takes {size} bytes, more than there is "
            "memory. Pass a smaller size, or split the update."
        ) from error


def output_buffer(out: Any, kind: str, shape: tuple[int, ...], dtype: str, where: str) -> Buffer:
    """Check that `out` can receive a result of this kind and shape, and return its buffer."""
    alike = describe_alike([out])
    fits = alike is not None and alike.first[2:5] == (kind, dtype, shape)
    if alike is not None and fits and (kind == "torch" or out.flags.writeable):
        return alike.first
    if kind == "numpy":
        if not isinstance(out, np.ndarray):
            raise TypeError(f"{where} must be a numpy array like the updates, got {name_of(out)}.")
        if not (out.flags.writeable and out.flags.c_contiguous and out.flags.aligned):
            got = "a read-only one" if not out.flags.writeable else "a strided one"
            if out.flags.writeable and out.flags.c_contiguous:
                got = "an unaligned one"
            raise ValueError(
                f"{where} must be a writable, C-contiguous, aligned numpy array, got {got}. Pass a "
                "fresh one, for example from numpy.empty_like."
            )
    else:
        if not is_tensor(out):
            raise TypeError(f"{where} must be a torch tensor like the updates, got {name_of(out)}.")
        if not out.is_contiguous() or out.is_neg():
            raise ValueError(
                f"{where} must be a contiguous tensor without a negative bit, got strides "
                f"{out.stride()} for shape {tuple(out.shape)}. Pass a fresh one, for example from "
                "torch.empty."
            )
    buffer = describe(out, where)
    if buffer.copied:
        raise ValueError(f"{where} must have native byte order, got {out.dtype}.")
    if buffer.shape != shape:
        raise ValueError(f"{where} must have shape {shape}, got {buffer.shape}.")
    if buffer.dtype != dtype:
        raise TypeError(f"{where} must have dtype {dtype}, got {buffer.dtype}.")
    return buffer


def require_no_gradient(out: Any, where: str) -> None:
    """Refuse an output that autograd follows: torch cannot record what the kernels write."""
    if is_tensor(out) and out.requires_grad and sys.modules["torch"].is_grad_enabled():
        raise ValueError(
            f"{where} must not require gradients, got a tensor with requires_grad=True. "
            "Pass out.detach(), or call this under torch.no_grad()."
        )


def announce_writes(buffers: Iterable[Buffer]) -> None:
    """Let torch know that tensors are written: what autograd saved of them is stale then."""
    for buffer in buffers:
        if buffer.kind == "torch":
            announce_write(buffer.owner)


def announce_write(tensor: Any) -> None:
    """Let torch know that a tensor is written."""
    if not tensor.is_inference():
        sys.modules["torch"].autograd.graph.increment_version(tensor)


def require_disjoint(
    outs: Sequence[tuple[str, Buffer]], inputs: Iterable[Buffer], of: str = "the updates"
) -> None:
    """Refuse outputs, given with their names, whose memory overlaps an input's."""
    read = list(inputs)
    refuse_overlap(outs, [b.handle for b in read], [nbytes(b) for b in read], of)


def refuse_overlap(
    outs: Sequence[tuple[str, Buffer]], handles: list[Any], sizes: list[int], of: str
) -> None:
    """Refuse outputs that overlap inputs: equally many handles for each of `sizes` in bytes."""
    at = core.first_overlap(
        [b.handle for _, b in outs], [nbytes(b) for _, b in outs], handles, sizes
    )
    if at is not None:
        raise ValueError(f"{outs[at][0]} must not share memory with {of}. Pass another buffer.")


def require_apart(outs: Iterable[tuple[str, Buffer]]) -> None:
    """Refuse outputs, given with their names, that share memory with each other."""
    spans = sorted((*extent(buffer), where) for where, buffer in outs if buffer.size)
    for (_, stop, one), (start, _, another) in itertools.pairwise(spans):
        if start < stop:
            first, second = sorted((one, another))
            raise ValueError(
                f"{first} and {second} must not share memory, or one result overwrites the other. "
                "Pass arrays of their own."
            )


def extent(buffer: Buffer) -> tuple[int, int]:
    """Return the first address of a buffer and the first one after it."""
    start = address(buffer)
    return start, start + nbytes(buffer)


def nbytes(buffer: Buffer) -> int:
    """Return the bytes of a buffer's elements."""
    return buffer.size * item_size(buffer.dtype)
