"""Checks of hyperparameters, shared by the algorithms."""

from __future__ import annotations

import math
from typing import Literal

__all__ = ["Weighting", "check_count", "check_number", "check_weighting"]

Weighting = Literal["samples", "uniform"]


def check_weighting(value: str) -> None:
    """Raise ``ValueError`` unless `value` is a weighting of updates."""
    if value not in ("samples", "uniform"):
        raise ValueError(f"weighting must be 'samples' or 'uniform', got {value!r}.")


def check_number(
    name: str,
    value: float,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> None:
    """Raise ``ValueError`` unless `value` is finite and inside the given bounds.

    `low` and `high` belong to the range, `above` and `below` do not.
    """
    ranges = [
        (low, ">=", low is None or value >= low),
        (above, ">", above is None or value > above),
        (high, "<=", high is None or value <= high),
        (below, "<", below is None or value < below),
    ]
    if not math.isfinite(value) or not all(holds for _, _, holds in ranges):
        text = " and ".join(f"{sign} {bound:g}" for bound, sign, _ in ranges if bound is not None)
        raise ValueError(f"{name} must be a finite number {text}, got {value!r}.")


def check_count(name: str, value: int) -> None:
    """Raise ``ValueError`` unless `value` is an integer of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}.")
