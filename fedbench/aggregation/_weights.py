"""Checks of weights: one per client, finite, non-negative, not all zero."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from fedbench.aggregation._arrays import is_tensor


def client_weights(weights: Any, clients: int) -> npt.NDArray[np.float64]:
    """Return `weights` as float64, one per client; ``None`` means equal weights."""
    if weights is None:
        return np.ones(clients)
    if is_tensor(weights):
        weights = weights.detach().cpu().tolist()
    try:
        given = np.asarray(weights)
        if given.dtype.kind not in "iufb":  # for example integers beyond 64 bits
            given = np.array([_as_number(value) for value in weights])
        values = given.astype(np.float64)
    except (TypeError, OverflowError, ValueError) as error:
        raise TypeError(
            f"weights must be real numbers, one per client, got {weights!r}."
        ) from error
    if values.ndim != 1 or len(values) != clients:
        raise ValueError(
            f"weights must be one number per client ({clients}), got shape {values.shape}."
        )
    good = np.isfinite(values) & (values >= 0)
    if not good.all():
        client = int(np.argmin(good))
        raise ValueError(
            f"weights must be finite and not negative, got {values[client]} for client {client}."
        )
    if not values.any():
        raise ValueError(
            "weights must have a positive sum, got zero for every client. "
            "Pass weights=None for equal weights."
        )
    return values


def one_weight(weight: Any) -> float:
    """Return a single finite, non-negative weight as a float."""
    try:
        value = _as_number(weight)
    except (TypeError, OverflowError, ValueError) as error:
        raise TypeError(f"weight must be a real number, got {weight!r}.") from error
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"weight must be finite and not negative, got {value}.")
    return value


def total(total_weight: Any) -> float | None:
    """Return `total_weight` as a positive float, or ``None``."""
    if total_weight is None:
        return None
    try:
        value = _as_number(total_weight)
    except (TypeError, OverflowError, ValueError) as error:
        raise TypeError(f"total_weight must be a real number, got {total_weight!r}.") from error
    if not (math.isfinite(value) and value > 0):
        raise ValueError(
            f"total_weight must be finite and positive, got {value}. "
            "Leave it out to divide by the sum of the weights."
        )
    return value


def _as_number(value: Any) -> float:
    if isinstance(value, (str, bytes, complex)):
        raise TypeError(f"not a real number: {value!r}")
    return float(value)
