"""The table of robust aggregation rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedbench.registry import Entry, Registry

__all__ = ["RULES"]

_HERE = "fedbench.aggregation"

RULES: Registry[Callable[..., Any]] = Registry(
    "aggregation rule",
    {
        "median": Entry(f"{_HERE}.coordinatewise:median", "middle value per coordinate"),
        "trimmed_mean": Entry(
            f"{_HERE}.coordinatewise:trimmed_mean", "mean without the extremes per coordinate"
        ),
        "mean_around_median": Entry(
            f"{_HERE}.coordinatewise:mean_around_median",
            "mean of the values closest to the median per coordinate",
        ),
        "geometric_median": Entry(
            f"{_HERE}.geometric:geometric_median", "point with the least sum of distances (RFA)"
        ),
        "krum": Entry(f"{_HERE}.selection:krum", "the update closest to its neighbours"),
        "multi_krum": Entry(
            f"{_HERE}.selection:multi_krum", "mean of the updates that Krum prefers"
        ),
        "bulyan": Entry(f"{_HERE}.selection:bulyan", "repeated Krum, then mean around the median"),
        "centered_clip": Entry(
            f"{_HERE}.geometric:centered_clip", "mean of differences clipped in length"
        ),
    },
)
"""Robust rules: callables of the updates and their own keyword arguments."""
