"""The rows of one job side by side, each in a process of its own, through all phases."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedbench.report import statistics
from fedbench.report.contender import largest_difference
from fedbench.report.host import ContenderError
from fedbench.report.progress import Counter
from fedbench.report.records import Configuration, Measurement, Sample
from fedbench.report.settings import Settings
from fedbench.report.trace import Span

__all__ = ["Race"]

_LIKELY_ROUNDS = 15  # for the progress display where the number is open
_SETTLED = 0.05
_HOPELESS = 20  # times the baseline's round ...
_HOPELESS_S = 60.0  # ... and that much time for the rounds to come


class Contestant(Protocol):
    """What a race needs of a configuration; :class:`~fedbench.report.host.Host` has it."""

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


class Race:
    """The configurations that are compared with each other.

    Used as a context manager: their processes end with it.

    Parameters
    ----------
    configurations : list of Configuration
        Of one job, the baseline first if it is among them.
    settings : Settings
        What to measure.
    counter : Counter
        Is told of every step.
    launch : callable
        Makes what runs a configuration.
    """

    def __init__(
        self,
        configurations: list[Configuration],
        settings: Settings,
        counter: Counter,
        launch: Launch,
    ) -> None:
        self._name = "/".join(configurations[0].job)
        self._settings, self._counter = settings, counter
        self._rounds = settings.rounds_of(configurations[0].workload)
        self._done = 0
        self._spent_s = 0.0
        self._entries: list[_Entry] = []
        with contextlib.ExitStack() as stack:
            for configuration in configurations:
                host = launch(configuration, settings)
                # Ctrl-C must not wait for the rounds that are running.
                stack.push(lambda kind, *_, host=host: host.close(at_once=kind is not None))
                self._entries.append(_Entry(configuration, host))
            self._stack = stack.pop_all()

    @staticmethod
    def steps(settings: Settings, workload: str, rows: int) -> int:
        """Return how many steps a race of so many rows will count."""
        # Prepare, start, warm up, evaluate, rounds, finish.
        return rows * (5 + (settings.rounds_of(workload) or _LIKELY_ROUNDS))

    def __enter__(self) -> Race:
        return self

    def __exit__(self, *exception: Any) -> None:
        if exception[0] is None:
            for entry in self._entries:  # they end side by side, then the stack waits for each
                entry.host.dismiss()
        self._stack.__exit__(*exception)

    @property
    def running(self) -> list[Contestant]:
        """The processes of the rows that have not failed."""
        return [entry.host for entry in self._alive()]

    @property
    def memory_bytes(self) -> int:
        """The largest memory that was seen of each row, summed."""
        return sum(host.peak_memory_bytes or 0 for host in self.running)

    @property
    def is_over(self) -> bool:
        """Whether all timed rounds were run."""
        alive = self._alive()
        if not alive or self._done == self._rounds:
            return True
        return self._rounds is None and (
            self._spent_s > self._settings.budget_s or _is_settled(alive)
        )

    def _alive(self) -> list[_Entry]:
        return [entry for entry in self._entries if entry.failure is None]

    def warm_up(self) -> None:
        """Load everything, start the executors, run the rounds that are not counted."""
        self._prepare()
        for entry in self._alive():
            with entry.guarded():
                row = f"{entry.configuration}: starting and warming up"
                self._counter.step(f"{entry.configuration}: starting", row)
                entry.startup_s = entry.host.call("start", watch_memory=True)
                self._counter.step(f"{entry.configuration}: warming up", row)
                for _ in range(self._settings.warmup):
                    entry.warmup.append(entry.host.call("run_round", watch_memory=True))
                self._counter.step(f"{entry.configuration}: evaluating", row)
                entry.host.call("evaluate", watch_memory=True)

    def _prepare(self) -> None:
        for entry in self._entries:
            with entry.guarded():
                entry.host.begin("prepare")
        for entry in self._alive():
            self._counter.step(f"{entry.configuration}: loading", f"{self._name}: loading")
            with entry.guarded():
                entry.facts = entry.host.finish("prepare")
        # They are the same for all rows of a job, those that cannot run included.
        known = next((entry.facts for entry in self._entries if entry.facts is not None), None)
        for entry in self._entries:
            entry.facts = known

    def run_rounds(self, lap: int) -> None:
        """Run this race's share of a lap: see :func:`fedbench.report.statistics.batch_bounds`.

        Where the number of rounds is open, one.
        """
        if self._rounds is None:
            first, end = self._done, self._done + 1
        else:
            first, end = statistics.batch_bounds(self._rounds, lap)
        total = self._rounds or "auto"
        which = f"round {end}" if end - first == 1 else f"rounds {first + 1} to {end}"
        if self._rounds is None and first >= _LIKELY_ROUNDS:
            self._counter.skip(-len(self._alive()))  # more rounds than were likely
        begin = time.monotonic()
        for _ in range(first, end):
            if alive := self._alive():
                self._run_round(alive, f"{which} of {total}")
        self._spent_s += time.monotonic() - begin
        if self._rounds is None and self.is_over:
            self._counter.skip(max(0, _LIKELY_ROUNDS - self._done) * len(self._alive()))

    def _run_round(self, alive: list[_Entry], turn: str) -> None:
        shift = self._done % len(alive)
        for entry in alive[shift:] + alive[:shift]:
            self._counter.step(f"{entry.configuration}: {turn}", f"{self._name}: {turn}")
            with entry.guarded():
                entry.rounds.append(entry.host.call("run_round"))
        self._done += 1
        _stop_hopeless(self._alive(), (self._rounds or _LIKELY_ROUNDS) - self._done)

    def finish(self) -> None:
        """Evaluate and digest the final states, and compare them with the baseline's."""
        for entry in self._alive():
            self._counter.step(
                f"{entry.configuration}: checking the final state",
                f"{self._name}: checking the final states",
            )
            with entry.guarded():
                entry.evaluation = entry.host.call("evaluate", watch_memory=True)
                entry.digest = entry.host.call("digest")
                if self._settings.trace:
                    entry.spans = tuple(entry.host.call("spans"))
        baseline = next((e for e in self._alive() if e.configuration.is_baseline), None)
        if baseline is None or baseline.digest is None:
            return
        reference: Any = None
        for entry in self._alive():
            if entry.digest == baseline.digest:
                entry.max_abs_diff = 0.0
                continue
            if reference is None and baseline.failure is None:
                with baseline.guarded():
                    reference = baseline.host.call("state")
            if reference is not None:
                with entry.guarded():
                    entry.max_abs_diff = largest_difference(reference, entry.host.call("state"))

    def measurements(self, foreign_load: float | None) -> list[Measurement]:
        """Return what was measured, row by row."""
        return [entry.measurement(foreign_load) for entry in self._entries]


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
    if len(entries[0].rounds) < statistics.MIN_ROUNDS_FOR_INTERVAL:
        return False
    first = [sample.round_s for sample in entries[0].rounds]
    for entry in entries[1:]:
        ratios = statistics.paired_ratios(first, [sample.round_s for sample in entry.rounds])
        interval = statistics.bootstrap_interval(ratios)
        if interval is None or interval[1] - interval[0] > 2 * _SETTLED * interval[0]:
            return False
    return True
