"""SCAFFOLD: Karimireddy, Kale, Mohri, Reddi, Stich and Suresh, *SCAFFOLD: Stochastic Controlled
Averaging for Federated Learning*, ICML 2020, algorithm 1 (arXiv:1910.06378).
"""  # noqa: D205

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedbench.algorithms.base import (
    Algorithm,
    Client,
    Reduction,
    RoundPlan,
    ServerSetup,
    ServerState,
    Update,
    Updates,
    hyperparameter,
    model_reduction,
)
from fedbench.training import ModelState, full_gradient

__all__ = ["Scaffold"]


@dataclass(frozen=True)
class Scaffold(Algorithm):
    r"""Local steps are corrected by the difference of the server's and the client's variate.

    Local steps are :math:`y \leftarrow y - \eta (g_i(y) - c_i + c)`. The new client variate is the
    gradient at the received model (option I) or :math:`c_i - c + (x - y) / (K \eta)` with the
    :math:`K` steps that were taken (option II). The server adds the uniform mean of the model
    changes and :math:`1/N` of the sum of the variate changes, so :math:`c` stays the mean of all
    :math:`c_i` under any participation.

    Parameters
    ----------
    server_lr : float
        :math:`\eta_g`, greater than 0.
    option : {"II", "I"}
        How the client's variate is renewed.
    """

    stateful: ClassVar[bool] = True
    unsupported: ClassVar[frozenset[str]] = frozenset({"train"})

    server_lr: float = hyperparameter(1.0, above=0.0)
    option: Literal["I", "II"] = hyperparameter("II", choices=("I", "II"))

    def init_server(self, setup: ServerSetup) -> ServerState:
        """Start from a zero server variate."""
        control = torch.zeros_like(setup.model.parameters)
        return ServerState(setup.model, {"control": control, "num_clients": setup.num_clients})

    def init_client(self, model: ModelState) -> dict[str, Any]:
        """Start from a zero client variate."""
        return {"control": torch.zeros_like(model.parameters)}

    def broadcast(self, server: ServerState, plan: RoundPlan) -> Mapping[str, Any]:
        """Send the model and the server's variate."""
        return {"model": server.model, "control": server.extra["control"]}

    def train(self, client: Client, down: Mapping[str, Any]) -> Mapping[str, float]:
        """Run the corrected local steps and renew the client's variate."""
        start: ModelState = down["model"]
        own: Tensor = client.state["control"]
        correction = down["control"] - own
        if self.option == "I":
            client.model.load(start)
            renewed = full_gradient(client.model, client.data, client.loss)
        loss = client.train(start, correction=correction)
        if self.option == "II":
            scale = 1.0 / (client.num_steps * client.work.lr)
            renewed = (start.parameters - client.model.flat) * scale - correction
        client.state["control"] = renewed
        client.outgoing["control_delta"] = renewed - own
        return {"loss": loss}

    def uplink(self, client: Client, down: Mapping[str, Any]) -> Update:
        """Send the changes of the model and of the variate."""
        update = super().uplink(client, down)
        return Update(update.num_samples, {**update.tensors, **client.outgoing})

    def reduction(self, server: ServerState) -> Mapping[str, Reduction]:
        """Return the entries of the updates, all weighted alike."""
        return model_reduction(server, "uniform", control_delta="uniform")

    def aggregate(self, server: ServerState, updates: Updates) -> ServerState:
        """Move the model by the mean change and the variate by the population mean."""
        step = updates.mean("delta", "uniform")
        if self.server_lr != 1.0:
            step = self.server_lr * step
        num_clients = server.extra["num_clients"]
        change = updates.mean("control_delta", "uniform", total_weight=num_clients)
        return server.moved(step, updates.mean_buffers(server, "uniform")).keeping(
            control=server.extra["control"] + change
        )
