"""What a stacked training step has to know of a model: its dense layers, read from a real pass.

The model is run once on a few samples while the operations that it performs are recorded. Linear
layers and elementwise activations, in whatever way the model's code writes them, become a
:class:`DenseNetwork`; anything else is a reason to refuse.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedbench.errors import VectorizationError
from fedbench.training.worker_model import WorkerModel

__all__ = ["ACTIVATIONS", "DenseLayer", "DenseNetwork", "read_dense_network"]


ACTIVATIONS = {"aten::relu": "relu", "aten::tanh": "tanh", "aten::sigmoid": "sigmoid"}
"""Operations that may follow a linear layer, and what they are called here."""

_RESHAPES = ("aten::view", "aten::_unsafe_view")


@dataclass(frozen=True)
class DenseLayer:
    """One linear layer and the activation after it.

    Attributes
    ----------
    weight : str
        Name of the weight ``[out, in]``.
    bias : str or None
        Name of the bias ``[out]``.
    activation : {"relu", "tanh", "sigmoid"} or None
        What follows.
    """

    weight: str
    bias: str | None
    activation: str | None = None


@dataclass(frozen=True)
class DenseNetwork:
    """A chain of linear layers on the flattened input.

    Attributes
    ----------
    layers : tuple of DenseLayer
        From input to output.
    scalar : bool
        Whether the one output of the last layer has no dimension of its own.
    """

    layers: tuple[DenseLayer, ...]
    scalar: bool = False


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps every operation of this thread with its arguments and its result."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[str, tuple[Any, ...], Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        overload = func._schema.overload_name
        name = f"{func._schema.name}.{overload}" if overload else func._schema.name
        self.calls.append((name, args, result))
        return result


def read_dense_network(model: WorkerModel, inputs: Tensor) -> DenseNetwork:
    """Return the dense layers that `model` applies to `inputs`.

    Parameters
    ----------
    model : WorkerModel
        Run once in training mode; it draws and changes nothing if it can be read.
    inputs : torch.Tensor
        At least one sample, ``[n, ...]``.

    Raises
    ------
    VectorizationError
        If the model is more than a chain of linear layers with ReLU, tanh or sigmoid in between.
    """
    buffers = model.buffers()
    if buffers:
        raise VectorizationError(
            f"the model has buffers or frozen parameters ({', '.join(sorted(buffers))}), and only "
            "linear layers whose parameters are all trained can be stacked"
        )
    if len(model.trainable) != len(model.layout.names):
        raise VectorizationError("the model has personal parameters, which stay with each client")
    names = dict(zip(map(id, model.trainable), model.layout.names, strict=True))
    training = model.module.training
    model.module.train()
    try:
        with torch.no_grad(), _Recorder() as recorder:
            output = model.module(inputs)
    finally:
        model.module.train(training)
    reader = _Reader(names, inputs)
    for name, arguments, result in recorder.calls:
        reader.read(name, arguments, result)
    network = reader.network(output)
    used = [name for layer in network.layers for name in (layer.weight, layer.bias) if name]
    if sorted(used) != sorted(model.layout.names):
        raise VectorizationError(
            "every parameter of the model must belong to exactly one linear layer, got "
            f"{', '.join(used)} in use of {', '.join(model.layout.names)}"
        )
    return network


class _Reader:
    """Follows one value through recorded operations."""

    def __init__(self, names: Mapping[int, str], inputs: Tensor) -> None:
        self._names = names
        self._value: Any = inputs
        self._transposed: dict[int, str] = {}
        self._layers: list[DenseLayer] = []
        self._scalar = False

    def read(self, name: str, arguments: tuple[Any, ...], result: Any) -> None:
        """Take in one operation, or refuse it."""
        plain = name.removesuffix("_")
        if name == "aten::t" and id(arguments[0]) in self._names:
            self._transposed[id(result)] = self._names[id(arguments[0])]
            return
        if self._scalar or not (
            self._read_linear(name, arguments)
            or self._read_activation(plain, arguments)
            or self._read_shape(name, arguments, result)
        ):
            raise VectorizationError(
                f"the model uses {plain.removeprefix('aten::')}, and only chains of "
                "linear layers with ReLU, tanh or sigmoid in between can be stacked"
            )
        self._value = result

    def network(self, output: Any) -> DenseNetwork:
        """Return what was read, if `output` is where it led."""
        if output is not self._value or not self._layers:
            raise VectorizationError("the model's output is not that of a chain of linear layers")
        return DenseNetwork(tuple(self._layers), self._scalar)

    def _read_linear(self, name: str, arguments: tuple[Any, ...]) -> bool:
        if name == "aten::addmm":
            bias = self._names.get(id(arguments[0]))
            value, weight = arguments[1], self._transposed.get(id(arguments[2]))
            if bias is None:
                return False
        elif name == "aten::mm":
            value, weight, bias = arguments[0], self._transposed.get(id(arguments[1])), None
        else:
            return False
        if value is not self._value or weight is None:
            return False
        self._layers.append(DenseLayer(weight, bias))
        return True

    def _read_activation(self, name: str, arguments: tuple[Any, ...]) -> bool:
        last = self._layers[-1] if self._layers else None
        known = name in ACTIVATIONS and arguments[0] is self._value
        if not known or last is None or last.activation is not None:
            return False
        self._layers[-1] = DenseLayer(last.weight, last.bias, ACTIVATIONS[name])
        return True

    def _read_shape(self, name: str, arguments: tuple[Any, ...], result: Any) -> bool:
        if not arguments or arguments[0] is not self._value:
            return False
        shape = tuple(arguments[0].shape)
        if name in _RESHAPES and not self._layers:
            return tuple(result.shape) == (shape[0], math.prod(shape[1:]))
        self._scalar = (
            name == "aten::squeeze.dim"
            and bool(self._layers)
            and len(shape) == 2
            and shape[1] == 1
            and tuple(result.shape) == shape[:1]
        )
        return self._scalar
