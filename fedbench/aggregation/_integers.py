"""What becomes of integer and bool entries, which no float average may touch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedbench.aggregation._arrays import Buffer, describe, is_tensor
from fedbench.errors import LayoutError

INTEGER_POLICIES = ("max", "sum", "server")


def require_policy(integers: object) -> None:
    """Check the name of a policy for integer and bool entries."""
    if integers not in INTEGER_POLICIES:
        raise ValueError(
            f"integers must be one of {', '.join(map(repr, INTEGER_POLICIES))}, got {integers!r}."
        )


def combine(buffers: Sequence[Buffer], policy: str, where: str) -> Any:
    """Return the largest value, lower median or sum per coordinate, in the buffers' dtype."""
    arrays = [_as_numpy(buffer) for buffer in buffers]
    if policy == "max":
        result = np.maximum.reduce(arrays)
    elif policy == "median":
        result = np.sort(np.stack(arrays), axis=0)[(len(arrays) - 1) // 2]
    elif buffers[0].dtype == "bool":
        result = np.logical_or.reduce(arrays)
    else:
        result = _checked_sum(arrays, where)
    return _like(np.asarray(result, dtype=arrays[0].dtype), buffers[0])


def from_server(server: Any, name: str, like: Buffer) -> Any:
    """Return a copy of the server's entry."""
    if not isinstance(server, Mapping):
        raise TypeError(
            "server must be the server's state, a mapping of names to arrays, when "
            f"integers='server', got {type(server).__name__}."
        )
    if name not in server:
        raise LayoutError(f"server must have the entry {name!r} of the updates; it is missing.")
    buffer = describe(server[name], f"server[{name!r}]", remote=True)
    if buffer.shape != like.shape or buffer.dtype != like.dtype:
        raise LayoutError(
            f"server[{name!r}] must be {like.dtype} of shape {like.shape} like the updates', got "
            f"{buffer.dtype} of shape {buffer.shape}."
        )
    return _like(_as_numpy(buffer).copy(), like)


def store(value: Any, out: Any) -> None:
    """Copy a combined entry into the caller's array, which is like it."""
    if is_tensor(out):
        out.copy_(value)
    else:
        out[...] = value


def _as_numpy(buffer: Buffer) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = buffer.owner
    return array if buffer.kind == "numpy" else buffer.owner.numpy()


def _like(array: np.ndarray[Any, Any], buffer: Buffer) -> Any:
    if buffer.kind == "numpy":
        return array
    import torch

    return torch.from_numpy(array)


def _checked_sum(arrays: list[np.ndarray[Any, Any]], where: str) -> np.ndarray[Any, Any]:
    limits = np.iinfo(arrays[0].dtype)
    if arrays[0].size == 0:
        return arrays[0].copy()
    # Exact bounds first: only sums that might not fit pay for Python integers.
    lowest = sum(int(array.min()) for array in arrays)
    highest = sum(int(array.max()) for array in arrays)
    if limits.min <= lowest and highest <= limits.max:
        total = arrays[0].copy()
        for array in arrays[1:]:
            total += array
        return total
    exact = np.asarray(np.add.reduce([array.astype(object) for array in arrays]), dtype=object)
    if min(exact.flat) < limits.min or max(exact.flat) > limits.max:
        raise OverflowError(
            f"the sum of {where} over the clients must fit {limits.dtype}, got values from "
            f"{min(exact.flat)} to {max(exact.flat)}. Use integers='max', or a wider dtype."
        )
    return exact.astype(limits.dtype)
