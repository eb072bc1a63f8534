"""Learning rates that change from round to round.

A schedule is any callable ``round_index -> factor``: rounds are counted from 0, and the learning
rate of the round is the factor times that of the workload. It is called on the server's side, once
for each round, so that every client of a round has the same rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real

from fedbench.registry import Entry, Registry
from fedbench.training.values import plain, whole

__all__ = ["SCHEDULES", "Constant", "Cosine", "Exponential", "Schedule", "Step", "scheduled_lr"]

Schedule = Callable[[int], float]
"""``round_index -> factor`` of the learning rate."""


@dataclass(frozen=True)
class Constant:
    """The workload's learning rate in every round."""

    def __call__(self, round_index: int) -> float:
        """Return 1."""
        return 1.0


@dataclass(frozen=True)
class Step:
    """Multiplied by `gamma` after every `every` rounds.

    Parameters
    ----------
    every : int
        Rounds between two changes, at least 1.
    gamma : float
        Factor of a change, greater than 0.
    """

    every: int
    gamma: float = 0.1

    def __post_init__(self) -> None:
        whole("every", self.every)
        _check_positive("gamma", self.gamma)

    def __call__(self, round_index: int) -> float:
        """Return ``gamma ** (round_index // every)``."""
        return float(self.gamma ** (round_index // self.every))


@dataclass(frozen=True)
class Exponential:
    """Multiplied by `gamma` after every round.

    Parameters
    ----------
    gamma : float
        Greater than 0.
    """

    gamma: float = 0.99

    def __post_init__(self) -> None:
        _check_positive("gamma", self.gamma)

    def __call__(self, round_index: int) -> float:
        """Return ``gamma ** round_index``."""
        return float(self.gamma**round_index)


@dataclass(frozen=True)
class Cosine:
    r"""Half a cosine from 1 to `floor` over `rounds` rounds, and `floor` from then on.

    Loshchilov and Hutter, *SGDR: Stochastic Gradient Descent with Warm Restarts*, ICLR 2017,
    equation 5 without restarts.

    Parameters
    ----------
    rounds : int
        Length of the descent, at least 1.
    floor : float
        Smallest factor, in (0, 1].
    """

    rounds: int
    floor: float = 0.01

    def __post_init__(self) -> None:
        whole("rounds", self.rounds)
        _check_positive("floor", self.floor)
        if self.floor > 1:
            raise ValueError(f"floor must be at most 1, got {self.floor!r}. It is a factor.")

    def __call__(self, round_index: int) -> float:
        """Return ``floor + (1 - floor) (1 + cos(pi t)) / 2`` with ``t`` up to 1."""
        progress = min(round_index / self.rounds, 1.0)
        return self.floor + (1.0 - self.floor) * (1.0 + math.cos(math.pi * progress)) / 2.0


SCHEDULES: Registry[type[Schedule]] = Registry(
    "schedule",
    {
        "constant": Entry(f"{__name__}:Constant", "the workload's learning rate in every round"),
        "step": Entry(f"{__name__}:Step", "multiplied by gamma after every so many rounds"),
        "exponential": Entry(f"{__name__}:Exponential", "multiplied by gamma after every round"),
        "cosine": Entry(f"{__name__}:Cosine", "half a cosine over the given rounds"),
    },
)


def scheduled_lr(schedule: Schedule, lr: float, round_index: int) -> float:
    """Return the learning rate of a round.

    Raises
    ------
    ValueError
        If the schedule returns anything but a positive number.
    """
    factor: object = schedule(round_index)
    try:
        value = float(factor) if isinstance(factor, Real) else math.nan
    except OverflowError:  # an integer beyond all floats
        value = math.inf
    if not 0.0 < value < math.inf:
        raise ValueError(
            f"schedule must return a positive number, got {factor!r} for round {round_index} "
            f"(counted from 0). Return the factor of the learning rate."
        )
    return lr * value


def _check_positive(name: str, value: object) -> None:
    value = plain(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:  # type: ignore[operator]
        raise ValueError(f"{name} must be a finite number greater than 0, got {value!r}.")
