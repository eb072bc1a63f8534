"""A client's local work written by the user: ``train(model, data, rng) -> loss``."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedbench.data import ClientData
from fedbench.training.descriptions import described
from fedbench.training.worker_model import WorkerModel

__all__ = ["OwnTraining", "run_own_training"]

OwnTraining = Callable[[nn.Module, ClientData, torch.Generator | None], float | Tensor]
"""``(model, data, rng) -> mean training loss``, changing the model in place."""


def run_own_training(
    train: OwnTraining, model: WorkerModel, data: ClientData, rng: torch.Generator | None
) -> float:
    """Run `train` on the worker's model and return its loss.

    Parameters
    ----------
    train : callable
        Receives the module in training mode, the client's samples and the client's own generator
        (None at level L0), and returns the mean training loss.
    model : WorkerModel
        Holds the starting point, and the result afterwards, also where `train` has given
        parameters other memory.
    data : ClientData
        The client's samples.
    rng : torch.Generator or None
        Of this client and round.

    Raises
    ------
    TypeError
        If `train` does not return a number.
    """
    module = model.module
    module.train()
    module.zero_grad(set_to_none=True)
    loss: object = train(module, data, rng)
    # The next client of this worker must not meet what this one has left behind.
    module.zero_grad(set_to_none=True)
    model.take_in()
    if isinstance(loss, Tensor) and loss.numel() == 1:
        loss = loss.item()
    if isinstance(loss, bool) or not isinstance(loss, int | float):
        raise TypeError(
            f"train must return the mean training loss as a number, got {loss!r} from "
            f"{described(train)}. Return float(loss)."
        )
    return float(loss)
