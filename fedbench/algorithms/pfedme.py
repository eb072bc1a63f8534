"""pFedMe: Dinh, Tran and Nguyen, *Personalized Federated Learning with Moreau Envelopes*, NeurIPS
2020, algorithm 1 (arXiv:2006.08848). pFedMac: Liu, Li, Wang, Zhang, Shao and Geng, *Sparse
Personalized Federated Learning*, 2021, algorithm 1 (arXiv:2107.05330).
"""  # noqa: D205

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedbench.algorithms.base import (
    Algorithm,
    Client,
    ServerState,
    Updates,
    hyperparameter,
)
from fedbench.training import ModelState, SGDStep

__all__ = ["EnvelopeAlgorithm", "PFedMac", "PFedMe"]


@dataclass(frozen=True)
class EnvelopeAlgorithm(Algorithm):
    r"""Base of the algorithms that descend on an envelope of each client's objective.

    A client takes `outer_steps` steps on its local :math:`w_i`. For each it draws one minibatch,
    finds the personal :math:`\theta` for it by `inner_steps` steps from :math:`w_i`, and moves
    :math:`w_i` along the gradient of the envelope. The server moves to
    :math:`(1 - \beta) w + \beta \bar w`.

    Parameters
    ----------
    lam : float
        :math:`\lambda`, at least 0.
    outer_lr : float
        Step on :math:`w_i`, greater than 0. The inner steps use the workload's rate.
    inner_steps, outer_steps : int
        Steps on :math:`\theta` for each minibatch, and minibatches (the papers' K and R).
    beta : float
        Server mixing, in [0, 1].
    """

    stateful: ClassVar[bool] = True
    unsupported: ClassVar[frozenset[str]] = frozenset({"optimizer", "train"})

    lam: float = hyperparameter(15.0, low=0.0)
    outer_lr: float = hyperparameter(0.01, above=0.0)
    inner_steps: int = hyperparameter(5, low=1)
    outer_steps: int = hyperparameter(20, low=1)
    beta: float = hyperparameter(1.0, low=0.0, high=1.0)

    @abstractmethod
    def inner(self, client: Client, local: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Move the worker's model to the personal point of a minibatch and return the loss."""

    @abstractmethod
    def envelope_gradient(self, local: Tensor, personal: Tensor) -> Tensor:
        """Return the gradient of the envelope at `local`."""

    def init_client(self, model: ModelState) -> dict[str, Any]:
        """Start the personal model at the initial model."""
        return {"personal": model}

    def train(self, client: Client, down: Mapping[str, Any]) -> Mapping[str, float]:
        """Take the outer steps; keep the last personal point and send the local one."""
        start: ModelState = down["model"]
        client.model.load(start)
        client.model.module.train()
        local = start.parameters.clone()
        losses = []
        for x, y in itertools.islice(_minibatches(client), self.outer_steps):
            client.model.flat.copy_(local)
            losses.append(self.inner(client, local, x, y))
            local -= self.outer_lr * self.envelope_gradient(local, client.model.flat)
        client.state["personal"] = client.model.state()
        # The uplink is about the local point, not about the personal one.
        client.model.flat.copy_(local)
        return {"loss": math.fsum(torch.stack(losses).tolist()) / len(losses)}

    def aggregate(self, server: ServerState, updates: Updates) -> ServerState:
        """Mix the uniform mean of the local points into the model."""
        step = updates.mean("delta", "uniform")
        if self.beta != 1.0:
            step = self.beta * step
        return server.moved(step, updates.mean_buffers(server, "uniform"))

    def personal_model(self, state: Mapping[str, Any]) -> ModelState | None:
        """Return the personal model."""
        personal: ModelState = state["personal"]
        return personal


@dataclass(frozen=True)
class PFedMe(EnvelopeAlgorithm):
    r"""Moreau envelopes of the clients' objectives.

    :math:`\theta` minimises the loss plus :math:`\frac\lambda2 |\theta - w_i|^2`.
    The hyperparameters are those of :class:`EnvelopeAlgorithm`.
    """

    def inner(self, client: Client, local: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Descend on the loss with the pull towards the local point."""
        step = SGDStep(client.model, client.work, client.loss, proximal=self.lam, anchor=local)
        losses = [step(x, y) for _ in range(self.inner_steps)]
        return losses[0]

    def envelope_gradient(self, local: Tensor, personal: Tensor) -> Tensor:
        """Return ``lam (w - theta)``."""
        return self.lam * (local - personal)


@dataclass(frozen=True)
class PFedMac(EnvelopeAlgorithm):
    r"""Inner products with the local model, and sparse personal models.

    :math:`\theta` minimises the loss plus
    :math:`\gamma \phi_\rho(\theta) - \lambda \langle \theta, w_i \rangle`.
    :math:`\phi_\rho(x) = \rho \sum \log\cosh(x / \rho)` is a smooth l1 norm that makes the personal
    model sparse; `local_sparsity` puts it on the local model as well. :math:`\lambda` must stay
    below the curvature of the clients' losses, or the envelope has no minimum.

    Parameters
    ----------
    lam, outer_lr, inner_steps, outer_steps, beta
        As in :class:`EnvelopeAlgorithm`.
    sparsity : float
        :math:`\gamma`, at least 0.
    local_sparsity : float
        Coefficient of the same term on :math:`w_i`, at least 0.
    rho : float
        Width of the smooth part of the norm, greater than 0.
    """

    lam: float = hyperparameter(0.1, low=0.0)
    sparsity: float = hyperparameter(0.0, low=0.0)
    local_sparsity: float = hyperparameter(0.0, low=0.0)
    rho: float = hyperparameter(0.1, above=0.0)

    def inner(self, client: Client, local: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Descend on the loss with the inner product and the smooth l1 norm."""
        losses = []
        for _ in range(self.inner_steps):
            correction = -self.lam * local
            if self.sparsity:
                correction += self.sparsity * torch.tanh(client.model.flat / self.rho)
            step = SGDStep(client.model, client.work, client.loss, correction=correction)
            losses.append(step(x, y))
        return losses[0]

    def envelope_gradient(self, local: Tensor, personal: Tensor) -> Tensor:
        """Return ``lam (w - theta)`` plus the sparsity term."""
        gradient = self.lam * (local - personal)
        if self.local_sparsity:
            gradient += self.local_sparsity * torch.tanh(local / self.rho)
        return gradient


def _minibatches(client: Client) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield minibatches without end, epoch after epoch."""
    for epoch in itertools.count():
        yield from client.batches(epoch)
