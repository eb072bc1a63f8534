"""FedDR: Tran-Dinh, Pham, Phan and Nguyen, *FedDR - Randomized Douglas-Rachford Splitting
Algorithms for Nonconvex Federated Composite Optimization*, NeurIPS 2021,
algorithm 1 (arXiv:2103.03452).
"""  # noqa: D205

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

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

__all__ = ["FedDR"]

Regularizer = Literal["none", "l1", "l2", "l2sq"]


@dataclass(frozen=True)
class FedDR(Algorithm):
    r"""Randomised Douglas-Rachford splitting for :math:`\frac1N \sum_i f_i(x) + g(x)`.

    Client :math:`i` sets :math:`y_i \leftarrow y_i + \alpha (\bar x - x_i)`, solves
    :math:`x_i \approx \mathrm{prox}_{\eta f_i}(y_i)` starting at :math:`\bar x`, and sends the
    change of :math:`\hat x_i = 2 x_i - y_i`. The server adds :math:`1/N` of the sum of the changes
    to :math:`\tilde x`, so :math:`\tilde x` stays the mean of all :math:`\hat x_i` under any
    participation, and sets :math:`\bar x = \mathrm{prox}_{\eta g}(\tilde x)`.

    Parameters
    ----------
    eta : float
        Step of the proximal maps, greater than 0.
    alpha : float
        Relaxation, in (0, 2].
    regularizer : {"none", "l1", "l2", "l2sq"}
        The function :math:`g` up to its strength: :math:`|x|_1`, :math:`|x|_2` or
        :math:`|x|_2^2`.
    strength : float
        Coefficient of the regulariser, at least 0.
    """

    stateful: ClassVar[bool] = True
    unsupported: ClassVar[frozenset[str]] = frozenset({"train"})

    eta: float = hyperparameter(1.0, above=0.0)
    alpha: float = hyperparameter(1.95, above=0.0, high=2.0)
    regularizer: Regularizer = hyperparameter("none", choices=get_args(Regularizer))
    strength: float = hyperparameter(0.0, low=0.0)

    def init_server(self, setup: ServerSetup) -> ServerState:
        """Start with every point at the initial model."""
        average = setup.model.parameters
        return ServerState(setup.model, {"average": average, "num_clients": setup.num_clients})

    def init_client(self, model: ModelState) -> dict[str, Any]:
        """Start with every point at the initial model."""
        return {"x": model.parameters, "y": model.parameters, "reflected": model.parameters}

    def train(self, client: Client, down: Mapping[str, Any]) -> Mapping[str, float]:
        """Relax, solve the proximal problem and reflect."""
        start: ModelState = down["model"]
        state = client.state
        y = state["y"] + self.alpha * (start.parameters - state["x"])
        loss = client.train(start, proximal=1.0 / self.eta, anchor=y)
        x = client.model.flat.clone()
        reflected = 2.0 * x - y
        client.outgoing["reflected_delta"] = reflected - state["reflected"]
        state.update(x=x, y=y, reflected=reflected)
        return {"loss": loss}

    def uplink(self, client: Client, down: Mapping[str, Any]) -> Update:
        """Send the change of the reflected point."""
        return client.update(**client.outgoing)

    def aggregate(self, server: ServerState, updates: Updates) -> ServerState:
        """Renew the mean of the reflected points and apply the regulariser's proximal map."""
        num_clients = server.extra["num_clients"]
        change = updates.mean("reflected_delta", "uniform", total_weight=num_clients)
        average = server.extra["average"] + change
        buffers = updates.mean_buffers(server, "uniform")
        return server.at(self.proximal_map(average), buffers).keeping(average=average)

    def proximal_map(self, point: Tensor) -> Tensor:
        """Return ``prox_{eta g}(point)``."""
        threshold = self.eta * self.strength
        if self.regularizer == "none" or threshold == 0.0:
            return point
        if self.regularizer == "l1":
            return torch.sign(point) * torch.clamp(point.abs() - threshold, min=0.0)
        if self.regularizer == "l2":
            norm = float(torch.linalg.vector_norm(point.double()))
            return point * max(0.0, 1.0 - threshold / norm) if norm else point
        return point / (1.0 + 2.0 * threshold)
