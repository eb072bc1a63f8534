"""Reports as pandas data frames."""

from __future__ import annotations

from typing import Any

import pandas as pd

from fedbench.report.columns import COLUMNS, rows
from fedbench.report.records import Report

__all__ = ["to_frame"]

# Nullable types: an absent count must not turn the others into 2.0.
_DTYPES: dict[str, Any] = {
    "text": object,
    "integer": "Int64",
    "number": "float64",
    "truth": "boolean",
}


def to_frame(report: Report) -> pd.DataFrame:
    """Return the table: one row per configuration, the columns of ``COLUMNS``.

    Parameters
    ----------
    report : Report
        What was measured.

    Returns
    -------
    pandas.DataFrame
        Full precision, units as each column's entry says; absent figures are missing values.
    """
    table = rows(report)
    return pd.DataFrame(
        {
            column.name: pd.Series(
                [column.compute(row) for row in table], dtype=_dtype(column.kind)
            )
            for column in COLUMNS
        }
    )


def _dtype(kind: str) -> Any:
    return _DTYPES[kind]
