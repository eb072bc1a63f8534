"""FedAvg: McMahan, Moore, Ramage, Hampson and Aguera y Arcas, *Communication-Efficient Learning of
Deep Networks from Decentralized Data*, AISTATS 2017, algorithm 1 (arXiv:1602.05629).
"""  # noqa: D205

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedbench.algorithms.base import (
    WEIGHTINGS,
    Algorithm,
    Client,
    Reduction,
    ServerState,
    Updates,
    Weighting,
    hyperparameter,
    model_reduction,
)

__all__ = ["FedAvg"]


@dataclass(frozen=True)
class FedAvg(Algorithm):
    r"""Clients train from the server's model; the server adds the mean of their changes.

    :math:`x \leftarrow x + \sum_i q_i (y_i - x)` with :math:`q_i = n_i / \sum_j n_j`.

    Parameters
    ----------
    weighting : {"samples", "uniform"}
        Weight of a client's update: its number of samples (the paper), or the same for all.
    """

    weighting: Weighting = hyperparameter("samples", choices=WEIGHTINGS)

    def local_terms(self, down: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the terms beside the gradient in a local step: none."""
        return {}

    def train(self, client: Client, down: Mapping[str, Any]) -> Mapping[str, float]:
        """Run the local epochs from the received model."""
        return {"loss": client.train(down["model"], **self.local_terms(down))}

    def reduction(self, server: ServerState) -> Mapping[str, Reduction]:
        """Return the change of the parameters and the buffers."""
        return model_reduction(server, self.weighting)

    def aggregate(self, server: ServerState, updates: Updates) -> ServerState:
        """Add the mean update to the model and average the buffers."""
        delta = updates.mean("delta", self.weighting)
        return server.moved(delta, updates.mean_buffers(server, self.weighting))
