"""Losses that a workload may name, each with the score that is reported beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from fedbench.registry import Entry, Registry

__all__ = ["CROSS_ENTROPY", "LOSSES", "MEAN_SQUARED_ERROR", "Loss"]


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
    """

    mean: Callable[[Tensor, Tensor], Tensor]
    score_name: str
    score_sum: Callable[[Tensor, Tensor], Tensor]
    higher_is_better: bool = True


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets)


def _num_correct(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(dim=1) == targets).sum()


def _mean_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs, targets.to(outputs.dtype))


def _absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    error = (outputs - targets).abs().flatten(1) if outputs.dim() > 1 else (outputs - targets).abs()
    return error.mean(dim=1).sum() if error.dim() > 1 else torch.sum(error)


CROSS_ENTROPY = Loss(_cross_entropy, "accuracy", _num_correct)
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
