"""What sparse and quantised updates share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fedbench.aggregation._arrays import FLOATING, Buffer, bytes_remedy, describe
from fedbench.aggregation._outputs import announce_writes, empty, output_buffer, require_no_gradient


def rows_of(updates: Any, kind: type) -> list[Any]:
    """Return compressed updates, which may come from a generator, as a list."""
    if not isinstance(updates, Iterable):
        raise TypeError(
            f"updates must be a sequence of {kind.__name__}, got {type(updates).__name__}. "
            "Pass [update_0, update_1, ...]."
        )
    return list(updates)


def floats(value: Any, where: str) -> Buffer:
    """Return `value` as a buffer of floats, without its gradient history."""
    buffer = describe(value, where)
    if buffer.dtype not in FLOATING:
        raise TypeError(
            f"{where} must have a floating dtype, got {buffer.dtype}.{bytes_remedy(buffer.dtype)}"
        )
    return buffer._replace(owner=buffer.owner.detach()) if buffer.kind == "torch" else buffer


def result_buffer(out: Any, kind: str, shape: tuple[int, ...], dtype: str) -> Buffer:
    """Return the buffer of `out`, checked, or of fresh memory."""
    if out is None:
        return describe(empty(kind, shape, dtype), "out")
    require_no_gradient(out, "out")
    buffer = output_buffer(out, kind, shape, dtype, "out")
    announce_writes([buffer])
    return buffer
