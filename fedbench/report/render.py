"""Reports as text and as file contents: the table of formats, one line per suffix."""

from __future__ import annotations

import importlib.util
import io
import itertools
import json
import textwrap
from collections.abc import Callable, Iterable, Set
from pathlib import Path
from typing import Any

import pandas as pd

from fedbench.registry import did_you_mean, missing_extra
from fedbench.report.columns import COLUMNS, Column, Row, rows
from fedbench.report.frames import to_frame
from fedbench.report.html import to_html
from fedbench.report.records import Report
from fedbench.report.remarks import footnotes, notes

__all__ = ["FORMATS", "FRAME_FORMATS", "format_of", "render_text"]

_MIN_WIDTH = 40
_PAGE = "docs/guide/how_we_measure.md"


def frame_to_csv(frame: pd.DataFrame) -> bytes:
    """Return RFC 4180 text: UTF-8, line feeds, digits that read back to the same bits."""
    return str(frame.to_csv(index=False, lineterminator="\n")).encode("utf-8")


def frame_to_markdown(frame: pd.DataFrame) -> bytes:
    """Return a Markdown table of `frame`, missing values as ``-``."""
    cells = frame.astype(object).where(frame.notna(), "-")
    body = [[_markdown_cell(value) for value in row] for row in cells.itertuples(index=False)]
    return _markdown_table([str(name) for name in frame.columns], body).encode("utf-8")


def frame_to_json(frame: pd.DataFrame) -> bytes:
    """Return a list of one object per row; missing values are null."""
    # Not pandas's own writer, which cuts floats off after 15 decimal places.
    rows = frame.astype(object).where(frame.notna(), None).to_dict(orient="records")
    plain = [{name: _plain(value) for name, value in row.items()} for row in rows]
    return (json.dumps(plain, indent=1, ensure_ascii=False) + "\n").encode("utf-8")


def _plain(value: Any) -> Any:
    """Return a numpy scalar as the Python number that JSON knows."""
    return value.item() if hasattr(value, "item") else value


def frame_to_parquet(frame: pd.DataFrame) -> bytes:
    """Return a Parquet file; `MissingExtraError` without pyarrow."""
    stream = io.BytesIO()
    try:
        frame.to_parquet(stream, index=False, engine="pyarrow")
    except ImportError as error:
        raise missing_extra("the format .parquet", "pyarrow", "parquet") from error
    return stream.getvalue()


FRAME_FORMATS: dict[str, Callable[[pd.DataFrame], bytes]] = {
    ".csv": frame_to_csv,
    ".md": frame_to_markdown,
    ".json": frame_to_json,
    ".parquet": frame_to_parquet,
}
"""Suffix to the function that renders any data frame."""


def _report_to_markdown(report: Report) -> bytes:
    shown = [column for column in COLUMNS if column.name != "digest"]
    body = [[_markdown_cell(column.show(row)) for column in shown] for row in rows(report)]
    text = _markdown_table([column.name for column in shown], body)
    stars = [f"\\{_markdown_cell(note)}\n" for note in footnotes(report)]
    remarks = ["".join(f"- {_markdown_cell(note)}\n" for note in notes(report))]
    return "\n".join(filter(None, [text, *stars, *remarks])).encode("utf-8")


FORMATS: dict[str, Callable[[Report], bytes]] = {
    ".csv": lambda report: frame_to_csv(to_frame(report)),
    ".md": _report_to_markdown,
    ".json": lambda report: report.to_json().encode("utf-8"),
    ".html": lambda report: to_html(report).encode("utf-8"),
    ".parquet": lambda report: frame_to_parquet(to_frame(report)),
}
"""Suffix to the function that renders a report."""


def format_of(path: str | Path, formats: Iterable[str] = FORMATS) -> str:
    """Return the suffix of `path` that says how to write it.

    Raises
    ------
    ValueError
        If no format has this suffix; the message lists the known ones.
    MissingExtraError
        If the format needs a package that is not installed.
    """
    known = list(formats)
    suffix = Path(path).suffix.lower()
    if suffix not in known:
        name = Path(path).name.lower()
        advice = f" Put a name before it: 'table{name}'." if name in known else ""
        raise ValueError(
            f"the file name must end in one of {', '.join(known)}, got {str(path)!r}."
            f"{advice or did_you_mean(suffix, known)}"
        )
    if suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise missing_extra("the format .parquet", "pyarrow", "parquet")
    return suffix


def render_text(report: Report, width: int = 80) -> str:
    """Return the tables for people: one per workload, as wide as fits, and the notes.

    Parameters
    ----------
    report : Report
        What was measured.
    width : int
        Columns of the terminal. The most important figures come first; what does not fit is
        left to the files.

    Returns
    -------
    str
        Text that ends in a line feed.
    """
    jobs: dict[tuple[str, str], list[Row]] = {}
    for row in rows(report):
        jobs.setdefault(row.measurement.configuration.job, []).append(row)
    wrap = textwrap.TextWrapper(
        max(width, _MIN_WIDTH), subsequent_indent="  ", break_on_hyphens=False
    )
    parts, shown = [], set[Column]()
    for table in jobs.values():
        chosen = _fitting(table, width)
        shown.update(chosen)
        parts.append(f"{wrap.fill(_heading(table))}\n{_pandas_text(table, chosen)}\n")
    legend = _legend(shown)
    if legend:
        parts.append(f"{wrap.fill(legend)}\n")
    stars = [wrap.fill(note) for note in footnotes(report)]
    if stars:
        parts.append("\n".join(stars) + "\n")
    remarks = [wrap.fill(f"note: {note}") for note in notes(report)]
    if remarks:
        parts.append("\n".join(remarks) + "\n")
    return "\n".join(parts)


def _heading(table: list[Row]) -> str:
    facts = [table[0].measurement.configuration.algorithm]
    for row in table:
        measurement = row.measurement
        if measurement.ok:
            facts += [
                f"{measurement.cohort} of {measurement.clients} clients",
                f"{measurement.params} parameters",
                f"{len(measurement.rounds)} rounds",
            ]
            break
    name = table[0].measurement.configuration.workload.replace("\n", " ")
    return f"{name} ({', '.join(facts)})"


def _fitting(table: list[Row], width: int) -> list[Column]:
    """Return the most important columns that fit, in the order of the table."""
    ranked = [column for column in COLUMNS if column.rank is not None]
    ranked.sort(key=lambda column: column.rank or 0)
    chosen: list[Column] = []
    for column in ranked:
        attempt = sorted([*chosen, column], key=COLUMNS.index)
        lines = _pandas_text(table, attempt).splitlines()
        if chosen and max(map(len, lines)) > max(width, _MIN_WIDTH):
            break
        chosen = attempt
    return chosen


def _legend(shown: Set[Column]) -> str:
    """Return what the heads of the columns mean, empty if they speak for themselves."""
    explained = [column for column in COLUMNS if column in shown and column.legend]
    entries = [
        f"{', '.join(column.head for column in alike)}: {text}"
        for text, alike in itertools.groupby(explained, key=lambda column: column.legend)
    ]
    return f"{'; '.join(entries)}. More: {_PAGE}" if entries else ""


def _pandas_text(table: list[Row], columns: list[Column]) -> str:
    frame = pd.DataFrame(
        {column.head: [column.show(row) for row in table] for column in columns},
        dtype=object,
    )
    return str(frame.to_string(index=False))


def _markdown_cell(value: object) -> str:
    return str(value).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


def _markdown_table(head: list[str], body: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
