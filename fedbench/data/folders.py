"""Folders of image files, one folder per class, as torchvision's ``ImageFolder`` reads them."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from fedbench.data._files import existing_folder, malformed
from fedbench.data.federated import ArrayDataset
from fedbench.data.split import stratified_split
from fedbench.registry import missing_extra

__all__ = ["load_image_folder"]

_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")


def load_image_folder(
    train: str | PathLike[str],
    test: str | PathLike[str] | None = None,
    *,
    image_size: int | None = None,
    grayscale: bool = False,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> ArrayDataset:
    """Read images from ``<train>/<class>/<any name>.png`` (or another image format).

    Parameters
    ----------
    train : path
        Folder with one folder per class; the classes are numbered in the order of their
        names. Files with other suffixes are ignored.
    test : path, optional
        Likewise, with the same classes; by default part of `train` becomes the test.
    image_size : int, optional
        Scale every image to this height and width (bilinear); by default all must be alike.
    grayscale : bool
        One channel instead of three.
    test_fraction : float
        Share of each class that becomes test samples where there is no `test`.
    seed : int
        Seed of that choice.

    Returns
    -------
    ArrayDataset
        Inputs ``[n, 3 or 1, height, width]`` float32 in [0, 1], targets ``[n]`` int64.

    Raises
    ------
    MissingExtraError
        If Pillow is not installed.
    FileNotFoundError
        If a folder does not exist.
    DataFormatError
        If an image is damaged or of another size, or there are no classes or images; the
        message names the file.
    """
    root = existing_folder("train", train)
    classes = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
    if not classes:
        raise malformed(root, "", "must have one folder per class, got none", "Check the path")
    inputs, targets = _read_folder(root, classes, image_size, grayscale)
    if test is None:
        return stratified_split(
            inputs, targets, len(classes), seed=seed, test_fraction=test_fraction
        )
    test_root = existing_folder("test", test)
    unknown = {entry.name for entry in test_root.iterdir() if entry.is_dir()} - set(classes)
    if unknown:
        raise malformed(
            test_root,
            f"class {min(unknown)!r}",
            f"must be one of the classes in {root}",
            "Give training and test images of one data set",
        )
    test_inputs, test_targets = _read_folder(test_root, classes, image_size, grayscale)
    if test_inputs.shape[1:] != inputs.shape[1:]:
        raise malformed(
            test_root,
            "",
            f"must hold images of {inputs.shape[2]}x{inputs.shape[3]} pixels like {root}, got "
            f"{test_inputs.shape[2]}x{test_inputs.shape[3]}",
            "Pass image_size= to scale them",
        )
    return ArrayDataset(
        torch.from_numpy(inputs),
        torch.from_numpy(targets),
        torch.from_numpy(test_inputs),
        torch.from_numpy(test_targets),
        len(classes),
    )


def _read_folder(
    root: Path, classes: list[str], image_size: int | None, grayscale: bool
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    images: list[npt.NDArray[np.uint8]] = []
    targets: list[int] = []
    for label, name in enumerate(classes):
        for file in sorted((root / name).rglob("*")):
            if file.suffix.lower() not in _SUFFIXES:
                continue
            image = _read_image(file, image_size, grayscale)
            if images and image.shape != images[0].shape:
                raise malformed(
                    file,
                    "",
                    f"must have {images[0].shape[0]}x{images[0].shape[1]} pixels like the images "
                    f"before, got {image.shape[0]}x{image.shape[1]}",
                    "Pass image_size= to scale them",
                )
            images.append(image)
            targets.append(label)
    if not images:
        raise malformed(root, "", "must have images in its folders, got none", "Check the path")
    stacked = np.moveaxis(np.stack(images), 3, 1)
    return np.ascontiguousarray(stacked, np.float32) / np.float32(255), np.array(targets)


def _read_image(file: Path, image_size: int | None, grayscale: bool) -> npt.NDArray[np.uint8]:
    """Return ``[height, width, channels]``."""
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise missing_extra("load_image_folder", error.name, "data") from error
    try:
        with Image.open(file) as opened:
            image = opened.convert("L" if grayscale else "RGB")
    except (OSError, SyntaxError, ValueError) as error:
        raise malformed(
            file, "", f"must be a readable image, got: {error}", "Replace or remove it"
        ) from error
    if image_size is not None:
        image = image.resize((image_size, image_size), Image.Resampling.BILINEAR)
    return np.asarray(image, np.uint8).reshape(image.height, image.width, -1)
