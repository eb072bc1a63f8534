"""APFL: Deng, Kamani and Mahdavi, *Adaptive Personalized Federated Learning*, 2020, algorithm 1
(arXiv:2003.13461).
"""  # noqa: D205

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedbench.algorithms.base import (
    Client,
    RoundContext,
    RoundPlan,
    hyperparameter,
)
from fedbench.algorithms.fedavg import FedAvg
from fedbench.training import ModelState, batch_gradient

__all__ = ["APFL"]


@dataclass(frozen=True)
class APFL(FedAvg):
    r"""Each client mixes its own model with its copy of the shared one.

    Both models step on the same minibatch: the local copy :math:`w_i` along its own gradient, the
    personal :math:`v_i` along the gradient at the mixture
    :math:`m = \alpha v_i + (1 - \alpha) w_i`, which is the personal predictor. Blocks of `tau`
    rounds share one cohort; the model is broadcast at the start of a block and averaged at its
    end. The forward passes at the mixture use the buffers of the personal model.

    Parameters
    ----------
    weighting : {"samples", "uniform"}
        Weight of a client's update.
    alpha : float
        Weight of the personal model, in [0, 1].
    tau : int
        Rounds between two synchronisations.
    adaptive : bool
        Let each client learn its own weight.
    chain_factor : bool
        Scale the personal step by the weight, as the gradient of the mixture asks for.
    """

    stateful: ClassVar[bool] = True
    unsupported: ClassVar[frozenset[str]] = frozenset(
        {"clip_norm", "clip_value", "momentum", "optimizer", "personal", "train", "weight_decay"}
    )

    alpha: float = hyperparameter(0.5, low=0.0, high=1.0)
    tau: int = hyperparameter(1, low=1)
    adaptive: bool = hyperparameter(False)
    chain_factor: bool = hyperparameter(True)

    def init_client(self, model: ModelState) -> dict[str, Any]:
        """Start both models at the initial one."""
        return {"start": model, "local": model, "personal": model, "alpha": self.alpha}

    def selection_round(self, index: int) -> int:
        """Return the first round of the block, whose cohort the whole block keeps."""
        return index - index % self.tau

    def plan(self, server: Any, context: RoundContext) -> RoundPlan:
        """Broadcast in the first round of a block, send in its last."""
        plan = super().plan(server, context)
        first, last = context.index % self.tau == 0, (context.index + 1) % self.tau == 0
        return dataclasses.replace(
            plan,
            broadcast=plan.broadcast if first else (),
            uplink=plan.uplink if last else (),
        )

    def train(self, client: Client, down: Mapping[str, Any]) -> Mapping[str, float]:
        """Step both models on every minibatch."""
        state = client.state
        if client.received:
            state["start"] = state["local"] = down["model"].clone()
        local: Tensor = state["local"].parameters.clone()
        personal: Tensor = state["personal"].parameters.clone()
        local_buffers, own_buffers = state["local"].buffers, state["personal"].buffers
        alpha: float = state["alpha"]
        lr = client.work.lr
        losses: list[Tensor] = []
        client.model.module.train()
        for epoch in range(client.work.epochs):
            for x, y in client.batches(epoch):
                mixture = _mix(alpha, personal, local)
                client.model.load(ModelState(local, local_buffers))
                loss, gradient = batch_gradient(client.model, x, y, client.loss)
                local_buffers = client.model.buffers()
                client.model.load(ModelState(mixture, own_buffers), "personal")
                _, at_mixture = batch_gradient(client.model, x, y, client.loss)
                own_buffers = client.model.buffers()
                difference = personal - local if self.adaptive else None
                local.add_(gradient, alpha=-lr)
                factor = alpha if self.chain_factor else 1.0
                if factor:
                    personal.add_(at_mixture, alpha=-lr * factor)
                if difference is not None:
                    slope = float(torch.dot(difference.double(), at_mixture.double()))
                    alpha = min(1.0, max(0.0, alpha - lr * slope))
                losses.append(loss)
        state.update(
            local=ModelState(local, local_buffers),
            personal=ModelState(personal, own_buffers),
            alpha=alpha,
        )
        client.model.load(state["local"])
        return {"loss": math.fsum(torch.stack(losses).tolist()) / len(losses)}

    def uplink(self, client: Client, down: Mapping[str, Any]) -> Any:
        """Send the change of the local copy since the block began."""
        return super().uplink(client, {"model": client.state["start"]})

    def personal_model(self, state: Mapping[str, Any]) -> ModelState | None:
        """Return the mixture, which is the personal predictor."""
        personal, local = state["personal"], state["local"]
        mixture = _mix(state["alpha"], personal.parameters, local.parameters)
        return ModelState(mixture, personal.buffers)


def _mix(alpha: float, personal: Tensor, local: Tensor) -> Tensor:
    """Return the mixture; the ends of the range are exact."""
    if alpha == 1.0:
        return personal.clone()
    if alpha == 0.0:
        return local.clone()
    return alpha * personal + (1.0 - alpha) * local
