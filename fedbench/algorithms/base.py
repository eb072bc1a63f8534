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
    "check_weighting",
]

ClientId = int | str
Weighting = Literal["samples", "uniform"]


def check_weighting(value: str) -> None:
    """Raise ``ValueError`` unless `value` is a weighting of updates."""
    if value not in ("samples", "uniform"):
        raise ValueError(f"weighting must be 'samples' or 'uniform', got {value!r}.")


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
        kept = {**self.model.buffers, **(buffers or {})}
        return dataclasses.replace(self, model=ModelState(self.model.parameters + delta, kept))


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

    @property
    def num_samples(self) -> int:
        """Number of training samples of this client."""
        return len(self.data.inputs)

    def train(self, start: ModelState, **terms: Any) -> float:
        """Load `start`, run the local epochs from it and return the mean training loss.

        `terms` are the keyword arguments of :func:`fedbench.training.local_sgd`.
        """
        self.model.load(start)
        return local_sgd(
            self.model,
            self.data,
            self.work,
            self.loss,
            lambda epoch: self.generator("shuffle", epoch),
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

    def mean(self, name: str, weighting: Weighting = "samples") -> Any:
        """Return the correctly rounded mean of the entry `name` over the updates.

        Parameters
        ----------
        name : str
            Entry of :attr:`Update.tensors`.
        weighting : {"samples", "uniform"}
            Weigh each update by its number of samples, or all alike.

        Raises
        ------
        NonFiniteError
            If an update holds NaN or infinity.
        """
        weights = [float(u.num_samples) for u in self._updates] if weighting == "samples" else None
        return aggregation.mean([u.tensors[name] for u in self._updates], weights)


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

    def init_server(self, model: ModelState) -> ServerState:
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
        """Return the server state after the round; at least one update is there."""
