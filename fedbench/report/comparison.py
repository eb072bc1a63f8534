"""What changed between two reports, and whether the difference is more than noise."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from fedbench.report import statistics
from fedbench.report.columns import significant
from fedbench.report.records import Configuration, Measurement, Report

__all__ = [
    "Change",
    "compare",
    "differences_of_environment",
    "render_comparison",
    "to_comparison_frame",
]

_MACHINE = ("cpu", "cores_logical", "cores_available", "memory_bytes", "machine", "system")
_SETTINGS = ("seed", "reproducibility")


@dataclass(frozen=True)
class Change:
    """The round time of one configuration in two reports.

    Parameters
    ----------
    configuration : Configuration
        The row.
    before_s, after_s : float or None
        Median round, None where the report has no figures for it.
    low, high : float or None
        95 % bootstrap interval of after / before.
    same_result : bool or None
        Whether the final states are bitwise equal; None if one is unknown, or if seed, level or
        number of rounds differ.
    """

    configuration: Configuration
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


def compare(before: Report, after: Report) -> list[Change]:
    """Compare the round times of two reports, row by row.

    Parameters
    ----------
    before, after : Report
        Two runs; rows are matched by configuration.

    Returns
    -------
    list of Change
        In the order of `before`, then what only `after` has.
    """
    mine = {entry.configuration: entry for entry in before.measurements}
    theirs = {entry.configuration: entry for entry in after.measurements}
    same_job = all(before.settings.get(name) == after.settings.get(name) for name in _SETTINGS)
    changes = []
    for configuration in {**mine, **theirs}:
        old, new = mine.get(configuration), theirs.get(configuration)
        first, second = _round_seconds(old), _round_seconds(new)
        low, high = statistics.ratio_interval(first, second) or (None, None)
        changes.append(
            Change(
                configuration,
                statistics.median(first),
                statistics.median(second),
                low,
                high,
                _same_result(old, new) if old and new and same_job else None,
            )
        )
    return changes


def _same_result(before: Measurement, after: Measurement) -> bool | None:
    def rounds(entry: Measurement) -> int:
        return len(entry.warmup) + len(entry.rounds)

    if not (before.digest and after.digest) or rounds(before) != rounds(after):
        return None
    return before.digest == after.digest


def _round_seconds(measurement: Measurement | None) -> list[float]:
    return [] if measurement is None else [sample.round_s for sample in measurement.rounds]


def differences_of_environment(before: Report, after: Report) -> list[str]:
    """Return what differs between the machines; times of different machines do not compare."""
    return [
        f"{name}: {before.environment.get(name)} before, {after.environment.get(name)} after"
        for name in _MACHINE
        if before.environment.get(name) != after.environment.get(name)
    ]


def to_comparison_frame(changes: Iterable[Change]) -> pd.DataFrame:
    """Return the changes as a table, one row each."""
    return pd.DataFrame(
        [
            {
                "workload": change.configuration.workload,
                "algorithm": change.configuration.algorithm,
                "backend": change.configuration.backend,
                "workers": change.configuration.workers,
                "intraop_threads": change.configuration.intraop_threads,
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


def render_comparison(changes: Iterable[Change]) -> str:
    """Return the changes as text for people."""
    lines = [
        {
            "row": str(change.configuration),
            "before_s": _figure(change.before_s),
            "after_s": _figure(change.after_s),
            "ratio": _figure(change.ratio),
            "low": _figure(change.low),
            "high": _figure(change.high),
            "verdict": change.verdict,
        }
        for change in changes
    ]
    return f"{pd.DataFrame(lines).to_string(index=False)}\n" if lines else "nothing to compare\n"


def _figure(value: float | None) -> str:
    return "-" if value is None else significant(value)
