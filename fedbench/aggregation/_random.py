"""Check of the generators that randomised functions take."""

from __future__ import annotations

from typing import Any

import numpy as np


def require_generator(rng: Any) -> None:
    """Refuse anything but a numpy Generator: a seed would give the same numbers in every call."""
    if not isinstance(rng, np.random.Generator):
        raise TypeError(
            f"rng must be a numpy.random.Generator, got {type(rng).__name__}. "
            "Pass numpy.random.default_rng(seed)."
        )
