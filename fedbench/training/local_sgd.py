"""The local training loop: the arithmetic of ``torch.optim.SGD`` without its overheads.

What a typical loop pays for and this one does not: a ``DataLoader`` for each epoch, an optimiser
object for each client, Python work for each parameter, and a read-back of the loss for each step.
The operations on the numbers are the same, in the same order, so the bits are those of the plain
loop (a test compares them).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedbench.data import ClientData
from fedbench.training.batches import in_batches, shuffled_batches
from fedbench.training.dense_gradients import DenseGradients
from fedbench.training.gradients import gradients
from fedbench.training.losses import Loss
from fedbench.training.optimizers import MakeOptimizer
from fedbench.training.own_training import OwnTraining, run_own_training
from fedbench.training.values import checked_flag, plain
from fedbench.training.worker_model import WorkerModel

__all__ = [
    "LocalWork",
    "SGDStep",
    "batch_gradient",
    "full_gradient",
    "local_sgd",
]


_BESIDE_TRAIN = (
    "clip_norm",
    "clip_value",
    "optimizer",
    "momentum",
    "weight_decay",
    "nesterov",
    "drop_last",
)
"""What a function that trains in the place of the local steps would leave out unsaid."""


@dataclass(frozen=True)
class LocalWork:
    """What a client does with its data in a round.

    Parameters
    ----------
    epochs : int
        Passes over the client's data.
    batch_size : int
        Samples in a step; the last batch of an epoch may be smaller.
    drop_last : bool
        Leave out the last batch of an epoch where it is smaller. A client that has fewer samples
        than `batch_size` keeps its only batch, so that every client takes steps.
    lr : float
        Learning rate.
    momentum : float
        Momentum of ``torch.optim.SGD``; its buffers start empty at each participation.
    weight_decay : float
        L2 penalty of ``torch.optim.SGD``.
    nesterov : bool
        Nesterov's form of the momentum, which must then be greater than 0.
    clip_norm : float, optional
        Scale the gradient of the loss down to this norm where it is longer, as
        ``torch.nn.utils.clip_grad_norm_`` does.
    clip_value : float, optional
        Clamp each entry of the gradient of the loss to this magnitude, after `clip_norm`.
    optimizer : callable, optional
        ``(parameters, lr) -> torch.optim.Optimizer`` that takes the steps instead of SGD; made
        anew for each participation.
    train : callable, optional
        ``(model, data, rng) -> loss``, in the place of all of the above; those that are not
        needed must then be left out. See :func:`run_own_training`.
    """

    epochs: int = 1
    batch_size: int = 32
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    clip_norm: float | None = None
    clip_value: float | None = None
    optimizer: MakeOptimizer | None = None
    train: OwnTraining | None = None
    drop_last: bool = False

    def __post_init__(self) -> None:
        for name, low in (("epochs", 1), ("batch_size", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < low:
                raise ValueError(f"{name} must be an integer of at least {low}, got {value!r}.")
        object.__setattr__(self, "drop_last", checked_flag("drop_last", self.drop_last))
        for name in ("lr", "momentum", "weight_decay"):
            value = getattr(self, name)
            if not 0.0 <= value < float("inf"):
                raise ValueError(f"{name} must be a finite number >= 0, got {value!r}.")
        if self.nesterov and not self.momentum:
            raise ValueError(
                "momentum must be greater than 0 with nesterov, got 0. Set it to 0.9, for example."
            )
        for name in ("clip_norm", "clip_value"):
            value = getattr(self, name)
            if value is None:
                continue
            value = plain(value)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ValueError(
                    f"{name} must be a number greater than 0, got {value!r}. Leave it out to "
                    f"clip nothing."
                )
            object.__setattr__(self, name, value)
        self._check_functions()

    def _check_functions(self) -> None:
        for name in ("optimizer", "train"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise TypeError(f"{name} must be a function, got {type(value).__name__}.")
        if self.optimizer is not None and self.momentum:
            raise ValueError(
                f"momentum must be left out beside optimizer, got {self.momentum!r}. Give the "
                f"optimiser its own options."
            )
        for name in _BESIDE_TRAIN if self.train is not None else ():
            value = getattr(self, name)
            if value:
                raise ValueError(
                    f"{name} must be left out beside train, got {value!r}: your function takes "
                    f"the steps and would not know it."
                )

    def steps(self, num_samples: int) -> int:
        """Return the number of optimiser steps on a client with `num_samples` samples."""
        whole = num_samples // self.batch_size
        return self.epochs * max(1, whole if self.drop_last else -(-num_samples // self.batch_size))


def _refuse_assignment(work: LocalWork, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(
        f"the local work must not be changed, got {name} = {value!r}. Replace all of it: "
        f"client.work = dataclasses.replace(client.work, {name}={value!r})."
    )


# A frozen dataclass may not define the method itself.
LocalWork.__setattr__ = _refuse_assignment  # type: ignore[method-assign, assignment]


def local_sgd(
    model: WorkerModel,
    data: ClientData,
    work: LocalWork,
    loss: Loss,
    generator: Callable[[int], torch.Generator | None],
    *,
    proximal: float = 0.0,
    anchor: Tensor | None = None,
    correction: Tensor | None = None,
) -> float:
    r"""Run ``work`` on the client's data, changing ``model`` in place.

    Each step is :math:`y \leftarrow y - \eta\,d` with
    :math:`d = \nabla f(y) + \text{weight\_decay}\,y + \text{proximal}\,(y - \text{anchor}) +
    \text{correction}`, and with momentum as ``torch.optim.SGD`` defines it. A term whose
    coefficient is zero is left out, not multiplied by zero.

    Parameters
    ----------
    model : WorkerModel
        Holds the starting point; its flat parameters, shape ``(numel,)``, hold the result.
    data : ClientData
        The client's samples.
    work : LocalWork
        Epochs, batch size and optimiser settings.
    loss : Loss
        The mean loss of a batch.
    generator : callable
        ``epoch -> torch.Generator`` that orders the samples of that epoch, or None for the
        process's global generator.
    proximal : float
        Coefficient of the pull towards `anchor`.
    anchor : torch.Tensor, optional
        Flat vector, shape ``(numel,)``; needed when `proximal` is not zero.
    correction : torch.Tensor, optional
        Flat vector added to every gradient, shape ``(numel,)``.

    Returns
    -------
    float
        Mean of the training loss over all samples that were visited.

    Notes
    -----
    With one intra-op thread the result is a function of the arguments alone, the same bits on
    every backend.
    """
    if work.train is not None:
        if proximal or correction is not None:
            raise ValueError(
                "train must be left out with an algorithm that adds terms to the gradient: your "
                "function would not know them. Use optimizer, or an algorithm such as fedavg."
            )
        return run_own_training(work.train, model, data, generator(0))
    model.module.train()
    step = SGDStep(model, work, loss, proximal=proximal, anchor=anchor, correction=correction)
    losses: list[Tensor] = []
    sizes: list[int] = []
    for epoch in range(work.epochs):
        batches = shuffled_batches(
            data, work.batch_size, generator(epoch), drop_last=work.drop_last
        )
        for x, y in batches:
            losses.append(step(x, y))
            sizes.append(len(x))
    if not losses:
        return 0.0
    # One read-back for all steps; an exact sum, so that no vector width shows in it.
    values = torch.stack(losses).tolist()
    return math.fsum(v * n for v, n in zip(values, sizes, strict=True)) / sum(sizes)


class SGDStep:
    """One optimiser step; `step(x, y)` returns the detached mean loss before the step.

    Parameters
    ----------
    model : WorkerModel
        Changed in place by each step.
    work : LocalWork
        Its learning rate, momentum, weight decay, clipping and optimiser.
    loss : Loss
        The mean loss of a batch.
    proximal, anchor, correction
        As in :func:`local_sgd`.
    """

    def __init__(
        self,
        model: WorkerModel,
        work: LocalWork,
        loss: Loss,
        *,
        proximal: float = 0.0,
        anchor: Tensor | None = None,
        correction: Tensor | None = None,
    ) -> None:
        self._module, self._parameters = model.module, model.trainable
        # The same memory, on which an in-place step needs no `no_grad` around it.
        self._detached = [parameter.detach() for parameter in model.trainable]
        self._dense = DenseGradients.of(model.module, model.trainable, loss)
        self._work, self._loss, self._proximal = work, loss, proximal
        views = model.layout.views
        self._anchors = views(anchor) if proximal and anchor is not None else None
        self._corrections = views(correction) if correction is not None else None
        self._momenta: list[Tensor] | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        if work.optimizer is not None:
            self._optimizer = work.optimizer(self._parameters, work.lr)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Take the step on the batch ``(x, y)``."""
        work = self._work
        value, steps = self._gradients(x, y)
        parameters = self._detached
        _clip(steps, work)
        if work.weight_decay:
            torch._foreach_add_(steps, parameters, alpha=work.weight_decay)
        # Personal parameters come last and are no part of the flat vectors.
        if self._anchors is not None:
            shared = parameters[: len(self._anchors)]
            pull = torch._foreach_sub(shared, self._anchors)
            torch._foreach_add_(steps[: len(shared)], pull, alpha=self._proximal)
        if self._corrections is not None:
            torch._foreach_add_(steps[: len(self._corrections)], self._corrections)
        if work.momentum:
            steps = self._with_momentum(steps)
        if self._optimizer is None:
            torch._foreach_add_(parameters, steps, alpha=-work.lr)
        else:
            self._step_of(self._optimizer, steps)
        return value

    def _gradients(self, x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the detached mean loss of the batch and its gradients."""
        known = self._dense(x, y) if self._dense is not None else None
        if known is not None:
            return known
        value = self._loss.mean(_outputs(self._module, x), y)
        return value.detach(), gradients(value, self._parameters)

    def _step_of(self, optimizer: torch.optim.Optimizer, gradients: list[Tensor]) -> None:
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
        # The parameters are the worker's: the next client must not find gradients in them.
        for parameter in self._parameters:
            parameter.grad = None

    def _with_momentum(self, gradients: list[Tensor]) -> list[Tensor]:
        if self._momenta is None:
            # Nesterov's step goes along the gradients too, which must then not be the momenta.
            nesterov = self._work.nesterov
            self._momenta = [g.clone() for g in gradients] if nesterov else gradients
        else:
            torch._foreach_mul_(self._momenta, self._work.momentum)
            torch._foreach_add_(self._momenta, gradients)
        if self._work.nesterov:
            torch._foreach_add_(gradients, self._momenta, alpha=self._work.momentum)
            return gradients
        return self._momenta


def _clip(gradients: list[Tensor], work: LocalWork) -> None:
    """Clip the gradients in place, with the arithmetic of ``torch.nn.utils``."""
    if work.clip_norm is not None:
        total = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients, 2.0)), 2.0)
        factor = torch.clamp(work.clip_norm / (total + 1e-6), max=1.0)
        torch._foreach_mul_(gradients, factor)
    if work.clip_value is not None:
        torch._foreach_clamp_min_(gradients, -work.clip_value)
        torch._foreach_clamp_max_(gradients, work.clip_value)


def _outputs(module: nn.Module, x: Tensor) -> Tensor:
    """Return ``module(x)``; say where a batch of one comes from if that is why it fails."""
    try:
        outputs: Tensor = module(x)
    except ValueError as error:
        if len(x) > 1 or "Expected more than 1 value per channel" not in str(error):
            raise
        raise ValueError(
            "a batch must have at least 2 samples for batch normalisation, got 1: the last batch "
            "of a client whose number of samples is a multiple of batch_size plus 1. Set "
            "drop_last=True to leave it out, unless it is the client's only one; choose another "
            "batch_size; or use nn.GroupNorm in the model."
        ) from error
    return outputs


def batch_gradient(model: WorkerModel, x: Tensor, y: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    """Return the detached mean loss of a batch and its gradient as a flat vector."""
    value = loss.mean(_outputs(model.module, x), y)
    flat = model.layout.zeros()
    torch._foreach_copy_(model.layout.views(flat), gradients(value, model.trainable))
    return value.detach(), flat


def full_gradient(
    model: WorkerModel, data: ClientData, loss: Loss, batch_size: int = 256
) -> Tensor:
    """Return the gradient of the mean loss over all of `data` at the model's parameters.

    Draws nothing, and leaves parameters, buffers and the training flag as they were: the forward
    passes run in evaluation mode.

    Returns
    -------
    torch.Tensor
        Flat vector, shape ``(numel,)``.
    """
    training = model.module.training
    model.module.eval()
    total = model.layout.zeros()
    views = model.layout.views(total)
    order = torch.arange(len(data.inputs))
    for x, y in in_batches(data, order, batch_size):
        value = loss.mean(model.module(x), y)
        parts = gradients(value, model.trainable)
        torch._foreach_add_(views, parts, alpha=len(x) / len(data.inputs))
    model.module.train(training)
    return total
