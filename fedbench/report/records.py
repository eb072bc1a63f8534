"""What a report run measured: immutable records, and the JSON file that holds them."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedbench.errors import RecordFormatError
from fedbench.report.trace import Span

__all__ = ["SCHEMA", "SCHEMA_VERSION", "Configuration", "Measurement", "Report", "Sample"]

SCHEMA = "fedbench-report"
SCHEMA_VERSION = 1
OK = "ok"
BASELINE_BACKEND = "sequential"
BANDWIDTH = "memory_bytes_per_s"
"""Key of the measured memory bandwidth in the environment of a report."""
VECTORIZED = "+vectorized"
"""Ends the backend of a row whose clients are trained stacked."""


@dataclass(frozen=True)
class Configuration:
    """One row of the table: what runs where.

    Parameters
    ----------
    workload, algorithm, backend : str
        Registry names; that of the backend may end in ``"+vectorized"``.
    workers : int
        Workers of the executor.
    intraop_threads : int
        Threads that torch uses inside one operation of one client task.
    """

    workload: str
    algorithm: str
    backend: str
    workers: int
    intraop_threads: int = 1

    @property
    def is_baseline(self) -> bool:
        """Whether the other rows of the workload are compared with this one."""
        return self.backend == BASELINE_BACKEND and self.intraop_threads == 1

    @property
    def executor(self) -> str:
        """The registry name of the executor."""
        return self.backend.removesuffix(VECTORIZED)

    @property
    def is_vectorized(self) -> bool:
        """Whether the clients are trained stacked, many in a task."""
        return self.backend.endswith(VECTORIZED)

    @property
    def job(self) -> tuple[str, str]:
        """What is computed, whoever computes it: (workload, algorithm)."""
        return self.workload, self.algorithm

    def __str__(self) -> str:
        threads = f", {self.intraop_threads} threads" if self.intraop_threads != 1 else ""
        plural = "s" if self.workers != 1 else ""
        where = f"{self.workers} worker{plural}{threads}"
        return f"{self.workload}/{self.algorithm}/{self.backend} ({where})"


@dataclass(frozen=True)
class Sample:
    """One round of one configuration.

    Parameters
    ----------
    round : int
        Index of the round in its simulation.
    seconds : mapping of str to float
        Seconds by phase. What happens inside client tasks is summed over the clients; ``total``
        is the wall time of the round, which has no evaluation.
    task_s : float
        Wall seconds inside client tasks, summed over the tasks.
    cpu_s : float or None
        CPU seconds (user and system) of the configuration's processes during the round.
    uplink_bytes : int
        Bytes that the clients sent to the server.
    metrics : mapping of str to float
        What the clients reported of their training, for example ``loss``.
    reduced : bool
        Whether the workers folded the updates, so that the server had sums to merge only.
    """

    round: int
    seconds: Mapping[str, float]
    task_s: float
    cpu_s: float | None
    uplink_bytes: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    reduced: bool = False

    @property
    def round_s(self) -> float:
        """Wall seconds of the round."""
        return self.seconds["total"]


@dataclass(frozen=True)
class Measurement:
    """Everything that was measured of one configuration.

    Parameters
    ----------
    configuration : Configuration
        What ran.
    status : str
        ``"ok"``, or one line that says why there are no figures.
    clients, cohort, params : int or None
        Registered clients, clients per round, parameters of the model.
    startup_s : float or None
        Wall seconds until the executor was ready for work.
    warmup, rounds : tuple of Sample
        Rounds before the steady state, and the rounds that the statistics are made from.
    evaluate_s : float or None
        Wall seconds of evaluating the final model, apart from the rounds.
    metrics : mapping of str to float
        What that evaluation found.
    peak_memory_bytes : int or None
        Largest memory seen during the rounds that are not timed.
    digest : str or None
        SHA-256 of the final server state.
    max_abs_diff : float or None
        Largest absolute difference of the final server state from the baseline's.
    foreign_load : float or None
        Share of the machine's cores that other programs used during the timed rounds.
    spans : tuple of Span
        Which worker ran which client when, if that was asked for.
    details : str
        Traceback of a failure.
    """

    configuration: Configuration
    status: str = OK
    clients: int | None = None
    cohort: int | None = None
    params: int | None = None
    startup_s: float | None = None
    warmup: tuple[Sample, ...] = ()
    rounds: tuple[Sample, ...] = ()
    evaluate_s: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    peak_memory_bytes: int | None = None
    digest: str | None = None
    max_abs_diff: float | None = None
    foreign_load: float | None = None
    spans: tuple[Span, ...] = ()
    details: str = ""

    def __repr__(self) -> str:
        what = f"{len(self.rounds)} rounds" if self.ok else self.status
        return f"<Measurement of {self.configuration}: {what}>"

    @property
    def ok(self) -> bool:
        """Whether the configuration ran to its end."""
        return self.status == OK


@dataclass(frozen=True)
class Report:
    """The measurements of one run of the driver.

    Parameters
    ----------
    measurements : tuple of Measurement
        One per configuration, in table order.
    settings : mapping
        What was asked for: seed, reproducibility level, rounds, ...
    environment : mapping
        Machine and software; see ``fedbench.environment.describe_environment``.
    created : str
        Time of the run, ISO 8601 with offset.
    """

    measurements: tuple[Measurement, ...]
    settings: Mapping[str, Any]
    environment: Mapping[str, Any] = field(default_factory=dict)
    created: str = ""

    def __repr__(self) -> str:
        jobs = {"/".join(entry.configuration.job) for entry in self.measurements}
        return f"<Report of {len(self.measurements)} rows on {', '.join(sorted(jobs))}>"

    @property
    def reproducibility(self) -> str:
        """Level of the reproducibility ladder that the run promised."""
        return str(self.settings.get("reproducibility", "L1"))

    def baseline(self, configuration: Configuration) -> Measurement | None:
        """Return the successful measurement that `configuration` is compared with."""
        for measurement in self.measurements:
            candidate = measurement.configuration
            if candidate.is_baseline and candidate.job == configuration.job and measurement.ok:
                return measurement
        return None

    def to_json(self) -> str:
        """Return the file's text: raw samples, settings and environment, schema first."""
        document = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION}
        document |= dataclasses.asdict(self)
        return json.dumps(_finite(document), indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str, source: str = "report") -> Report:
        """Read what :meth:`to_json` wrote.

        Parameters
        ----------
        text : str
            Content of the file.
        source : str
            Name of the file for messages.

        Raises
        ------
        RecordFormatError
            If the text is not a report, or is of a version that this release cannot read.
        """
        try:
            document = json.loads(text)
        except ValueError as error:
            raise RecordFormatError(f"{source} must hold JSON, got: {error}.") from None
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise RecordFormatError(
                f"{source} must be a fedbench report (schema {SCHEMA!r}). "
                "Write one with: fedbench report --out FILE.json"
            )
        version = document.get("schema_version")
        if version != SCHEMA_VERSION:
            raise RecordFormatError(
                f"{source} must have schema version {SCHEMA_VERSION}, got {version!r}. "
                "Read it with the release of fedbench that wrote it, or measure again."
            )
        try:
            return cls(
                measurements=tuple(_measurement(entry) for entry in document["measurements"]),
                settings=document["settings"],
                environment=document["environment"],
                created=document["created"],
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise RecordFormatError(
                f"{source} must be a whole fedbench report, got {type(error).__name__}: {error}. "
                "The file was cut or edited; measure again."
            ) from None

    @classmethod
    def load(cls, path: str | Path) -> Report:
        """Read a report file; see :meth:`from_json`."""
        return cls.from_json(Path(path).read_text(encoding="utf-8"), source=str(path))


def _measurement(entry: Mapping[str, Any]) -> Measurement:
    values = dict(entry)
    values["configuration"] = Configuration(**values["configuration"])
    for name in ("warmup", "rounds"):
        values[name] = tuple(Sample(**sample) for sample in values[name])
    values["spans"] = tuple(Span(**span) for span in values["spans"])
    return Measurement(**values)


def _finite(value: Any) -> Any:
    # JSON has no NaN or infinity: a figure that is not a number is absent.
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
