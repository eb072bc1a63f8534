"""Learning curves for the HTML page: the training loss against the seconds that it took."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from html import escape

from fedbench.report.columns import Row, significant

__all__ = ["CURVE_STYLE", "learning"]

CURVE_STYLE = """
.curve { display: grid; grid-template-columns: max-content 1fr; gap: .25rem .5rem; }
.curve svg { width: 100%; height: 12rem; display: block; overflow: visible;
  border-left: 1px solid var(--rule); border-bottom: 1px solid var(--rule); }
.curve .y, .curve .x { display: flex; justify-content: space-between; font-size: .85rem; }
.curve .y { flex-direction: column; text-align: right; }
@media print { .curve { break-inside: avoid; } }
"""

_COLOURS = 4  # of the page's palette; further rows are dashed
_USUAL = "loss"


def learning(ran: Sequence[Row]) -> str:
    """Return the chart of the rows that recorded training metrics, empty if none did.

    Rows with the same bits have the same values round by round: what differs is the time.
    """
    metric = _metric(ran)
    curves = [(row.label, _points(row, metric)) for row in ran]
    curves = [(label, points) for label, points in curves if len(points) > 1]
    if not curves:
        return ""
    every = [point for _, points in curves for point in points]
    longest = max(x for x, _ in every) or 1.0
    low, high = min(y for _, y in every), max(y for _, y in every)
    lines = "".join(
        _line(points, longest, low, high, index) for index, (_, points) in enumerate(curves)
    )
    legend = "".join(
        f'<span><i style="background: {_colour(index)}"></i>{escape(label)}'
        f"{' (dashed)' if index >= _COLOURS else ''}</span>"
        for index, (label, _) in enumerate(curves)
    )
    metric = escape(metric)
    return (
        f'<h3>Learning curves</h3>\n<p class="key caption">{legend}</p>\n<div class="curve">\n'
        f'<div class="y"><span>{significant(high)}</span><span>{significant(low)}</span></div>\n'
        f'<svg role="img" aria-label="training {metric} against seconds" viewBox="0 0 100 100" '
        f'preserveAspectRatio="none">{lines}</svg>\n<span></span>\n'
        f'<div class="x"><span>0 s</span><span>{significant(longest)} s</span></div>\n</div>\n'
        f'<p class="caption">Mean training {metric} of the cohort against the seconds of the '
        "rounds, warm-up included. Each round has another cohort.</p>\n"
    )


def _metric(ran: Sequence[Row]) -> str:
    """Return the metric that is drawn: the loss if there is one."""
    names = [
        name
        for row in ran
        for sample in (*row.measurement.warmup, *row.measurement.rounds)
        for name in sample.metrics
    ]
    return _USUAL if _USUAL in names or not names else names[0]


def _points(row: Row, metric: str) -> list[tuple[float, float]]:
    samples = [*row.measurement.warmup, *row.measurement.rounds]
    ends = itertools.accumulate(sample.round_s for sample in samples)
    return [
        (end, value)
        for end, sample in zip(ends, samples, strict=True)
        if (value := sample.metrics.get(metric)) is not None and math.isfinite(value)
    ]


def _line(
    points: Sequence[tuple[float, float]], longest: float, low: float, high: float, index: int
) -> str:
    height = (high - low) or 1.0
    corners = " ".join(
        f"{100 * x / longest:.2f},{100 - 100 * (y - low) / height:.2f}" for x, y in points
    )
    dashes = "; stroke-dasharray: 4 3" if index >= _COLOURS else ""
    return (
        f'<polyline points="{corners}" vector-effect="non-scaling-stroke" '
        f'style="fill: none; stroke: {_colour(index)}; stroke-width: 2{dashes}"/>'
    )


def _colour(index: int) -> str:
    return f"var(--c{index % _COLOURS})"
