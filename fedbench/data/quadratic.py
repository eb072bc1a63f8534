"""Heterogeneous quadratics: a problem whose optimum is known."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from fedbench.data._partition_tools import check_count
from fedbench.data.federated import ArrayDataset
from fedbench.reproducibility import numpy_generator

__all__ = ["Quadratics", "load_quadratics", "quadratics"]

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Quadratics:
    """Clients with objectives ``f_i(x) = (x - c_i)' H_i (x - c_i) / 2``, written as regression.

    Client ``i`` has ``dimension`` samples; the mean squared error of the linear model ``x``
    without intercept over them is ``f_i(x)``. So one full batch of local training is one
    gradient step on ``f_i``.

    Attributes
    ----------
    samples : ArrayDataset
        Inputs ``[num_clients * dimension, dimension]``, targets ``[num_clients * dimension]``,
        both float32, with client keys. The test samples are the training samples, so the
        loss on them is the objective of the federation, the mean of the ``f_i``.
    hessians : numpy.ndarray
        ``H_i``, ``[num_clients, dimension, dimension]`` float64.
    optimum : numpy.ndarray
        ``x* = (sum_i H_i)^-1 sum_i H_i c_i``, ``[dimension]`` float64: the minimiser of the
        objective of the samples as rounded to float32.
    """

    samples: ArrayDataset
    hessians: FloatArray
    optimum: FloatArray

    def objective(self, point: npt.ArrayLike) -> float:
        """Return the mean of the ``f_i`` at `point` (``[dimension]``), in float64."""
        residual = self.samples.inputs.double().numpy() @ np.asarray(point, np.float64).reshape(-1)
        return float(np.mean((residual - self.samples.targets.double().numpy()) ** 2))

    @property
    def minimum(self) -> float:
        """The least value of :meth:`objective`; above 0 because the clients disagree."""
        return self.objective(self.optimum)


def quadratics(
    *,
    num_clients: int = 20,
    dimension: int = 10,
    smoothness: float = 3.0,
    condition: float = 10.0,
    spread: float = 1.0,
    seed: int = 0,
) -> Quadratics:
    """Draw quadratics that differ in curvature and in their minimisers.

    Parameters
    ----------
    num_clients, dimension : int
        Number of clients and of variables.
    smoothness : float
        Largest eigenvalue of every ``H_i``, > 0.
    condition : float
        Ratio of the largest to the smallest eigenvalue of every ``H_i``, >= 1; the eigenvalues
        are spaced geometrically, the eigenvectors drawn uniformly.
    spread : float
        Standard deviation of the entries of the minimisers ``c_i``, >= 0.
    seed : int
        Seed of everything that is drawn.

    Returns
    -------
    Quadratics
        The samples, with the known optimum.
    """
    check_count("num_clients", num_clients)
    check_count("dimension", dimension)
    for name, value, least in (
        ("smoothness", smoothness, math.ulp(0.0)),
        ("condition", condition, 1.0),
        ("spread", spread, 0.0),
    ):
        if not (math.isfinite(value) and value >= least):
            bound = "> 0" if name == "smoothness" else f">= {least:g}"
            raise ValueError(f"{name} must be a number {bound}, got {value!r}. Use 1, for example.")
    rng = numpy_generator(seed, "quadratics")
    roots = np.sqrt(np.geomspace(smoothness, smoothness / condition, dimension))
    rows, values = [], []
    for _ in range(num_clients):
        rotation, triangle = np.linalg.qr(rng.normal(size=(dimension, dimension)))
        rotation = rotation * np.sign(np.diag(triangle))  # uniform, whatever QR's sign rule is
        root = math.sqrt(dimension / 2) * (rotation * roots) @ rotation.T
        rows.append(root)
        values.append(root @ rng.normal(0, spread, dimension))
    inputs = torch.from_numpy(np.concatenate(rows)).float()
    targets = torch.from_numpy(np.concatenate(values)).float()
    keys = np.repeat(np.arange(num_clients), dimension).tolist()
    samples = ArrayDataset(inputs, targets, inputs, targets, None, client_keys=keys)
    # From the rounded samples, so that the optimum is theirs.
    exact = inputs.double().numpy()
    per_client = exact.reshape(num_clients, dimension, dimension)
    hessians = 2 / dimension * np.einsum("nij,nik->njk", per_client, per_client)
    optimum = np.linalg.solve(exact.T @ exact, exact.T @ targets.double().numpy())
    return Quadratics(samples, hessians, optimum)


def load_quadratics(
    *,
    num_clients: int = 20,
    dimension: int = 10,
    smoothness: float = 3.0,
    condition: float = 10.0,
    spread: float = 1.0,
    seed: int = 0,
) -> ArrayDataset:
    """Return the samples of :func:`quadratics`, which describes the arguments."""
    return quadratics(
        num_clients=num_clients,
        dimension=dimension,
        smoothness=smoothness,
        condition=condition,
        spread=spread,
        seed=seed,
    ).samples
