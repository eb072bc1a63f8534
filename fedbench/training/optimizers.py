"""Optimisers of ``torch.optim`` for the local steps.

Plain and momentum SGD need none of this: the local loop has their arithmetic without an object for
each client.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from fedbench.registry import Entry, Registry
from fedbench.training.descriptions import described

__all__ = ["OPTIMIZERS", "MakeOptimizer", "resolve_optimizer"]

MakeOptimizer = Callable[[Any, float], torch.optim.Optimizer]
"""``(parameters, lr) -> optimiser``."""

OPTIMIZERS: Registry[type[torch.optim.Optimizer]] = Registry(
    "optimizer",
    {
        "sgd": Entry("torch.optim:SGD", "SGD with momentum, dampening, Nesterov"),
        "adam": Entry("torch.optim:Adam", "Adam (Kingma and Ba, 2015)"),
        "adamw": Entry("torch.optim:AdamW", "Adam with decoupled weight decay"),
        "adagrad": Entry("torch.optim:Adagrad", "Adagrad (Duchi et al., 2011)"),
        "adadelta": Entry("torch.optim:Adadelta", "Adadelta (Zeiler, 2012)"),
        "adamax": Entry("torch.optim:Adamax", "Adam with the maximum norm"),
        "nadam": Entry("torch.optim:NAdam", "Adam with Nesterov momentum"),
        "radam": Entry("torch.optim:RAdam", "rectified Adam (Liu et al., 2020)"),
        "rmsprop": Entry("torch.optim:RMSprop", "RMSprop (Hinton, 2012)"),
    },
)


def resolve_optimizer(chosen: Any) -> MakeOptimizer | None:
    """Return a function ``(parameters, lr) -> optimiser``, None for none.

    Parameters
    ----------
    chosen : str, mapping, callable or None
        A name of ``fedbench.training.OPTIMIZERS``, a mapping of ``name`` and options, or the
        function itself, such as a class of ``torch.optim``.

    Raises
    ------
    UnknownNameError
        If there is no such name.
    TypeError, ValueError
        If the optimiser cannot be made so, or cannot take a step from dense gradients without a
        closure, as the local loop does; tried with one parameter on the CPU.
    """
    if chosen is None:
        return None
    if isinstance(chosen, str | Mapping):
        options: dict[str, Any] = {"name": chosen} if isinstance(chosen, str) else dict(chosen)
        known: Callable[..., torch.optim.Optimizer] = OPTIMIZERS.load(
            options.pop("name", None) or ""
        )
        # YAML has no tuples.
        options = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
        chosen = functools.partial(known, **options) if options else known
    if not callable(chosen):
        raise TypeError(
            f"optimizer must be a name, a mapping with a name and options, or a function of "
            f"(parameters, lr), got {type(chosen).__name__}. Pass torch.optim.Adam, for example."
        )
    try:
        parameter = nn.Parameter(torch.zeros(1))
        tried: object = chosen([parameter], 0.1)
    except TypeError as error:
        raise TypeError(
            f"optimizer must take (parameters, lr), but {described(chosen)} raised: {error}"
        ) from error
    if not isinstance(tried, torch.optim.Optimizer):
        raise TypeError(
            f"optimizer must return a torch.optim.Optimizer, got {type(tried).__name__} from "
            f"{described(chosen)}. Return the optimiser itself."
        )
    parameter.grad = torch.ones(1)
    try:
        tried.step()
    except Exception as error:
        raise TypeError(
            f"optimizer must step on dense gradients of the CPU without a closure, but "
            f"{described(chosen)} raised {type(error).__name__}: {error}. Choose another, or "
            f"write your own local training and pass it as train."
        ) from error
    make: MakeOptimizer = chosen
    return make
