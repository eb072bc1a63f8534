"""ProxSkip (Scaffnew): Mishchenko, Malinovsky, Stich and Richtarik, *ProxSkip: Yes! Local Gradient
Steps Provably Lead to Communication Acceleration! Finally!*, ICML 2022, algorithms 1 and 2
(arXiv:2202.09357).
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

__all__ = ["ProxSkip"]


@dataclass(frozen=True)
class ProxSkip(Algorithm):
    r"""Clients take corrected local steps; one coin for all decides whether they communicate.

    A round is :math:`\hat x_i = x_i - \gamma (g_i(x_i) - h_i)`. If the round's coin shows
    communication, the server moves to the uniform mean of the :math:`\hat x_i`, and each client
    then sets :math:`h_i \leftarrow h_i + \frac{p}{\gamma} (x - \hat x_i)` and :math:`x_i = x`
    when it next receives the model. In other rounds nothing travels in either direction. Made for
    full participation; the paper's local work is one step per round, more steps per round are an
    extension that keeps :math:`\sum_i h_i = 0`.

    Parameters
    ----------
    p : float
        Probability of communicating in a round, in (0, 1]; the paper's best is
        :math:`1 / \sqrt\kappa`.
    """

    stateful: ClassVar[bool] = True
    unsupported: ClassVar[frozenset[str]] = frozenset({"compression", "train"})

    p: float = hyperparameter(0.5, above=0.0, high=1.0)

    def init_server(self, setup: ServerSetup) -> ServerState:
        """Start with the clients already holding the model."""
        return ServerState(setup.model, {"fresh": False})

    def init_client(self, model: ModelState) -> dict[str, Any]:
        """Start at the server's model with a zero variate."""
        return {"model": model, "control": torch.zeros_like(model.parameters)}

    def plan(self, server: ServerState, context: RoundContext) -> RoundPlan:
        """Toss the coin; broadcast only what the last communication made new."""
        communicate = context.generator("server-coin").random() < self.p
        plan = RoundPlan.everyone(context.cohort, p=self.p)
        return dataclasses.replace(
            plan,
            broadcast=plan.broadcast if server.extra["fresh"] else (),
            uplink=plan.uplink if communicate else (),
        )

    def train(self, client: Client, down: Mapping[str, Any]) -> Mapping[str, float]:
        """Take in a new server model, if there is one, and run the corrected local steps."""
        self.receive(client, down)
        control = client.state["control"]
        loss = client.train(client.state["model"], correction=-control)
        client.state["model"] = client.model.state()
        return {"loss": loss}

    def receive(self, client: Client, down: Mapping[str, Any]) -> None:
        """Renew the client's variate and model from the mean that the server has sent."""
        if not client.received:
            return
        server: ModelState = down["model"]
        own: ModelState = client.state["model"]
        rate = self.p / (client.num_steps * client.work.lr)
        change = server.parameters - own.parameters
        client.state["control"] = client.state["control"] + rate * change
        client.state["model"] = server.clone()

    def uplink(self, client: Client, down: Mapping[str, Any]) -> Update:
        """Send the client's model."""
        return client.model_update()

    def aggregate(self, server: ServerState, updates: Updates) -> ServerState:
        """Move to the uniform mean of the clients' models."""
        mean = updates.mean("parameters", "uniform")
        return server.at(mean, updates.mean_buffers(server, "uniform")).keeping(fresh=True)

    def silent(self, server: ServerState) -> ServerState:
        """Remember that the clients already hold the server's model."""
        return server.keeping(fresh=False)
