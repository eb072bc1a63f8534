"""Passes over flat vectors that are larger than the caches.

A model of tens of megabytes is read and written whole a few times per client; on small local work
that is a fifth of the time. The extension writes past the caches, torch does not, and the results
lie in memory that was mapped before.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedbench._native import core
from fedbench.aggregation._outputs import announce_write
from fedbench.executors import empty_result

__all__ = ["add_vectors", "copy_vector", "empty_vector_like", "subtract_vectors"]

_LARGE_BYTES = 8 * 2**20
_FLOATS = (torch.float32, torch.float64)


def empty_vector_like(vector: Tensor) -> Tensor:
    """Return a flat vector without values for the result of a client task."""
    if not vector.is_cpu:
        return torch.empty_like(vector)
    return empty_result(vector.shape, vector.dtype)


def add_vectors(a: Tensor, b: Tensor) -> Tensor:
    """Return ``a + b``, a new flat vector."""
    if _is_large(a) and a.dtype == b.dtype and _is_plain(a) and _is_plain(b):
        return torch.add(a, b, out=empty_vector_like(a))
    return a + b


def copy_vector(to: Tensor, source: Tensor) -> None:
    """Copy a flat vector into another of its shape and dtype; they share no memory."""
    if _is_large(to) and _is_plain(to) and _is_plain(source) and to.dtype == source.dtype:
        core.copy(_bytes(to), _bytes(source))
        announce_write(to)
    else:
        to.copy_(source)


def subtract_vectors(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """Write ``a - b`` to `out`, which shares no memory with them, and return it."""
    alike = a.dtype == b.dtype == out.dtype and out.dtype in _FLOATS
    if _is_large(out) and alike and all(map(_is_plain, (a, b, out))):
        core.subtract(out.numpy(), a.numpy(), b.numpy())
        announce_write(out)
        return out
    return torch.sub(a, b, out=out)


def _is_large(vector: Tensor) -> bool:
    return vector.numel() * vector.itemsize >= _LARGE_BYTES


def _is_plain(vector: Tensor) -> bool:
    return (
        type(vector) is Tensor
        and vector.is_cpu
        and vector.is_contiguous()
        and not vector.requires_grad
        and not vector.is_neg()
    )


def _bytes(vector: Tensor) -> memoryview:
    return vector.view(torch.uint8).numpy().data
