"""Measuring configurations side by side, so that drift of the machine hits all of them alike.

For each workload, all configurations are alive at once, each in its own process, and take turns::

    prepare   all at once: import, data, model                        not reported
    start     one after the other: the executor                       startup_s
    warm up   rounds and an evaluation, memory watched                peak_mem_mb
    rounds    A B C, B C A, C A B, ...                                 round_s, speedup, cpu_s, ...
    finish    evaluation, digest, comparison with the baseline        evaluate_s, identical

Nothing observes the timed rounds but the clock and the CPU counters at their two ends. The ratio of
a round to the baseline's is taken between the same rounds, which follow each other closely.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import psutil

from fedbench.environment import describe_environment
from fedbench.errors import FedbenchError
from fedbench.report import statistics
from fedbench.report.bandwidth import memory_bandwidth
from fedbench.report.contender import Contender, largest_difference
from fedbench.report.host import ContenderError, Host
from fedbench.report.processes import cpu_seconds, family, machine_busy_seconds
from fedbench.report.records import BANDWIDTH, Configuration, Measurement, Report, Sample
from fedbench.report.settings import Settings
from fedbench.report.trace import Span

__all__ = ["Progress", "measure"]

_LIKELY_ROUNDS = 15  # for the progress display where the number is open
_SETTLED = 0.05
_HOPELESS = 20  # times the baseline's round ...
_HOPELESS_S = 60.0  # ... and that much time for the rounds to come


@dataclass(frozen=True)
class Progress:
    """How far a report run is.

    Parameters
    ----------
    done, total : int
        Steps; `total` is an estimate that shrinks when a configuration fails.
    message : str
        What is being done.
    block : str
        What this step belongs to, in words: the same for a round of all rows.
    """

    done: int
    total: int
    message: str
    block: str = ""


class Contestant(Protocol):
    """What the driver needs of a configuration; :class:`~fedbench.report.host.Host` has it."""

    @property
    def pid(self) -> int: ...
    @property
    def peak_memory_bytes(self) -> int | None: ...
    def begin(self, step: str) -> None: ...
    def finish(self, step: str, *, watch_memory: bool = False) -> Any: ...
    def call(self, step: str, *, watch_memory: bool = False) -> Any: ...
    def dismiss(self) -> None: ...
    def close(self, *, at_once: bool = False) -> None: ...


Launch = Callable[[Configuration, Settings], Contestant]
Listener = Callable[[Progress], None]


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
    counter = _Counter(sum(job.steps(settings) for job in jobs), on_progress)
    measurements: list[Measurement] = []
    for job in jobs:
        measurements += _measure_job(job, settings, counter, launch or _launch_host)
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

    configurations: list[Configuration]
    failure: str = ""

    def steps(self, settings: Settings) -> int:
        # Prepare, start, warm up, evaluate, rounds, finish.
        return len(self.configurations) * (5 + (settings.rounds or _LIKELY_ROUNDS))


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
        return _Job(settings.configurations(workload, ""), " ".join(str(error).split()))
    vectorizes = settings.vectorized_rows and _vectorizes(workload, name)
    return _Job(settings.configurations(workload, name, vectorizes=vectorizes))


def _vectorizes(workload: str, algorithm: str) -> bool:
    """Return whether the clients of a job can be trained stacked."""
    from fedbench.simulation import Simulation

    try:
        Simulation(workload, algorithm=algorithm, vectorized=True)
    except FedbenchError:  # VectorizationError, or what the job's own rows will report
        return False
    return True


class _Counter:
    """Counts steps and tells the listener."""

    def __init__(self, total: int, listener: Listener | None) -> None:
        self._done, self._total, self._listener = 0, total, listener

    def step(self, message: str, block: str) -> None:
        if self._listener is not None:
            self._listener(Progress(self._done, self._total, message, block))
        self._done += 1

    def skip(self, steps: int) -> None:
        self._total -= steps


@dataclass
class _Entry:
    """One configuration on its way through the phases."""

    configuration: Configuration
    host: Contestant
    facts: Any = None
    startup_s: float | None = None
    warmup: list[Sample] = field(default_factory=list)
    rounds: list[Sample] = field(default_factory=list)
    evaluation: tuple[float | None, dict[str, float]] = (None, {})
    digest: str | None = None
    max_abs_diff: float | None = None
    spans: tuple[Span, ...] = ()
    failure: ContenderError | None = None

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Turn a failure into this row's status; the other rows stand."""
        try:
            yield
        except ContenderError as error:
            self.failure = error
            self.host.close()

    def measurement(self, foreign_load: float | None) -> Measurement:
        facts = dataclasses.asdict(self.facts) if self.facts is not None else {}
        if self.failure is not None:
            return Measurement(
                self.configuration,
                **facts,
                status=str(self.failure) or "failed",
                details=self.failure.details,
            )
        return Measurement(
            self.configuration,
            **facts,
            startup_s=self.startup_s,
            warmup=tuple(self.warmup),
            rounds=tuple(self.rounds),
            evaluate_s=self.evaluation[0],
            metrics=self.evaluation[1],
            peak_memory_bytes=self.host.peak_memory_bytes,
            digest=self.digest,
            max_abs_diff=self.max_abs_diff,
            foreign_load=foreign_load,
            spans=self.spans,
        )


def _measure_job(
    job: _Job, settings: Settings, counter: _Counter, launch: Launch
) -> list[Measurement]:
    if job.failure:
        counter.skip(job.steps(settings))
        return [Measurement(entry, status=job.failure) for entry in job.configurations]
    with contextlib.ExitStack() as stack:
        entries = []
        for configuration in job.configurations:
            host = launch(configuration, settings)
            # Ctrl-C must not wait for the rounds that are running.
            stack.push(lambda kind, *_, host=host: host.close(at_once=kind is not None))
            entries.append(_Entry(configuration, host))
        _prepare(entries, counter)
        _warm_up(entries, settings, counter)
        foreign_load = _timed_rounds(entries, settings, counter)
        _finish(entries, settings, counter)
        for entry in entries:  # they end side by side, then the stack waits for each
            entry.host.dismiss()
        return [entry.measurement(foreign_load) for entry in entries]


def _job_name(entries: list[_Entry]) -> str:
    return "/".join(entries[0].configuration.job)


def _alive(entries: list[_Entry]) -> list[_Entry]:
    return [entry for entry in entries if entry.failure is None]


def _prepare(entries: list[_Entry], counter: _Counter) -> None:
    for entry in entries:
        with entry.guarded():
            entry.host.begin("prepare")
    for entry in _alive(entries):
        counter.step(f"{entry.configuration}: loading", f"{_job_name(entries)}: loading")
        with entry.guarded():
            entry.facts = entry.host.finish("prepare")
    # They are the same for all rows of a job, those that cannot run included.
    known = next((entry.facts for entry in entries if entry.facts is not None), None)
    for entry in entries:
        entry.facts = known


def _warm_up(entries: list[_Entry], settings: Settings, counter: _Counter) -> None:
    for entry in _alive(entries):
        with entry.guarded():
            row = f"{entry.configuration}: starting and warming up"
            counter.step(f"{entry.configuration}: starting", row)
            entry.startup_s = entry.host.call("start", watch_memory=True)
            counter.step(f"{entry.configuration}: warming up", row)
            for _ in range(settings.warmup):
                entry.warmup.append(entry.host.call("run_round", watch_memory=True))
            counter.step(f"{entry.configuration}: evaluating", row)
            entry.host.call("evaluate", watch_memory=True)


def _timed_rounds(entries: list[_Entry], settings: Settings, counter: _Counter) -> float | None:
    """Run the rounds in turn; return the share of the machine that other programs used."""
    watch = _ForeignLoad(_alive(entries))
    begin = time.monotonic()
    index = 0
    while alive := _alive(entries):
        shift = index % len(alive)
        turn = f"round {index + 1} of {settings.rounds or 'auto'}"
        for entry in alive[shift:] + alive[:shift]:
            counter.step(f"{entry.configuration}: {turn}", f"{_job_name(entries)}: {turn}")
            with entry.guarded():
                entry.rounds.append(entry.host.call("run_round"))
        index += 1
        _stop_hopeless(_alive(entries), (settings.rounds or _LIKELY_ROUNDS) - index)
        if index == settings.rounds:
            break
        if settings.rounds is None and (
            time.monotonic() - begin > settings.budget_s or _is_settled(_alive(entries))
        ):
            counter.skip((_LIKELY_ROUNDS - index) * len(alive))
            break
    return watch.share()


def _stop_hopeless(entries: list[_Entry], rounds_left: int) -> None:
    """Stop rows that would keep all others waiting for minutes to show how slow they are.

    Threads inside an operation wait for each other by spinning: beside other programs such a row
    can be a hundred times slower than the baseline.
    """
    baseline = next((entry for entry in entries if entry.configuration.is_baseline), None)
    if baseline is None:
        return
    for entry in entries:
        seconds, usual = entry.rounds[-1].round_s, baseline.rounds[-1].round_s
        if seconds > _HOPELESS * usual and rounds_left * seconds > _HOPELESS_S:
            with entry.guarded():
                raise ContenderError(
                    f"stopped: round {len(entry.rounds)} took {seconds:.3g} s, "
                    f"{seconds / usual:.0f} times the baseline's"
                )


def _is_settled(entries: list[_Entry]) -> bool:
    """Return whether every row's round time relative to the first row's is known well enough."""
    if not entries or len(entries[0].rounds) < statistics.MIN_ROUNDS_FOR_INTERVAL:
        return False
    first = [sample.round_s for sample in entries[0].rounds]
    for entry in entries[1:]:
        ratios = statistics.paired_ratios(first, [sample.round_s for sample in entry.rounds])
        interval = statistics.bootstrap_interval(ratios)
        if interval is None or interval[1] - interval[0] > 2 * _SETTLED * interval[0]:
            return False
    return True


class _ForeignLoad:
    """CPU time of the machine beside that of the given configurations and this process."""

    def __init__(self, entries: list[_Entry]) -> None:
        self._entries = entries
        self._start = self._now()

    def _now(self) -> tuple[float, float, float] | None:
        try:
            own = cpu_seconds(
                process for entry in self._entries for process in family(entry.host.pid)
            )
        except psutil.NoSuchProcess:
            return None
        return time.perf_counter(), machine_busy_seconds(), own

    def share(self) -> float | None:
        """Return the foreign share since construction, None if a configuration ended in between."""
        end = self._now()
        if self._start is None or end is None or len(_alive(self._entries)) < len(self._entries):
            return None
        wall, busy, own = (after - before for after, before in zip(end, self._start, strict=True))
        return max(0.0, busy - own) / (wall * (psutil.cpu_count() or 1)) if wall > 0 else None


def _finish(entries: list[_Entry], settings: Settings, counter: _Counter) -> None:
    for entry in _alive(entries):
        counter.step(
            f"{entry.configuration}: checking the final state",
            f"{_job_name(entries)}: checking the final states",
        )
        with entry.guarded():
            entry.evaluation = entry.host.call("evaluate", watch_memory=True)
            entry.digest = entry.host.call("digest")
            if settings.trace:
                entry.spans = tuple(entry.host.call("spans"))
    baseline = next((e for e in _alive(entries) if e.configuration.is_baseline), None)
    if baseline is None or baseline.digest is None:
        return
    reference: Any = None
    for entry in _alive(entries):
        if entry.digest == baseline.digest:
            entry.max_abs_diff = 0.0
            continue
        with baseline.guarded():
            reference = baseline.host.call("state") if reference is None else reference
        if reference is not None:
            with entry.guarded():
                entry.max_abs_diff = largest_difference(reference, entry.host.call("state"))
