"""Division into training and test samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from fedbench.data.federated import ArrayDataset
from fedbench.reproducibility import numpy_generator

__all__ = ["check_test_fraction", "stratified_split"]


def check_test_fraction(test_fraction: float) -> None:
    """Refuse a share that leaves one of the two parts empty."""
    if not (isinstance(test_fraction, int | float) and 0 < test_fraction < 1):
        raise ValueError(
            f"test_fraction must be between 0 and 1, got {test_fraction!r}. Use 0.2, for example."
        )


def stratified_split(
    inputs: npt.NDArray[np.generic],
    targets: npt.NDArray[np.generic],
    num_classes: int | None,
    *,
    seed: int,
    test_fraction: float,
    client_keys: Sequence[int | str] | None = None,
) -> ArrayDataset:
    """Divide samples into training and test part, every class in the same proportion.

    Parameters
    ----------
    inputs : numpy.ndarray
        ``[n, ...]`` float32 or int64.
    targets : numpy.ndarray
        ``[n]`` classes in ``[0, num_classes)``, or float32 values.
    num_classes : int or None
        Number of classes; None for a regression, where the division is not stratified.
    seed : int
        Seed of the choice of test samples.
    test_fraction : float
        Share of each class that becomes test samples, in (0, 1), rounded to whole samples.
    client_keys : sequence of int or str, optional
        The client of each sample.

    Returns
    -------
    ArrayDataset
        Both parts in the order of `inputs`.

    Raises
    ------
    ValueError
        If `test_fraction` is out of range.
    """
    check_test_fraction(test_fraction)
    rng = numpy_generator(seed, "split")
    strata = np.zeros(len(targets), np.int64) if num_classes is None else targets
    is_test = np.zeros(len(targets), bool)
    for label in range(num_classes or 1):
        members = rng.permutation(np.flatnonzero(strata == label))
        is_test[members[: round(test_fraction * len(members))]] = True
    typed = targets.astype(np.float32 if num_classes is None else np.int64)
    train = np.flatnonzero(~is_test).tolist()
    return ArrayDataset(
        torch.from_numpy(inputs[~is_test]),
        torch.from_numpy(typed[~is_test]),
        torch.from_numpy(inputs[is_test]),
        torch.from_numpy(typed[is_test]),
        num_classes,
        client_keys=None if client_keys is None else [client_keys[row] for row in train],
    )
