"""What a reader must know beside the figures: failures, broken promises, doubts."""

from __future__ import annotations

from fedbench.report import statistics
from fedbench.report.columns import rows, significant
from fedbench.report.records import Report

__all__ = ["notes"]

_FOREIGN_LOAD = 0.1
_WIDE_SPREAD = 0.25


def notes(report: Report) -> list[str]:
    """Return what a reader must know beside the figures: failures first, then doubts."""
    failed, broken = [], []
    for row in rows(report):
        measurement = row.measurement
        name = measurement.configuration
        if not measurement.ok:
            failed.append(f"{name}: {measurement.status}")
        elif row.broken_promise:
            known = measurement.max_abs_diff
            difference = "unknown" if known is None else significant(known)
            broken.append(
                f"{name}: the final state must be bitwise that of the baseline and is not "
                f"(largest difference {difference}). Its speedup is not one."
            )
    return [
        *failed,
        *_tracebacks(report),
        *broken,
        *_wide_spread(report),
        *_few_rounds(report),
        *_foreign_load(report),
    ]


def _tracebacks(report: Report) -> list[str]:
    if any(entry.details for entry in report.measurements):
        return ["the tracebacks of failed rows are in the file of --out FILE.json."]
    return []


def _wide_spread(report: Report) -> list[str]:
    wide = []
    for row in rows(report):
        middle = statistics.median(row.round_seconds())
        spread = statistics.interquartile_range(row.round_seconds())
        if middle and spread and spread > _WIDE_SPREAD * middle:
            wide.append((spread / middle, str(row.measurement.configuration)))
    if not wide:
        return []
    share, name = max(wide)
    return [
        f"rounds vary by more than {_WIDE_SPREAD:.0%} of their median (interquartile range) in "
        f"{len(wide)} of {len(report.measurements)} rows, most in {name}: {share:.0%}. Quiet the "
        "machine or raise --rounds before concluding."
    ]


def _few_rounds(report: Report) -> list[str]:
    counts = [len(entry.rounds) for entry in report.measurements if entry.ok]
    if counts and min(counts) < statistics.MIN_ROUNDS_FOR_INTERVAL:
        return [
            f"{min(counts)} timed rounds: intervals are too narrow below "
            f"{statistics.MIN_ROUNDS_FOR_INTERVAL}. Raise --rounds before concluding."
        ]
    return []


def _foreign_load(report: Report) -> list[str]:
    loads = [entry.foreign_load for entry in report.measurements if entry.foreign_load is not None]
    if loads and max(loads) > _FOREIGN_LOAD:
        return [
            f"other programs used up to {max(loads):.0%} of the machine during the timed rounds: "
            "absolute times are too long and ratios less certain."
        ]
    return []
