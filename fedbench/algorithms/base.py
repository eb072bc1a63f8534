"""What an algorithm is: a plan of each round, a pure client update, a server aggregation.

A round goes through separate phases, each with its own set of clients::

    main thread        plan ── broadcast ──┐                        ┌── aggregate
                                           │ read-only              │ in the plan's order
    client tasks                           └─ train ── uplink ──────┘

`train` and `uplink` run inside a client task and may read the broadcast and touch their own client
only (invariant I1). `plan`, `broadcast` and `aggregate` run on the main thread (invariant I2).
Leaving a client out of one phase leaves the other phases as they are.

At level L1 module-level randomness (``torch``, ``numpy.random``, ``random``) is reproducible in all
of them: a client task draws from streams of its client and round, `plan` and `broadcast` together
and `aggregate` from streams of their round, `init_server` and each client's `init_client` from one
of their own.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from torch import nn

from fedbench.algorithms.checks import (
    WEIGHTINGS,
    Weighting,
    check_declared,
    check_hyperparameters,
    hyperparameter,
)
from fedbench.algorithms.client import Client, ClientId, Reduction, ServerState, Update, Updates
from fedbench.training import Loss, ModelState, WorkerModel

__all__ = [
    "WEIGHTINGS",
    "Algorithm",
    "Client",
    "ClientId",
    "Reduction",
    "RoundContext",
    "RoundPlan",
    "ServerSetup",
    "ServerState",
    "Update",
    "Updates",
    "Weighting",
    "hyperparameter",
    "model_reduction",
]


@dataclass(frozen=True)
class ServerSetup:
    """What an algorithm may use to make the server state before the first round.

    Attributes
    ----------
    model : ModelState
        The initial model.
    architecture : WorkerModel
        The server's own copy of the model: its modules, and where their parameters lie.
    num_clients : int
        Size of the population.
    generator : callable
        ``purpose -> torch.Generator``: the server's own stream for that purpose.
    """

    model: ModelState
    architecture: WorkerModel
    num_clients: int
    generator: Callable[[str], torch.Generator]


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
    evaluate : tuple of int, optional
        Clients that evaluate on their own data if the round is evaluated; by default as the
        simulation was told.
    header : mapping of str to object
        What every client of the round is told (for example a coin).
    """

    broadcast: tuple[int, ...]
    train: tuple[int, ...]
    uplink: tuple[int, ...]
    header: Mapping[str, Any] = field(default_factory=dict)
    evaluate: tuple[int, ...] | None = None

    @classmethod
    def everyone(cls, cohort: Sequence[int], **header: Any) -> RoundPlan:
        """Return the plan in which the whole cohort goes through every phase."""
        clients = tuple(cohort)
        return cls(broadcast=clients, train=clients, uplink=clients, header=header)

    def participants(self) -> tuple[int, ...]:
        """Return every client that takes part in some phase, each once, in plan order."""
        return tuple(dict.fromkeys((*self.broadcast, *self.train, *self.uplink)))


def model_reduction(
    server: ServerState, weighting: Weighting, **flat: Weighting
) -> dict[str, Reduction]:
    """Return the reduction of ``delta``, further `flat` entries, and the buffers if there are."""
    like = server.model.parameters
    found = {"delta": Reduction(like, weighting)}
    found |= {name: Reduction(like, each) for name, each in flat.items()}
    if server.model.buffers:
        found["buffers"] = Reduction(server.model.buffers, weighting)
    return found


class Algorithm(ABC):
    """Base of all algorithms; a frozen dataclass whose fields are the hyperparameters.

    A new algorithm implements :meth:`train` and :meth:`aggregate`, and overrides the other
    methods where it differs from federated averaging.
    """

    stateful: ClassVar[bool] = False
    """Whether clients keep state between rounds."""

    unsupported: ClassVar[frozenset[str]] = frozenset()
    """Options of a simulation that do not fit the algorithm, for example ``"optimizer"``."""

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Refuse a class that declares hyperparameters and is no dataclass."""
        check_declared(cls)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        check_hyperparameters(self)

    @classmethod
    def options(cls) -> tuple[dataclasses.Field[Any], ...]:
        """Return the dataclass fields that are the hyperparameters."""
        check_declared(cls)
        return dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()

    def adapt_model(self, module: nn.Module, loss: Loss) -> nn.Module:
        """Return the model to train, given the workload's model and loss; by default that model.

        Called once for every worker and for the server, with a new `module` that may be changed.
        """
        return module

    def init_server(self, setup: ServerSetup) -> ServerState:
        """Return the server state before the first round."""
        return ServerState(setup.model)

    def init_client(self, model: ModelState) -> dict[str, Any]:
        """Return the state of a client before it takes part for the first time."""
        return {}

    def selection_round(self, index: int) -> int:
        """Return the round whose cohort takes part in round `index`; by default its own."""
        return index

    def plan(self, server: ServerState, context: RoundContext) -> RoundPlan:
        """Return who takes part in which phase of the round."""
        return RoundPlan.everyone(context.cohort)

    def broadcast(self, server: ServerState, plan: RoundPlan) -> Mapping[str, Any]:
        """Return what the clients of ``plan.broadcast`` receive; read-only for them."""
        return {"model": server.model}

    def broadcast_to(self, server: ServerState, position: int) -> Mapping[str, Any]:
        """Return what the client at `position` receives beside the common broadcast."""
        return {}

    @abstractmethod
    def train(self, client: Client, down: Mapping[str, Any]) -> Mapping[str, float]:
        """Train inside the client task and return the client's metrics."""

    def local_terms(self, down: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return what `train` passes to ``client.train`` if it does nothing else.

        That is, if a client runs ``client.train(down["model"], **terms)``, reports the loss, and
        sends the default uplink. Such clients can be vectorised with the terms ``proximal`` and
        ``anchor``. None, the default, says that `train` is more than that.
        """
        return None

    def uplink(self, client: Client, down: Mapping[str, Any]) -> Update:
        """Return what the client sends: by default the change of its parameters, its buffers."""
        return client.update(delta=client.delta(down["model"]))

    @abstractmethod
    def aggregate(self, server: ServerState, updates: Updates) -> ServerState:
        """Return the server state after a round in which at least one client sent an update."""

    def reduction(self, server: ServerState) -> Mapping[str, Reduction] | None:
        """Return the entries of the updates that `aggregate` reads, each as one mean.

        The workers may then fold the updates. None if `aggregate` looks at them one by one.
        """
        return None

    def evaluated_models(self, server: ServerState) -> Mapping[str, ModelState]:
        """Return the server's models to evaluate, by the name of the split in the metrics."""
        return {"test": server.model}

    def personal_model(self, state: Mapping[str, Any]) -> ModelState | None:
        """Return the client's own model out of its state, None if the algorithm has none."""
        return None

    def silent(self, server: ServerState) -> ServerState:
        """Return the server state after a round in which no client sent anything."""
        return server
