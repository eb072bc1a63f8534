"""Losses that a workload may name, each with the score that is reported beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from fedbench.registry import Entry, Registry

__all__ = ["CROSS_ENTROPY", "LOSSES", "MEAN_SQUARED_ERROR", "Loss", "LossGradient"]

LossGradient = Callable[[Tensor, Tensor], tuple[Tensor, Tensor] | None]
"""``(outputs, targets) -> (mean, gradient of the mean by the outputs)``."""

_aten: Any = torch.ops.aten
_MEAN = 1
"""Torch's number for the reduction to the mean."""
_IGNORED_CLASS = -100
"""Samples of this class count nothing; the default of ``F.cross_entropy``."""


@dataclass(frozen=True)
class Loss:
    """A mean loss over a batch and a score that is a sum over the batch.

    Attributes
    ----------
    mean : callable
        ``(outputs, targets) -> scalar tensor``, the mean over the batch.
    score_name : str
        Name of the score's mean in metrics, for example ``"accuracy"``.
    score_sum : callable
        ``(outputs, targets) -> scalar tensor``, the score summed over the batch.
    higher_is_better : bool
        Whether a higher score is a better one.
    gradient : callable, optional
        ``(outputs, targets) -> (mean, gradient of the mean by the outputs)`` with the bits of
        ``mean`` and of autograd; returns None for arguments that it leaves to these.
    """

    mean: Callable[[Tensor, Tensor], Tensor]
    score_name: str
    score_sum: Callable[[Tensor, Tensor], Tensor]
    higher_is_better: bool = True
    gradient: LossGradient | None = None


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets)


def _cross_entropy_gradient(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor] | None:
    """Call what ``F.cross_entropy`` and its walk back call, for one class for each row."""
    if outputs.dim() != 2 or targets.dim() != 1 or targets.dtype != torch.int64:
        return None
    logs = torch.log_softmax(outputs, 1)
    options = (None, _MEAN, _IGNORED_CLASS)
    mean, weight = _aten.nll_loss_forward(logs, targets, *options)
    back = _aten.nll_loss_backward(torch.ones_like(mean), logs, targets, *options, weight)
    return mean, torch._log_softmax_backward_data(back, logs, 1, outputs.dtype)


def _num_correct(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(dim=1) == targets).sum()


def _mean_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs, targets.to(outputs.dtype))


def _absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    error = (outputs - targets).abs().flatten(1) if outputs.dim() > 1 else (outputs - targets).abs()
    return error.mean(dim=1).sum() if error.dim() > 1 else torch.sum(error)


CROSS_ENTROPY = Loss(_cross_entropy, "accuracy", _num_correct, gradient=_cross_entropy_gradient)
MEAN_SQUARED_ERROR = Loss(
    _mean_squared_error, "absolute_error", _absolute_error, higher_is_better=False
)

LOSSES: Registry[Loss] = Registry(
    "loss",
    {
        "cross_entropy": Entry(f"{__name__}:CROSS_ENTROPY", "classification; reports accuracy"),
        "mse": Entry(f"{__name__}:MEAN_SQUARED_ERROR", "regression; reports the absolute error"),
    },
)
