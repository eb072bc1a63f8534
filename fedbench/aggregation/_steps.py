"""Arguments of the fused steps: coefficients in range; vectors alike, apart, written in place."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedbench._native import core
from fedbench.aggregation._arrays import Buffer, describe, is_array, is_tensor, name_of
from fedbench.aggregation._outputs import output_buffer, require_disjoint

KERNELS = {
    "float32": (core.sgd_step_float32, core.fedavgm_step_float32, core.adaptive_step_float32),
    "float64": (core.sgd_step_float64, core.fedavgm_step_float64, core.adaptive_step_float64),
}

_LARGEST = {dtype: float(np.finfo(dtype).max) for dtype in KERNELS}


def coefficient(name: str, value: Any, own: Buffer, highest: float = math.inf) -> float:
    """Return a hyperparameter in [0, `highest`] that is finite in the dtype of the parameters."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(
        value, (int, float, np.integer, np.floating)
    ):
        raise TypeError(
            f"{name} must be a real number, got {value!r}. Pass a Python or numpy number."
        )
    limit = min(highest, _LARGEST[own.dtype])
    if not 0 <= value <= limit:
        wanted = "finite and at least 0" if highest == math.inf else f"from 0 to {highest:g}"
        raise ValueError(
            f"{name} must be {wanted} in {own.dtype}, got {value}. Nothing has been written; "
            "correct it and take the step again."
        )
    return float(value)


def adaptivity(tau: Any, own: Buffer) -> float:
    """Return tau, the positive number that keeps the adaptive steps from dividing by zero."""
    value = coefficient("tau", tau, own)
    if np.dtype(own.dtype).type(value) == 0:
        raise ValueError(
            f"tau must be positive in {own.dtype}, got {tau}: it keeps the step from dividing by "
            "zero. Take for example 1e-3."
        )
    return value


def flag(name: str, value: Any) -> bool:
    """Return a switch."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False, got {value!r}. Pass a bool.")
    return bool(value)


def require_nonnegative(name: str, buffer: Buffer) -> None:
    """Refuse a vector, of which the square root is taken, with a negative element."""
    flat = buffer.owner.detach().numpy() if is_tensor(buffer.owner) else buffer.owner
    flat = flat.reshape(-1)
    with np.errstate(invalid="ignore"):  # NaN is let through: the step gives NaN there
        if not flat.size or flat.min() >= 0:
            return
        negative = flat < 0
    if negative.any():
        at = int(negative.argmax())
        raise ValueError(
            f"{name} must not be negative, got {flat[at]} at flat index {at}. Start it from "
            "tau**2 everywhere and change it by these steps only."
        )


def target(parameters: Any) -> Buffer:
    """Return the buffer of the parameters, which are updated in place."""
    given = describe(parameters, "parameters")
    if given.dtype not in KERNELS:
        raise TypeError(f"parameters must be float32 or float64, got {given.dtype}.")
    return output_buffer(parameters, given.kind, given.shape, given.dtype, "parameters")


def like(value: Any, parameters: Buffer, name: str, written: bool) -> Buffer:
    """Return the buffer of a vector that fits the parameters."""
    if not is_array(value):
        raise TypeError(
            f"{name} must be a {parameters.kind} array like parameters, got {name_of(value)}. Pass "
            "one of their shape and dtype."
        )
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
