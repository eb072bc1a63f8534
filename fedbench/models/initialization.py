"""Initialisation of modules from a seed instead of torch's global generator."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from fedbench.reproducibility import generator_scope

__all__ = ["initialized"]


def initialized(factory: Callable[[], nn.Module], *, seed: int = 0) -> nn.Module:
    """Build a module whose parameters are drawn from `seed` alone.

    What the constructors of the layers draw comes from the stream of the seed; torch's global
    generator is neither read nor moved, in whatever thread the module is built.

    Parameters
    ----------
    factory : callable
        Constructs the module; called once.
    seed : int
        Seed of the parameters.

    Returns
    -------
    torch.nn.Module
        What `factory` returned.
    """
    with generator_scope(seed, "init-model"):
        return factory()
