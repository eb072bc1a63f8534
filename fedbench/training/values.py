"""Numbers and flags that users pass as options."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["checked_flag", "plain"]


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
