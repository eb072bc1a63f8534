"""Numbers and flags that users pass as options."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["checked_flag", "plain", "whole"]


def plain(value: Any) -> Any:
    """Return a scalar of numpy as the number of Python that it is, anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def checked_flag(name: str, value: object) -> bool:
    """Return `value` if it is True or False.

    Raises
    ------
    TypeError
        If it is something that is merely true or false, such as ``"no"``.
    """
    value = plain(value)
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}.")
    return value


def whole(name: str, value: object, *, least: int = 1) -> int:
    """Return `value` if it is an integer of at least 1, or `least`.

    Raises
    ------
    ValueError
        If it is anything else.
    """
    number = plain(value)
    if not isinstance(number, int) or isinstance(number, bool) or number < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {number!r}.")
    return number
