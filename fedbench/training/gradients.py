"""Gradients of a scalar without the Python layers of ``torch.autograd.grad``.

On a small model those layers take as long as the backward pass itself. They convert arguments,
check shapes, and look for hooks of the debug log, none of which a local step needs: it always
differentiates one scalar. The engine below them is called the same way, so the bits are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["gradients"]

_engine: Any = getattr(torch.autograd.Variable, "_execution_engine", None)
"""Torch's own entry to its engine; no public name, so one without it is provided for."""


def gradients(value: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients of a scalar, fresh tensors; zeros where it does not depend on one.

    Parameters
    ----------
    value : torch.Tensor
        Shape ``()``; its graph is freed.
    parameters : sequence of torch.Tensor
        What to differentiate by.

    Raises
    ------
    RuntimeError
        If `value` is no scalar or depends on nothing that requires gradients.
    """
    # Other devices run the engine on threads of its own, to which autograd.grad hands context.
    if _engine is None or value.shape or not value.requires_grad or not value.is_cpu:
        return list(torch.autograd.grad(value, parameters, materialize_grads=True))
    found = _engine.run_backward(
        (value,),
        (torch.ones_like(value),),
        False,  # keep_graph
        False,  # create_graph
        tuple(parameters),
        allow_unreachable=True,
        accumulate_grad=False,
    )
    return [
        torch.zeros_like(parameter) if gradient is None else gradient
        for gradient, parameter in zip(found, parameters, strict=True)
    ]
