"""Runs every peer in fresh processes, times them, and compares what they computed.

Each peer runs several times, in turn with the others. In the timed runs nothing watches it; in
the last run its memory is watched, and nothing is timed.
"""

from __future__ import annotations

import datetime
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedbench.peers import PEERS
from fedbench.peers.job import Job, Outcome, Peer
from fedbench.peers.workloads import PEER_WORKLOADS
from fedbench.registry import Registry
from fedbench.report import statistics
from fedbench.report.contender import largest_difference
from fedbench.report.host import ContenderError, Host
from fedbench.report.settings import check_seconds
from fedbench.reproducibility.digest import digest

__all__ = ["BITWISE", "PeerRow", "PeerSettings", "Timed", "measure_peers"]

BITWISE = ("fedbench-sequential", "fedbench-threads", "fedbench-processes")
"""The rows that have to have the same bits; the fastest is what the others are compared with."""

OK = "ok"


@dataclass(frozen=True)
class PeerSettings:
    """What to measure.

    Parameters
    ----------
    workloads, peers : tuple of str
        Registry names.
    workers : int
        Processes, threads or actors of the parallel peers.
    rounds : int or None
        Rounds of every run, at least 2; None takes each workload's own number.
    repeats : int
        Timed runs of each peer.
    seed : int
        Seed of all runs.
    timeout_s : float
        Longest time for one run.

    Raises
    ------
    UnknownNameError, ValueError
        If a value is not as described.
    """

    workloads: tuple[str, ...] = field(default_factory=PEER_WORKLOADS.names)
    peers: tuple[str, ...] = field(default_factory=PEERS.names)
    workers: int = 2
    rounds: int | None = None
    repeats: int = 2
    seed: int = 0
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        for name in self.workloads:
            PEER_WORKLOADS.entry(name)
        least = {"workers": 1, "rounds": 2, "repeats": 1, "seed": 0}
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise ValueError(f"{name} must be at least {low}, got {value}. Give a larger one.")
        check_seconds("timeout", self.timeout_s, "600")


@dataclass(frozen=True)
class Timed:
    """Seconds of one run.

    Parameters
    ----------
    first_round_s : float
        From the command to the end of the first round: interpreter, imports, data, start-up.
    rounds_s : tuple of float
        The rounds after the first.
    total_s : float
        From the command to the end of its process.
    """

    first_round_s: float
    rounds_s: tuple[float, ...]
    total_s: float


@dataclass
class PeerRow:
    """What was measured of one peer on one workload.

    Attributes
    ----------
    job : Job
        What it was asked to do.
    peer : str
        Registry name.
    date : str
        When the measurement began, ISO 8601.
    status : str
        ``"ok"``, or one line that says why there are no figures.
    details : str
        Traceback of a failure.
    timed : list of Timed
        The timed runs.
    peak_memory_bytes : int or None
        Largest proportional set size of all its processes.
    digests : list of str
        Digest of the final model of every run.
    max_abs_diff : float or None
        Largest absolute difference of the final model from fedbench's.
    identical : bool or None
        Whether the final model is bitwise fedbench's.
    version : str
        Version of the peer's package.
    """

    job: Job
    peer: str
    date: str
    status: str = OK
    details: str = ""
    timed: list[Timed] = field(default_factory=list)
    peak_memory_bytes: int | None = None
    digests: list[str] = field(default_factory=list)
    max_abs_diff: float | None = None
    identical: bool | None = None
    version: str = ""

    @property
    def ok(self) -> bool:
        """Whether every run came to its end."""
        return self.status == OK

    @property
    def repeatable(self) -> bool | None:
        """Whether all runs with the one seed gave the same bits; None below two runs."""
        return len(set(self.digests)) == 1 if self.ok and len(self.digests) > 1 else None

    @property
    def broken_promise(self) -> bool:
        """Whether fedbench promised the same bits and did not deliver them."""
        return self.peer in BITWISE and (self.identical is False or self.repeatable is False)

    def round_s(self) -> list[float]:
        """Return the seconds of all timed rounds but the first of each run."""
        return [seconds for run in self.timed for seconds in run.rounds_s] if self.ok else []

    def median(self, name: str) -> float | None:
        """Return the median of ``first_round_s`` or ``total_s`` over the timed runs."""
        return statistics.median([getattr(run, name) for run in self.timed]) if self.ok else None


Listener = Callable[[str], None]


class PeerRun:
    """One run of a peer; its steps are called in a process of its own.

    Parameters
    ----------
    registry : Registry
        Where the peer is announced.
    peer : str
        Its name there.
    job : Job
        What to run.
    """

    def __init__(self, registry: Registry[Peer], peer: str, job: Job) -> None:
        self._registry, self._peer, self._job = registry, peer, job

    def run(self) -> Outcome:
        """Run the job; a `MissingExtraError` says how to install the peer."""
        return self._registry.load(self._peer)(self._job)

    def close(self) -> None:
        """Do nothing: a peer cleans up after itself."""


def measure_peers(
    settings: PeerSettings,
    *,
    on_progress: Listener | None = None,
    registry: Registry[Peer] = PEERS,
) -> list[PeerRow]:
    """Measure every peer on every workload.

    Parameters
    ----------
    settings : PeerSettings
        What to measure.
    on_progress : callable, optional
        Called on this thread with a line before every run.
    registry : Registry
        The peers.

    Returns
    -------
    list of PeerRow
        One for each workload and peer; one that failed has a status that says why.
    """
    tell = on_progress or (lambda line: None)
    for name in settings.peers:
        registry.entry(name)
    table: list[PeerRow] = []
    for workload in dict.fromkeys(settings.workloads):
        job = Job(workload, _rounds(settings, workload), settings.workers, settings.seed)
        table += _measure_job(job, settings, tell, registry)
    return table


def _rounds(settings: PeerSettings, workload: str) -> int:
    return settings.rounds or PEER_WORKLOADS.load(workload)().rounds


def _measure_job(
    job: Job, settings: PeerSettings, tell: Listener, registry: Registry[Peer]
) -> list[PeerRow]:
    date = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    rows = [PeerRow(job, peer, date) for peer in dict.fromkeys(settings.peers)]
    states: dict[str, Mapping[str, Any]] = {}
    for turn in range(settings.repeats + 1):
        timed = turn < settings.repeats
        alive = [row for row in rows if row.ok]
        shift = turn % max(len(alive), 1)
        for row in alive[shift:] + alive[:shift]:
            what = f"timed run {turn + 1} of {settings.repeats}" if timed else "memory"
            tell(f"{job.workload}: {row.peer}: {what}")
            states[row.peer] = _run_once(PeerRun(registry, row.peer, job), row, settings, timed)
    _compare(rows, states)
    return rows


def _run_once(run: PeerRun, row: PeerRow, settings: PeerSettings, timed: bool) -> Mapping[str, Any]:
    """Run a peer in a new process, add what was found to `row` and return the final model."""
    begin = time.perf_counter()
    host = Host(run, timeout_s=settings.timeout_s)
    clean = False
    try:
        outcome: Outcome = host.call("run", watch_memory=not timed)
        clean = True
    except ContenderError as error:
        row.status, row.details = str(error), error.details
        return {}
    finally:
        host.close(at_once=not clean)
    total = time.perf_counter() - begin
    row.version = outcome.version
    row.digests.append(digest(outcome.state))
    if timed:
        # The clock is the machine's, the same in all of its processes.
        ends = outcome.ends
        rounds = tuple(after - before for before, after in itertools.pairwise(ends))
        row.timed.append(Timed(ends[0] - begin, rounds, total))
    else:
        row.peak_memory_bytes = host.peak_memory_bytes
    return outcome.state


def _compare(rows: list[PeerRow], states: Mapping[str, Mapping[str, Any]]) -> None:
    ours = next((row for row in rows if row.ok and row.peer in BITWISE), None)
    if ours is None:
        return
    for row in rows:
        if row.ok:
            row.identical = row.digests[-1] == ours.digests[-1]
            row.max_abs_diff = largest_difference(states[ours.peer], states[row.peer])
