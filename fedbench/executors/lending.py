"""Memory for large results, lent to tasks by a backend that can pass it on without a copy."""

from __future__ import annotations

import math
import operator
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["empty_result", "lend_memory"]

Lender = Callable[[int], memoryview | None]


class _Lending:
    lender: Lender | None = None
    borrower = 0
    """The thread that runs the tasks, the only one that is served."""


def lend_memory(lender: Lender) -> None:
    """Have `lender` provide the memory of large results in this thread of this process.

    Parameters
    ----------
    lender : callable
        Given a number of bytes, returns as many at a multiple of 64 bytes, which nothing else
        uses as long as anything looks at them, or None if it has none to spare.
    """
    _Lending.lender, _Lending.borrower = lender, threading.get_ident()


def _forget_lender() -> None:
    _Lending.lender = None  # a process that a task forks must not take what the worker owns


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lender)


def empty_result(shape: int | Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return an uninitialised CPU tensor to be filled and returned by a client task.

    In a worker of the backend ``processes``, a tensor of a mebibyte or more is made in the shared
    memory through which results travel. A task that returns it, alone or inside of other objects,
    and keeps nothing that looks at it saves the copy of a result into that memory; of several in
    one result, the largest. One that is kept, or not returned as a whole, is copied as any other
    result. Everywhere else, in threads that a task started, and if there is no such memory, this is
    :func:`torch.empty`, from 2 mebibytes on with memory that is used again.

    Parameters
    ----------
    shape : int or sequence of int
        Of the tensor.
    dtype : torch.dtype, optional
        Of the tensor, by default ``torch.float32``.

    Returns
    -------
    torch.Tensor
        Contiguous, at a multiple of 64 bytes. It cannot be resized to more elements.

    Raises
    ------
    TypeError
        If `shape` holds anything but integers or `dtype` is none of torch's.
    ValueError
        If `shape` has a negative entry.
    MemoryError
        If there is too little memory.

    Examples
    --------
    >>> import torch
    >>> def task(model, client):
    ...     return torch.add(model, client, out=empty_result(model.shape))
    >>> task(torch.zeros(2), 1.5)
    tensor([1.5000, 1.5000])
    """
    # Here, because whoever imports the executors may never need torch, which takes a second.
    import torch

    from fedbench.executors.guard import empty_tensor

    size = _check_shape(shape)
    dtype = torch.float32 if dtype is None else dtype
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype must be a torch.dtype such as torch.float32, got {dtype!r}.")
    memory = _lent(math.prod(size) * dtype.itemsize)
    if memory is None:
        return empty_tensor(size, dtype)
    return torch.frombuffer(memory, dtype=dtype).resize_(size)


def _lent(num_bytes: int) -> memoryview | None:
    lender = _Lending.lender
    if lender is None or threading.get_ident() != _Lending.borrower:
        return None
    return lender(num_bytes)


def _check_shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    try:
        entries = shape if isinstance(shape, Sequence) else (shape,)
        size = tuple(operator.index(entry) for entry in entries)
    except TypeError:
        raise TypeError(
            f"shape must be an integer or a sequence of integers, got {shape!r}."
        ) from None
    if min(size, default=0) < 0:
        raise ValueError(f"shape must have no negative entry, got {shape!r}.")
    return size
