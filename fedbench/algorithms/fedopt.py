"""FedAvg with an optimiser on the server, which takes the mean update for a gradient.

FedAvgM: Hsu, Qi and Brown, *Measuring the Effects of Non-Identical Data Distribution for Federated
Visual Classification*, 2019 (arXiv:1909.06335). FedAdagrad, FedYogi and FedAdam: Reddi, Charles,
Zaheer, Garrett, Rush, Konecny, Kumar and McMahan, *Adaptive Federated Optimization*, ICLR 2021,
algorithm 2 (arXiv:2003.00295).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedbench import aggregation
from fedbench.algorithms.base import ServerSetup, ServerState, Updates, hyperparameter
from fedbench.algorithms.fedavg import FedAvg

__all__ = ["AdaptiveServer", "FedAdagrad", "FedAdam", "FedAvgM", "FedYogi"]


@dataclass(frozen=True)
class FedAvgM(FedAvg):
    r"""Momentum on the server.

    :math:`m \leftarrow \beta m + \bar\Delta`, then :math:`x \leftarrow x + \eta_s m`.
    With ``momentum=0`` and ``server_lr=1`` the bits are those of FedAvg.

    Parameters
    ----------
    weighting : {"samples", "uniform"}
        Weight of a client's update.
    momentum : float
        :math:`\beta` in [0, 1).
    server_lr : float
        :math:`\eta_s`, greater than 0.
    nesterov : bool
        Step along :math:`\beta m + \bar\Delta` instead of :math:`m`.
    """

    momentum: float = hyperparameter(0.9, low=0.0, below=1.0)
    server_lr: float = hyperparameter(1.0, above=0.0)
    nesterov: bool = hyperparameter(False)

    def init_server(self, setup: ServerSetup) -> ServerState:
        """Start from zero velocity."""
        return ServerState(setup.model, {"velocity": torch.zeros_like(setup.model.parameters)})

    def aggregate(self, server: ServerState, updates: Updates) -> ServerState:
        """Take the mean update into the velocity and step along it."""
        moved = _copied(server, updates.mean_buffers(server, self.weighting), "velocity")
        aggregation.fedavgm_step(
            moved.model.parameters,
            updates.mean("delta", self.weighting),
            moved.extra["velocity"],
            server_lr=self.server_lr,
            momentum=self.momentum,
            nesterov=self.nesterov,
        )
        return moved


@dataclass(frozen=True)
class AdaptiveServer(FedAvg):
    r"""Base of the adaptive server optimisers.

    :math:`m \leftarrow \beta_1 m + (1 - \beta_1) \bar\Delta`, then the second moment :math:`v`
    from :math:`m`, then :math:`x \leftarrow x + \eta_s\, m / (\sqrt v + \tau)`, all elementwise,
    without bias correction. Buffers of the model are averaged, never scaled.

    Parameters
    ----------
    weighting : {"samples", "uniform"}
        Weight of a client's update.
    server_lr : float
        :math:`\eta_s`, greater than 0.
    beta1 : float
        Decay of the first moment, in [0, 1).
    tau : float
        Degree of adaptivity, greater than 0; :math:`v` starts at :math:`\tau^2`.
    """

    server_lr: float = hyperparameter(0.1, above=0.0)
    beta1: float = hyperparameter(0.9, low=0.0, below=1.0)
    tau: float = hyperparameter(1e-3, above=0.0)

    def init_server(self, setup: ServerSetup) -> ServerState:
        """Start from a zero first moment and a second moment of tau squared."""
        return ServerState(
            setup.model,
            {
                "first_moment": torch.zeros_like(setup.model.parameters),
                "second_moment": torch.full_like(setup.model.parameters, self.tau**2),
            },
        )

    @abstractmethod
    def step(self, parameters: Tensor, update: Tensor, first: Tensor, second: Tensor) -> None:
        """Take one step in place: on the parameters and on both moments."""

    def aggregate(self, server: ServerState, updates: Updates) -> ServerState:
        """Take one step of the server's optimiser along the mean update."""
        buffers = updates.mean_buffers(server, self.weighting)
        moved = _copied(server, buffers, "first_moment", "second_moment")
        self.step(
            moved.model.parameters,
            updates.mean("delta", self.weighting),
            moved.extra["first_moment"],
            moved.extra["second_moment"],
        )
        return moved


@dataclass(frozen=True)
class FedAdagrad(AdaptiveServer):
    r"""Adagrad on the server: :math:`v \leftarrow v + m^2`.

    The hyperparameters are those of :class:`AdaptiveServer`; `beta1` is 0 as in the paper.
    """

    beta1: float = hyperparameter(0.0, low=0.0, below=1.0)

    def step(self, parameters: Tensor, update: Tensor, first: Tensor, second: Tensor) -> None:
        """Take the step of :func:`fedbench.aggregation.fedadagrad_step`."""
        aggregation.fedadagrad_step(
            parameters,
            update,
            first,
            second,
            server_lr=self.server_lr,
            beta1=self.beta1,
            tau=self.tau,
        )


@dataclass(frozen=True)
class _DecayingServer(AdaptiveServer):
    """Base of those whose second moment decays; they differ in their kernel alone."""

    _kernel: ClassVar[Callable[..., Any]]
    """Their step of :mod:`fedbench.aggregation`."""

    beta2: float = hyperparameter(0.99, low=0.0, high=1.0)

    def step(self, parameters: Tensor, update: Tensor, first: Tensor, second: Tensor) -> None:
        """Take the step of the kernel."""
        self._kernel(
            parameters,
            update,
            first,
            second,
            server_lr=self.server_lr,
            beta1=self.beta1,
            beta2=self.beta2,
            tau=self.tau,
        )


@dataclass(frozen=True)
class FedYogi(_DecayingServer):
    r"""Yogi on the server: :math:`v \leftarrow v - (1 - \beta_2)\, m^2\, \mathrm{sign}(v - m^2)`.

    Parameters
    ----------
    weighting, server_lr, beta1, tau
        As in :class:`AdaptiveServer`.
    beta2 : float
        Decay of the second moment, in [0, 1].
    """

    _kernel = staticmethod(aggregation.fedyogi_step)


@dataclass(frozen=True)
class FedAdam(_DecayingServer):
    r"""Adam on the server: :math:`v \leftarrow \beta_2 v + (1 - \beta_2)\, m^2`.

    Parameters
    ----------
    weighting, server_lr, beta1, tau
        As in :class:`AdaptiveServer`.
    beta2 : float
        Decay of the second moment, in [0, 1].
    """

    _kernel = staticmethod(aggregation.fedadam_step)


def _copied(server: ServerState, buffers: Mapping[str, Tensor], *names: str) -> ServerState:
    """Return the state with `buffers` and with copies, to be written to, of what a step changes."""
    copies = {name: server.extra[name].clone() for name in names}
    return server.at(server.model.parameters.clone(), buffers).keeping(**copies)
