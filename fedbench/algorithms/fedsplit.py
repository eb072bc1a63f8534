"""FedSplit: Pathak and Wainwright, *FedSplit: an algorithmic framework for fast federated
optimization*, NeurIPS 2020, algorithm 1 (arXiv:2005.05238).
"""  # noqa: D205

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

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

__all__ = ["FedSplit"]


@dataclass(frozen=True)
class FedSplit(Algorithm):
    r"""Operator splitting: each client reflects the server's point through its proximal map.

    Client :math:`i` computes :math:`w_i \approx \mathrm{prox}_{s f_i}(2x - z_i)`, starting at
    :math:`x`, and :math:`z_i \leftarrow z_i + 2 (w_i - x)`; the server moves to the mean of all
    :math:`z_i`. The :math:`z_i` of clients outside the cohort stay in the mean, which extends the
    paper's full participation.

    Parameters
    ----------
    s : float
        Step of the proximal map, greater than 0; the paper's best is :math:`1 / \sqrt{\ell L}`.
    """

    stateful: ClassVar[bool] = True
    unsupported: ClassVar[frozenset[str]] = frozenset({"train"})

    s: float = hyperparameter(1.0, above=0.0)

    def init_server(self, setup: ServerSetup) -> ServerState:
        """Start at the initial model."""
        return ServerState(setup.model, {"num_clients": setup.num_clients})

    def init_client(self, model: ModelState) -> dict[str, Any]:
        """Start at the initial model."""
        return {"z": model.parameters}

    def train(self, client: Client, down: Mapping[str, Any]) -> Mapping[str, float]:
        """Solve the proximal problem and reflect."""
        start: ModelState = down["model"]
        z = client.state["z"]
        center = 2.0 * start.parameters - z
        loss = client.train(start, proximal=1.0 / self.s, anchor=center)
        client.state["z"] = z + 2.0 * client.delta(start)
        client.outgoing["z_delta"] = client.state["z"] - z
        return {"loss": loss}

    def uplink(self, client: Client, down: Mapping[str, Any]) -> Update:
        """Send the change of the client's point."""
        return client.update(**client.outgoing)

    def aggregate(self, server: ServerState, updates: Updates) -> ServerState:
        """Move by the population mean of the changes."""
        num_clients = server.extra["num_clients"]
        step = updates.mean("z_delta", "uniform", total_weight=num_clients)
        return server.moved(step, updates.mean_buffers(server, "uniform"))
