"""Clients that fail and clients that are late, simulated by seed.

Neither costs anything to simulate: such a client is left out of the round before it runs. Who it
is depends on the seed, the client and the round alone, not on the backend, on who else takes part,
or on what the round before did.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

from fedbench.algorithms import RoundPlan
from fedbench.registry import Entry, Registry
from fedbench.reproducibility import python_random
from fedbench.training import plain

__all__ = ["STRAGGLERS", "Absences", "Lognormal", "Stragglers", "check_dropout", "without_absent"]


_LARGEST_EXPONENT = 600.0  # late by any deadline, and no overflow


class Stragglers(ABC):
    """How long a client's round takes, in simulated seconds, and how long the server waits."""

    deadline: float

    @abstractmethod
    def duration(self, seed: int, client_id: int | str, round_index: int, steps: int) -> float:
        """Return the simulated seconds of a client's round.

        Parameters
        ----------
        seed : int
            Of the simulation.
        client_id : int or str
            The client.
        round_index : int
            The round, counted from 0.
        steps : int
            Optimiser steps of the client in a round.
        """


@dataclass(frozen=True)
class Lognormal(Stragglers):
    r"""Devices of log-normal speed: ``steps * step_seconds * exp(spread * z + jitter * z')``.

    Here :math:`z` is drawn once for each client and :math:`z'` once for each client and round,
    both from a standard normal.

    Parameters
    ----------
    deadline : float
        Simulated seconds after which the server no longer waits, greater than 0.
    step_seconds : float
        Simulated seconds of a step on the median device, greater than 0.
    spread : float
        Standard deviation of the logarithm of the devices' slowness, at least 0.
    jitter : float
        The same from round to round on one device, at least 0.
    """

    deadline: float
    step_seconds: float = 0.01
    spread: float = 0.5
    jitter: float = 0.1

    def __post_init__(self) -> None:
        for name in ("deadline", "step_seconds", "spread", "jitter"):
            value = plain(getattr(self, name))
            low = name in ("spread", "jitter")
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not math.isfinite(value) or value < 0 or (value == 0 and not low):
                bound = "of at least 0" if low else "greater than 0"
                raise ValueError(f"{name} must be a finite number {bound}, got {value!r}.")
            object.__setattr__(self, name, value)

    def duration(self, seed: int, client_id: int | str, round_index: int, steps: int) -> float:
        """Return the simulated seconds of a client's round."""
        device = python_random(seed, "straggler-device", client_id).gauss()
        moment = python_random(seed, "straggler-round", client_id, round_index).gauss()
        slowness = self.spread * device + self.jitter * moment
        return steps * self.step_seconds * math.exp(min(slowness, _LARGEST_EXPONENT))


STRAGGLERS: Registry[type[Stragglers]] = Registry(
    "stragglers",
    {"lognormal": Entry(f"{__name__}:Lognormal", "devices of log-normal speed, and a deadline")},
)


def check_dropout(dropout: object) -> float:
    """Return `dropout` if it is a probability below 1."""
    dropout = plain(dropout)
    is_number = isinstance(dropout, int | float) and not isinstance(dropout, bool)
    if not is_number or not 0.0 <= dropout < 1.0:  # type: ignore[operator]
        raise ValueError(f"client_dropout must be a probability in [0, 1), got {dropout!r}.")
    return float(dropout)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Absences:
    """Who of a cohort is missing.

    Attributes
    ----------
    dropped, late : tuple of int
        Positions of the clients that fail, and of those that miss the deadline.
    seconds : float or None
        Simulated seconds until the round is over: those of the slowest client that is in time,
        or the deadline if one is late. None without stragglers.
    """

    dropped: tuple[int, ...] = ()
    late: tuple[int, ...] = ()
    seconds: float | None = None

    @classmethod
    def of(
        cls,
        plan: RoundPlan,
        round_index: int,
        *,
        seed: int,
        dropout: float,
        stragglers: Stragglers | None,
        id_of: Callable[[int], int | str],
        steps_of: Callable[[int], int],
    ) -> Absences:
        """Return who of the plan's participants is missing in a round."""
        dropped = tuple(
            position
            for position in (plan.participants() if dropout else ())
            if python_random(seed, "client-dropout", id_of(position), round_index).random()
            < dropout
        )
        if stragglers is None:
            return cls(dropped)
        gone = set(dropped)
        durations = {
            position: stragglers.duration(seed, id_of(position), round_index, steps_of(position))
            for position in plan.participants()
            if position not in gone
        }
        late = tuple(p for p, seconds in durations.items() if seconds > stragglers.deadline)
        if late:
            return cls(dropped, late, stragglers.deadline)
        return cls(dropped, late, max(durations.values(), default=0.0))


def without_absent(plan: RoundPlan, absences: Absences) -> RoundPlan:
    """Return the plan without the clients that are missing; the evaluation stays as it is."""
    gone = {*absences.dropped, *absences.late}
    if not gone:
        return plan

    def present(clients: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(position for position in clients if position not in gone)

    return replace(
        plan,
        broadcast=present(plan.broadcast),
        train=present(plan.train),
        uplink=present(plan.uplink),
    )
