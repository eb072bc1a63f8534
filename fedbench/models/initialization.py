"""Initialisation of modules from a keyed generator instead of torch's global one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from fedbench.reproducibility import torch_generator

__all__ = ["SelfInitializing", "initialized"]


@runtime_checkable
class SelfInitializing(Protocol):
    """A module that departs from torch's defaults; called after they were applied."""

    def initialize(self, generator: torch.Generator) -> None:
        """Draw parameters from `generator`, and from nothing else."""


def initialized(factory: Callable[[], nn.Module], *, seed: int = 0) -> nn.Module:
    """Build a module whose parameters are drawn from `seed` alone.

    The layers get the distributions that torch's constructors use (Kaiming-uniform for dense
    and convolutional layers, uniform for recurrent ones, standard normal embeddings, ones and
    zeros for normalisation), in the order of ``module.modules()``; then modules with a method
    ``initialize(generator)`` draw what they want otherwise.

    Parameters
    ----------
    factory : callable
        Constructs the module; called once, on torch's ``meta`` device, so that torch's own
        initialisation neither costs time nor draws from the global generator.
    seed : int
        Seed of the parameters.

    Returns
    -------
    torch.nn.Module
        On the CPU, in training mode, float32.

    Raises
    ------
    TypeError
        If a submodule holds parameters or buffers and is of a kind without a rule here.
    """
    generator = torch_generator(seed, "init-model")
    with torch.device("meta"):
        module = factory()
    module.to_empty(device="cpu")
    with torch.no_grad():
        for name, layer in module.named_modules():
            _initialize(name, layer, generator)
        for layer in module.modules():
            if isinstance(layer, SelfInitializing):
                layer.initialize(generator)
    return module


def _initialize(name: str, layer: nn.Module, generator: torch.Generator) -> None:
    if isinstance(layer, nn.Linear | nn.Conv2d):
        _uniform(layer.weight, layer.weight[0].numel(), generator)
        if layer.bias is not None:
            _uniform(layer.bias, layer.weight[0].numel(), generator)
    elif isinstance(layer, nn.RNNBase):
        for parameter in layer.parameters():
            _uniform(parameter, layer.hidden_size, generator)
    elif isinstance(layer, nn.Embedding):
        layer.weight.normal_(generator=generator)
    elif isinstance(layer, nn.BatchNorm2d | nn.GroupNorm | nn.LayerNorm):
        layer.reset_parameters()  # constants: draws nothing
    elif any(True for _ in layer.parameters(False)) or any(True for _ in layer.buffers(False)):
        raise TypeError(
            f"factory must build layers with a known initialisation, got {type(layer).__name__} "
            f"at {name!r}. Compose it of Linear, Conv2d, LSTM, GRU, RNN, Embedding and "
            "normalisation layers."
        )


def _uniform(parameter: torch.Tensor, fan_in: int, generator: torch.Generator) -> None:
    """Draw from U(-1/sqrt(fan_in), 1/sqrt(fan_in)): torch's default for these layers."""
    bound = 1 / math.sqrt(fan_in)
    parameter.uniform_(-bound, bound, generator=generator)
