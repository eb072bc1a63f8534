"""The comparison as a data frame and as text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import pandas as pd

from fedbench.environment import cpu_model, package_version
from fedbench.peers.measure import BITWISE, PeerRow
from fedbench.report import statistics
from fedbench.report.columns import significant

__all__ = ["best_own_row", "peers_text", "peers_to_frame"]

_PRINTED = {
    "peer": "peer",
    "first_round_s": "first_s",
    "first_round_ratio": "ratio",
    "round_s": "round_s",
    "round_ratio": "ratio ",
    "peak_mem_mb": "mem_mb",
    "peak_mem_ratio": "ratio  ",
    "repeatable": "repeats",
    "max_abs_diff": "max_diff",
}
"""Column to its head in the printed table; pandas wants the heads to be unique."""


def best_own_row(rows: Sequence[PeerRow], workload: str) -> PeerRow | None:
    """Return fedbench's fastest row on `workload` that promises equal bits."""
    own = [row for row in rows if row.ok and row.peer in BITWISE and row.job.workload == workload]
    return min(own, key=lambda row: statistics.median(row.round_s()) or 0.0, default=None)


def peers_to_frame(rows: Sequence[PeerRow]) -> pd.DataFrame:
    """Return one line for each workload and peer.

    Parameters
    ----------
    rows : sequence of PeerRow
        What was measured.

    Returns
    -------
    pandas.DataFrame
        Full precision, seconds and 1e6 bytes. The columns that end in ``_ratio`` divide by the
        figure of fedbench's fastest bitwise row on the same workload: above 1 is more than that.
    """
    return pd.DataFrame([_record(row, best_own_row(rows, row.job.workload)) for row in rows])


def _record(row: PeerRow, ours: PeerRow | None) -> dict[str, Any]:
    figures, reference = _figures(row), _figures(ours) if ours is not None else {}
    record: dict[str, Any] = {
        "workload": row.job.workload,
        "peer": row.peer,
        "version": row.version or None,
        "workers": row.job.workers,
        "status": row.status,
        "rounds": row.job.rounds,
        "total_s": row.median("total_s"),
    }
    for name, value in figures.items():
        base = reference.get(name)
        record[name] = value
        record[_ratio_name(name)] = value / base if value is not None and base else None
    return record | {
        "round_s_iqr": statistics.interquartile_range(row.round_s()),
        "repeatable": row.repeatable,
        "identical": row.identical,
        "max_abs_diff": row.max_abs_diff,
        "digest": row.digests[-1] if row.ok and row.digests else None,
        "seed": row.job.seed,
        "torch_version": package_version("torch"),
        "cpu": cpu_model(),
        "date": row.date,
    }


def _figures(row: PeerRow) -> dict[str, float | None]:
    peak = row.peak_memory_bytes if row.ok else None
    return {
        "first_round_s": row.median("first_round_s"),
        "round_s": statistics.median(row.round_s()),
        "peak_mem_mb": None if peak is None else peak / 1e6,
    }


def _ratio_name(name: str) -> str:
    return f"{name.removesuffix('_s').removesuffix('_mb')}_ratio"


def peers_text(rows: Sequence[PeerRow], width: int = 80) -> str:
    """Return the tables for people, one for each workload, and what failed."""
    wrap = textwrap.TextWrapper(max(width, 40), subsequent_indent="  ", break_on_hyphens=False)
    frame = peers_to_frame(rows)
    parts = []
    for workload in dict.fromkeys(row.job.workload for row in rows):
        chosen = frame[frame["workload"] == workload]
        first = chosen.iloc[0]
        head = f"{workload} ({first['rounds']} rounds, {first['workers']} workers)"
        best = best_own_row(rows, workload)
        against = f"; ratios to {best.peer}" if best is not None else ""
        shown = pd.DataFrame(
            {head: [_cell(value) for value in chosen[name]] for name, head in _PRINTED.items()},
            dtype=object,
        )
        parts.append(f"{wrap.fill(head + against)}\n{shown.to_string(index=False)}\n")
    failures = [row for row in rows if not row.ok]
    if failures:
        notes = [f"note: {row.job.workload}: {row.peer}: {row.status}" for row in failures]
        parts.append("\n".join(map(wrap.fill, notes)) + "\n")
    return "\n".join(parts)


def _cell(value: Any) -> str:
    if value is None or value != value:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return significant(value) if isinstance(value, float) else str(value)
