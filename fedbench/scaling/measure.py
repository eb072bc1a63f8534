"""Measures every point with one worker, with several, and with one-worker runs side by side.

The three take turns at each point, so that a machine that slows down for a while slows all alike.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedbench.report.host import Host
from fedbench.report.settings import check_seconds
from fedbench.scaling.points import Point, Sample, ScalingRun

__all__ = ["ScalingSettings", "Study", "measure_scaling"]

BASE = Point(clients=1000, cohort=20, width=256)


@dataclass(frozen=True)
class ScalingSettings:
    """What to vary, one thing at a time around 1,000 clients, a cohort of 20 and width 256.

    Parameters
    ----------
    clients, cohorts, widths : tuple of int
        Registered clients (at least 20), clients in a round (at most 1,000), hidden units.
    workers : int
        Workers to predict from one worker, at least 2; measured as well.
    rounds : int
        Timed rounds of each point in each repeat.
    repeats : int
        How often every point has its turn.
    seed : int
        Seed of all simulations.
    timeout_s : float
        Longest time for one step.

    Raises
    ------
    ValueError
        If a value is not as described.
    """

    clients: tuple[int, ...] = (100, 1000, 10_000)
    cohorts: tuple[int, ...] = (10, 20, 40, 80)
    widths: tuple[int, ...] = (64, 256, 1024, 4096)
    workers: int = 2
    rounds: int = 6
    repeats: int = 3
    seed: int = 0
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        for name, low, high in (
            ("clients", BASE.cohort, None),
            ("cohorts", 1, BASE.clients),
            ("widths", 1, None),
        ):
            values = getattr(self, name)
            if len(set(values)) < 2:
                raise ValueError(
                    f"{name} must have at least two values, got {values}. One shows no growth."
                )
            for value in values:
                if value < low or (high is not None and value > high):
                    limit = f" and at most {high}" if high is not None else ""
                    raise ValueError(f"{name} must be at least {low}{limit}, got {value}.")
        for name, low in (("workers", 2), ("rounds", 1), ("repeats", 1), ("seed", 0)):
            if getattr(self, name) < low:
                raise ValueError(f"{name} must be at least {low}, got {getattr(self, name)}.")
        check_seconds("timeout", self.timeout_s, "600")

    def sweeps(self) -> dict[str, list[tuple[int, Point]]]:
        """Return, for each thing that is varied, its values and the points."""
        return {
            "clients": [(n, Point(n, BASE.cohort, BASE.width)) for n in sorted(set(self.clients))],
            "cohort": [(k, Point(BASE.clients, k, BASE.width)) for k in sorted(set(self.cohorts))],
            "params": [
                (point.params, point)
                for point in (Point(BASE.clients, BASE.cohort, w) for w in sorted(set(self.widths)))
            ],
        }

    def points(self) -> tuple[Point, ...]:
        """Return every point once."""
        return tuple(dict.fromkeys(point for sweep in self.sweeps().values() for _, point in sweep))


@dataclass
class Study:
    """What was measured.

    Attributes
    ----------
    settings : ScalingSettings
        What was asked for.
    alone : dict of Point to list of Sample
        Rounds with one worker.
    beside : dict of Point to list of Sample
        Rounds with one worker while other one-worker runs kept the other cores busy, as many in
        all as there are workers to predict.
    together : dict of Point to list of Sample
        Rounds with `settings.workers` workers.
    date : str
        When the study began, ISO 8601.
    """

    settings: ScalingSettings
    alone: dict[Point, list[Sample]] = field(default_factory=dict)
    beside: dict[Point, list[Sample]] = field(default_factory=dict)
    together: dict[Point, list[Sample]] = field(default_factory=dict)
    date: str = ""


class Runner(Protocol):
    """What runs a :class:`ScalingRun`; :class:`~fedbench.report.host.Host` does."""

    def begin(self, step: str) -> None: ...
    def finish(self, step: str) -> Any: ...
    def call(self, step: str) -> Any: ...
    def close(self, *, at_once: bool = False) -> None: ...


def measure_scaling(
    settings: ScalingSettings,
    *,
    on_progress: Callable[[str], None] | None = None,
    launch: Callable[[ScalingRun], Runner] | None = None,
) -> Study:
    """Measure all points.

    Parameters
    ----------
    settings : ScalingSettings
        What to vary.
    on_progress : callable, optional
        Called on this thread with a line before every step.
    launch : callable, optional
        Makes what runs the rounds; by default a process of its own.

    Returns
    -------
    Study
        The samples of every point.

    Raises
    ------
    FedbenchError
        If a run fails; the study is worthless without it.
    """
    tell = on_progress or (lambda line: None)
    start = launch or (lambda run: Host(run, timeout_s=settings.timeout_s))
    points = settings.points()
    created = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    study = Study(settings, date=created)
    with contextlib.ExitStack() as stack:

        def launched(workers: int) -> Runner:
            host = start(ScalingRun(points, workers, settings.rounds, settings.seed))
            stack.push(lambda kind, *_: host.close(at_once=kind is not None))
            host.begin("prepare")
            return host

        tell("starting")
        alone, together = launched(1), launched(settings.workers)
        beside = [launched(1) for _ in range(settings.workers)]
        for host in (alone, together, *beside):
            host.finish("prepare")
        for repeat in range(settings.repeats):
            for number, point in enumerate(points):
                tell(f"repeat {repeat + 1} of {settings.repeats}: {number + 1} of {len(points)}")
                study.alone.setdefault(point, []).extend(alone.call("run"))
                study.together.setdefault(point, []).extend(together.call("run"))
                for host in beside:
                    host.begin("run")
                for host in beside:
                    study.beside.setdefault(point, []).extend(host.finish("run"))
    return study
