"""FPFC: Yu, Liu, Wang and Sun, *Clustered Federated Learning based on Nonconvex Pairwise Fusion*,
2022, algorithm 1 (arXiv:2211.04218).
"""  # noqa: D205

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedbench import aggregation
from fedbench.algorithms.base import (
    Algorithm,
    Client,
    RoundPlan,
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
    SCAD penalty :math:`\phi` by ADMM. Client :math:`i`, whose buffers stay its own, descends on
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

    stateful: ClassVar[bool] = True
    unsupported: ClassVar[frozenset[str]] = frozenset({"compression", "train"})

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

    def init_client(self, model: ModelState) -> dict[str, Any]:
        """Start the client's own model at the initial one."""
        return {"personal": model}

    def broadcast(self, server: ServerState, plan: RoundPlan) -> Mapping[str, Any]:
        """Send nothing to all: every client has a target of its own."""
        return {}

    def broadcast_to(self, server: ServerState, position: int) -> Mapping[str, Any]:
        """Send the client its target."""
        return {"target": server.extra["targets"][position].clone()}

    def train(self, client: Client, down: Mapping[str, Any]) -> Mapping[str, float]:
        """Descend from the client's own model with the pull towards its target."""
        own: ModelState = client.state["personal"]
        loss = client.train(own, proximal=self.rho, anchor=down["target"])
        client.state["personal"] = client.model.state()
        return {"loss": loss}

    def uplink(self, client: Client, down: Mapping[str, Any]) -> Update:
        """Send the client's model."""
        update = client.model_update()
        return Update(update.num_samples, {**update.tensors, "position": client.position})

    def aggregate(self, server: ServerState, updates: Updates) -> ServerState:
        """Renew models, pairwise variables and targets; the shared model is their mean."""
        extra = {name: value.clone() for name, value in server.extra.items()}
        models, fused, duals = extra["models"], extra["fused"], extra["duals"]
        present = torch.zeros(len(models), dtype=torch.bool)
        for _, update in updates:
            position = update.tensors["position"]
            present[position] = True
            models[position] = update.tensors["parameters"]
        first, second = _pairs(len(models))
        touched = present[first] | present[second]
        differences = models[first[touched]] - models[second[touched]]
        shifted = differences + duals[touched] / self.rho
        fused[touched] = self.fuse(shifted)
        # The dual is part of `shifted` already: v + rho (w_i - w_j - theta).
        duals[touched] = self.rho * (shifted - fused[touched])
        extra["targets"] = self.targets(models, fused, duals)
        buffers = updates.mean_buffers(server, "uniform")
        return server.at(aggregation.mean(models), buffers).keeping(**extra)

    def fuse(self, differences: Tensor) -> Tensor:
        """Return the proximal map of the penalty at each row of `differences`."""
        rho, lam, a, xi = self.rho, self.lam, self.a, self.xi
        if lam == 0.0:
            return differences
        norms = torch.linalg.vector_norm(differences.double(), dim=1)
        steep = 1.0 / ((a - 1.0) * rho)
        factors = torch.where(
            norms <= xi + lam / rho,
            xi * rho / (lam + xi * rho),
            torch.where(
                norms <= lam + lam / rho,
                1.0 - lam / (rho * norms),
                torch.where(
                    norms <= a * lam,
                    (1.0 - a * lam * steep / norms).clamp(min=0.0) / (1.0 - steep),
                    1.0,
                ),
            ),
        )
        return differences * factors.to(differences.dtype)[:, None]

    def targets(self, models: Tensor, fused: Tensor, duals: Tensor) -> Tensor:
        """Return each client's target: the mean of what the others' models ask it to be."""
        totals = models.sum(dim=0).repeat(len(models), 1)
        first, second = _pairs(len(models))
        pulls = fused - duals / self.rho
        return totals.index_add_(0, first, pulls).index_add_(0, second, -pulls) / len(models)

    def personal_model(self, state: Mapping[str, Any]) -> ModelState | None:
        """Return the client's own model."""
        personal: ModelState = state["personal"]
        return personal


def _pairs(count: int) -> tuple[Tensor, Tensor]:
    """Return the positions of the two ends of every pair; the first one is the smaller."""
    first, second = torch.triu_indices(count, count, 1)
    return first, second
