"""Learning curves of one run or of a matrix."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedbench.registry import missing_extra

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["PLOT_FORMATS", "draw", "require_matplotlib"]

PLOT_FORMATS = (".svg", ".png")
"""Suffixes of pictures."""

_AVERAGED = "seed"
_COLUMNS = 3
_STYLES = ("-", "--", ":", "-.")


def draw(table: pd.DataFrame, keys: Sequence[str], suffix: str) -> bytes:
    """Return a picture with one panel for each metric and one line for each configuration.

    Parameters
    ----------
    table : pandas.DataFrame
        From :func:`fedbench.configuration.tidy_table`.
    keys : sequence of str
        The swept keys, columns of `table`. Runs that differ in ``seed`` alone share a line, their
        mean, with a band from the least to the greatest value.
    suffix : {".svg", ".png"}
        Format. The bytes are the same for the same table and matplotlib.

    Raises
    ------
    MissingExtraError
        If matplotlib is not installed.
    ValueError
        If the table is empty.
    """
    require_matplotlib()
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    if table.empty:
        raise ValueError("table must have at least one row to draw, got none.")
    panels = list(dict.fromkeys(zip(table["split"], table["metric"], strict=True)))
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    # A figure of its own, not one of pyplot's: no global state, no display needed.
    figure = Figure(figsize=(4.5 * columns, 3.4 * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for (split, metric), axis in zip(panels, axes, strict=False):
        part = table[(table["split"] == split) & (table["metric"] == metric)]
        _draw_panel(axis, part, [key for key in keys if key != _AVERAGED])
        axis.set(title=f"{split} {metric}", xlabel="round")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.grid(alpha=0.3)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if len(labels) > 1:
        figure.legend(handles, labels, loc="outside lower center", ncols=min(3, len(labels)))
    stream = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "fedbench"}):
        metadata = {"Date": None} if suffix == ".svg" else {"Software": None}
        figure.savefig(stream, format=suffix[1:], metadata=metadata)
    return stream.getvalue()


def require_matplotlib() -> None:
    """Raise :class:`~fedbench.errors.MissingExtraError` if matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise missing_extra("a plot", "matplotlib", "plot")


def _draw_panel(axis: Axes, table: pd.DataFrame, keys: list[str]) -> None:
    for number, (label, rows) in enumerate(_lines(table, keys)):
        by_round = rows.groupby("round")["value"]
        style: dict[str, Any] = {
            "color": f"C{number % 10}",
            "linestyle": _STYLES[number // 10 % len(_STYLES)],
        }
        marker = "o" if by_round.ngroups == 1 else None
        mean = by_round.mean()
        axis.plot(mean.index, mean.to_numpy(), label=label, marker=marker, **style)
        if by_round.size().max() > 1:
            axis.fill_between(
                mean.index, by_round.min(), by_round.max(), color=style["color"], alpha=0.15
            )


def _lines(table: pd.DataFrame, keys: list[str]) -> list[tuple[str, pd.DataFrame]]:
    """Return the rows of each configuration with its label, in the order of the table."""
    if not keys:
        return [("", table)]
    # As text: missing values and text do not sort, and groups of missing values are left out.
    shown = table[keys].astype(object).where(table[keys].notna(), "-")
    labels = [", ".join(map(str, row)) for row in shown.itertuples(index=False)]
    return [(str(label), rows) for label, rows in table.groupby(labels, sort=False)]
