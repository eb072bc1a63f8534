"""The reproducibility ladder: what a run promises about its bits."""

from __future__ import annotations

import os
from enum import StrEnum

from fedbench.registry import did_you_mean

__all__ = ["LEVEL_VARIABLE", "Level", "check_level", "level_or_default"]

LEVEL_VARIABLE = "FEDBENCH_REPRODUCIBILITY"
"""Environment variable that replaces the default level."""


class Level(StrEnum):
    """A rung of the ladder; each member is equal to its name as text.

    ``L0``
        Clients draw from the process's global generators, as code written for a sequential loop
        does. A sequential run repeats bit for bit under a seed; parallel runs agree with it in
        distribution only.
    ``L1``
        Every client task draws from its own generators, keyed by (seed, client id, round). Every
        backend, worker count and completion order gives the same bits.
    """

    L0 = "L0"
    L1 = "L1"


_WHY_NOT_L2 = (
    "reproducibility must be 'L0' or 'L1', got 'L2'. L2 would mean that all clients draw from one "
    "global random stream and still get, on parallel backends, the bits of the sequential loop. "
    "In such a stream the numbers of a client depend on how many numbers every client before it "
    "has drawn, so the clients would have to run one after the other (no speed-up), or every draw "
    "would have to be recorded in a sequential run and replayed (the sequential run has then "
    "already been paid for). Use reproducibility='L1': every client has its own stream, keyed by "
    "seed, client and round, and all backends give the same bits. Use 'L0' on the sequential "
    "backend to reproduce a plain loop that draws from the global generators."
)


def check_level(level: str) -> Level:
    """Return the rung of the reproducibility ladder that `level` names.

    Parameters
    ----------
    level : str
        ``"L0"`` or ``"L1"``.

    Returns
    -------
    Level
        The rung, which is equal to its name.

    Raises
    ------
    TypeError
        If `level` is not text.
    ValueError
        If `level` names no rung, or the rejected rung ``"L2"``; the message says why there is
        none.
    """
    if not isinstance(level, str):
        raise TypeError(
            f"reproducibility must be 'L0' or 'L1', got {level!r} of type "
            f"{type(level).__name__}. Give the name as text."
        )
    if level in Level.__members__:
        return Level[level]
    if level == "L2":
        raise ValueError(_WHY_NOT_L2)
    raise ValueError(
        f"reproducibility must be 'L0' or 'L1', got {level!r}. L1 (the default) gives the same "
        "bits on every backend; L0 draws from the global generators like a plain loop."
        f"{did_you_mean(level, Level.__members__)}"
    )


def level_or_default(level: str | None, default: Level = Level.L1) -> Level:
    """Return the rung that `level` names; for None, the environment's or else `default`.

    Raises
    ------
    TypeError, ValueError
        If `level`, or the text of the environment variable ``FEDBENCH_REPRODUCIBILITY`` that
        stands in for it, names no rung.
    """
    if level is not None:
        return check_level(level)
    try:
        return check_level(os.environ.get(LEVEL_VARIABLE, default))
    except ValueError as error:
        raise ValueError(f"{LEVEL_VARIABLE} in the environment: {error}") from None
