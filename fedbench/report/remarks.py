"""What a reader must know beside the figures: failures, broken promises, doubts."""

from __future__ import annotations

from fedbench.report import statistics
from fedbench.report.columns import rows, significant
from fedbench.report.records import BASELINE_BACKEND, Report

__all__ = ["footnotes", "notes"]

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
        *_without_baseline(report),
        *broken,
        *_better_than_possible(report),
        *_wide_spread(report),
        *_few_rounds(report),
        *_foreign_load(report),
    ]


def footnotes(report: Report) -> list[str]:
    """Return what the star beside an `identical` stands for, where there is one."""
    reasons = [row.no_promise for row in rows(report) if row.identical is False and row.no_promise]
    return [f"* not promised: {reason}" for reason in dict.fromkeys(reasons)]


def _without_baseline(report: Report) -> list[str]:
    """Name the jobs whose rows have nothing to be compared with, and why."""
    asked = {
        entry.configuration.job for entry in report.measurements if entry.configuration.is_baseline
    }
    lonely: dict[str, list[str]] = {}
    for row in rows(report):
        if row.measurement.ok and row.baseline is None:
            job = row.measurement.configuration.job
            reason = "failed" if job in asked else "was not run: name it with --backend as well"
            names = lonely.setdefault(reason, [])
            names += ["/".join(job)] if "/".join(job) not in names else []
    return [
        f"{', '.join(names)}: no speedup, and bits were not compared, because the baseline "
        f"`{BASELINE_BACKEND}` {reason}."
        for reason, names in lonely.items()
    ]


def _better_than_possible(report: Report) -> list[str]:
    beyond = []
    for row in rows(report):
        if row.measurement.configuration.is_vectorized:
            continue  # the ideal is that of clients one by one
        efficiency = statistics.median(row.efficiencies()) or 0.0
        interval = statistics.bootstrap_interval(row.speedups())
        least = interval[0] / row.cores if interval is not None else 0.0
        if max(efficiency, least) > 1:
            beyond.append((max(efficiency, least), str(row.measurement.configuration)))
    if not beyond:
        return []
    ratio, name = max(beyond)
    return [
        f"{len(beyond)} of {len(report.measurements)} rows are faster than the ideal, most {name}: "
        f"{significant(ratio)} times. Something slowed the baseline's rounds more than theirs, as "
        "a rule other programs: these speedups are too large. Quiet the machine and measure again."
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
