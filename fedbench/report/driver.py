"""Measuring configurations side by side, so that drift of the machine hits all of them alike.

All configurations of a workload are alive at once, each in its own process, and take turns::

    prepare   all at once: import, data, model                        not reported
    start     one after the other: the executor                       startup_s
    warm up   rounds and an evaluation, memory watched                peak_mem_mb
    rounds    A B C, B C A, C A B, ...                                 round_s, speedup, cpu_s, ...
    finish    evaluation, digest, comparison with the baseline        evaluate_s, identical

So are several workloads, as far as memory lasts: their rounds are run in laps, some rounds of the
first, some of the second, and around again. A machine is faster in some half minutes than in
others; laps let each workload see several of them, so that its intervals tell how sure its figures
are, not how calm the seconds were in which it was measured.

Nothing observes the timed rounds but the clock and the CPU counters at their two ends. The ratio of
a round to the baseline's is taken between the same rounds, which follow each other closely.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import time
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

from fedbench.environment import describe_environment
from fedbench.errors import FedbenchError
from fedbench.executors.resources import memory_limit
from fedbench.report.bandwidth import memory_bandwidth
from fedbench.report.contender import Contender
from fedbench.report.host import Host
from fedbench.report.processes import cpu_seconds, family, machine_busy_seconds
from fedbench.report.progress import Counter, Listener
from fedbench.report.race import Contestant, Launch, Race
from fedbench.report.records import BANDWIDTH, Configuration, Measurement, Report
from fedbench.report.settings import Settings

__all__ = ["measure"]

_TOGETHER = 4  # workloads at once: executors that wait for their turn are not quite idle
_SPARE = 1.5  # memory that must be free for another workload, in units of the largest so far


def measure(
    settings: Settings, *, on_progress: Listener | None = None, launch: Launch | None = None
) -> Report:
    """Measure every configuration of `settings`.

    Parameters
    ----------
    settings : Settings
        What to measure.
    on_progress : callable, optional
        Called on this thread before every step.
    launch : callable, optional
        Makes what runs a configuration; by default a process of its own.

    Returns
    -------
    Report
        A measurement for every configuration; one that failed has a status that says why.
    """
    created = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    jobs = [_job(settings, *job) for job in _named_jobs(settings)]
    bandwidth = memory_bandwidth()
    steps = sum(Race.steps(settings, job.workload, len(job.configurations)) for job in jobs)
    counter = Counter(steps, on_progress)
    measurements: list[Measurement] = []
    while jobs:
        measurements += _measure_together(jobs, settings, counter, launch or _launch_host)
    return Report(
        tuple(measurements),
        settings=dataclasses.asdict(settings),
        environment={**describe_environment(), BANDWIDTH: bandwidth},
        created=created,
    )


def _launch_host(configuration: Configuration, settings: Settings) -> Contestant:
    contender = Contender(
        configuration, settings.seed, settings.reproducibility, trace=settings.trace
    )
    return Host(contender, timeout_s=settings.timeout_s)


@dataclass
class _Job:
    """The configurations that are compared with each other, or why there are none to run."""

    workload: str
    configurations: list[Configuration]
    failure: str = ""


def _named_jobs(settings: Settings) -> Iterator[tuple[str, str | None]]:
    for workload in dict.fromkeys(settings.workloads):
        for algorithm in dict.fromkeys(settings.algorithms) or (None,):
            yield workload, algorithm


def _job(settings: Settings, workload: str, algorithm: str | None) -> _Job:
    from fedbench.workloads import load

    name = algorithm
    try:
        name = load(workload).algorithm if name is None else name
    except FedbenchError as error:  # the workload's extra is missing
        failure = " ".join(str(error).split())
        return _Job(workload, settings.configurations(workload, ""), failure)
    vectorizes = settings.vectorized_rows and _vectorizes(workload, name)
    return _Job(workload, settings.configurations(workload, name, vectorizes=vectorizes))


def _vectorizes(workload: str, algorithm: str) -> bool:
    """Return whether the clients of a job can be trained stacked."""
    from fedbench.simulation import Simulation

    try:
        Simulation(workload, algorithm=algorithm, vectorized=True)
    except FedbenchError:  # VectorizationError, or what the job's own rows will report
        return False
    return True


def _measure_together(
    jobs: list[_Job], settings: Settings, counter: Counter, launch: Launch
) -> list[Measurement]:
    """Take from the front of `jobs` what runs together, and measure it."""
    job = jobs[0]
    if job.failure:
        del jobs[0]
        counter.skip(Race.steps(settings, job.workload, len(job.configurations)))
        return [Measurement(entry, status=job.failure) for entry in job.configurations]
    with contextlib.ExitStack() as stack:
        races: list[Race] = []
        while jobs and not jobs[0].failure and _has_room(races):
            race = Race(jobs.pop(0).configurations, settings, counter, launch)
            races.append(stack.enter_context(race))
            race.warm_up()
        foreign_load = _timed_rounds(races)
        for race in races:
            race.finish()
        return [entry for race in races for entry in race.measurements(foreign_load)]


def _has_room(races: list[Race]) -> bool:
    """Return whether another workload may run beside these."""
    if not races:
        return True
    free = min(psutil.virtual_memory().available, memory_limit())
    return len(races) < _TOGETHER and free > _SPARE * max(race.memory_bytes for race in races)


def _timed_rounds(races: list[Race]) -> float | None:
    """Run all rounds in laps; return the share of the machine that other programs used."""
    foreign_s, wall_s, lap = 0.0, 0.0, 0
    while going := [race for race in races if not race.is_over]:
        watch = _ForeignLoad(races)
        for race in going:
            race.run_rounds(lap)
        # A lap in which a row failed is left out: what the row had used is not known any more.
        if (found := watch.seconds()) is not None:
            foreign_s, wall_s = foreign_s + found[0], wall_s + found[1]
        lap += 1
    return max(0.0, foreign_s) / (wall_s * (psutil.cpu_count() or 1)) if wall_s > 0 else None


class _ForeignLoad:
    """CPU time of the machine beside that of the given races and this process."""

    def __init__(self, races: list[Race]) -> None:
        self._races = races
        self._hosts = self._running()
        self._start = self._now()

    def _running(self) -> list[Contestant]:
        return [host for race in self._races for host in race.running]

    def _now(self) -> tuple[float, float, float] | None:
        try:
            own = cpu_seconds(process for host in self._hosts for process in family(host.pid))
        except psutil.NoSuchProcess:
            return None
        return time.perf_counter(), machine_busy_seconds(), own

    def seconds(self) -> tuple[float, float] | None:
        """Return the others' CPU seconds and the wall seconds since construction.

        Both clocks tick in hundredths of a second, so that the first may be below 0. None if a
        configuration ended in between.
        """
        end = self._now()
        if self._start is None or end is None or self._running() != self._hosts:
            return None
        wall, busy, own = (after - before for after, before in zip(end, self._start, strict=True))
        return busy - own, wall
