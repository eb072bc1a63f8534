"""Loss and gradients of fully connected models without recording a graph.

On a small model torch's autograd takes longer to record the operations of a step and to walk them
back than the operations take themselves. For a chain of dense layers the walk back is known: the
same operators that autograd would call are called here, on the same operands in the same order, so
the bits are the same (a test compares them).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from fedbench.training.losses import Loss, LossGradient

__all__ = ["ACTIVATION_BACKWARD", "DenseGradients"]

_aten: Any = torch.ops.aten

ACTIVATION_BACKWARD: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "relu": lambda back, output: _aten.threshold_backward(back, output, 0.0),
    "tanh": lambda back, output: _aten.tanh_backward(back, output),
    "sigmoid": lambda back, output: _aten.sigmoid_backward(back, output),
}
"""``(gradient by the output, output) -> gradient by the input``."""

_ACTIVATIONS: dict[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.Tanh: "tanh",
    nn.Sigmoid: "sigmoid",
}
_FORWARD: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}
_DTYPES = (torch.float32, torch.float64)
_CHANGES = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_compiled_call_impl",
)
"""Attributes of a module that are empty unless calling it does more than its class says."""


@dataclass
class _Layer:
    """A linear layer and what follows it.

    The places are those of its gradients among all, None where nothing is trained.
    """

    weight: Tensor
    transposed: Tensor
    bias: Tensor | None
    weight_place: int | None
    bias_place: int | None
    activation: str | None = None

    @property
    def is_trained(self) -> bool:
        return self.weight_place is not None or self.bias_place is not None


class DenseGradients:
    """Differentiates the loss of one model; made by :meth:`of`."""

    def __init__(
        self,
        layers: list[_Layer],
        loss_gradient: LossGradient,
        *,
        num_parameters: int,
        flattens: bool,
    ) -> None:
        self._layers = layers
        self._loss_gradient = loss_gradient
        self._num_parameters = num_parameters
        self._flattens = flattens
        # Nothing before the first layer with something to train needs a gradient.
        self._first = [layer.is_trained for layer in layers].index(True)

    @classmethod
    def of(
        cls, module: nn.Module, parameters: Sequence[Tensor], loss: Loss
    ) -> DenseGradients | None:
        """Return the gradients of `module`, or None if torch has to find them.

        They are known for ``nn.Sequential`` of ``nn.Flatten``, ``nn.Linear``, ReLU, tanh and
        sigmoid on the CPU, with a loss that knows its own gradient. A class derived from these may
        do anything, and so may a hook: such a model is left to autograd.

        Parameters
        ----------
        module : torch.nn.Module
            The model.
        parameters : sequence of torch.Tensor
            What to differentiate by.
        loss : Loss
            The mean loss of a batch.
        """
        leaves: list[nn.Module] = []
        if (
            not parameters
            or loss.gradient is None
            or _has_any_global_hook()  # type: ignore[no-untyped-call]
            or torch.is_autocast_enabled("cpu")
            or not _collect(module, leaves)
        ):
            return None
        places = {id(parameter): place for place, parameter in enumerate(parameters)}
        layers = _layers(leaves, places)
        used = [p for layer in layers for p in (layer.weight_place, layer.bias_place)]
        if sorted(p for p in used if p is not None) != list(range(len(parameters))):
            return None  # a layer that occurs twice has the sum of two gradients
        flattens = type(leaves[0]) is nn.Flatten
        return cls(layers, loss.gradient, num_parameters=len(parameters), flattens=flattens)

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]] | None:
        """Return the mean loss of a batch and its gradients, fresh tensors.

        None if the batch or the targets are of a kind that is left to autograd.
        """
        value = x.flatten(1) if self._flattens and x.dim() > 2 else x
        if value.dim() != 2 or value.requires_grad:
            return None
        values = [value]
        for layer in self._layers:
            if layer.bias is None:
                value = torch.mm(value, layer.transposed)
            else:
                value = torch.addmm(layer.bias, value, layer.transposed)
            if layer.activation is not None:
                value = _FORWARD[layer.activation](value)
            values.append(value)
        found = self._loss_gradient(value, y)
        if found is None:
            return None
        mean, back = found
        return mean, self._walk_back(values, back)

    def _walk_back(self, values: list[Tensor], back: Tensor) -> list[Tensor]:
        gradients: list[Any] = [None] * self._num_parameters
        for number in range(len(self._layers) - 1, self._first - 1, -1):
            layer = self._layers[number]
            if layer.activation is not None:
                back = ACTIVATION_BACKWARD[layer.activation](back, values[number + 1])
            if layer.bias_place is not None:
                gradients[layer.bias_place] = back.sum(0)
            if layer.weight_place is not None:
                gradients[layer.weight_place] = torch.mm(back.t(), values[number])
            if number == self._first:
                break
            if values[number].numel() > 1:
                back = torch.mm(back, layer.weight)
            else:
                # A matrix of one value counts as stored by columns, and then autograd multiplies
                # the transposed matrices.
                back = torch.mm(layer.transposed, back.t()).t()
        return gradients


def _collect(module: nn.Module, leaves: list[nn.Module]) -> bool:
    """Append the layers inside `module`; return whether calling them is all that it does."""
    if "forward" in vars(module) or any(getattr(module, name) for name in _CHANGES):
        return False
    kind = type(module)
    if kind is nn.Sequential:
        # Not children(): a layer that occurs twice is called twice.
        return all(_collect(child, leaves) for child in cast(nn.Sequential, module))
    if kind is nn.Linear:
        known = all(map(_is_plain, module._parameters.values()))
    elif kind is nn.Flatten:
        flatten = cast(nn.Flatten, module)
        known = (flatten.start_dim, flatten.end_dim) == (1, -1)
    else:
        known = kind in _ACTIVATIONS and bool(leaves) and type(leaves[-1]) is nn.Linear
    leaves.append(module)
    return known


def _is_plain(parameter: Tensor | None) -> bool:
    return parameter is None or (
        parameter.is_cpu
        and parameter.dtype in _DTYPES
        and parameter.is_contiguous()
        and not parameter._backward_hooks
    )


def _layers(leaves: Sequence[nn.Module], places: Mapping[int, int]) -> list[_Layer]:
    layers: list[_Layer] = []
    for leaf in leaves:
        if isinstance(leaf, nn.Linear):
            weight, bias = leaf.weight.detach(), leaf.bias
            layers.append(
                _Layer(
                    weight,
                    weight.t(),
                    None if bias is None else bias.detach(),
                    places.get(id(leaf.weight)),
                    places.get(id(bias)),
                )
            )
        elif not isinstance(leaf, nn.Flatten):  # after a linear layer nothing is left to flatten
            layers[-1].activation = _ACTIVATIONS[type(leaf)]
    return layers
