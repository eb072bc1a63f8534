"""FedPD: Zhang, Hong, Dhople, Yin and Liu, *FedPD: A Federated Learning Framework with Optimal
Rates and Adaptivity to Non-IID Data*, 2020, algorithms 1 and 2 (arXiv:2005.11418).
"""  # noqa: D205

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from fedbench.algorithms.base import (
    Algorithm,
    Client,
    RoundContext,
    RoundPlan,
    ServerSetup,
    ServerState,
    Update,
    Updates,
    hyperparameter,
)
from fedbench.training import ModelState

__all__ = ["FedPD"]


@dataclass(frozen=True)
class FedPD(Algorithm):
    r"""Clients solve an augmented Lagrangian; one coin for all decides whether they communicate.

    Client :math:`i` minimises
    :math:`f_i(u) + \langle \lambda_i, u - x_i^0 \rangle + \frac{1}{2\eta} |u - x_i^0|^2` from its
    last :math:`x_i`, then :math:`\lambda_i \leftarrow \lambda_i + (x_i - x_i^0) / \eta` and
    :math:`x_i^+ = x_i + \eta \lambda_i`. In a round with communication the server moves to the
    uniform mean of the :math:`x_i^+`, which becomes every client's :math:`x_i^0`; in a silent
    round :math:`x_i^0 = x_i^+` and nothing travels. Made for full participation. With skipped
    rounds the limit on clients that differ is biased, as it is in the paper.

    Parameters
    ----------
    eta : float
        Inverse of the penalty, greater than 0.
    skip : float
        Probability of a silent round (the paper's p), in [0, 1).
    """

    stateful: ClassVar[bool] = True
    unsupported: ClassVar[frozenset[str]] = frozenset({"compression", "train"})

    eta: float = hyperparameter(1.0, above=0.0)
    skip: float = hyperparameter(0.0, low=0.0, below=1.0)

    def init_server(self, setup: ServerSetup) -> ServerState:
        """Start with the clients already holding the model."""
        return ServerState(setup.model, {"fresh": False})

    def init_client(self, model: ModelState) -> dict[str, Any]:
        """Start at the server's model with a zero dual."""
        return {
            "model": model,
            "consensus": model.parameters,
            "dual": torch.zeros_like(model.parameters),
        }

    def plan(self, server: ServerState, context: RoundContext) -> RoundPlan:
        """Toss the coin; broadcast only what the last communication made new."""
        communicate = context.generator("server-coin").random() >= self.skip
        plan = RoundPlan.everyone(context.cohort)
        return dataclasses.replace(
            plan,
            broadcast=plan.broadcast if server.extra["fresh"] else (),
            uplink=plan.uplink if communicate else (),
        )

    def train(self, client: Client, down: Mapping[str, Any]) -> Mapping[str, float]:
        """Minimise the augmented Lagrangian and take the dual step."""
        state = client.state
        if client.received:
            state["consensus"] = down["model"].parameters
            state["model"] = ModelState(state["model"].parameters, down["model"].buffers)
        consensus, dual = state["consensus"], state["dual"]
        loss = client.train(
            state["model"], proximal=1.0 / self.eta, anchor=consensus, correction=dual
        )
        state["model"] = client.model.state()
        primal = state["model"].parameters
        state["dual"] = dual + (primal - consensus) / self.eta
        # In a silent round the client goes on from its own point; otherwise the mean replaces it.
        state["consensus"] = primal + self.eta * state["dual"]
        return {"loss": loss}

    def uplink(self, client: Client, down: Mapping[str, Any]) -> Update:
        """Send the client's consensus point."""
        return client.update(parameters=client.state["consensus"].clone())

    def aggregate(self, server: ServerState, updates: Updates) -> ServerState:
        """Move to the uniform mean of the consensus points."""
        mean = updates.mean("parameters", "uniform")
        return server.at(mean, updates.mean_buffers(server, "uniform")).keeping(fresh=True)

    def silent(self, server: ServerState) -> ServerState:
        """Remember that there is nothing new to broadcast."""
        return server.keeping(fresh=False)
