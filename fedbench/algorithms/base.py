"""What an algorithm is: a plan of each round, a pure client update, a server aggregation.

A round goes through separate phases, each with its own set of clients::

    main thread        plan ── broadcast ──┐                        ┌── aggregate
                                           │ read-only              │ in the plan's order
    client tasks                           └─ train ── uplink ──────┘

`train` and `uplink` run inside a client task and may read the broadcast and touch their own client
only (invariant I1). `plan`, `broadcast` and `aggregate` run on the main thread (invariant I2).
Leaving a client out of one phase leaves the other phases as they are.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedbench import aggregation
from fedbench.data import ClientData
from fedbench.training import LocalWork, Loss, ModelState, WorkerModel, local_sgd

__all__ = [
    "Algorithm",
    "Client",
    "ClientId",
    "RoundContext",
    "RoundPlan",
    "ServerState",
    "Update",
    "Updates",
    "Weighting",
    "check_number",
    "check_weighting",
]

ClientId = int | str
Weighting = Literal["samples", "uniform"]


def check_weighting(value: str) -> None:
    """Raise ``ValueError`` unless `value` is a weighting of updates."""
    if value not in ("samples", "uniform"):
        raise ValueError(f"weighting must be 'samples' or 'uniform', got {value!r}.")


def check_number(
    name: str,
    value: float,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> None:
    """Raise ``ValueError`` unless `value` is finite and inside the given bounds.

    `low` and `high` belong to the range, `above` and `below` do not.
    """
    bounds = [
        (low, ">=", lambda bound: value >= bound),
        (above, ">", lambda bound: value > bound),
        (high, "<=", lambda bound: value <= bound),
        (below, "<", lambda bound: value < bound),
    ]
    wanted = [
        (f"{sign} {bound:g}", holds(bound)) for bound, sign, holds in bounds if bound is not None
    ]
    if not math.isfinite(value) or not all(holds for _, holds in wanted):
        text = " and ".join(text for text, _ in wanted)
        raise ValueError(f"{name} must be a finite number {text}, got {value!r}.")


@dataclass(frozen=True)
class ServerState:
    """What the server knows between rounds.

    Attributes
    ----------
    model : ModelState
        The global model.
    extra : mapping of str to object
        Whatever the algorithm keeps beside it (momenta, control variates), as flat tensors.
    """

    model: ModelState
    extra: Mapping[str, Any] = field(default_factory=dict)

    def moved(self, delta: Tensor, buffers: Mapping[str, Tensor] | None = None) -> ServerState:
        """Return the state with ``parameters + delta`` and, where given, new `buffers`."""
        return self.at(self.model.parameters + delta, buffers)

    def at(self, parameters: Tensor, buffers: Mapping[str, Tensor] | None = None) -> ServerState:
        """Return the state with these `parameters` and, where given, new `buffers`."""
        kept = {**self.model.buffers, **(buffers or {})}
        return dataclasses.replace(self, model=ModelState(parameters, kept))

    def keeping(self, **extra: Any) -> ServerState:
        """Return the state with these entries of `extra` replaced."""
        return dataclasses.replace(self, extra={**self.extra, **extra})


@dataclass(frozen=True)
class RoundContext:
    """What the server may use to plan a round.

    Attributes
    ----------
    index : int
        Number of the round, counted from 0.
    cohort : tuple
        Positions of the sampled clients, in selection order.
    num_clients : int
        Size of the population.
    generator : callable
        ``purpose -> random.Random``: the server's own stream of this round for that purpose.
    """

    index: int
    cohort: tuple[int, ...]
    num_clients: int
    generator: Callable[[str], Any]


@dataclass(frozen=True)
class RoundPlan:
    """Which clients take part in which phase; positions in the population, in order.

    Attributes
    ----------
    broadcast, train, uplink : tuple of int
        Clients that receive the server's state, train, and send back.
    header : mapping of str to object
        What every client of the round is told (for example a coin).
    """

    broadcast: tuple[int, ...]
    train: tuple[int, ...]
    uplink: tuple[int, ...]
    header: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def everyone(cls, cohort: Sequence[int], **header: Any) -> RoundPlan:
        """Return the plan in which the whole cohort goes through every phase."""
        clients = tuple(cohort)
        return cls(broadcast=clients, train=clients, uplink=clients, header=header)

    def participants(self) -> tuple[int, ...]:
        """Return every client that takes part in some phase, each once, in plan order."""
        return tuple(dict.fromkeys((*self.broadcast, *self.train, *self.uplink)))


@dataclass
class Client:
    """One client inside its task: its data, its state, its random streams, the worker's model.

    Attributes
    ----------
    client_id : int or str
        Its identity.
    round_index : int
        Number of the round, counted from 0.
    data : ClientData
        Its training samples.
    state : dict
        Its own state by name, kept between rounds (algorithms that are `stateful`).
    model : WorkerModel
        The worker's model; it holds whatever the last task left until `load` is called.
    work : LocalWork
        Epochs, batch size and optimiser settings.
    loss : Loss
        The loss to minimise.
    generator : callable
        ``(purpose, *key) -> torch.Generator`` for this client and round; None at level L0,
        where clients draw from the process's global generator.
    header : mapping of str to object
        The plan's header.
    received : bool
        Whether the broadcast was meant for this client; if not, ``down`` is empty.
    num_clients : int
        Size of the population.
    outgoing : dict
        Scratch space from `train` to `uplink`; gone when the task ends.
    """

    client_id: ClientId
    round_index: int
    data: ClientData
    state: dict[str, Any]
    model: WorkerModel
    work: LocalWork
    loss: Loss
    generator: Callable[..., torch.Generator | None]
    header: Mapping[str, Any]
    received: bool
    num_clients: int
    outgoing: dict[str, Any] = field(default_factory=dict)

    @property
    def num_samples(self) -> int:
        """Number of training samples of this client."""
        return len(self.data.inputs)

    @property
    def num_steps(self) -> int:
        """Number of optimiser steps of a call to `train`."""
        return self.work.steps(self.num_samples)

    def train(self, start: ModelState, *, stream: str = "shuffle", **terms: Any) -> float:
        """Load `start`, run the local epochs from it and return the mean training loss.

        `stream` names the random stream that orders the samples; `terms` are the keyword
        arguments of :func:`fedbench.training.local_sgd`.
        """
        self.model.load(start)
        return local_sgd(
            self.model,
            self.data,
            self.work,
            self.loss,
            lambda epoch: self.generator(stream, epoch),
            **terms,
        )

    def delta(self, start: ModelState) -> Tensor:
        """Return the model's parameters minus those of `start`, a new flat tensor."""
        return self.model.flat - start.parameters


@dataclass(frozen=True)
class Update:
    """What a client sends to the server.

    Attributes
    ----------
    num_samples : int
        Number of training samples behind it.
    tensors : mapping of str to object
        Flat tensors, or state dicts of tensors, by name. None may alias anything that lives on.
    """

    num_samples: int
    tensors: Mapping[str, Any]


class Updates:
    """The updates of a round, in the plan's order.

    Parameters
    ----------
    clients : sequence of (int or str)
        Identity of each sender.
    updates : sequence of Update
        One for each sender.
    """

    def __init__(self, clients: Sequence[ClientId], updates: Sequence[Update]) -> None:
        self.clients = tuple(clients)
        self._updates = tuple(updates)

    def __len__(self) -> int:
        return len(self._updates)

    def __iter__(self) -> Iterator[tuple[ClientId, Update]]:
        return iter(zip(self.clients, self._updates, strict=True))

    def mean(
        self, name: str, weighting: Weighting = "samples", *, total_weight: float | None = None
    ) -> Any:
        """Return the correctly rounded mean of the entry `name` over the updates.

        Parameters
        ----------
        name : str
            Entry of :attr:`Update.tensors`.
        weighting : {"samples", "uniform"}
            Weigh each update by its number of samples, or all alike.
        total_weight : float, optional
            Divisor in place of the sum of the weights; the size of the population with
            ``"uniform"`` gives the mean over all clients in which absent ones count as zero.

        Raises
        ------
        NonFiniteError
            If an update holds NaN or infinity.
        """
        weights = [float(u.num_samples) for u in self._updates] if weighting == "samples" else None
        values = [u.tensors[name] for u in self._updates]
        return aggregation.mean(values, weights, total_weight=total_weight)

    def mean_buffers(
        self, server: ServerState, weighting: Weighting = "samples"
    ) -> dict[str, Tensor]:
        """Return the mean of the buffers over the updates, empty if the model has none.

        Floating entries are averaged, integer ones (``num_batches_tracked``) take the maximum.
        """
        if not server.model.buffers:
            return {}
        mean: dict[str, Tensor] = self.mean("buffers", weighting)
        return mean


class Algorithm(ABC):
    """Base of all algorithms; a frozen dataclass whose fields are the hyperparameters.

    A new algorithm implements :meth:`train` and :meth:`aggregate`, and overrides the other
    methods where it differs from federated averaging.
    """

    stateful: ClassVar[bool] = False
    """Whether clients keep state between rounds."""

    @classmethod
    def options(cls) -> tuple[dataclasses.Field[Any], ...]:
        """Return the dataclass fields that are the hyperparameters."""
        return dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()

    def init_server(self, model: ModelState, num_clients: int) -> ServerState:
        """Return the server state before the first round."""
        return ServerState(model)

    def init_client(self, model: ModelState) -> dict[str, Any]:
        """Return the state of a client before it takes part for the first time."""
        return {}

    def plan(self, server: ServerState, context: RoundContext) -> RoundPlan:
        """Return who takes part in which phase of the round."""
        return RoundPlan.everyone(context.cohort)

    def broadcast(self, server: ServerState, plan: RoundPlan) -> Mapping[str, Any]:
        """Return what the clients of ``plan.broadcast`` receive; read-only for them."""
        return {"model": server.model}

    @abstractmethod
    def train(self, client: Client, down: Mapping[str, Any]) -> Mapping[str, float]:
        """Train inside the client task and return the client's metrics."""

    def uplink(self, client: Client, down: Mapping[str, Any]) -> Update:
        """Return what the client sends: by default the change of its parameters, its buffers."""
        tensors: dict[str, Any] = {"delta": client.delta(down["model"])}
        buffers = client.model.buffers()
        if buffers:
            tensors["buffers"] = buffers
        return Update(client.num_samples, tensors)

    @abstractmethod
    def aggregate(self, server: ServerState, updates: Updates) -> ServerState:
        """Return the server state after a round in which at least one client sent an update."""

    def silent(self, server: ServerState) -> ServerState:
        """Return the server state after a round in which no client sent anything."""
        return server
