"""FedDyn: Acar, Zhao, Matas Navarro, Mattina, Whatmough and Saligrama, *Federated Learning Based on
Dynamic Regularization*, ICLR 2021, algorithm 1 (arXiv:2111.04263).
"""  # noqa: D205

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from fedbench.algorithms.base import (
    Algorithm,
    Client,
    Reduction,
    ServerSetup,
    ServerState,
    Updates,
    hyperparameter,
    model_reduction,
)
from fedbench.training import ModelState

__all__ = ["FedDyn"]


@dataclass(frozen=True)
class FedDyn(Algorithm):
    r"""Each client's objective is regularised so that its optimum agrees with the others'.

    A client with gradient memory :math:`g_i` minimises
    :math:`f_i(u) - \langle g_i, u \rangle + \frac{\alpha}{2} |u - x|^2` from :math:`x` and then
    sets :math:`g_i \leftarrow g_i - \alpha (\theta_i - x)`. The server keeps
    :math:`h \leftarrow h - \frac{\alpha}{N} \sum_S (\theta_i - x)` and moves to the uniform mean
    of the :math:`\theta_i` minus :math:`h / \alpha`, so :math:`h` stays the mean of all
    :math:`g_i` under any participation.

    Parameters
    ----------
    alpha : float
        Strength of the regularisation, greater than 0.
    """

    stateful: ClassVar[bool] = True
    unsupported: ClassVar[frozenset[str]] = frozenset({"train"})

    alpha: float = hyperparameter(0.1, above=0.0)

    def init_server(self, setup: ServerSetup) -> ServerState:
        """Start from a zero correction."""
        zero = torch.zeros_like(setup.model.parameters)
        return ServerState(setup.model, {"correction": zero, "num_clients": setup.num_clients})

    def init_client(self, model: ModelState) -> dict[str, Any]:
        """Start from a zero gradient memory."""
        return {"gradient": torch.zeros_like(model.parameters)}

    def train(self, client: Client, down: Mapping[str, Any]) -> Mapping[str, float]:
        """Minimise the regularised objective and renew the gradient memory."""
        start: ModelState = down["model"]
        memory = client.state["gradient"]
        loss = client.train(start, proximal=self.alpha, anchor=start.parameters, correction=-memory)
        client.state["gradient"] = memory - self.alpha * client.delta(start)
        return {"loss": loss}

    def reduction(self, server: ServerState) -> Mapping[str, Reduction]:
        """Return the entries of the updates, all weighted alike."""
        return model_reduction(server, "uniform")

    def aggregate(self, server: ServerState, updates: Updates) -> ServerState:
        """Renew the correction and move to the corrected mean."""
        num_clients = server.extra["num_clients"]
        population_mean = updates.mean("delta", "uniform", total_weight=num_clients)
        correction = server.extra["correction"] - self.alpha * population_mean
        step = updates.mean("delta", "uniform") - correction / self.alpha
        return server.moved(step, updates.mean_buffers(server, "uniform")).keeping(
            correction=correction
        )
