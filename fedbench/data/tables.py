"""Tables in CSV and Parquet files, with a column that names the client."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from fedbench.data._files import existing_file, malformed, num_classes_of
from fedbench.data.federated import ArrayDataset
from fedbench.data.split import stratified_split
from fedbench.registry import did_you_mean, missing_extra

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["load_table"]


def load_table(
    path: str | PathLike[str],
    test: str | PathLike[str] | None = None,
    *,
    target: str,
    client: str | None = None,
    features: Sequence[str] | None = None,
    regression: bool = False,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> ArrayDataset:
    """Read a CSV or Parquet file with one sample per row.

    Parameters
    ----------
    path : path
        A ``.csv`` (also ``.csv.gz``) or ``.parquet`` file with named columns.
    test : path, optional
        Likewise, with the same columns; by default part of the rows becomes the test.
    target : str
        Column of the classes, integers from 0 or names (numbered in sorted order); of numbers
        for a regression.
    client : str, optional
        Column that names the client of the row, integers or text.
    features : sequence of str, optional
        Columns of the inputs, numbers; all but `target` and `client` by default.
    regression : bool
        Whether the target is a number to be predicted.
    test_fraction : float
        Share of the rows (of each class) that becomes the test where there is no `test`.
    seed : int
        Seed of that choice.

    Returns
    -------
    ArrayDataset
        Inputs ``[n, len(features)]`` float32; targets int64, or float32 for a regression; the
        clients as client keys.

    Raises
    ------
    MissingExtraError
        If pyarrow is needed for Parquet and not installed.
    FileNotFoundError
        If there is no such file.
    DataFormatError
        If the file cannot be parsed, a column is missing, or a value is missing or of the
        wrong kind; the message names file, row (from 0, without the header) and column.
    """
    file = existing_file("path", path)
    table = _read(file)
    # Before features are chosen: a misspelt target would leave the real one among the inputs.
    _check_columns(file, table, [target, *([] if client is None else [client])])
    if features is None:
        features = [name for name in table.columns if name not in (target, client)]
    if not features:
        raise malformed(file, "", "must have columns for the inputs, got none", "Pass features=")
    _check_columns(file, table, features)
    inputs = _inputs(file, table, features)
    keys = None if client is None else _client_keys(file, table, client)
    names = None if regression else _class_names(file, table, target)
    targets, num_classes = _targets(file, table, target, names, regression, None)
    if test is None:
        return stratified_split(
            inputs, targets, num_classes, seed=seed, test_fraction=test_fraction, client_keys=keys
        )
    test_file = existing_file("test", test)
    test_table = _read(test_file)
    _check_columns(test_file, test_table, [target, *features])
    test_targets, _ = _targets(test_file, test_table, target, names, regression, num_classes)
    return ArrayDataset(
        torch.from_numpy(inputs),
        torch.from_numpy(targets),
        torch.from_numpy(_inputs(test_file, test_table, features)),
        torch.from_numpy(test_targets),
        num_classes,
        client_keys=keys,
    )


def _read(file: Path) -> pd.DataFrame:
    import pandas as pd

    if file.suffix != ".parquet" and ".csv" not in file.suffixes:
        raise ValueError(f"path must be a .csv or .parquet file, got {str(file)!r}. Rename it.")
    try:
        if file.suffix == ".parquet":
            table = pd.read_parquet(file)
        else:
            table = pd.read_csv(file, encoding="utf-8")
    except ImportError as error:
        raise missing_extra("Parquet", error.name or "pyarrow", "parquet") from error
    except (ValueError, OSError, EOFError, zlib.error) as error:  # of parsers and pyarrow too
        raise malformed(file, "", f"cannot be parsed: {error}", "Is it complete?") from error
    if table.empty:
        raise malformed(file, "", "must have at least one row, got none", "Add samples")
    return table


def _check_columns(file: Path, table: pd.DataFrame, names: Sequence[str]) -> None:
    for name in names:
        if name not in table.columns:
            known = ", ".join(map(repr, table.columns))
            raise malformed(
                file,
                f"column {name!r}",
                f"must be in the file, which has {known}",
                did_you_mean(name, table.columns).strip() or "Check the name",
            )


def _place(row: int, column: str) -> str:
    """Return where a value is, and how its row is counted."""
    return f"row {row} (the first sample is row 0), column {column!r}"


def _column(file: Path, table: pd.DataFrame, name: str) -> pd.Series:
    column = table[name]
    missing = np.flatnonzero(column.isna())
    if len(missing):
        raise malformed(
            file,
            _place(int(missing[0]), name),
            "must have a value, got none",
            "Fill in or remove the row",
        )
    return column


def _numbers(file: Path, table: pd.DataFrame, name: str) -> npt.NDArray[np.float32]:
    import pandas as pd

    column = _column(file, table, name)
    values = pd.to_numeric(column, errors="coerce").to_numpy(np.float64)
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(single))
    if len(bad):
        raise malformed(
            file,
            _place(int(bad[0]), name),
            f"must be a finite number, got {column.iloc[int(bad[0])]!r}",
            "Mend the value, or leave the column out with features=",
        )
    return single


def _inputs(file: Path, table: pd.DataFrame, features: Sequence[str]) -> npt.NDArray[np.float32]:
    return np.stack([_numbers(file, table, name) for name in features], axis=1)


def _client_keys(file: Path, table: pd.DataFrame, client: str) -> list[int | str]:
    keys: list[int | str] = _column(file, table, client).tolist()
    for row, key in enumerate(keys):
        if not isinstance(key, int | str):
            raise malformed(
                file,
                _place(row, client),
                f"must be an integer or text, got {key!r}",
                "Name the clients by integers or text",
            )
    return keys


def _class_names(file: Path, table: pd.DataFrame, target: str) -> list[str] | None:
    """Return the sorted names if the classes are names, None if they are integers."""
    column = _column(file, table, target)
    return None if column.dtype.kind in "iuf" else sorted({str(name) for name in column})


def _targets(
    file: Path,
    table: pd.DataFrame,
    target: str,
    names: list[str] | None,
    regression: bool,
    num_classes: int | None,
) -> tuple[npt.NDArray[np.generic], int | None]:
    if regression:
        return _numbers(file, table, target), None
    column = _column(file, table, target)
    if names is None:
        labels = column.to_numpy()
        num_classes = num_classes_of(file, f"column {target!r}", labels, num_classes)
        return labels.astype(np.int64), num_classes
    position = {name: label for label, name in enumerate(names)}
    for row, name in enumerate(column):
        if str(name) not in position:
            raise malformed(
                file,
                _place(row, target),
                f"must be one of the classes {', '.join(names)}, got {name!r}",
                "Give training and test rows of one data set",
            )
    return np.array([position[str(name)] for name in column], np.int64), len(names)
