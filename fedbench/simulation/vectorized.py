"""Client tasks that train a chunk of clients at once, and when they can.

Vectorised clients are a way to train, not a way to dispatch: a chunk is one task of whatever
executor there is. What they compute is what the clients would compute one by one, up to rounding.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedbench.algorithms import Algorithm, Update
from fedbench.data import FederatedDataset
from fedbench.errors import VectorizationError
from fedbench.executors import Resident
from fedbench.reproducibility import torch_generator
from fedbench.simulation.client_task import ClientItem, ClientResult, ClientSide
from fedbench.simulation.compression import num_bytes
from fedbench.training import (
    VectorizedModel,
    WorkerModel,
    refuse_work,
    stacked_sgd,
    vectorized_model,
)

__all__ = ["Chunk", "ChunkResult", "VectorizedTask", "chunks", "vectorized_side"]

_CHUNK_BYTES = 4_000_000
"""Parameters of the clients of a chunk, at most. Measured: they should stay in a core's cache."""

_CHUNK_CLIENTS = 50
"""Clients of a chunk, at most. Measured: larger ones are not quicker, and spread less well."""


def vectorized_side(side: ClientSide, model: WorkerModel) -> VectorizedModel:
    """Return what the tasks of a vectorised simulation need besides `side`.

    Parameters
    ----------
    side : ClientSide
        Of the simulation.
    model : WorkerModel
        The server's: the machine that it is on may lack the clients' device.

    Raises
    ------
    VectorizationError
        If the clients cannot be trained at once; the message says why.
    """
    try:
        _refuse_algorithm(side.algorithm)
        _refuse_side(side, model)
        refuse_work(side.work)
        data = side.dataset
        return vectorized_model(model, data.inputs, data.targets, side.loss)
    except VectorizationError as error:
        raise VectorizationError(
            f"vectorized must be False here, got True: {error}. Leave it out to train the clients "
            "one by one."
        ) from None


def _refuse_algorithm(algorithm: Algorithm) -> None:
    kind = type(algorithm)
    if algorithm.stateful:
        raise VectorizationError(f"the clients of {kind.__name__} keep a state")
    # A subclass that trains otherwise has not said that this is plain local SGD too.
    says, trains = _owner(kind, "local_terms"), _owner(kind, "train")
    if says is Algorithm or not issubclass(says, trains):
        raise VectorizationError(
            f"{kind.__name__} does not say, by its method local_terms, that its clients do plain "
            "local SGD"
        )
    for name in ("uplink", "broadcast_to"):
        if _owner(kind, name) is not Algorithm:
            raise VectorizationError(f"{kind.__name__} has its own {name}")


def _owner(kind: type, name: str) -> type:
    """Return the class that defines the method `name` of `kind`."""
    return next(base for base in kind.__mro__ if name in vars(base))


def _refuse_side(side: ClientSide, model: WorkerModel) -> None:
    if side.level != "L1":
        raise VectorizationError(
            f"the level is {side.level}, and only at L1 do clients have random streams of their own"
        )
    if side.check_enclosure or side.around_client is not None:
        raise VectorizationError(
            "check_enclosure and around_client watch one client at a time, and these are trained "
            "together"
        )
    if side.compression is not None or side.validation or model.own_names:
        raise VectorizationError(
            "compression, validation, personal entries and local buffers belong to one client at "
            "a time, and these are trained together"
        )
    if type(side.dataset).client is not FederatedDataset.client:
        raise VectorizationError(
            f"{type(side.dataset).__name__} makes the samples of its clients in a way of its own"
        )


def chunks(sizes: Sequence[int], numel: int, workers: int) -> list[tuple[int, ...]]:
    """Divide clients into chunks of about equal work, of similar sizes inside.

    Parameters
    ----------
    sizes : sequence of int
        Samples of each client.
    numel : int
        Parameters of one client.
    workers : int
        Chunks come in multiples of it, if there are so many clients.

    Returns
    -------
    list of tuple of int
        Places in `sizes`, each once, the largest clients first.
    """
    limit = max(1, min(_CHUNK_CLIENTS, _CHUNK_BYTES // (4 * numel)))
    count = -(-len(sizes) // (limit * workers)) * workers
    order = sorted(range(len(sizes)), key=lambda place: -sizes[place])
    share = sum(sizes) / count
    found: list[list[int]] = [[]]
    done = 0.0
    for place in order:
        full = len(found[-1]) >= limit
        if found[-1] and (full or done + sizes[place] / 2 > share * len(found)):
            found.append([])
        found[-1].append(place)
        done += sizes[place]
    return [tuple(chunk) for chunk in found]


@dataclass(frozen=True)
class Chunk:
    """The clients of one task: what of their items it needs, side by side.

    Attributes
    ----------
    client_ids : tuple of (int or str)
        Their identities.
    positions : tuple of int
        Their places in the population.
    sends : tuple of bool
        Whether each sends its update.
    round_index : int
        Number of the round, counted from 0.
    lr : float
        Learning rate of the round.
    """

    client_ids: tuple[int | str, ...]
    positions: tuple[int, ...]
    sends: tuple[bool, ...]
    round_index: int
    lr: float

    @classmethod
    def of(cls, items: Sequence[ClientItem]) -> Chunk:
        """Return the chunk of these items.

        Raises
        ------
        VectorizationError
            If a client does not receive the model, or does not train.
        """
        for item in items:
            if not (item.receives and item.train):
                raise VectorizationError(
                    f"vectorized clients must all receive the model and train, but the plan leaves "
                    f"client {item.client_id!r} out of one of them. Set vectorized to False."
                )
        return cls(
            client_ids=tuple(item.client_id for item in items),
            positions=tuple(item.position for item in items),
            sends=tuple(item.uplink for item in items),
            round_index=items[0].round_index,
            lr=items[0].lr,
        )


@dataclass(frozen=True)
class ChunkResult:
    """What the task of a chunk returns.

    Attributes
    ----------
    deltas : torch.Tensor or None
        Changes of the parameters, ``[clients, numel]``; None where they have been folded.
    losses : list of float
        Mean training loss of each client.
    sizes : tuple of int
        Samples of each client.
    sends : tuple of bool
        Whether each sends its update.
    seconds : float
        Time of the task.
    update_bytes : int
        Bytes of one update.
    """

    deltas: Tensor | None
    losses: list[float]
    sizes: tuple[int, ...]
    sends: tuple[bool, ...]
    seconds: float
    update_bytes: int

    def clients(self) -> tuple[ClientResult, ...]:
        """Return the result of each client; the time is divided by their samples."""
        deltas = [None] * len(self.sizes) if self.deltas is None else self.deltas.unbind()
        share = self.seconds / sum(self.sizes)
        return tuple(
            ClientResult(
                num_samples=size,
                update=Update(size, {"delta": delta}) if sends and delta is not None else None,
                state={},
                metrics={"loss": loss},
                train_s=share * size,
                uplink_s=0.0,
                uplink_bytes=self.update_bytes if sends else 0,
            )
            for delta, loss, size, sends in zip(
                deltas, self.losses, self.sizes, self.sends, strict=True
            )
        )


@dataclass(frozen=True)
class VectorizedTask:
    """Trains the clients of a chunk at once: ``task(broadcast, chunk) -> result``."""

    side: Resident[ClientSide]
    model: VectorizedModel

    def __call__(self, down: Mapping[str, Any], chunk: Chunk) -> ChunkResult:
        """Run the clients; reads `down` and their own data only."""
        begin = time.perf_counter()
        side = self.side.value
        dataset = side.dataset
        down = side.there(down)
        start: Tensor = down["model"].parameters

        def generator(client: int, epoch: int) -> torch.Generator:
            key = (chunk.client_ids[client], chunk.round_index, epoch)
            return torch_generator(side.seed, "shuffle", *key)

        trained = stacked_sgd(
            self.model,
            dataclasses.replace(side.work, lr=chunk.lr),
            start,
            [dataset.indices(position) for position in chunk.positions],
            dataset.inputs,
            dataset.targets,
            generator,
            **(side.algorithm.local_terms(down) or {}),
        )
        deltas = trained.parameters.sub_(start).cpu()
        return ChunkResult(
            deltas=deltas,
            losses=trained.losses,
            sizes=tuple(dataset.client_size(position) for position in chunk.positions),
            sends=chunk.sends,
            seconds=time.perf_counter() - begin,
            update_bytes=num_bytes({"delta": deltas[0]}, self.model.layout),
        )
