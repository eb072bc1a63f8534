"""What changed between two runs, and whether the difference is more than noise."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from fedbench.errors import RecordFormatError
from fedbench.report import statistics
from fedbench.report.columns import significant
from fedbench.report.records import Report

__all__ = [
    "Change",
    "Timing",
    "Timings",
    "compare",
    "differences_of_environment",
    "load_timings",
    "render_comparison",
    "to_comparison_frame",
]

_MACHINE = ("cpu", "cores_logical", "cores_available", "memory_bytes", "machine", "system")
_PYTEST_MACHINE = ("node", "processor", "machine", "system")


@dataclass(frozen=True)
class Timing:
    """The samples of one row.

    Parameters
    ----------
    seconds : tuple of float
        Seconds of the rounds; empty where the row failed.
    result : tuple, optional
        What the row computed, comparable between runs: the digest, and all that it depends on.
    """

    seconds: tuple[float, ...]
    result: tuple[object, ...] | None = None


@dataclass(frozen=True)
class Timings:
    """The rows of one file.

    Parameters
    ----------
    rows : mapping of str to Timing
        By name, in table order.
    machine : mapping of str to object
        What has to be equal for times to be comparable.
    """

    rows: Mapping[str, Timing]
    machine: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def of_report(cls, report: Report) -> Timings:
        """Return the timings of a report."""
        rows = {}
        for entry in report.measurements:
            job = (len(entry.warmup) + len(entry.rounds), report.settings.get("seed"))
            rows[str(entry.configuration)] = Timing(
                tuple(sample.round_s for sample in entry.rounds),
                (report.reproducibility, *job, entry.digest) if entry.digest else None,
            )
        return cls(rows, {name: report.environment.get(name) for name in _MACHINE})

    @classmethod
    def of_pytest_benchmark(cls, document: Mapping[str, Any]) -> Timings:
        """Return the timings of a file of pytest-benchmark.

        Raises
        ------
        RecordFormatError
            If a benchmark has no samples (``--benchmark-save-data`` was not given).
        """
        rows = {}
        for benchmark in document["benchmarks"]:
            data = benchmark["stats"].get("data")
            if not data:
                raise RecordFormatError(
                    f"the benchmark {benchmark['fullname']!r} must have its samples. "
                    "Save them with: pytest benchmarks --benchmark-json FILE "
                    "--benchmark-save-data"
                )
            rows[str(benchmark["fullname"])] = Timing(tuple(data))
        machine = document.get("machine_info", {})
        return cls(rows, {name: machine.get(name) for name in _PYTEST_MACHINE})


def load_timings(path: str | Path) -> Timings:
    """Read a report of `fedbench report --out FILE.json`, or a file of pytest-benchmark.

    Raises
    ------
    OSError
        If the file cannot be read.
    RecordFormatError
        If it is neither.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        document = json.loads(text)
        if isinstance(document, dict) and "machine_info" in document:
            return Timings.of_pytest_benchmark(document)
    except UnicodeDecodeError:
        raise RecordFormatError(f"{path} must hold UTF-8 text. Is it a report?") from None
    except ValueError as error:
        if isinstance(error, RecordFormatError):
            raise
        raise RecordFormatError(f"{path} must hold JSON, got: {error}.") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise RecordFormatError(
            f"{path} must be a whole file of pytest-benchmark, got "
            f"{type(error).__name__}: {error}. Run the benchmarks again."
        ) from None
    return Timings.of_report(Report.from_json(text, source=str(path)))


@dataclass(frozen=True)
class Change:
    """One row in two runs.

    Parameters
    ----------
    name : str
        The row.
    before_s, after_s : float or None
        Median round, None where the run has no figures for it.
    low, high : float or None
        95 % bootstrap interval of after / before.
    same_result : bool or None
        Whether the final states are bitwise equal; None if one is unknown, or if seed, level or
        number of rounds differ.
    """

    name: str
    before_s: float | None
    after_s: float | None
    low: float | None = None
    high: float | None = None
    same_result: bool | None = None

    @property
    def ratio(self) -> float | None:
        """Time after / time before: above 1 is slower."""
        if self.before_s is None or self.after_s is None or self.before_s <= 0:
            return None
        return self.after_s / self.before_s

    @property
    def verdict(self) -> str:
        """``"slower"``, ``"faster"``, ``"no difference"`` or why there is no verdict."""
        if self.before_s is None and self.after_s is None:
            return "no figures"
        if self.before_s is None:
            return "only after"
        if self.after_s is None:
            return "only before"
        if self.low is None or self.high is None:
            return "too few rounds"
        if self.low > 1:
            return "slower"
        return "faster" if self.high < 1 else "no difference"

    def regressed(self, tolerance: float) -> bool:
        """Return whether even the lower end of the interval is slower by more than `tolerance`."""
        return self.low is not None and self.low > 1 + tolerance


def compare(before: Timings, after: Timings) -> list[Change]:
    """Compare two runs row by row.

    Parameters
    ----------
    before, after : Timings
        Two runs; rows are matched by name.

    Returns
    -------
    list of Change
        In the order of `before`, then what only `after` has.
    """
    return [
        _change(name, before.rows.get(name, Timing(())), after.rows.get(name, Timing(())))
        for name in {**before.rows, **after.rows}
    ]


def _change(name: str, before: Timing, after: Timing) -> Change:
    low, high = statistics.ratio_interval(before.seconds, after.seconds) or (None, None)
    same = None
    if before.result and after.result and before.result[:-1] == after.result[:-1]:
        same = before.result == after.result
    return Change(
        name,
        statistics.median(before.seconds),
        statistics.median(after.seconds),
        low,
        high,
        same,
    )


def differences_of_environment(before: Timings, after: Timings) -> list[str]:
    """Return what differs between the machines; times of different machines do not compare."""
    return [
        f"{name}: {before.machine.get(name)} before, {after.machine.get(name)} after"
        for name in {**before.machine, **after.machine}
        if before.machine.get(name) != after.machine.get(name)
    ]


def to_comparison_frame(changes: Iterable[Change]) -> pd.DataFrame:
    """Return the changes as a table, one row each."""
    return pd.DataFrame(
        [
            {
                "row": change.name,
                "before_s": change.before_s,
                "after_s": change.after_s,
                "ratio": change.ratio,
                "ratio_low": change.low,
                "ratio_high": change.high,
                "verdict": change.verdict,
                "same_result": change.same_result,
            }
            for change in changes
        ]
    )


def render_comparison(changes: Iterable[Change], width: int = 80) -> str:
    """Return the changes as text for people; seconds that do not fit `width` are left to files."""
    lines = [
        {
            "row": change.name,
            "before_s": _figure(change.before_s),
            "after_s": _figure(change.after_s),
            "ratio": _figure(change.ratio),
            "verdict": change.verdict,
        }
        for change in changes
    ]
    if not lines:
        return "nothing to compare\n"
    frame = pd.DataFrame(lines, dtype=object)
    for left_out in ([], ["before_s"], ["before_s", "after_s"]):
        text = str(frame.drop(columns=left_out).to_string(index=False))
        if max(map(len, text.splitlines())) <= width:
            break
    return f"{text}\n"


def _figure(value: float | None) -> str:
    return "-" if value is None else significant(value)
