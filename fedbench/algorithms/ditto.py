"""Ditto: Li, Hu, Beirami and Smith, *Ditto: Fair and Robust Federated Learning Through
Personalization*, ICML 2021, algorithm 1 (arXiv:2012.04221).
"""  # noqa: D205

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fedbench.algorithms.base import Client, Update, hyperparameter
from fedbench.algorithms.fedavg import FedAvg
from fedbench.training import ModelState

__all__ = ["Ditto"]


@dataclass(frozen=True)
class Ditto(FedAvg):
    r"""FedAvg, and beside it a personal model of each client that is pulled towards the server's.

    The personal model descends along :math:`g_i(v) + \lambda (v - w)` with the received
    :math:`w`. It has its own buffers and its own random stream, so the server's path has the bits
    of FedAvg for every :math:`\lambda`.

    Parameters
    ----------
    weighting : {"samples", "uniform"}
        Weight of a client's update.
    lam : float
        :math:`\lambda`, at least 0.
    """

    stateful: ClassVar[bool] = True
    unsupported: ClassVar[frozenset[str]] = frozenset({"train"})

    lam: float = hyperparameter(0.1, low=0.0)

    def init_client(self, model: ModelState) -> dict[str, Any]:
        """Start the personal model at the initial model."""
        return {"personal": model}

    def train(self, client: Client, down: Mapping[str, Any]) -> Mapping[str, float]:
        """Train the shared model as FedAvg does, then the personal one."""
        metrics = super().train(client, down)
        client.outgoing["update"] = super().uplink(client, down)
        personal = client.train(
            client.state["personal"],
            stream="shuffle-personal",
            own="personal",
            proximal=self.lam,
            anchor=down["model"].parameters,
        )
        client.state["personal"] = client.model.state()
        return {**metrics, "personal_loss": personal}

    def uplink(self, client: Client, down: Mapping[str, Any]) -> Update:
        """Send the update of the shared model."""
        update: Update = client.outgoing["update"]
        return update

    def personal_model(self, state: Mapping[str, Any]) -> ModelState | None:
        """Return the personal model."""
        personal: ModelState = state["personal"]
        return personal
