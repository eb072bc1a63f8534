"""What the loaders of files share."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedbench.errors import DataFormatError

__all__ = ["as_inputs", "existing_file", "existing_folder", "malformed", "num_classes_of"]


def malformed(path: Path, where: str, problem: str, advice: str) -> DataFormatError:
    """Return the error for a place in a file: its record and field, what is wrong, what to do."""
    place = f"{path}: {where}: " if where else f"{path}: "
    return DataFormatError(f"{place}{problem}. {advice}")


def existing_file(name: str, path: str | PathLike[str]) -> Path:
    """Return `path` if it is a file; the error names the argument."""
    found = Path(path)
    if not found.is_file():
        raise FileNotFoundError(
            f"{name} must be an existing file, got {str(path)!r}. Check the path."
        )
    return found


def existing_folder(name: str, path: str | PathLike[str]) -> Path:
    """Return `path` if it is a folder; the error names the argument."""
    found = Path(path)
    if not found.is_dir():
        raise FileNotFoundError(
            f"{name} must be an existing folder, got {str(path)!r}. Check the path."
        )
    return found


def as_inputs(path: Path, field: str, array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Return `array` as float32 features or int64 tokens.

    uint8 arrays of three or four dimensions are images: scaled to [0, 1], with the channels
    moved before height and width.
    """
    if array.ndim < 1:
        raise malformed(path, field, "must have one row per sample, got a scalar", "Save an array.")
    if array.dtype == np.uint8 and array.ndim in (3, 4):
        images = array[:, None] if array.ndim == 3 else np.moveaxis(array, 3, 1)
        return np.ascontiguousarray(images, np.float32) / np.float32(255)
    if array.dtype.kind in "iu":
        return array.astype(np.int64)
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):  # refused below
            inputs = array.astype(np.float32)
        bad = np.argwhere(~np.isfinite(inputs))
        if len(bad):
            raise malformed(
                path,
                f"sample {bad[0][0]}, {field}",
                "must be finite float32 numbers, got NaN, infinity or a number beyond their range",
                "Mend or remove that sample",
            )
        return inputs
    raise malformed(
        path, field, f"must hold numbers, got {array.dtype}", "Convert it to float32 first"
    )


def num_classes_of(
    path: Path, field: str, targets: npt.NDArray[np.generic], given: int | None
) -> int:
    """Check integer classes; return their number, which is the largest plus 1 unless `given`."""
    if targets.ndim != 1 or targets.dtype.kind not in "iu":
        raise malformed(
            path,
            field,
            f"must be one integer class per sample, got {targets.dtype} of shape {targets.shape}",
            "Number the classes from 0",
        )
    if len(targets) == 0:
        raise malformed(path, field, "must have at least one sample, got none", "Add samples")
    count = int(targets.max()) + 1 if given is None else given
    values = targets.astype(np.int64)
    outside = np.flatnonzero((values < 0) | (values >= count))
    if len(outside):
        raise malformed(
            path,
            f"sample {outside[0]}, {field}",
            f"must be a class in [0, {count}), got {targets[outside[0]]}",
            "Number the classes from 0, or raise num_classes",
        )
    return count
