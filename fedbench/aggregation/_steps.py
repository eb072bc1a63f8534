"""Arguments of the fused steps: vectors alike, apart in memory, written in place."""

from __future__ import annotations

from typing import Any

from fedbench._native import core
from fedbench.aggregation._arrays import (
    Buffer,
    describe,
    is_tensor,
    output_buffer,
    require_disjoint,
)

KERNELS = {
    "float32": (core.sgd_step_float32, core.fedavgm_step_float32, core.adaptive_step_float32),
    "float64": (core.sgd_step_float64, core.fedavgm_step_float64, core.adaptive_step_float64),
}


def target(parameters: Any) -> Buffer:
    """Return the buffer of the parameters, which are updated in place."""
    given = describe(parameters, "parameters")
    if given.dtype not in KERNELS:
        raise TypeError(f"parameters must be float32 or float64, got {given.dtype}.")
    return output_buffer(parameters, given.kind, given.shape, given.dtype, "parameters")


def like(value: Any, parameters: Buffer, name: str, written: bool) -> Buffer:
    """Return the buffer of a vector that fits the parameters."""
    if written:
        return output_buffer(value, parameters.kind, parameters.shape, parameters.dtype, name)
    buffer = describe(value, name)
    for attribute in ("kind", "dtype", "shape"):
        got, expected = getattr(buffer, attribute), getattr(parameters, attribute)
        if got != expected:
            error = ValueError if attribute == "shape" else TypeError
            raise error(f"{name} must have {attribute} {expected} like parameters, got {got}.")
    return buffer


def separate(written: list[tuple[str, Buffer]], read: list[Buffer]) -> None:
    """Refuse vectors that share memory with one that is written."""
    for position, (name, buffer) in enumerate(written):
        others = [other for _, other in written[:position]]
        require_disjoint([(name, buffer)], [*others, *read], "the other vectors")


def mark_written(written: list[tuple[str, Buffer]]) -> None:
    """Let torch see the writes: an empty in-place operation advances a tensor's version."""
    for _, buffer in written:
        if is_tensor(buffer.owner) and buffer.size:
            buffer.owner.detach().reshape(-1)[:0].zero_()
