"""Checks of the arguments that every backend takes."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

__all__ = [
    "check_count",
    "check_map_arguments",
    "check_reducer",
    "check_timeout",
    "refuse_timeout",
]


def check_count(name: str, value: Any, minimum: int) -> int:
    """Return `value` as an int that is at least `minimum`, or raise."""
    kind = "a positive integer" if minimum == 1 else "an integer that is not negative"
    if isinstance(value, float):
        raise ValueError(f"{name} must be {kind}, got {value!r}.")  # noqa: TRY004 - a bad number
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"{name} must be {kind}, got {value!r} of type {type(value).__name__}.")
    if number < minimum:
        raise ValueError(f"{name} must be {kind}, got {number}.")
    return number


def check_timeout(value: Any) -> float | None:
    """Return `value` as positive finite seconds, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"timeout must be seconds or None, got {value!r}.")
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"timeout must be a positive finite number of seconds, got {value!r}.")
    return float(value)


def refuse_timeout(backend: str, timeout: Any, why: str) -> None:
    """Raise if a time-out was asked of a backend that cannot end a running task."""
    if timeout is not None:
        raise ValueError(
            f"timeout must be None on backend {backend!r}, got {timeout!r}: {why} "
            "Use the backend 'processes' or 'ray'."
        )


def check_reducer(reducer: Any) -> None:
    """Raise unless `reducer` keeps the protocol and declares that order does not matter."""
    missing = [name for name in ("empty", "add", "merge") if not hasattr(reducer, name)]
    if missing:
        raise TypeError(
            f"reducer must have the methods empty, add and merge, got {type(reducer).__name__} "
            f"without {', '.join(missing)}."
        )
    if getattr(reducer, "order_independent", False) is not True:
        raise TypeError(
            "reducer must declare order_independent = True, which promises the same bits for any "
            f"order and grouping, got {type(reducer).__name__}. Fold the results of imap instead, "
            "which come in order."
        )


def check_map_arguments(task: Any, items: Any, on_result: Any, costs: Any) -> None:
    """Raise unless the arguments of a map are of the right kind."""
    if not callable(task):
        raise TypeError(f"task must be callable, got {type(task).__name__}.")
    if not isinstance(items, Iterable):
        raise TypeError(f"items must be an iterable, got {type(items).__name__}.")
    if on_result is not None and not callable(on_result):
        raise TypeError(f"on_result must be callable, got {type(on_result).__name__}.")
    if costs is not None and not isinstance(costs, Iterable):
        raise TypeError(f"costs must be an iterable of numbers, got {type(costs).__name__}.")
