"""Data drawn from a seed: FedProx's Synthetic(alpha, beta) and images of coloured noise."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from fedbench.data._partition_tools import check_count
from fedbench.data.federated import ArrayDataset
from fedbench.reproducibility import numpy_generator, torch_generator

__all__ = ["load_synthetic", "load_synthetic_images"]

_FEATURES = 60
_CLASSES = 10


def load_synthetic(
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    iid: bool = False,
    num_clients: int = 30,
    seed: int = 0,
) -> ArrayDataset:
    """Draw Synthetic(alpha, beta) of Li et al. (2020), "Federated Optimization ..." (FedProx).

    Client ``k`` has ``floor(LogNormal(4, 2)) + 50`` samples ``(x, y)`` with
    ``y = argmax(softmax(x W_k + b_k))``, where

    - ``u_k ~ N(0, alpha)``, the entries of ``W_k`` (60x10) and ``b_k`` (10) ``~ N(u_k, 1)``;
    - ``B_k ~ N(0, beta)``, the entries of ``v_k`` (60) ``~ N(B_k, 1)``;
    - ``x ~ N(v_k, Sigma)`` with ``Sigma = diag(j**-1.2)``, ``j = 1 .. 60``.

    As in the authors' generator, `alpha` and `beta` are standard deviations, and the first 90 %
    of each client's samples are for training, the rest for the test.

    Parameters
    ----------
    alpha : float
        How much the clients' models differ, >= 0.
    beta : float
        How much the clients' inputs differ, >= 0.
    iid : bool
        Give all clients one model, with entries ``~ N(0, 1)``, and inputs ``x ~ N(0, Sigma)``:
        the authors' Synthetic-IID, in which `alpha` and `beta` play no part.
    num_clients : int
        Number of clients.
    seed : int
        Seed of everything that is drawn.

    Returns
    -------
    ArrayDataset
        Inputs ``[n, 60]`` float32, targets ``[n]`` int64, one client key per training sample.
    """
    check_count("num_clients", num_clients)
    for name, value in (("alpha", alpha), ("beta", beta)):
        if not (isinstance(value, int | float) and 0 <= value < float("inf")):
            raise ValueError(f"{name} must be a number >= 0, got {value!r}. Use 0, 0.5 or 1.")
    rng = numpy_generator(seed, "synthetic")
    sizes = rng.lognormal(4, 2, num_clients).astype(np.int64) + 50
    model_means = rng.normal(0, alpha, num_clients)
    input_means = rng.normal(0, beta, num_clients)
    spread = np.arange(1, _FEATURES + 1) ** -0.6  # square root of Sigma's diagonal
    shared = rng.normal(0, 1, (_FEATURES + 1, _CLASSES))

    train: list[tuple[np.ndarray, np.ndarray]] = []
    test: list[tuple[np.ndarray, np.ndarray]] = []
    for client, size in enumerate(sizes):
        center, own = np.zeros(_FEATURES), shared
        if not iid:
            center = rng.normal(input_means[client], 1, _FEATURES)
            own = rng.normal(model_means[client], 1, (_FEATURES + 1, _CLASSES))
        inputs = center + spread * rng.normal(size=(size, _FEATURES))
        targets = (inputs @ own[:-1] + own[-1]).argmax(1)  # softmax keeps the order
        cut = int(0.9 * size)
        train.append((inputs[:cut], targets[:cut]))
        test.append((inputs[cut:], targets[cut:]))
    keys = np.repeat(np.arange(num_clients), [len(part[1]) for part in train])
    return ArrayDataset(
        *_joined(train), *_joined(test), num_classes=_CLASSES, client_keys=keys.tolist()
    )


def _joined(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, targets = (np.concatenate(column) for column in zip(*parts, strict=True))
    return torch.from_numpy(inputs.astype(np.float32)), torch.from_numpy(targets)


def load_synthetic_images(
    *,
    num_samples: int = 2000,
    num_test_samples: int = 400,
    num_classes: int = 10,
    image_size: int = 32,
    noise: float = 2.0,
    seed: int = 0,
) -> ArrayDataset:
    """Draw colour images of the shape of CIFAR-10: a smooth pattern per class under noise.

    They stand in for CIFAR where its files are not at hand: the cost of a round is the same,
    the task is easier.

    Parameters
    ----------
    num_samples, num_test_samples : int
        Number of training and test images; the classes are equally frequent.
    num_classes : int
        Number of classes.
    image_size : int
        Height and width in pixels.
    noise : float
        Standard deviation of the noise of each pixel; that of the patterns is about 1.
    seed : int
        Seed of patterns and noise.

    Returns
    -------
    ArrayDataset
        Inputs ``[n, 3, image_size, image_size]`` float32, targets ``[n]`` int64.
    """
    for name, value in (
        ("num_samples", num_samples),
        ("num_test_samples", num_test_samples),
        ("num_classes", num_classes),
        ("image_size", image_size),
    ):
        check_count(name, value)
    generator = torch_generator(seed, "synthetic-images")
    coarse = torch.randn(num_classes, 3, 4, 4, generator=generator)
    patterns = functional.interpolate(coarse, image_size, mode="bilinear", align_corners=True)
    count = num_samples + num_test_samples
    targets = torch.arange(count) % num_classes
    inputs = torch.randn(count, 3, image_size, image_size, generator=generator)
    inputs.mul_(noise).add_(patterns[targets])
    return ArrayDataset(
        inputs[:num_samples],
        targets[:num_samples],
        inputs[num_samples:],
        targets[num_samples:],
        num_classes,
    )
