"""The report as one HTML page that needs nothing else: no network, no scripts.

Bars are inline SVG measured in per cent, so they follow the width of a phone and of a sheet of
paper, while all text stays text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from fedbench.report import statistics
from fedbench.report.columns import COLUMNS, Column, Row, rows, significant
from fedbench.report.curves import CURVE_STYLE, learning
from fedbench.report.records import Report
from fedbench.report.remarks import footnotes, notes

__all__ = ["to_html"]

_STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --faint: #767676;
  --rule: #d8d8d8; --c0: #3b6ea8; --c1: #d98a29; --c2: #5b9a5b; --c3: #a8557a; --c4: #b9b9b9; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --paper: #161616;
  --faint: #9a9a9a; --rule: #3a3a3a; --c0: #6fa3dc; --c1: #e5a958; --c2: #84c084;
  --c3: #d186a7; --c4: #6a6a6a; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 70rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .5rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--rule); }
th.text, td.text { text-align: left; } td.long { white-space: normal; min-width: 16rem; }
.bars { display: grid; grid-template-columns: max-content 1fr max-content; gap: .25rem .75rem;
  align-items: center; font-size: .9rem; }
.bars svg { width: 100%; height: 1.4rem; display: block; overflow: visible; }
.bars .value { font-variant-numeric: tabular-nums; text-align: right; }
.key span { display: inline-block; margin-right: 1rem; }
.key i { display: inline-block; width: .8em; height: .8em; margin-right: .35em; }
.note { border-left: 3px solid var(--c1); padding-left: .75rem; }
.caption, footer { color: var(--faint); font-size: .85rem; }
@media (max-width: 36rem) { body { padding: .6rem; }
  .bars { grid-template-columns: 1fr max-content; } .bars .label { grid-column: 1 / -1; } }
@media print { body { max-width: none; } h2 { break-after: avoid; } .bars { break-inside: avoid; }
  .wide { overflow: visible; } table { font-size: .6rem; } th, td { padding: .1rem .25rem; } }
"""

_PHASES = ("train", "uplink", "broadcast", "aggregate")
_IN_TASKS = ("train", "uplink")
_REST = "waiting and transport"


@dataclass(frozen=True)
class _Bar:
    """One line of a chart: parts laid end to end, and marks, all in the chart's unit."""

    label: str
    parts: Sequence[tuple[str, float]]
    value: str
    interval: tuple[float, float] | None = None
    mark: float | None = None

    @property
    def end(self) -> float:
        """Where the drawing ends."""
        total = sum(length for _, length in self.parts)
        return max(total, self.mark or 0.0, self.interval[1] if self.interval else 0.0)


def to_html(report: Report) -> str:
    """Return the page: tables, charts, notes, machine and the meaning of the columns."""
    jobs: dict[tuple[str, str], list[Row]] = {}
    for row in rows(report):
        jobs.setdefault(row.measurement.configuration.job, []).append(row)
    remarks = "".join(f'<p class="note">{escape(note)}</p>\n' for note in notes(report))
    sections = "".join(
        _job(workload, algorithm, table) for (workload, algorithm), table in jobs.items()
    )
    sections += "".join(f'<p class="caption">{escape(note)}</p>\n' for note in footnotes(report))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>fedbench report</title>\n<style>{_STYLE}{CURVE_STYLE}</style>\n</head>\n<body>\n"
        "<h1>fedbench report</h1>\n"
        f"{remarks}{sections}{_columns()}{_environment(report)}</body>\n</html>\n"
    )


def _job(workload: str, algorithm: str, table: list[Row]) -> str:
    ran = [row for row in table if row.measurement.ok]
    title = f"<h2>{escape(workload)} <small>{escape(algorithm)}</small></h2>\n"
    return title + _table(table) + _speedups(ran) + _phases(ran) + _memory(ran) + learning(ran)


def _table(table: list[Row]) -> str:
    shown = [column for column in COLUMNS if column.name not in ("workload", "algorithm")]
    head = "".join(
        f'<th class="{column.kind}" title="{escape(column.description)}">{column.name}</th>'
        for column in shown
    )
    body = "".join(
        "<tr>" + "".join(_cell(column, row) for column in shown) + "</tr>\n" for row in table
    )
    return f'<div class="wide"><table>\n<tr>{head}</tr>\n{body}</table></div>\n'


def _cell(column: Column, row: Row) -> str:
    text = column.show(row)
    if column.name == "digest":
        return f'<td class="text" title="{escape(text)}">{escape(text[:12])}</td>'
    long = " long" if len(text) > 40 else ""
    return f'<td class="{column.kind}{long}">{escape(text)}</td>'


def _speedups(ran: list[Row]) -> str:
    bars = []
    for row in ran:
        ratios = row.speedups()
        middle = statistics.median(ratios)
        if middle is not None:
            bars.append(
                _Bar(
                    row.label,
                    [("speedup", middle)],
                    f"{significant(middle)}x",
                    statistics.bootstrap_interval(ratios),
                    float(row.cores),
                )
            )
    caption = "Dark line: 95 % bootstrap interval. Tick: the ideal, one times per core in use."
    return _chart("Speedup over the baseline", bars, caption, [])


def _phases(ran: list[Row]) -> str:
    bars = []
    for row in ran:
        workers = row.measurement.configuration.workers
        parts = []
        for phase in _PHASES:
            seconds = [
                sample.seconds[phase] / (workers if phase in _IN_TASKS else 1)
                for sample in row.measurement.rounds
                if phase in sample.seconds
            ]
            parts.append((phase, statistics.median(seconds) or 0.0))
        total = statistics.median(row.round_seconds()) or 0.0
        parts.append((_REST, max(0.0, total - sum(length for _, length in parts))))
        bars.append(_Bar(row.label, parts, f"{significant(total)} s"))
    caption = "Medians. Time inside client tasks is divided by the number of workers."
    return _chart("Where a round goes", bars, caption, [*_PHASES, _REST])


def _memory(ran: list[Row]) -> str:
    bars = []
    for row in ran:
        peak = row.measurement.peak_memory_bytes
        if peak is not None:
            bars.append(_Bar(row.label, [("memory", peak / 1e6)], f"{significant(peak / 1e6)} MB"))
    return _chart("Peak memory", bars, "All processes of the row, shared pages counted once.", [])


def _chart(title: str, bars: list[_Bar], caption: str, key: list[str]) -> str:
    if not bars:
        return ""
    scale = max(bar.end for bar in bars) or 1.0
    lines = "".join(
        f'<span class="label">{escape(bar.label)}</span>{_svg(bar, scale)}'
        f'<span class="value">{escape(bar.value)}</span>\n'
        for bar in bars
    )
    legend = "".join(
        f'<span><i style="background: var(--c{index})"></i>{escape(name)}</span>'
        for index, name in enumerate(key)
    )
    legend = f'<p class="key caption">{legend}</p>\n' if key else ""
    return (
        f'<h3>{escape(title)}</h3>\n{legend}<div class="bars">\n{lines}</div>\n'
        f'<p class="caption">{escape(caption)}</p>\n'
    )


def _svg(bar: _Bar, scale: float) -> str:
    def percent(value: float) -> str:
        return f"{100 * value / scale:.2f}%"

    shapes, start = [], 0.0
    for index, (name, length) in enumerate(bar.parts):
        shapes.append(
            f'<rect x="{percent(start)}" width="{percent(length)}" y="20%" height="60%" '
            f'style="fill: var(--c{index})">'
            f"<title>{escape(name)}: {significant(length)}</title></rect>"
        )
        start += length
    if bar.interval is not None:
        low, high = map(percent, bar.interval)
        shapes.append(
            f'<line x1="{low}" x2="{high}" y1="50%" y2="50%" '
            'style="stroke: var(--ink); stroke-width: 2"/>'
        )
    if bar.mark is not None:
        at = percent(bar.mark)
        shapes.append(
            f'<line x1="{at}" x2="{at}" y1="5%" y2="95%" '
            'style="stroke: var(--faint); stroke-width: 2"/>'
        )
    label = escape(f"{bar.label}: {bar.value}")
    return f'<svg role="img" aria-label="{label}">{"".join(shapes)}</svg>'


def _columns() -> str:
    lines = "".join(
        f'<tr><td class="text">{column.name}</td><td class="text">{escape(column.unit)}</td>'
        f'<td class="text long">{escape(column.description)}</td></tr>\n'
        for column in COLUMNS
    )
    return f'<h2>Columns</h2>\n<div class="wide"><table>\n{lines}</table></div>\n'


def _environment(report: Report) -> str:
    facts: dict[str, object] = {**report.settings, **report.environment}
    lines = "".join(
        f'<tr><td class="text">{escape(name)}</td>'
        f'<td class="text long">{escape(_fact(value))}</td></tr>\n'
        for name, value in facts.items()
    )
    created = escape(report.created)
    return (
        f'<h2>Settings and machine</h2>\n<div class="wide"><table>\n{lines}</table></div>\n'
        f"<footer>Measured {created}.</footer>\n"
    )


def _fact(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {entry}" for name, entry in value.items())
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ", ".join(map(str, value))
    return "-" if value is None else str(value)
