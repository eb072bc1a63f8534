"""A client inside its task, what it sends, and what the server knows between rounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedbench import aggregation
from fedbench.aggregation import QuantizedUpdate, SparseUpdate
from fedbench.algorithms.checks import Weighting
from fedbench.data import ClientData
from fedbench.registry import did_you_mean
from fedbench.training import (
    LocalWork,
    Loss,
    ModelState,
    WorkerModel,
    add_vectors,
    copy_vector,
    empty_vector_like,
    local_sgd,
    shuffled_batches,
    subtract_vectors,
)

__all__ = ["Client", "ClientId", "Reduction", "ServerState", "Update", "Updates", "dense"]

ClientId = int | str


class _Extra(dict[str, Any]):
    """What the algorithm keeps on the server; says what there is if an entry is missing."""

    def __missing__(self, name: object) -> Any:
        raise KeyError(
            f"server.extra has no entry {name!r}. It has {_listed(self)}. Make the entry in "
            f"init_server: return super().init_server(setup).keeping({name}=...)."
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


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

    def __post_init__(self) -> None:
        object.__setattr__(self, "extra", _Extra(self.extra))

    def moved(self, delta: Tensor, buffers: Mapping[str, Tensor] | None = None) -> ServerState:
        """Return the state with ``parameters + delta`` and, where given, new `buffers`."""
        return self.at(add_vectors(self.model.parameters, delta), buffers)

    def at(self, parameters: Tensor, buffers: Mapping[str, Tensor] | None = None) -> ServerState:
        """Return the state with these `parameters` and, where given, new `buffers`."""
        kept = {**self.model.buffers, **(buffers or {})}
        return dataclasses.replace(self, model=ModelState(parameters, kept))

    def keeping(self, **extra: Any) -> ServerState:
        """Return the state with these entries of `extra` replaced."""
        return dataclasses.replace(self, extra={**self.extra, **extra})


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


_TERMS = frozenset(local_sgd.__kwdefaults__ or ())
"""What :func:`fedbench.training.local_sgd` adds to the gradient."""


def _unknown_term(name: str) -> str:
    if name in {field.name for field in dataclasses.fields(LocalWork)}:
        hint = (
            f"It belongs to the local work: set client.work = dataclasses.replace(client.work, "
            f"{name}=...) before."
        )
    else:
        hint = f"There are {_listed(sorted(_TERMS))}.{did_you_mean(name, _TERMS)}"
    return f"client.train has no argument {name!r}. {hint}"


@dataclass
class Client:
    """One client inside its task: its data, its state, its random streams, the worker's model.

    Attributes
    ----------
    client_id : int or str
        Its identity.
    position : int
        Its place in the population.
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
    position: int
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

    def train(
        self, start: ModelState, *, stream: str = "shuffle", own: str = "shared", **terms: Any
    ) -> float:
        """Load `start`, run the local epochs from it and return the mean training loss.

        `stream` names the random stream that orders the samples, `own` the entries that stay on
        the client (:meth:`fedbench.training.WorkerModel.load`); `terms` are the keyword arguments
        of :func:`fedbench.training.local_sgd`. A ``TypeError`` says if there is no such term.
        """
        if not _TERMS.issuperset(terms):
            raise TypeError(_unknown_term(min(terms.keys() - _TERMS)))
        self.model.load(start, own)
        return local_sgd(
            self.model,
            self.data,
            self.work,
            self.loss,
            lambda epoch: self.generator(stream, epoch),
            **terms,
        )

    def batches(self, epoch: int) -> list[tuple[Tensor, Tensor]]:
        """Return the batches of a local epoch in the order of the random stream "shuffle"."""
        generator = self.generator("shuffle", epoch)
        work = self.work
        return shuffled_batches(self.data, work.batch_size, generator, drop_last=work.drop_last)

    def model_update(self) -> Update:
        """Return an update with the model's present parameters and buffers."""
        parameters = empty_vector_like(self.model.flat)
        copy_vector(parameters, self.model.flat)
        return self.update(parameters=parameters)

    def update(self, **tensors: Any) -> Update:
        """Return an update with these entries and the present buffers that a client sends."""
        buffers = self.model.sent_buffers()
        if buffers:
            tensors["buffers"] = buffers
        return Update(self.num_samples, tensors)

    def delta(self, start: ModelState) -> Tensor:
        """Return the model's parameters minus those of `start`, a new flat tensor."""
        flat = self.model.flat
        return subtract_vectors(flat, start.parameters, empty_vector_like(flat))


@dataclass(frozen=True)
class Reduction:
    """How an algorithm reads one entry of the updates: as a mean, and nothing else.

    Attributes
    ----------
    like : torch.Tensor or mapping of str to torch.Tensor
        Something of the entry's layout.
    weighting : {"samples", "uniform"}
        Weight of each update in the mean.
    """

    like: Any
    weighting: Weighting

    @property
    def num_bytes(self) -> int:
        """Bytes of one entry."""
        tensors = self.like.values() if isinstance(self.like, Mapping) else [self.like]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class Updates:
    """The updates of a round, in the plan's order.

    Parameters
    ----------
    clients : sequence of (int or str)
        Identity of each sender.
    updates : sequence of Update
        One for each sender.
    integers : {"max", "server", "sum"}
        What :meth:`mean_buffers` does with integer and bool entries.
    """

    def __init__(
        self, clients: Sequence[ClientId], updates: Sequence[Update], *, integers: str = "max"
    ) -> None:
        self.clients = tuple(clients)
        self._updates = tuple(updates)
        self.integers = integers

    def __len__(self) -> int:
        return len(self._updates)

    def __iter__(self) -> Iterator[tuple[ClientId, Update]]:
        """Iterate over senders and updates; compressed entries are given as dense vectors."""
        for client, update in zip(self.clients, self._updates, strict=True):
            tensors = {name: dense(value) for name, value in update.tensors.items()}
            yield client, dataclasses.replace(update, tensors=tensors)

    def where(self, name: str, value: object) -> Updates:
        """Return the updates whose entry `name` is `value`, in the same order."""
        pairs = zip(self.clients, self._updates, strict=True)
        kept = [(client, update) for client, update in pairs if update.tensors[name] == value]
        clients, updates = [client for client, _ in kept], [update for _, update in kept]
        return Updates(clients, updates, integers=self.integers)

    def carries(self, name: str) -> bool:
        """Return whether the updates have the entry `name`."""
        return any(name in update.tensors for update in self._updates)

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
        ValueError
            If an update has no such entry, or there are no updates.
        NonFiniteError
            If an update holds NaN or infinity.
        """
        self._check_entry(name)
        weights = [float(u.num_samples) for u in self._updates] if weighting == "samples" else None
        values = [u.tensors[name] for u in self._updates]
        if isinstance(values[0], SparseUpdate):
            return aggregation.sparse_mean(values, weights, total_weight=total_weight)
        if isinstance(values[0], QuantizedUpdate):
            return aggregation.quantized_mean(values, weights, total_weight=total_weight)
        integers = "sum" if self.integers == "sum" else "max"
        return aggregation.mean(values, weights, total_weight=total_weight, integers=integers)

    def _check_entry(self, name: str) -> None:
        if not self._updates:
            raise ValueError(f"there must be updates to take the mean of {name!r}, got none.")
        for client, update in zip(self.clients, self._updates, strict=True):
            if name not in update.tensors:
                raise ValueError(
                    f"name must be an entry of every update, got {name!r}, while that of client "
                    f"{client!r} has {_listed(update.tensors)}."
                    f"{did_you_mean(name, update.tensors)} What clients send is up to uplink."
                )

    def mean_buffers(
        self, server: ServerState, weighting: Weighting = "samples"
    ) -> dict[str, Tensor]:
        """Return the mean of the buffers over the updates, empty if clients send none.

        Floating entries are averaged. Integer ones (``num_batches_tracked``) take the maximum, or
        with ``integers="sum"`` the server's value plus the increments of all clients.
        """
        if not self.carries("buffers"):
            return {}
        mean: dict[str, Tensor] = self.mean("buffers", weighting)
        if self.integers == "sum":
            for name, total in mean.items():
                if not total.is_floating_point() and total.dtype != torch.bool:
                    # Every client counted on from the server's value.
                    mean[name] = total - (len(self) - 1) * server.model.buffers[name]
        return mean


def dense(value: Any) -> Any:
    """Return a compressed entry of an update as a dense vector, anything else as it is."""
    if isinstance(value, SparseUpdate):
        vector = value.values.new_zeros(value.size)
        return vector.index_add_(0, value.indices, value.values)
    if isinstance(value, QuantizedUpdate):
        return value.values.to(torch.float32) * value.scale
    return value
