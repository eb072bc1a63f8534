"""Evaluation of a model on fixed chunks of samples, in sums that combine exactly alike."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.training.losses import Loss
from fedbench.training.worker_model import WorkerModel

__all__ = ["EvaluationSums", "evaluate_batches"]


@dataclass(frozen=True)
class EvaluationSums:
    """Sums over evaluated samples; add them up in a fixed order and divide by `count`.

    Attributes
    ----------
    loss : float
        Sum of the losses.
    score : float
        Sum of the scores (for classification: the number of correct predictions).
    count : int
        Number of samples.
    """

    loss: float = 0.0
    score: float = 0.0
    count: int = 0

    def __add__(self, other: EvaluationSums) -> EvaluationSums:
        return EvaluationSums(
            self.loss + other.loss, self.score + other.score, self.count + other.count
        )

    def metrics(self, loss: Loss) -> dict[str, float]:
        """Return ``{"loss": mean, loss.score_name: mean}``, NaN without samples."""
        if not self.count:
            return {"loss": float("nan"), loss.score_name: float("nan")}
        return {"loss": self.loss / self.count, loss.score_name: self.score / self.count}


@torch.no_grad()
def evaluate_batches(
    model: WorkerModel, inputs: Tensor, targets: Tensor, loss: Loss, batch_size: int = 256
) -> EvaluationSums:
    """Return the loss and score sums of `model` in evaluation mode.

    Draws nothing and changes nothing but the training flag, which is put back. Batches are fixed
    by `batch_size` alone, so the bits do not depend on who evaluates.

    Parameters
    ----------
    model : WorkerModel
        The model with the state to evaluate.
    inputs, targets : torch.Tensor
        Samples, shapes ``(n, ...)`` and ``(n,)`` or ``(n, ...)``.
    loss : Loss
        The loss and its score.
    batch_size : int
        Samples in a forward pass.
    """
    training = model.module.training
    model.module.eval()
    sums = EvaluationSums()
    batches = zip(torch.split(inputs, batch_size), torch.split(targets, batch_size), strict=True)
    for x, y in batches:
        # A copy: slices may be aligned differently from one workload to the next.
        outputs = model.module(x.clone())
        sums += EvaluationSums(
            float(loss.mean(outputs, y)) * len(x), float(loss.score_sum(outputs, y)), len(x)
        )
    model.module.train(training)
    return sums
