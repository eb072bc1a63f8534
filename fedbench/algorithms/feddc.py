"""FedDC: Gao, Fu, Li, Chen, Xu and Xu, *FedDC: Federated Learning with Non-IID Data via Local Drift
Decoupling and Correction*, CVPR 2022, algorithm 1 (arXiv:2203.11751).
"""  # noqa: D205

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from fedbench.algorithms.base import (
    WEIGHTINGS,
    Algorithm,
    Client,
    RoundPlan,
    ServerSetup,
    ServerState,
    Update,
    Updates,
    Weighting,
    hyperparameter,
)
from fedbench.training import ModelState

__all__ = ["FedDC"]


@dataclass(frozen=True)
class FedDC(Algorithm):
    r"""Each client tracks its drift from the server and sends its drift-corrected model.

    Local steps descend along
    :math:`g_i(\theta) + \alpha (\theta + h_i - w) + (u_i - \bar u) / (\eta K)` from
    :math:`\theta = w`. With :math:`D = \theta - w` the drift grows, :math:`h_i \leftarrow h_i + D`,
    and the last update is renewed. The server takes the mean of the :math:`\theta_i + h_i`, and
    :math:`\bar u` is the mean of the last updates of all clients.

    Parameters
    ----------
    alpha : float
        Strength of the pull towards the drift-corrected model, at least 0.
    drift : {"paper", "scaffold"}
        How a client's last update is renewed: :math:`u_i = D` as in the paper, or
        :math:`u_i \leftarrow u_i - \bar u + D` as in the authors' code, which with ``alpha=0``
        and drifts left out is SCAFFOLD.
    weighting : {"samples", "uniform"}
        Weight of a client's drift-corrected model.
    """

    stateful: ClassVar[bool] = True
    unsupported: ClassVar[frozenset[str]] = frozenset({"train"})

    alpha: float = hyperparameter(0.1, low=0.0)
    drift: Literal["paper", "scaffold"] = hyperparameter("paper", choices=("paper", "scaffold"))
    weighting: Weighting = hyperparameter("samples", choices=WEIGHTINGS)

    def init_server(self, setup: ServerSetup) -> ServerState:
        """Start from a zero mean update."""
        zero = torch.zeros_like(setup.model.parameters)
        return ServerState(setup.model, {"mean_update": zero, "num_clients": setup.num_clients})

    def init_client(self, model: ModelState) -> dict[str, Any]:
        """Start from zero drift and a zero last update."""
        zero = torch.zeros_like(model.parameters)
        return {"drift": zero, "update": zero}

    def broadcast(self, server: ServerState, plan: RoundPlan) -> Mapping[str, Any]:
        """Send the model and the mean of the last updates."""
        return {"model": server.model, "mean_update": server.extra["mean_update"]}

    def train(self, client: Client, down: Mapping[str, Any]) -> Mapping[str, float]:
        """Run the corrected local steps, then renew the drift and the last update."""
        start: ModelState = down["model"]
        state, mean_update = client.state, down["mean_update"]
        ahead = state["update"] - mean_update
        loss = client.train(
            start,
            proximal=self.alpha,
            anchor=start.parameters - state["drift"],
            correction=ahead * (1.0 / (client.work.lr * client.num_steps)),
        )
        delta = client.delta(start)
        renewed = delta if self.drift == "paper" else ahead + delta
        drift = state["drift"] + delta
        client.outgoing.update(
            corrected_delta=delta + drift, update_delta=renewed - state["update"]
        )
        state.update(drift=drift, update=renewed)
        return {"loss": loss}

    def uplink(self, client: Client, down: Mapping[str, Any]) -> Update:
        """Send the drift-corrected change and the change of the last update."""
        return client.update(**client.outgoing)

    def aggregate(self, server: ServerState, updates: Updates) -> ServerState:
        """Move to the mean of the corrected models and renew the mean update."""
        step = updates.mean("corrected_delta", self.weighting)
        num_clients = server.extra["num_clients"]
        change = updates.mean("update_delta", "uniform", total_weight=num_clients)
        return server.moved(step, updates.mean_buffers(server, self.weighting)).keeping(
            mean_update=server.extra["mean_update"] + change
        )
