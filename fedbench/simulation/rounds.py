"""The parts of a round that the server does: planning, making tasks, aggregating."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedbench.algorithms import Algorithm, RoundContext, RoundPlan, ServerState, Updates
from fedbench.executors import Executor, Resident
from fedbench.reproducibility import python_random
from fedbench.simulation.client_task import ClientItem, ClientResult, ClientSide, ClientTask
from fedbench.simulation.participation import Sampler
from fedbench.simulation.vectorized import Chunk, VectorizedTask, chunks
from fedbench.training import VectorizedModel

__all__ = [
    "Dispatch",
    "Observer",
    "aggregated",
    "client_items",
    "dispatch",
    "mapped",
    "round_context",
    "unobserved",
]

Observer = Callable[[str, int | str | None, Any], None]
"""``observer(phase, client_id, state)``: is shown what each phase of a round left."""


def unobserved(phase: str, client: int | str | None, state: Any) -> None:
    """Nobody looks."""


def round_context(side: ClientSide, index: int, sample: Sampler) -> RoundContext:
    """Sample the cohort of round `index`."""

    def generator(purpose: str) -> Any:
        return python_random(side.seed, purpose, index)

    chosen = side.algorithm.selection_round(index)
    cohort = sample(chosen, python_random(side.seed, "select", chosen))
    return RoundContext(index, cohort, side.dataset.num_clients, generator)


def client_items(
    side: ClientSide,
    server: ServerState,
    plan: RoundPlan,
    index: int,
    lr: float,
    state_of: Callable[[int | str], dict[str, Any]],
) -> list[ClientItem]:
    """Return the part of every participant of the plan, in plan order."""
    receives, train, uplink = set(plan.broadcast), set(plan.train), set(plan.uplink)
    ids = side.dataset.client_ids
    return [
        ClientItem(
            client_id=ids[position],
            position=position,
            round_index=index,
            receives=position in receives,
            train=position in train,
            uplink=position in uplink,
            lr=lr,
            state=state_of(ids[position]),
            header=plan.header,
            private=side.algorithm.broadcast_to(server, position),
        )
        for position in plan.participants()
    ]


@dataclass(frozen=True)
class Dispatch:
    """The clients of a round as tasks of an executor.

    Attributes
    ----------
    task : callable
        ``task(broadcast, job)`` returns a :class:`ClientResult` or a :class:`ChunkResult`.
    jobs : sequence
        A :class:`ClientItem` or a :class:`Chunk` each.
    costs : sequence of float or None
        Samples of each job.
    places : sequence of tuple of int or None
        Where the clients of each job stand in the plan; None if each job is one client.
    integers : {"max", "server", "sum"}
        What becomes of integer buffers.
    """

    task: Callable[..., Any]
    jobs: Sequence[Any]
    costs: Sequence[float] | None
    places: Sequence[tuple[int, ...]] | None = None
    integers: str = "max"

    def in_plan_order(self, done: Sequence[Any]) -> list[ClientResult]:
        """Return the results of the jobs, one for each client."""
        if self.places is None:
            return list(done)
        found: dict[int, ClientResult] = {}
        for places, result in zip(self.places, done, strict=True):
            found |= zip(places, result.clients(), strict=True)
        return [found[place] for place in range(len(found))]


def dispatch(
    side: Resident[ClientSide],
    items: Sequence[ClientItem],
    model: VectorizedModel | None,
    workers: int,
) -> Dispatch:
    """Return the tasks of a round: one for each client, or for each chunk with a stacked `model`.

    The largest start first; but at L0 clients draw from one generator and keep their order.
    """
    sizes = [side.value.train_size(item.position) for item in items]
    if model is None or not items:
        costs = None if side.value.level == "L0" else sizes
        integers = side.value.exchange.integers
        return Dispatch(ClientTask(side), items, costs, integers=integers)
    places = chunks(sizes, model.layout.numel, workers)
    return Dispatch(
        VectorizedTask(side, model),
        [Chunk.of([items[place] for place in chunk]) for chunk in places],
        [sum(sizes[place] for place in chunk) for chunk in places],
        places,
    )


def mapped(
    executor: Executor, work: Dispatch, items: Sequence[ClientItem], down: Mapping[str, Any]
) -> tuple[list[ClientResult], Updates]:
    """Run the client tasks of a round and return their results and the updates, in plan order."""
    done = executor.map(work.task, work.jobs, broadcast=down, costs=work.costs)
    results = work.in_plan_order(done)
    sent = [
        (item.client_id, result.update)
        for item, result in zip(items, results, strict=True)
        if result.update is not None
    ]
    clients, updates = [client for client, _ in sent], [update for _, update in sent]
    return results, Updates(clients, updates, integers=work.integers)


def aggregated(algorithm: Algorithm, server: ServerState, updates: Updates) -> ServerState:
    """Return the server state that follows from the updates of a round."""
    state: Any = algorithm.aggregate(server, updates) if len(updates) else algorithm.silent(server)
    if not isinstance(state, ServerState):
        phase = "aggregate" if len(updates) else "silent"
        raise TypeError(
            f"{type(algorithm).__name__}.{phase} must return the new ServerState, for example "
            f"server.moved(mean), got {type(state).__name__}."
        )
    new: ServerState = state
    return new
