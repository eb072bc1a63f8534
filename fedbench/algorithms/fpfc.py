"""FPFC: Yu, Liu, Wang and Sun, *Clustered Federated Learning based on Nonconvex Pairwise Fusion*,
2022, algorithm 1 (arXiv:2211.04218).
"""  # noqa: D205

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedbench import aggregation
from fedbench.algorithms.base import (
    Algorithm,
    Client,
    ServerSetup,
    ServerState,
    Update,
    Updates,
    hyperparameter,
)
from fedbench.training import ModelState

__all__ = ["FPFC"]


@dataclass(frozen=True)
class FPFC(Algorithm):
    r"""Every client has its own model; a penalty on their differences fuses them into clusters.

    Minimises :math:`\sum_i f_i(w_i) + \frac{1}{2m} \sum_{i,j} \phi(|w_i - w_j|)` with a smoothed
    SCAD penalty :math:`\phi` by ADMM. Client :math:`i` descends on
    :math:`f_i(w) + \frac\rho2 |w - \zeta_i|^2`; the server renews :math:`\theta_{ij}` and
    :math:`v_{ij}` for every pair with an end in the cohort. The server's memory and work grow
    with the square of the number of clients.

    Parameters
    ----------
    rho : float
        Penalty of the augmented Lagrangian, greater than 0.
    lam : float
        Slope of the penalty, at least 0; 0 leaves the clients alone.
    a : float
        Where the penalty becomes flat, in multiples of `lam`; ``(a - 1) rho`` must exceed 1.
    xi : float
        Width of the smoothed tip, greater than 0.
    """

    stateful: ClassVar[bool] = False
    unsupported: ClassVar[frozenset[str]] = frozenset({"compression"})

    rho: float = hyperparameter(1.0, above=0.0)
    lam: float = hyperparameter(1.0, low=0.0)
    a: float = hyperparameter(3.7, above=1.0)
    xi: float = hyperparameter(1e-4, above=0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.a - 1.0) * self.rho > 1.0:
            raise ValueError(
                f"a must satisfy (a - 1) * rho > 1, got a={self.a!r} and rho={self.rho!r}. "
                f"Raise a or rho."
            )

    def init_server(self, setup: ServerSetup) -> ServerState:
        """Start every client's model at the initial one, unfused."""
        x = setup.model.parameters
        count = setup.num_clients
        pairs = count * (count - 1) // 2
        return ServerState(
            setup.model,
            {
                "models": x.repeat(count, 1),
                "targets": x.repeat(count, 1),
                "fused": x.new_zeros(pairs, len(x)),
                "duals": x.new_zeros(pairs, len(x)),
            },
        )

    def broadcast_to(self, server: ServerState, position: int) -> Mapping[str, Any]:
        """Send the client its own model and its own target."""
        return {
            "own": server.extra["models"][position].clone(),
            "target": server.extra["targets"][position].clone(),
        }

    def train(self, client: Client, down: Mapping[str, Any]) -> Mapping[str, float]:
        """Descend from the client's own model with the pull towards its target."""
        start = ModelState(down["own"], down["model"].buffers)
        return {"loss": client.train(start, proximal=self.rho, anchor=down["target"])}

    def uplink(self, client: Client, down: Mapping[str, Any]) -> Update:
        """Send the client's model."""
        update = client.model_update()
        return Update(update.num_samples, {**update.tensors, "position": client.position})

    def aggregate(self, server: ServerState, updates: Updates) -> ServerState:
        """Renew models, pairwise variables and targets; the shared model is their mean."""
        extra = {name: value.clone() for name, value in server.extra.items()}
        models, fused, duals = extra["models"], extra["fused"], extra["duals"]
        present = set()
        for _, update in updates:
            position = update.tensors["position"]
            present.add(position)
            models[position] = update.tensors["parameters"]
        for pair, (i, j) in enumerate(itertools.combinations(range(len(models)), 2)):
            if i in present or j in present:
                shifted = models[i] - models[j] + duals[pair] / self.rho
                fused[pair] = self.fuse(shifted)
                duals[pair] = self.rho * (shifted - fused[pair])
        extra["targets"] = self.targets(models, fused, duals)
        buffers = updates.mean_buffers(server, "uniform")
        return server.at(aggregation.mean(list(models)), buffers).keeping(**extra)

    def fuse(self, difference: Tensor) -> Tensor:
        """Return the proximal map of the penalty at the difference of two models."""
        rho, lam, a, xi = self.rho, self.lam, self.a, self.xi
        if lam == 0.0:
            return difference
        norm = float(torch.linalg.vector_norm(difference.double()))
        if norm <= xi + lam / rho:
            return difference * (xi * rho / (lam + xi * rho))
        if norm <= lam + lam / rho:
            return difference * (1.0 - lam / (rho * norm))
        if norm <= a * lam:
            shrunk = max(0.0, 1.0 - a * lam / ((a - 1.0) * rho * norm))
            return difference * (shrunk / (1.0 - 1.0 / ((a - 1.0) * rho)))
        return difference

    def targets(self, models: Tensor, fused: Tensor, duals: Tensor) -> Tensor:
        """Return each client's target: the mean of what the others' models ask it to be."""
        totals = models.sum(dim=0).repeat(len(models), 1)
        for pair, (i, j) in enumerate(itertools.combinations(range(len(models)), 2)):
            pull = fused[pair] - duals[pair] / self.rho
            totals[i] += pull
            totals[j] -= pull
        return totals / len(models)
