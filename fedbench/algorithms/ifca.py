"""IFCA: Ghosh, Chung, Yin and Ramchandran, *An Efficient Framework for Clustered Federated
Learning*, NeurIPS 2020, algorithm 1 with model or gradient averaging (arXiv:2006.04088).
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
from fedbench.training import ModelState, evaluate_batches, full_gradient

__all__ = ["IFCA"]


@dataclass(frozen=True)
class IFCA(Algorithm):
    r"""Each client joins the cluster whose model fits its data best and trains that model.

    A client evaluates all centres on its own data (in evaluation mode, drawing nothing), takes
    the one with the smallest loss, the first among equals, and trains from it. The server adds to
    each centre the mean change of the clients that chose it; a centre that nobody chose stays.
    With one cluster the bits are those of FedAvg.

    Parameters
    ----------
    clusters : int
        Number of centres.
    spread : float
        Standard deviation of the noise that tells the initial centres apart; the first one is the
        initial model itself.
    weighting : {"samples", "uniform"}
        Weight of a client's update within its cluster.
    averaging : {"model", "gradient"}
        The paper's option II, the mean change of the models that a cluster's clients trained, or
        its option I: each client sends its full gradient :math:`g_i` at the chosen centre, which
        moves by :math:`-\eta / |S| \sum g_i` with the clients' learning rate and the size of the
        whole cohort.
    """

    stateful: ClassVar[bool] = True

    clusters: int = hyperparameter(2, low=1)
    spread: float = hyperparameter(0.1, low=0.0)
    weighting: Weighting = hyperparameter("samples", choices=WEIGHTINGS)
    averaging: Literal["model", "gradient"] = hyperparameter("model", choices=("model", "gradient"))

    def init_server(self, setup: ServerSetup) -> ServerState:
        """Make the centres: the initial model, and perturbed copies of it."""
        generator = setup.generator("init-server")
        first = setup.model
        others = [
            ModelState(
                first.parameters
                + self.spread
                * torch.randn(
                    first.parameters.shape, generator=generator, dtype=first.parameters.dtype
                ),
                first.buffers,
            )
            for _ in range(self.clusters - 1)
        ]
        return ServerState(first, {"centers": [first, *others]})

    def init_client(self, model: ModelState) -> dict[str, Any]:
        """Start outside of all clusters."""
        return {"cluster": -1}

    def broadcast(self, server: ServerState, plan: RoundPlan) -> Mapping[str, Any]:
        """Send all centres."""
        return {"centers": server.extra["centers"]}

    def train(self, client: Client, down: Mapping[str, Any]) -> Mapping[str, float]:
        """Choose the centre with the smallest loss and train from it."""
        losses = []
        for center in down["centers"]:
            client.model.load(center)
            losses.append(evaluate_batches(client.model, *client.data, client.loss).loss)
        chosen = losses.index(min(losses))
        client.state["cluster"] = chosen
        if self.averaging == "model":
            return {"loss": client.train(down["centers"][chosen])}
        client.model.load(down["centers"][chosen])
        gradient = full_gradient(client.model, client.data, client.loss)
        client.model.flat.sub_(gradient, alpha=client.work.lr)
        return {"loss": losses[chosen] / client.num_samples}

    def uplink(self, client: Client, down: Mapping[str, Any]) -> Update:
        """Send the change of the chosen centre."""
        chosen: int = client.state["cluster"]
        sent = super().uplink(client, {"model": down["centers"][chosen]})
        return Update(sent.num_samples, {**sent.tensors, "cluster": chosen})

    def aggregate(self, server: ServerState, updates: Updates) -> ServerState:
        """Move every centre by the mean change of its clients."""
        centers: list[ModelState] = list(server.extra["centers"])
        cohort = self._weight(updates) if self.averaging == "gradient" else None
        for index, center in enumerate(centers):
            members = updates.where("cluster", index)
            if members:
                before = ServerState(center)
                moved = before.moved(
                    members.mean("delta", self.weighting, total_weight=cohort),
                    members.mean_buffers(before, self.weighting),
                )
                centers[index] = moved.model
        return ServerState(centers[0], {"centers": centers})

    def _weight(self, updates: Updates) -> float:
        if self.weighting == "uniform":
            return float(len(updates))
        return float(sum(update.num_samples for _, update in updates))

    def evaluated_models(self, server: ServerState) -> Mapping[str, ModelState]:
        """Return every centre."""
        return {f"test-cluster-{i}": center for i, center in enumerate(server.extra["centers"])}
