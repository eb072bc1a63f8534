"""The binary files in which MNIST, EMNIST, CIFAR-10 and CIFAR-100 are distributed."""

from __future__ import annotations

import gzip
import math
import zlib
from os import PathLike
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from fedbench.data._files import as_inputs, existing_folder, malformed, num_classes_of
from fedbench.data.federated import ArrayDataset

__all__ = ["load_cifar10", "load_cifar100", "load_emnist", "load_mnist", "read_idx"]

Array = npt.NDArray[np.generic]

_IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_EMNIST_SPLITS = ("byclass", "bymerge", "balanced", "letters", "digits", "mnist")


def read_idx(path: str | PathLike[str]) -> Array:
    """Read an IDX file, the format of MNIST's files; ``.gz`` files are unpacked.

    Parameters
    ----------
    path : path
        The file.

    Returns
    -------
    numpy.ndarray
        In the machine's byte order, with the file's shape.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    DataFormatError
        If the file is truncated, has trailing bytes, or is no IDX file.
    """
    file = Path(path)
    data = file.read_bytes()
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (EOFError, OSError, zlib.error) as error:
            raise malformed(
                file, "", f"must be a complete gzip file, got: {error}", "Fetch it again"
            ) from error
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _IDX_TYPES:
        raise malformed(
            file,
            "header",
            f"must start with an IDX magic number such as 00 00 08 03, got {data[:4].hex(' ')}",
            "Is it an IDX file?",
        )
    dtype, dimensions = np.dtype(_IDX_TYPES[data[2]]), data[3]
    start = 4 + 4 * dimensions
    whole_header = data[4:start].ljust(4 * dimensions, b"\0")
    shape = tuple(int(size) for size in np.frombuffer(whole_header, ">u4"))
    expected = start + math.prod(shape) * dtype.itemsize
    if len(data) != expected:
        raise malformed(
            file,
            "data",
            f"must have {expected} bytes for the shape {shape} of the header, got {len(data)}",
            "The file is incomplete or damaged; fetch it again",
        )
    values = np.frombuffer(data, dtype, offset=start).reshape(shape)
    return values.astype(dtype.newbyteorder("="))


def load_mnist(folder: str | PathLike[str], *, seed: int = 0) -> ArrayDataset:
    """Read MNIST, or Fashion-MNIST and KMNIST, whose files have the same names.

    Parameters
    ----------
    folder : path
        Folder with ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte``,
        ``t10k-images-idx3-ubyte`` and ``t10k-labels-idx1-ubyte``, each with or without ``.gz``.
    seed : int
        Ignored: the files say what is training and what is test.

    Returns
    -------
    ArrayDataset
        Inputs ``[n, 1, 28, 28]`` float32 in [0, 1], targets ``[n]`` int64.

    Raises
    ------
    FileNotFoundError
        If the folder or a file is missing.
    DataFormatError
        If a file is damaged; the message names it.
    """
    root = existing_folder("folder", folder)
    return _idx_dataset(root, "train", "t10k", num_classes=None, first_class=0, transpose=False)


def load_emnist(
    folder: str | PathLike[str], *, split: str = "byclass", seed: int = 0
) -> ArrayDataset:
    """Read one split of EMNIST (Cohen et al., 2017).

    Parameters
    ----------
    folder : path
        Folder with ``emnist-<split>-train-images-idx3-ubyte`` and the three other files of the
        split, each with or without ``.gz``.
    split : {"byclass", "bymerge", "balanced", "letters", "digits", "mnist"}
        Which classes; "byclass" has 62.
    seed : int
        Ignored: the files say what is training and what is test.

    Returns
    -------
    ArrayDataset
        Inputs ``[n, 1, 28, 28]`` float32 in [0, 1], upright (the files hold them transposed);
        targets ``[n]`` int64 from 0 (the letters are numbered from 1 in the files).

    Raises
    ------
    ValueError
        If there is no such split.
    FileNotFoundError
        If the folder or a file is missing.
    DataFormatError
        If a file is damaged; the message names it.
    """
    if split not in _EMNIST_SPLITS:
        raise ValueError(f"split must be one of {', '.join(_EMNIST_SPLITS)}, got {split!r}.")
    return _idx_dataset(
        existing_folder("folder", folder),
        f"emnist-{split}-train",
        f"emnist-{split}-test",
        num_classes=None,
        first_class=1 if split == "letters" else 0,
        transpose=True,
    )


def _idx_dataset(
    root: Path,
    train: str,
    test: str,
    *,
    num_classes: int | None,
    first_class: int,
    transpose: bool,
) -> ArrayDataset:
    tensors: list[torch.Tensor] = []
    for prefix in (train, test):
        images_file = _with_or_without_gz(root, f"{prefix}-images-idx3-ubyte")
        labels_file = _with_or_without_gz(root, f"{prefix}-labels-idx1-ubyte")
        images, labels = read_idx(images_file), read_idx(labels_file)
        if images.ndim != 3 or images.dtype != np.uint8:
            raise malformed(
                images_file,
                "header",
                f"must hold bytes in three dimensions, got {images.dtype} of shape {images.shape}",
                "Is it the file of the images?",
            )
        if labels.shape != images.shape[:1]:
            raise malformed(
                labels_file,
                "header",
                f"must hold one label per image ({len(images)}), got shape {labels.shape}",
                "Is it the file of these images?",
            )
        targets = labels.astype(np.int64) - first_class
        num_classes = num_classes_of(labels_file, "label", targets, num_classes)
        upright = images.transpose(0, 2, 1) if transpose else images
        tensors += [
            torch.from_numpy(as_inputs(images_file, "pixels", upright)),
            torch.from_numpy(targets),
        ]
    return ArrayDataset(tensors[0], tensors[1], tensors[2], tensors[3], num_classes)


def _with_or_without_gz(root: Path, name: str) -> Path:
    for candidate in (root / name, root / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    raise FileNotFoundError(
        f"folder must contain {name} or {name}.gz, got {str(root)!r} without. Check the path."
    )


def load_cifar10(folder: str | PathLike[str], *, seed: int = 0) -> ArrayDataset:
    """Read the binary version of CIFAR-10.

    Parameters
    ----------
    folder : path
        Folder with ``data_batch_1.bin`` to ``data_batch_5.bin`` and ``test_batch.bin``.
    seed : int
        Ignored: the files say what is training and what is test.

    Returns
    -------
    ArrayDataset
        Inputs ``[n, 3, 32, 32]`` float32 in [0, 1], targets ``[n]`` int64.

    Raises
    ------
    FileNotFoundError
        If the folder or a file is missing; the pickled "python version" is not read.
    DataFormatError
        If a file is damaged; the message names file, record and field.
    """
    train = [f"data_batch_{batch}.bin" for batch in range(1, 6)]
    return _cifar(folder, train, ["test_batch.bin"], labels=1, label=0, num_classes=10)


def load_cifar100(
    folder: str | PathLike[str], *, coarse: bool = False, seed: int = 0
) -> ArrayDataset:
    """Read the binary version of CIFAR-100.

    Parameters
    ----------
    folder : path
        Folder with ``train.bin`` and ``test.bin``.
    coarse : bool
        Use the 20 coarse classes instead of the 100 fine ones.
    seed : int
        Ignored: the files say what is training and what is test.

    Returns
    -------
    ArrayDataset
        Inputs ``[n, 3, 32, 32]`` float32 in [0, 1], targets ``[n]`` int64.

    Raises
    ------
    FileNotFoundError
        If the folder or a file is missing; the pickled "python version" is not read.
    DataFormatError
        If a file is damaged; the message names file, record and field.
    """
    label, num_classes = (0, 20) if coarse else (1, 100)
    return _cifar(
        folder, ["train.bin"], ["test.bin"], labels=2, label=label, num_classes=num_classes
    )


def _cifar(
    folder: str | PathLike[str],
    train: list[str],
    test: list[str],
    *,
    labels: int,
    label: int,
    num_classes: int,
) -> ArrayDataset:
    root = existing_folder("folder", folder)
    size = labels + 3 * 32 * 32
    tensors: list[torch.Tensor] = []
    for names in (train, test):
        images, targets = [], []
        for name in names:
            file = root / name
            if not file.is_file():
                raise FileNotFoundError(
                    f"folder must contain {name}, got {str(root)!r} without. "
                    "Give the folder of the binary version, not of the pickled one."
                )
            data = np.frombuffer(file.read_bytes(), np.uint8)
            if len(data) == 0 or len(data) % size:
                raise malformed(
                    file,
                    f"record {len(data) // size}",
                    f"must have {size} bytes, got {len(data) % size}",
                    "The file is incomplete or damaged; fetch it again",
                )
            records = data.reshape(-1, size)
            num_classes_of(file, "label", records[:, label], num_classes)
            targets.append(records[:, label].astype(np.int64))
            images.append(records[:, labels:].reshape(-1, 3, 32, 32))
        tensors += [
            torch.from_numpy(np.concatenate(images).astype(np.float32) / np.float32(255)),
            torch.from_numpy(np.concatenate(targets)),
        ]
    return ArrayDataset(tensors[0], tensors[1], tensors[2], tensors[3], num_classes)
