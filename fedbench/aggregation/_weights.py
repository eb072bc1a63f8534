"""Checks of weights: one per client, finite, non-negative, not all zero."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Set
from typing import Any

import numpy as np
import numpy.typing as npt

from fedbench.aggregation._arrays import is_tensor

NO_NUMBER = (TypeError, ValueError, RuntimeError)  # what as_number() may raise


def client_weights(weights: Any, clients: int) -> npt.NDArray[np.float64]:
    """Return `weights` as float64, one per client; ``None`` means equal weights."""
    values = update_weights(weights, clients, "client")
    if not np.logical_or.reduce(values):
        raise ValueError(
            "weights must have a positive sum, got zero for every client. "
            "Pass weights=None for equal weights."
        )
    return values


def update_weights(weights: Any, count: int, of: str) -> npt.NDArray[np.float64]:
    """Return `weights` like :func:`client_weights`; all may be zero. `of` names their owners."""
    if weights is None:
        return np.ones(count)
    if isinstance(weights, (Mapping, Set)):
        raise TypeError(
            f"weights must be a sequence with one number per {of}, in the order of the updates, "
            f"got {type(weights).__name__}. Pass a list, for example [weights[c] for c in clients]."
        )
    values = _as_float64(weights, of)
    if values.ndim != 1 or len(values) != count:
        raise ValueError(
            f"weights must be one number per {of} ({count}), got shape {values.shape}."
        )
    # NaN and values out of range fail one of the two comparisons.
    if count and not (np.minimum.reduce(values) >= 0 and np.maximum.reduce(values) < np.inf):
        good = np.isfinite(values) & (values >= 0)
        position = int(np.argmin(good))
        raise ValueError(
            f"weights must be finite and not negative, got {values[position]} for {of} {position}."
        )
    return values


def _as_float64(weights: Any, of: str) -> npt.NDArray[np.float64]:
    if is_tensor(weights):
        weights = weights.detach().cpu().tolist()
    try:
        try:
            given = np.asarray(weights)
            plain = given.dtype.kind in "iufb"
        except (RuntimeError, TypeError):  # for example a list of tensors with gradients
            plain = False
        if not plain:  # for example integers beyond 64 bits
            given = np.array([as_number(value) for value in weights])
        return given.astype(np.float64)
    except NO_NUMBER as error:
        raise TypeError(
            f"weights must be real numbers, one per {of}, got {reprlib.repr(weights)}."
        ) from error


def one_weight(weight: Any) -> float:
    """Return a single finite, non-negative weight as a float."""
    try:
        value = as_number(weight)
    except NO_NUMBER as error:
        raise TypeError(f"weight must be a real number, got {reprlib.repr(weight)}.") from error
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"weight must be finite and not negative, got {value}.")
    return value


def total(total_weight: Any) -> float | None:
    """Return `total_weight` as a positive float, or ``None``."""
    if total_weight is None:
        return None
    try:
        value = as_number(total_weight)
    except NO_NUMBER as error:
        raise TypeError(
            f"total_weight must be a real number, got {reprlib.repr(total_weight)}."
        ) from error
    if not (math.isfinite(value) and value > 0):
        raise ValueError(
            f"total_weight must be finite and positive, got {value}. "
            "Leave it out to divide by the sum of the weights."
        )
    return value


def as_number(value: Any) -> float:
    """Return a real number as a float, infinite if it is out of range."""
    if isinstance(value, (str, bytes, complex)):
        raise TypeError(f"not a real number: {value!r}")
    try:
        return float(value.detach() if is_tensor(value) else value)
    except OverflowError:  # an integer or a fraction beyond the range of float64
        return math.inf if value > 0 else -math.inf
