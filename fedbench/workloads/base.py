"""The description of a job."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from fedbench.algorithms import ALGORITHMS
from fedbench.data import FederatedDataset
from fedbench.training import LOSSES

__all__ = ["Workload"]


@dataclass(frozen=True, eq=False)
class Workload:
    """A complete job: what is trained, on what, by which algorithm, how long.

    Change a field with :func:`dataclasses.replace`; the copy is checked again.

    Parameters
    ----------
    name : str
        Name in tables.
    description : str
        One line.
    dataset : callable
        ``dataset(seed=0)`` returns the :class:`~fedbench.data.FederatedDataset`; the seed
        determines test split and partition. Picklable (a module-level function or a
        :func:`functools.partial` of one), like `model`.
    model : callable
        ``model(seed=0)`` returns a new ``torch.nn.Module``; the seed determines its initial
        parameters.
    cohort_size : int
        Clients per round, at most the number of clients of the data.
    rounds : int
        Default number of rounds.
    lr : float
        Learning rate of the clients' SGD.
    batch_size : int
        Samples per local step, at most; the last batch of an epoch may be smaller.
    local_epochs : int
        Passes over the client's samples per round.
    momentum, weight_decay : float
        Momentum (in [0, 1); its buffers start empty at each participation) and L2 penalty of the
        clients' SGD.
    nesterov : bool
        Nesterov's form of the momentum, which must then be greater than 0.
    loss : {"cross_entropy", "mse"}
        A name of ``fedbench.training.LOSSES``: the loss, averaged over the batch.
    algorithm : str
        A name of ``fedbench.algorithms.ALGORITHMS``.
    algorithm_options : mapping
        Options of the algorithm.
    eval_every : int
        Rounds between two evaluations on the test samples; the last round is always evaluated.
    vectorized : bool
        Train clients stacked, many in one task, where model and algorithm allow it; see
        :class:`fedbench.simulation.Simulation`.
    options : mapping
        Further options of its simulations: fields of
        :class:`fedbench.simulation.SimulationOptions`, which checks them.

    Raises
    ------
    TypeError, ValueError
        If a field is not as described.
    UnknownNameError
        If there is no such loss or algorithm; the message lists the names.
    """

    name: str
    description: str
    dataset: Callable[..., FederatedDataset]
    model: Callable[..., nn.Module]
    cohort_size: int
    rounds: int
    lr: float
    batch_size: int
    local_epochs: int = 1
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    loss: str = "cross_entropy"
    algorithm: str = "fedavg"
    algorithm_options: Mapping[str, Any] = field(default_factory=dict)
    eval_every: int = 10
    vectorized: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"name must be a non-empty string, got {self.name!r}. Give one.")
        for name in ("dataset", "model"):
            value = getattr(self, name)
            if not callable(value) or isinstance(value, nn.Module):
                raise TypeError(
                    f"{name} must be a function of a seed, got {type(value).__name__}. "
                    f"Pass the function that builds the {name}, not its result."
                )
        _check_takes_seed(self.model)
        for name in ("cohort_size", "rounds", "local_epochs", "eval_every", "batch_size"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be an integer >= 1, got {value!r}. Pass at least 1.")
        if not isinstance(self.lr, int | float) or not (math.isfinite(self.lr) and self.lr > 0):
            raise ValueError(f"lr must be a positive number, got {self.lr!r}. Try 0.1.")
        _check_sgd(self)
        LOSSES.entry(self.loss)
        ALGORITHMS.entry(self.algorithm)
        for name in ("algorithm_options", "options"):
            value = getattr(self, name)
            if not isinstance(value, Mapping):
                raise TypeError(
                    f"{name} must be a mapping of option names to values, got "
                    f"{type(value).__name__}. Pass a dict."
                )
            # A copy: the caller's dict may change later.
            object.__setattr__(self, name, dict(value))


def _check_takes_seed(model: Callable[..., nn.Module]) -> None:
    try:
        signature = inspect.signature(model)
    except ValueError:  # of something built in, which has none
        return
    try:
        signature.bind(seed=0)
    except TypeError as error:
        name = getattr(model, "__name__", repr(model))
        raise TypeError(
            f"model must be a function of a seed, got {name}{signature}: {error}. Give it a "
            f"parameter seed=0, and every other one a default; a class of modules is made in such "
            f"a function, for example lambda seed=0: Net()."
        ) from None


def _check_sgd(workload: Workload) -> None:
    for name, below in (("momentum", 1.0), ("weight_decay", math.inf)):
        value = getattr(workload, name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value < below:
            span = "in [0, 1)" if below == 1.0 else ">= 0"
            raise ValueError(f"{name} must be a number {span}, got {value!r}. Use 0 for none.")
    for name in ("nesterov", "vectorized"):
        value = getattr(workload, name)
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, got {value!r}.")
    if workload.nesterov and not workload.momentum:
        raise ValueError(
            "momentum must be greater than 0 with nesterov, got 0. Set it to 0.9, for example."
        )
