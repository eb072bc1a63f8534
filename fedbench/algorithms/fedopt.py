"""FedAvg with an optimiser on the server, which takes the mean update for a gradient.

FedAvgM: Hsu, Qi and Brown, *Measuring the Effects of Non-Identical Data Distribution for Federated
Visual Classification*, 2019 (arXiv:1909.06335). FedAdagrad, FedYogi and FedAdam: Reddi, Charles,
Zaheer, Garrett, Rush, Konecny, Kumar and McMahan, *Adaptive Federated Optimization*, ICLR 2021,
algorithm 2 (arXiv:2003.00295).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.algorithms.base import ServerSetup, ServerState, Updates, check_number
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

    momentum: float = 0.9
    server_lr: float = 1.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("momentum", self.momentum, low=0.0, below=1.0)
        check_number("server_lr", self.server_lr, above=0.0)

    def init_server(self, setup: ServerSetup) -> ServerState:
        """Start from zero velocity."""
        return ServerState(setup.model, {"velocity": torch.zeros_like(setup.model.parameters)})

    def aggregate(self, server: ServerState, updates: Updates) -> ServerState:
        """Take the mean update into the velocity and step along it."""
        mean = updates.mean("delta", self.weighting)
        velocity = mean
        step = mean
        if self.momentum:
            velocity = self.momentum * server.extra["velocity"] + mean
            step = self.momentum * velocity + mean if self.nesterov else velocity
        if self.server_lr != 1.0:
            step = self.server_lr * step
        return server.moved(step, updates.mean_buffers(server, self.weighting)).keeping(
            velocity=velocity
        )


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
    beta1, beta2 : float
        Decay of the first and second moment, in [0, 1].
    tau : float
        Degree of adaptivity, greater than 0; :math:`v` starts at :math:`\tau^2`.
    """

    server_lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("server_lr", self.server_lr, above=0.0)
        check_number("beta1", self.beta1, low=0.0, below=1.0)
        check_number("beta2", self.beta2, low=0.0, high=1.0)
        check_number("tau", self.tau, above=0.0)

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
    def second_moment(self, previous: Tensor, squared: Tensor) -> Tensor:
        """Return the new second moment from the previous one and the squared first moment."""

    def aggregate(self, server: ServerState, updates: Updates) -> ServerState:
        """Take one step of the server's optimiser along the mean update."""
        first = updates.mean("delta", self.weighting)
        if self.beta1:
            first = self.beta1 * server.extra["first_moment"] + (1.0 - self.beta1) * first
        second = self.second_moment(server.extra["second_moment"], first * first)
        step = self.server_lr * first / (second.sqrt() + self.tau)
        return server.moved(step, updates.mean_buffers(server, self.weighting)).keeping(
            first_moment=first, second_moment=second
        )


@dataclass(frozen=True)
class FedAdagrad(AdaptiveServer):
    """Adagrad on the server: the second moment adds up squares.

    The hyperparameters are those of :class:`AdaptiveServer`.
    """

    beta1: float = 0.0

    def second_moment(self, previous: Tensor, squared: Tensor) -> Tensor:
        """Return ``v + m^2``."""
        return previous + squared


@dataclass(frozen=True)
class FedYogi(AdaptiveServer):
    """Yogi on the server: the second moment moves by the sign of its error.

    The hyperparameters are those of :class:`AdaptiveServer`.
    """

    def second_moment(self, previous: Tensor, squared: Tensor) -> Tensor:
        """Return ``v - (1 - beta2) m^2 sign(v - m^2)``."""
        return previous - (1.0 - self.beta2) * squared * torch.sign(previous - squared)


@dataclass(frozen=True)
class FedAdam(AdaptiveServer):
    """Adam on the server: the second moment is an exponential mean of squares.

    The hyperparameters are those of :class:`AdaptiveServer`.
    """

    def second_moment(self, previous: Tensor, squared: Tensor) -> Tensor:
        """Return ``beta2 v + (1 - beta2) m^2``."""
        return self.beta2 * previous + (1.0 - self.beta2) * squared
