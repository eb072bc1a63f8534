"""LEAF's JSON files (Caldas et al., 2018): FEMNIST, Shakespeare, and others in their layout."""

from __future__ import annotations

import json
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedbench.data._files import as_inputs, malformed, num_classes_of
from fedbench.data.federated import ArrayDataset
from fedbench.data.text import LEAF_VOCABULARY
from fedbench.errors import DataFormatError

__all__ = ["load_leaf"]

Array = npt.NDArray[np.generic]


def load_leaf(
    train: str | PathLike[str],
    test: str | PathLike[str],
    *,
    shape: Sequence[int] | None = None,
    vocabulary: str = LEAF_VOCABULARY,
    num_classes: int | None = None,
    seed: int = 0,
) -> ArrayDataset:
    """Read LEAF's JSON files, with the users as client keys.

    A file holds ``{"users": [name, ...], "num_samples": [n, ...], "user_data": {name: {"x":
    [...], "y": [...]}}}``. Samples are lists of numbers (FEMNIST, Synthetic) with integer
    classes, or strings (Shakespeare) whose next character is the target.

    Parameters
    ----------
    train, test : path
        A JSON file each, or a folder whose ``*.json`` files are read in the order of their
        names. The test samples of all users are pooled.
    shape : sequence of int, optional
        Shape of one sample, ``(1, 28, 28)`` for FEMNIST; as in the file by default.
    vocabulary : str
        The characters of text samples; LEAF's 80 by default.
    num_classes : int, optional
        Number of classes; by default the largest class of the training samples plus 1, or the
        number of characters.
    seed : int
        Ignored: the files say what is training and what is test.

    Returns
    -------
    ArrayDataset
        float32 inputs (int64 tokens for text), int64 targets, one client key per sample; use
        ``federate_by_key()``.

    Raises
    ------
    FileNotFoundError
        If a path does not exist or a folder has no JSON file.
    DataFormatError
        If a file is not in the layout; the message names file, user, sample and field.
    """
    train_inputs, train_targets, users, source = _read_all("train", train, vocabulary)
    test_inputs, test_targets, _, test_source = _read_all("test", test, vocabulary)
    if train_inputs.dtype != test_inputs.dtype or train_inputs.shape[1:] != test_inputs.shape[1:]:
        raise malformed(
            test_source,
            "field 'x'",
            f"must hold samples like the training files ({train_inputs.dtype} of shape "
            f"{train_inputs.shape[1:]}), got {test_inputs.dtype} of shape {test_inputs.shape[1:]}",
            "Give training and test files of one data set",
        )
    if num_classes is None and train_inputs.dtype == np.int64:
        num_classes = len(vocabulary)
    num_classes = num_classes_of(source, "field 'y'", train_targets, num_classes)
    num_classes_of(test_source, "field 'y'", test_targets, num_classes)
    return ArrayDataset(
        _shaped(train_inputs, shape),
        torch.from_numpy(train_targets.astype(np.int64)),
        _shaped(test_inputs, shape),
        torch.from_numpy(test_targets.astype(np.int64)),
        num_classes,
        client_keys=users,
    )


def _shaped(inputs: Array, shape: Sequence[int] | None) -> torch.Tensor:
    tensor = torch.from_numpy(inputs)
    if shape is None:
        return tensor
    if int(np.prod(shape)) != int(np.prod(tensor.shape[1:])):
        raise ValueError(
            f"shape must have as many values as a sample ({int(np.prod(tensor.shape[1:]))}), got "
            f"{tuple(shape)}. FEMNIST's is (1, 28, 28)."
        )
    return tensor.reshape(len(tensor), *shape)


def _read_all(
    name: str, path: str | PathLike[str], vocabulary: str
) -> tuple[Array, Array, list[str], Path]:
    """Return inputs, targets and the user of each sample of all files, and the first file."""
    root = Path(path)
    files = sorted(root.glob("*.json")) if root.is_dir() else [root]
    if not files or not files[0].is_file():
        raise FileNotFoundError(
            f"{name} must be a JSON file or a folder with JSON files, got {str(path)!r}. "
            "Check the path."
        )
    inputs: list[Array] = []
    targets: list[Array] = []
    users: list[str] = []
    seen: dict[str, Path] = {}
    for file in files:
        for user, data in _users_of(file):
            if user in seen:
                raise malformed(
                    file,
                    f"user {user!r}",
                    f"must appear once, but is also in {seen[user].name}",
                    "Merge or rename them",
                )
            seen[user] = file
            x, y = _samples_of(file, user, data, vocabulary)
            if inputs and (x.shape[1:] != inputs[0].shape[1:] or x.dtype != inputs[0].dtype):
                raise malformed(
                    file,
                    f"user {user!r}, field 'x'",
                    f"must hold samples of shape {inputs[0].shape[1:]} ({inputs[0].dtype}) like "
                    f"the users before, got {x.shape[1:]} ({x.dtype})",
                    "All samples must have one shape",
                )
            inputs.append(x)
            targets.append(y)
            users += [user] * len(y)
    if not inputs:
        raise malformed(files[0], "field 'users'", "must name at least one user", "Add samples")
    return np.concatenate(inputs), np.concatenate(targets), users, files[0]


def _users_of(file: Path) -> list[tuple[str, dict[str, Any]]]:
    """Parse one file; return the users that have samples, with their data."""
    try:
        content = json.loads(file.read_bytes())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise malformed(file, "", f"must be JSON, got: {error}", "Is it complete?") from error
    if not isinstance(content, dict):
        raise malformed(file, "", "must hold a JSON object", "Use LEAF's layout")
    for field, kind in (("users", list), ("user_data", dict)):
        if not isinstance(content.get(field), kind):
            raise malformed(
                file,
                f"field {field!r}",
                f"must be a JSON {'array' if kind is list else 'object'}, got "
                f"{type(content[field]).__name__ if field in content else 'nothing'}",
                "Use LEAF's layout",
            )
    users, user_data = content["users"], content["user_data"]
    counts = content.get("num_samples", [None] * len(users))
    if not isinstance(counts, list) or len(counts) != len(users):
        raise malformed(
            file,
            "field 'num_samples'",
            f"must be an array with one number per user ({len(users)}), got {counts!r:.60}",
            "Is the file complete?",
        )
    found = []
    for user, count in zip(users, counts, strict=True):
        data = user_data.get(user) if isinstance(user, str) else None
        if not isinstance(data, dict) or not all(isinstance(data.get(f), list) for f in "xy"):
            raise malformed(
                file,
                f"user {user!r}",
                "must have arrays 'x' and 'y' in 'user_data'",
                "Is the file complete?",
            )
        if len(data["x"]) != len(data["y"]) or count not in (None, len(data["x"])):
            raise malformed(
                file,
                f"user {user!r}",
                f"must have equally many 'x' and 'y', and as many as 'num_samples' says, got "
                f"{len(data['x'])}, {len(data['y'])} and {count}",
                "Is the file complete?",
            )
        if data["x"]:
            found.append((user, data))
    return found


def _samples_of(
    file: Path, user: str, data: dict[str, Any], vocabulary: str
) -> tuple[Array, Array]:
    where = f"user {user!r}"
    is_text = isinstance(data["x"][0], str)
    for sample, (x, y) in enumerate(zip(data["x"], data["y"], strict=True)):
        if is_text:
            _check_text(file, f"{where}, sample {sample}", x, y, vocabulary, len(data["x"][0]))
        elif not isinstance(y, int | float) or isinstance(y, bool) or not float(y).is_integer():
            raise malformed(
                file,
                f"{where}, sample {sample}, field 'y'",
                f"must be an integer class, got {y!r}",
                "Number the classes from 0",
            )
    if is_text:
        position = {character: index for index, character in enumerate(vocabulary)}
        tokens = [[position[character] for character in x] for x in data["x"]]
        return np.array(tokens, np.int64), np.array([position[y] for y in data["y"]], np.int64)
    try:
        inputs = as_inputs(file, "field 'x'", np.asarray(data["x"], np.float32))
    except (ValueError, TypeError) as error:
        raise _first_bad_sample(file, where, data["x"]) from error
    return inputs, np.array(data["y"]).astype(np.int64)


def _check_text(file: Path, where: str, x: Any, y: Any, vocabulary: str, length: int) -> None:
    for field, text, size in (("x", x, length), ("y", y, 1)):
        if not isinstance(text, str) or len(text) != size:
            raise malformed(
                file,
                f"{where}, field {field!r}",
                f"must be a string of {size} characters, got {text!r:.60}",
                "All samples must have one length",
            )
        unknown = [character for character in text if character not in vocabulary]
        if unknown:
            raise malformed(
                file,
                f"{where}, field {field!r}",
                f"must consist of the {len(vocabulary)} characters of the vocabulary, got "
                f"{unknown[0]!r}",
                "Pass vocabulary= with all characters of the text",
            )


def _first_bad_sample(file: Path, where: str, samples: list[Any]) -> DataFormatError:
    """Find the sample that cannot be read as finite numbers of the shape of the first one."""
    shape: tuple[int, ...] | None = None
    for number, sample in enumerate(samples):
        try:
            array = np.asarray(sample, np.float32)
        except (ValueError, TypeError):
            array = np.array(np.nan, np.float32)
        shape = array.shape if shape is None else shape
        if array.shape != shape or not np.isfinite(array).all():
            return malformed(
                file,
                f"{where}, sample {number}, field 'x'",
                f"must be finite numbers of shape {shape}, got {sample!r:.60}",
                "Mend or remove that sample",
            )
    return malformed(
        file, f"{where}, field 'x'", "must be arrays of finite numbers", "Use LEAF's layout"
    )
