"""Samples from ``.npz`` files and from any ``torch.utils.data.Dataset``."""

from __future__ import annotations

import io
import lzma
import zipfile
import zlib
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedbench.data._files import as_inputs, existing_file, malformed, num_classes_of
from fedbench.data.federated import ArrayDataset
from fedbench.data.split import stratified_split

__all__ = ["from_torch_dataset", "load_npz"]

Array = npt.NDArray[np.generic]

# What zipfile, its decompressors and numpy raise for archives and arrays that they cannot read.
_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    NotImplementedError,
    RuntimeError,
    ValueError,
)


def load_npz(
    path: str | PathLike[str],
    *,
    inputs: str = "x_train",
    targets: str = "y_train",
    test_inputs: str = "x_test",
    test_targets: str = "y_test",
    clients: str | None = None,
    num_classes: int | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> ArrayDataset:
    """Read arrays that ``numpy.savez`` wrote; the default names are those of Keras's files.

    Parameters
    ----------
    path : path
        The file. Pickled objects in it are refused: reading them could run any code.
    inputs, targets, test_inputs, test_targets : str
        Names of the arrays. Floats become float32, integers int64 tokens; uint8 images
        (``[n, height, width]`` or ``[n, height, width, channels]``) become float32 in [0, 1]
        with channels first. Targets are integers ``[n]`` or ``[n, 1]``. If the file has
        neither test array, part of the training samples becomes the test.
    clients : str, optional
        Name of an array with the client (integer or text) of every training sample.
    num_classes : int, optional
        Number of classes; the largest class plus 1 by default.
    test_fraction : float
        Share of each class that becomes test samples where the file has no test arrays.
    seed : int
        Seed of that choice.

    Returns
    -------
    ArrayDataset
        The samples.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    DataFormatError
        If the file is damaged, an array is missing or of the wrong kind; the message names
        the array and the sample.
    """
    file = existing_file("path", path)
    arrays = _read_npz(file)

    def array(name: str) -> Array:
        if name not in arrays:
            raise malformed(
                file,
                f"array {name!r}",
                f"must be in the file, which has {', '.join(arrays) or 'no arrays'}",
                "Pass the name it has there",
            )
        return arrays[name]

    def pair(x: str, y: str, count: int | None) -> tuple[Array, Array, int]:
        raw = array(y)
        flat = raw[:, 0] if raw.ndim == 2 and raw.shape[1] == 1 else raw
        count = num_classes_of(file, f"array {y!r}", flat, count)
        features = as_inputs(file, f"array {x!r}", array(x))
        if len(features) != len(flat):
            raise malformed(
                file,
                f"array {y!r}",
                f"must have one target per sample of {x!r} ({len(features)}), got {len(flat)}",
                "Save arrays that belong together",
            )
        return features, flat.astype(np.int64), count

    keys = None
    if clients is not None:
        keys = array(clients).tolist()
        if array(clients).ndim != 1 or len(keys) != len(array(inputs)):
            raise malformed(
                file,
                f"array {clients!r}",
                f"must have one client per sample of {inputs!r} ({len(array(inputs))}), got shape "
                f"{array(clients).shape}",
                "Save the client of every training sample",
            )
    features, labels, num_classes = pair(inputs, targets, num_classes)
    if test_inputs not in arrays and test_targets not in arrays:
        return stratified_split(
            features,
            labels,
            num_classes,
            seed=seed,
            test_fraction=test_fraction,
            client_keys=keys,
        )
    test_features, test_labels, _ = pair(test_inputs, test_targets, num_classes)
    return ArrayDataset(
        torch.from_numpy(features),
        torch.from_numpy(labels),
        torch.from_numpy(test_features),
        torch.from_numpy(test_labels),
        num_classes,
        client_keys=keys,
    )


def _read_npz(file: Path) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    name = ""
    try:
        # Not numpy.load: it parses an array before the archive's checksum is compared.
        with zipfile.ZipFile(file) as archive:
            for member in archive.namelist():
                name = member.removesuffix(".npy")
                content = io.BytesIO(archive.read(member))
                arrays[name] = np.lib.format.read_array(content, allow_pickle=False)
    except _DAMAGED as error:
        raise malformed(
            file,
            f"array {name!r}" if name else "",
            f"cannot be read: {error}",
            "It must be a complete .npz file of arrays of numbers or text, without pickled objects",
        ) from error
    return arrays


def from_torch_dataset(
    train: torch.utils.data.Dataset[Any],
    test: torch.utils.data.Dataset[Any] | None = None,
    *,
    num_classes: int | None = None,
    client_keys: Sequence[int | str] | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> ArrayDataset:
    """Take all samples of ``torch.utils.data`` datasets.

    Parameters
    ----------
    train : torch.utils.data.Dataset
        With ``__len__`` and items ``(input, target)``: the input a tensor or array of one
        shape, the target an integer. Random transforms are applied once.
    test : torch.utils.data.Dataset, optional
        Likewise; by default part of `train` becomes the test.
    num_classes : int, optional
        Number of classes; the largest class of `train` plus 1 by default.
    client_keys : sequence of int or str, optional
        The client of every sample of `train`.
    test_fraction : float
        Share of each class that becomes test samples where there is no `test`.
    seed : int
        Seed of that choice.

    Returns
    -------
    ArrayDataset
        Copies of the samples.

    Raises
    ------
    TypeError
        If an item is not a pair of an array and an integer, or its shape differs from the
        first one's; the message names the sample.
    ValueError
        If a class or value is out of range; the message names the sample.
    """
    features, labels = _items("train", train)
    count = int(labels.max()) + 1 if num_classes is None else num_classes
    if test is None:
        return stratified_split(
            features,
            labels,
            count,
            seed=seed,
            test_fraction=test_fraction,
            client_keys=client_keys,
        )
    test_features, test_labels = _items("test", test)
    return ArrayDataset(
        torch.from_numpy(features),
        torch.from_numpy(labels),
        torch.from_numpy(test_features),
        torch.from_numpy(test_labels),
        count,
        client_keys=client_keys,
    )


def _items(name: str, dataset: torch.utils.data.Dataset[Any]) -> tuple[Array, Array]:
    try:
        count = len(dataset)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            f"{name} must be a dataset with a length, got {type(dataset).__name__}. "
            "Collect the items of an iterable dataset in a list first."
        ) from None
    if count == 0:
        raise ValueError(f"{name} must have at least one sample, got none. Check the data set.")
    inputs: list[Array] = []
    targets: list[int] = []
    for sample in range(count):
        try:
            x, y = dataset[sample]
            array = np.asarray(x)
            target = int(np.asarray(y))
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"{name} must have items (array, integer), but sample {sample} is not one: "
                f"{error}. Give the dataset a transform to tensors, and integer targets."
            ) from error
        if array.dtype.kind not in "fiu" or (inputs and array.shape != inputs[0].shape):
            expected = f"of shape {inputs[0].shape}" if inputs else "of numbers"
            raise TypeError(
                f"{name} must have inputs {expected}, but sample {sample} is {array.dtype} of "
                f"shape {array.shape}. Give the dataset a transform that makes them alike."
            )
        inputs.append(array)
        targets.append(target)
    stacked = np.stack(inputs)
    kind = np.float32 if stacked.dtype.kind == "f" else np.int64
    return stacked.astype(kind), np.array(targets, np.int64)
