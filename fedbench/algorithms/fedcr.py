"""FedCR: Zhang, Li, Dai, Zou and Xiong, *FedCR: Personalized Federated Learning Based on
Across-Client Common Representation with Conditional Mutual Information Regularization*, ICML 2023
(PMLR 202), algorithm 1.
"""  # noqa: D205

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fedbench.algorithms.base import (
    WEIGHTINGS,
    Algorithm,
    Client,
    Reduction,
    ServerSetup,
    ServerState,
    Update,
    Updates,
    Weighting,
    hyperparameter,
)
from fedbench.training import Loss, ModelState, WorkerModel

__all__ = ["FedCR", "StochasticHead"]

SMALLEST_DEVIATION = 1e-4
"""Keeps precisions finite in float32."""

Divergence = Literal["prior-encoder", "encoder-prior"]

Gaussians = tuple[Tensor, Tensor]
"""Means and standard deviations."""


@dataclass(frozen=True)
class FedCR(Algorithm):
    r"""A shared stochastic encoder, local heads, and one distribution of features for each class.

    The last linear layer of the model is the head. In front of it a linear layer maps the features
    to a Gaussian, :math:`q(z \mid x) = N(\mu(x), \sigma(x)^2)`, whose :math:`z` is as wide as the
    features. Everything up to there is the encoder, which is averaged; heads never leave their
    clients. A client minimises

    .. math:: \mathbb{E}_z\, \mathrm{CE}(\mathrm{head}(z), y)
              + \beta\, \mathrm{KL}(r(z \mid y) \,\|\, q(z \mid x))

    and sends, for each class, the product of the :math:`q(z \mid x)` of its samples during the
    last local epoch. The server's :math:`r(z \mid y)` is the product of what the clients sent and
    of one expert :math:`N(0, 1)`: with precisions :math:`\Lambda_i`,
    :math:`\Lambda = 1 + \sum_i \Lambda_i` and :math:`\mu = \sum_i \Lambda_i \mu_i / \Lambda`. A
    class that no client of the cohort has keeps its entry. Predictions take :math:`z = \mu(x)`.

    With ``beta=0`` and ``samples=0`` this is FedPer on the same architecture, bit for bit. There is
    no shared model to evaluate, for the server has no head.

    Parameters
    ----------
    beta : float
        :math:`\beta`, at least 0.
    samples : int
        Samples of :math:`z` for each input during training, at least 0; 0 takes the mean.
    divergence : {"prior-encoder", "encoder-prior"}
        Order of the arguments of the divergence: :math:`\mathrm{KL}(r \| q)` as in the authors'
        code, or :math:`\mathrm{KL}(q \| r)`, the bound of the conditional mutual information,
        which grows with the precision of :math:`r` and asks for a smaller `beta`.
    ema : float
        Part of the old means and deviations that a class keeps when it is renewed, in [0, 1).
    weighting : {"uniform", "samples"}
        Weight of a client's encoder: all alike (the authors' code), or by number of samples.
    head : str, optional
        Name of the linear layer that is the head; by default the last one of the model.
    """

    stateful: ClassVar[bool] = True
    unsupported: ClassVar[frozenset[str]] = frozenset({"personal", "train"})

    beta: float = hyperparameter(0.001, low=0.0)
    samples: int = hyperparameter(15, low=0)
    divergence: Divergence = hyperparameter("prior-encoder", choices=get_args(Divergence))
    ema: float = hyperparameter(0.0, low=0.0, below=1.0)
    weighting: Weighting = hyperparameter("uniform", choices=WEIGHTINGS)
    head: str | None = None

    def adapt_model(self, module: nn.Module, loss: Loss) -> nn.Module:
        """Put the Gaussian layer in front of the head.

        Raises
        ------
        ValueError
            If the loss is not one of classification, or the model has no such linear layer, or
            shares the head's parameters with other layers.
        """
        if loss.score_name != "accuracy":
            raise ValueError(
                f"fedcr must be given a classification loss, got one that reports "
                f"{loss.score_name!r}. Use cross_entropy."
            )
        linear = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]
        name = self.head if self.head is not None else next(reversed(linear), None)
        if name is None or name not in linear:
            raise ValueError(
                f"head must be the name of a linear layer of the model, got {name!r}. "
                f"It has {', '.join(map(repr, linear)) or 'none'}."
            )
        layer: Any = module.get_submodule(name)
        own = {id(parameter) for parameter in layer.parameters()}
        for other, parameter in module.named_parameters(remove_duplicate=False):
            if id(parameter) in own and other.rpartition(".")[0] != name:
                raise ValueError(
                    f"head must not share parameters with the encoder, got {other!r} in both. "
                    f"Untie them, or name another layer."
                )
        adapted = StochasticHead(layer)
        if not name:
            return adapted
        parent, _, attribute = name.rpartition(".")
        setattr(module.get_submodule(parent), attribute, adapted)
        return module

    def init_server(self, setup: ServerSetup) -> ServerState:
        """Start from a standard normal for every class."""
        layer = _layer(setup.architecture)
        means = layer.head.weight.new_zeros(layer.head.weight.shape)
        local = _local_parameters(setup.architecture)
        prior = {"means": means, "deviations": torch.ones_like(means)}
        return ServerState(setup.model, {**prior, "local": local})

    def init_client(self, model: ModelState) -> dict[str, Any]:
        """Start from the initial head."""
        return {"personal": model}

    def broadcast(self, server: ServerState, plan: Any) -> Mapping[str, Any]:
        """Send the encoder and the distributions of the classes."""
        extra = server.extra
        return {"model": server.model, "prior": (extra["means"], extra["deviations"])}

    def train(self, client: Client, down: Mapping[str, Any]) -> Mapping[str, float]:
        """Train encoder and head; collect the features of each class in the last epoch."""
        received: ModelState = down["model"]
        local = _local_parameters(client.model)
        own = client.state["personal"].parameters
        start = ModelState(torch.where(local, own, received.parameters), received.buffers)
        layer = _layer(client.model)
        objective = _Objective(self, client, down["prior"])
        layer.encode = objective.encode
        try:
            loss = dataclasses.replace(client.loss, mean=objective)
            value = dataclasses.replace(client, loss=loss).train(start)
        finally:
            # The worker's model goes on to the next client and to evaluations.
            layer.encode = _mean_of
        client.state["personal"] = client.model.state()
        client.outgoing.update(
            delta=client.delta(start)[~local],
            precisions=objective.precisions,
            weighted_means=objective.weighted_means,
        )
        return {"loss": value}

    def uplink(self, client: Client, down: Mapping[str, Any]) -> Update:
        """Send the change of the encoder and the products over the samples of each class."""
        return client.update(**client.outgoing)

    def reduction(self, server: ServerState) -> Mapping[str, Reduction]:
        """Return the entries of the updates."""
        extra = server.extra
        found = {
            "delta": Reduction(server.model.parameters[~extra["local"]], self.weighting),
            "precisions": Reduction(extra["means"], "uniform"),
            "weighted_means": Reduction(extra["means"], "uniform"),
        }
        if server.model.buffers:
            found["buffers"] = Reduction(server.model.buffers, self.weighting)
        return found

    def aggregate(self, server: ServerState, updates: Updates) -> ServerState:
        """Average the encoders; renew each class that a client has by a product of experts."""
        extra = server.extra
        step = torch.zeros_like(server.model.parameters)
        step[~extra["local"]] = updates.mean("delta", self.weighting)
        # Sums: correctly rounded, so that no order of the clients shows.
        precisions = updates.mean("precisions", "uniform", total_weight=1.0)
        weighted = updates.mean("weighted_means", "uniform", total_weight=1.0)
        fused = {
            "means": weighted / (1.0 + precisions),
            "deviations": (1.0 + precisions).rsqrt(),
        }
        seen = precisions > 0.0
        renewed = {
            name: torch.where(seen, self._mixed(extra[name], new), extra[name])
            for name, new in fused.items()
        }
        return server.moved(step, updates.mean_buffers(server, self.weighting)).keeping(**renewed)

    def _mixed(self, old: Tensor, new: Tensor) -> Tensor:
        return self.ema * old + (1.0 - self.ema) * new if self.ema else new

    def evaluated_models(self, server: ServerState) -> Mapping[str, ModelState]:
        """Return nothing: the server has no head."""
        return {}

    def personal_model(self, state: Mapping[str, Any]) -> ModelState | None:
        """Return the client's encoder and head."""
        personal: ModelState = state["personal"]
        return personal


def _mean_of(mean: Tensor, deviation: Tensor) -> Tensor:
    """Return the features that predictions are made from."""
    return mean


class StochasticHead(nn.Module):
    """The Gaussian layer and the head, in place of the head alone.

    Parameters
    ----------
    head : torch.nn.Linear
        The head.

    Attributes
    ----------
    latent : torch.nn.Linear
        Maps features to the means and the unscaled deviations of `z`.
    encode : callable
        ``(mean, deviation) -> z``; the mean outside of training.
    """

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        width = head.in_features
        self.latent = nn.Linear(width, 2 * width, dtype=head.weight.dtype)
        self.head = head
        self.encode: Callable[[Tensor, Tensor], Tensor] = _mean_of

    def forward(self, features: Tensor) -> Tensor:
        """Return the head's output for the features that `encode` takes from the Gaussian."""
        mean, spread = self.latent(features).chunk(2, dim=-1)
        deviation = F.softplus(spread).clamp(min=SMALLEST_DEVIATION)
        output: Tensor = self.head(self.encode(mean, deviation))
        return output


class _Objective:
    """A client's loss, which sees what the encoder makes of each batch."""

    def __init__(self, algorithm: FedCR, client: Client, prior: Gaussians) -> None:
        self._algorithm, self._loss, self._prior = algorithm, client.loss, prior
        self._generator = client.generator("noise")
        self._steps_left = client.num_steps
        self._last_epoch = client.num_steps // client.work.epochs
        self.precisions = torch.zeros_like(prior[0])
        self.weighted_means = torch.zeros_like(prior[0])

    def encode(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return samples of z, those of a whole batch after another."""
        self._encoded = mean, deviation
        count = self._algorithm.samples
        if not count:
            return mean
        shape = (count, *mean.shape)
        noise = torch.randn(shape, generator=self._generator, dtype=mean.dtype).to(mean.device)
        return (mean + deviation * noise).flatten(0, 1)

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of a batch, with the divergence."""
        encoded = self._encoded
        if self._steps_left <= self._last_epoch:
            self._collect(encoded, targets)
        self._steps_left -= 1
        value = self._loss.mean(outputs, targets.repeat(max(1, self._algorithm.samples)))
        if not self._algorithm.beta:
            return value
        prior = self._prior[0][targets], self._prior[1][targets]
        if self._algorithm.divergence == "prior-encoder":
            distances = _divergence(prior, encoded)
        else:
            distances = _divergence(encoded, prior)
        return value + self._algorithm.beta * distances.mean()

    def _collect(self, encoded: Gaussians, targets: Tensor) -> None:
        mean, deviation = (tensor.detach() for tensor in encoded)
        precision = deviation.square().reciprocal()
        self.precisions.index_add_(0, targets, precision)
        self.weighted_means.index_add_(0, targets, precision * mean)


def _divergence(p: Gaussians, q: Gaussians) -> Tensor:
    """Return ``KL(p || q)`` of diagonal Gaussians, shape ``(batch,)``."""
    (p_mean, p_deviation), (q_mean, q_deviation) = p, q
    ratio = (p_deviation / q_deviation).square()
    distance = ((p_mean - q_mean) / q_deviation).square()
    return 0.5 * (ratio + distance - 1.0 - ratio.log()).sum(dim=1)


def _layer(model: WorkerModel) -> StochasticHead:
    return next(part for part in model.module.modules() if isinstance(part, StochasticHead))


def _local_parameters(model: WorkerModel) -> Tensor:
    """Return a mask of the flat parameters: those of the head, which stay with the client."""
    own = {id(parameter) for parameter in _layer(model).head.parameters()}
    named = dict(model.module.named_parameters())
    marks = model.layout.zeros()
    for name, view in zip(model.layout.names, model.layout.views(marks), strict=True):
        view.fill_(float(id(named[name]) in own))
    return marks != 0.0
