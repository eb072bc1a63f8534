"""One step of stacked dense networks: forward and backward pass written out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.training.dense_gradients import ACTIVATION_BACKWARD
from fedbench.training.losses import CROSS_ENTROPY, MEAN_SQUARED_ERROR, Loss
from fedbench.training.parameters import ParameterLayout
from fedbench.training.vectorized_reading import DenseNetwork

__all__ = ["STACKED_LOSSES", "StackedStep", "VectorizedModel"]

StackedLoss = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class VectorizedModel:
    """What stacked training knows of a model and its loss; small and picklable.

    Attributes
    ----------
    network : DenseNetwork
        The layers.
    layout : ParameterLayout
        Places of the parameters in the flat vector.
    loss : Loss
        Cross entropy or mean squared error.
    """

    network: DenseNetwork
    layout: ParameterLayout
    loss: Loss


class StackedStep:
    """Forward and backward pass of the first clients of a stack, written out by hand.

    Parameters
    ----------
    model : VectorizedModel
        Network, layout and loss.
    parameters : torch.Tensor
        ``[clients, numel]``.
    gradient : torch.Tensor or None
        Receives the gradients, like `parameters`; None takes a step of plain SGD at once, which
        spares a pass over memory.
    lr : float
        Learning rate of that step.
    """

    def __init__(
        self, model: VectorizedModel, parameters: Tensor, gradient: Tensor | None, lr: float
    ) -> None:
        self._network, self._layout = model.network, model.layout
        self._loss = STACKED_LOSSES[model.loss]
        self._parameters = parameters
        self._target = parameters if gradient is None else gradient
        self._scale = -lr if gradient is None else 1.0
        self._keeping = 1.0 if gradient is None else 0.0
        self._active = 0

    def keep(self, active: int) -> None:
        """Go on with the first `active` clients."""
        if active == self._active:
            return
        self._active = active
        self._layers = [
            (
                layer.activation,
                self._view(self._parameters, layer.weight),
                None if layer.bias is None else self._view(self._parameters, layer.bias),
                self._view(self._target, layer.weight),
                None if layer.bias is None else self._view(self._target, layer.bias),
            )
            for layer in self._network.layers
        ]

    def _view(self, stacked: Tensor, name: str) -> Tensor:
        """Return a parameter of all active clients; a bias gets a dimension for the batch."""
        index = self._layout.names.index(name)
        shape, offset = self._layout.shapes[index], self._layout.offsets[index]
        flat = stacked[: self._active, offset : offset + math.prod(shape)]
        return flat.view(self._active, *shape) if len(shape) == 2 else flat.unsqueeze(1)

    def run(self, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """Return the batches' mean losses ``[active]`` and take in their gradients.

        `x` is ``[active, batch, features]``, `weights` the share of each sample in its mean.
        """
        values = [x]
        for activation, weight, bias, _, _ in self._layers:
            transposed = weight.transpose(1, 2)
            if bias is None:
                value = torch.bmm(values[-1], transposed)
            else:
                value = torch.baddbmm(bias, values[-1], transposed)
            values.append(value if activation is None else _FORWARD[activation](value))
        outputs = values.pop()
        if self._network.scalar:
            losses, back = self._loss(outputs.squeeze(2), y, weights)
            back = back.unsqueeze(2)
        else:
            losses, back = self._loss(outputs, y, weights)
        for activation, weight, _, weight_target, bias_target in reversed(self._layers):
            if activation is not None:
                back = ACTIVATION_BACKWARD[activation](back, outputs)
            outputs = values.pop()
            # Before the weight changes; the input of the first layer needs no gradient.
            earlier = torch.bmm(back, weight) if values else back
            weight_target.baddbmm_(
                back.transpose(1, 2).contiguous(), outputs, beta=self._keeping, alpha=self._scale
            )
            if bias_target is not None:
                summed = back.sum(1, keepdim=True)
                bias_target.mul_(self._keeping).add_(summed, alpha=self._scale)
            back = earlier
        return losses


def _cross_entropy(outputs: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    logs = torch.log_softmax(outputs, dim=2)
    classes = targets.unsqueeze(2)
    losses = (logs.gather(2, classes).squeeze(2) * weights).sum(1).neg_()
    gradient = logs.exp_()
    gradient.scatter_add_(2, classes, gradient.new_full((1, 1, 1), -1.0).expand_as(classes))
    return losses, gradient.mul_(weights.unsqueeze(2))


def _mean_squared_error(outputs: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    error = outputs - targets.to(outputs.dtype)
    shares = weights if error.dim() == 2 else weights.unsqueeze(2) / error.shape[2]
    losses = (error * error * shares).flatten(1).sum(1)
    return losses, error.mul_(shares).mul_(2.0)


STACKED_LOSSES: dict[Loss, StackedLoss] = {
    CROSS_ENTROPY: _cross_entropy,
    MEAN_SQUARED_ERROR: _mean_squared_error,
}
"""``(outputs, targets, weights) -> (mean losses [clients], gradient by the outputs)``."""

_FORWARD: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu_,
    "tanh": torch.tanh_,
    "sigmoid": torch.sigmoid_,
}
