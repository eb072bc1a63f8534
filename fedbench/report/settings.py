"""What a report run is asked to do: settings, presets and the configurations they make."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedbench.algorithms import ALGORITHMS, find_algorithm
from fedbench.errors import UnknownNameError
from fedbench.executors import EXECUTORS, default_workers
from fedbench.executors.resources import available_cpus
from fedbench.registry import Registry, did_you_mean
from fedbench.report.records import BASELINE_BACKEND, VECTORIZED, Configuration
from fedbench.reproducibility import check_level
from fedbench.workloads import WORKLOADS

__all__ = ["PRESETS", "Preset", "Settings", "default_worker_counts", "find_preset"]


@dataclass(frozen=True)
class Preset:
    """Workloads and effort under one name.

    Parameters
    ----------
    rounds : mapping of str to int
        Timed rounds by the registry name of the workload.
    summary : str
        One line for the help text.
    intraop_row : bool
        See :class:`Settings`.
    """

    rounds: Mapping[str, int]
    summary: str
    intraop_row: bool = True

    @property
    def workloads(self) -> tuple[str, ...]:
        """The registry names."""
        return tuple(self.rounds)


_VECTORIZED_ROWS = (f"{BASELINE_BACKEND}{VECTORIZED}", f"processes{VECTORIZED}")

# Cheap rounds are short, and so say less each.
PRESETS = {
    "smoke": Preset(
        {"digits-logreg": 6},
        "one small workload, seconds: does everything run?",
        intraop_row=False,
    ),
    "default": Preset(
        {"digits-logreg": 40, "digits-mlp": 24, "mnist5k-cnn": 8},
        "the real-data workloads, minutes",
    ),
    "full": Preset(
        {"digits-logreg": 120, "digits-mlp": 72, "mnist5k-cnn": 24},
        "the same with narrow intervals",
    ),
}
"""Name to preset."""


def find_preset(name: str) -> Preset:
    """Return the preset `name`; `UnknownNameError` lists the known names."""
    if name not in PRESETS:
        known = ", ".join(map(repr, PRESETS))
        raise UnknownNameError(
            f"preset must be one of {known}, got {name!r}.{did_you_mean(name, PRESETS)}"
        )
    return PRESETS[name]


def default_worker_counts() -> tuple[int, ...]:
    """Return one worker per usable core, at least two: one worker shows no parallel backend."""
    return (max(2, default_workers()),)


@dataclass(frozen=True)
class Settings:
    """What to measure.

    Parameters
    ----------
    workloads : tuple of str
        Registry names.
    backends : tuple of str
        Registry names, those of clients that are trained stacked with ``"+vectorized"`` after.
    algorithms : tuple of str
        Registry names, or ``module:Class`` of your own; empty takes each workload's own.
    workers : tuple of int
        Worker counts of every backend but `sequential`, which has one.
    rounds : int, mapping of str to int, or None
        Timed rounds, at least 1; a mapping says how many by workload, and one that it does not
        name has the fewest of those. None goes on until every speedup is known to 5 %, or
        `budget_s` has passed; runs then differ in their number of rounds, and so in their digests.
    warmup : int
        Rounds before them, at least 1: the first one pays for what is done once.
    seed : int
        Seed of all simulations.
    reproducibility : {"L1", "L0"}
        Level of all simulations.
    timeout_s : float
        Longest time for one step of one configuration.
    budget_s : float
        Where `rounds` is None, the time for the rounds of one workload.
    intraop_row : bool
        Also measure what a user might do instead of using workers: `sequential` with torch's own
        threads on all cores.
    vectorized_rows : bool
        Also measure clients that are trained stacked, on `sequential` and `processes`, for the
        jobs whose model and algorithm allow it.
    trace : bool
        Record which worker runs which client when.

    Raises
    ------
    UnknownNameError, ValueError, TypeError
        If a value is not as described.
    """

    workloads: tuple[str, ...] = PRESETS["default"].workloads
    backends: tuple[str, ...] = field(default_factory=EXECUTORS.names)
    algorithms: tuple[str, ...] = ()
    workers: tuple[int, ...] = field(default_factory=default_worker_counts)
    rounds: int | Mapping[str, int] | None = field(
        default_factory=lambda: dict(PRESETS["default"].rounds)
    )
    warmup: int = 1
    seed: int = 0
    reproducibility: str = "L1"
    timeout_s: float = 600.0
    budget_s: float = 60.0
    intraop_row: bool = True
    vectorized_rows: bool = False
    trace: bool = False

    def __post_init__(self) -> None:
        _check_names("workloads", self.workloads, WORKLOADS)
        executors = [name.removesuffix(VECTORIZED) for name in self.backends]
        _check_names("backends", executors, EXECUTORS)
        for name in self.algorithms:
            if ":" in name:
                find_algorithm(name)
            else:
                ALGORITHMS.entry(name)
        if not self.workers:
            raise ValueError("workers must name at least one worker count, got none. Use (2,).")
        for count in self.workers:
            _check_count("workers", count, 1)
        if isinstance(self.rounds, Mapping):
            _check_names("rounds", tuple(self.rounds), WORKLOADS)
            for name, count in self.rounds.items():
                _check_count(f"rounds of {name!r}", count, 1)
        elif self.rounds is not None:
            _check_count("rounds", self.rounds, 1)
        _check_count("warmup", self.warmup, 1)
        _check_count("seed", self.seed, 0)
        check_seconds("timeout", self.timeout_s, "600")
        check_seconds("budget", self.budget_s, "60")
        check_level(self.reproducibility)

    def rounds_of(self, workload: str) -> int | None:
        """Return how many timed rounds `workload` has, None if that is open."""
        if isinstance(self.rounds, Mapping):
            return self.rounds.get(workload, min(self.rounds.values()))
        return self.rounds

    def configurations(
        self, workload: str, algorithm: str, *, vectorizes: bool = False
    ) -> list[Configuration]:
        """Return the rows of one job, baseline first where it is asked for.

        `vectorizes` says that its clients can be trained stacked.
        """
        found = []
        more = _VECTORIZED_ROWS if self.vectorized_rows and vectorizes else ()
        for backend in dict.fromkeys((*self.backends, *more)):
            if backend.removesuffix(VECTORIZED) == BASELINE_BACKEND:
                found.append(Configuration(workload, algorithm, backend, 1))
                threads = available_cpus()
                if self.intraop_row and threads > 1 and backend == BASELINE_BACKEND:
                    found.append(Configuration(workload, algorithm, backend, 1, threads))
            else:
                found += [
                    Configuration(workload, algorithm, backend, count)
                    for count in dict.fromkeys(self.workers)
                ]
        return sorted(found, key=lambda configuration: not configuration.is_baseline)


def _check_names(argument: str, names: Sequence[str], table: Registry[Any]) -> None:
    if not names:
        known = ", ".join(map(repr, table))
        raise ValueError(f"{argument} must name at least one of {known}, got none. Name one.")
    for name in names:
        table.entry(name)


def _check_count(argument: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(
            f"{argument} must be an integer, got {type(value).__name__}. Give a whole number."
        )
    if value < least:
        raise ValueError(f"{argument} must be at least {least}, got {value}. Give a larger number.")


def check_seconds(argument: str, value: float, usual: str) -> None:
    """Raise a `ValueError` unless `value` is a finite number above 0; `usual` is advice."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(
            f"{argument} must be a positive number of seconds, got {value!r}. Use {usual}."
        )
