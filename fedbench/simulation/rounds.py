"""The parts of a round that the server does: planning, making tasks, aggregating, evaluating."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedbench.algorithms import Algorithm, RoundContext, RoundPlan, ServerState, Updates
from fedbench.executors import Executor, Resident
from fedbench.reproducibility import python_random
from fedbench.simulation.client_task import (
    ClientItem,
    ClientResult,
    ClientSide,
    ClientTask,
    EvaluationTask,
)
from fedbench.training import EvaluationSums

__all__ = [
    "Observer",
    "aggregated",
    "client_items",
    "evaluated",
    "largest_first",
    "mapped",
    "round_context",
    "unobserved",
]

Observer = Callable[[str, int | str | None, Any], None]
"""``observer(phase, client_id, state)``: is shown what each phase of a round left."""

EVALUATION_CHUNK = 256
"""Test samples in an evaluation task. Fixed, so that sums do not depend on the workers."""


def unobserved(phase: str, client: int | str | None, state: Any) -> None:
    """Nobody looks."""


def round_context(side: ClientSide, index: int, cohort_size: int) -> RoundContext:
    """Sample the cohort of round `index`, in time and memory of the cohort alone."""
    population = side.dataset.num_clients

    def generator(purpose: str) -> Any:
        return python_random(side.seed, purpose, index)

    if cohort_size == population:
        cohort = tuple(range(population))
    else:
        select = python_random(side.seed, "select", side.algorithm.selection_round(index))
        cohort = tuple(select.sample(range(population), cohort_size))
    return RoundContext(index, cohort, population, generator)


def client_items(
    side: ClientSide,
    server: ServerState,
    plan: RoundPlan,
    index: int,
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
            state=state_of(ids[position]),
            header=plan.header,
            private=side.algorithm.broadcast_to(server, position),
        )
        for position in plan.participants()
    ]


def mapped(
    executor: Executor,
    task: ClientTask,
    items: Sequence[ClientItem],
    down: Mapping[str, Any],
    costs: Sequence[float] | None,
) -> tuple[list[ClientResult], Updates]:
    """Run the client tasks of a round and return their results and the updates, in plan order."""
    results: list[ClientResult] = executor.map(task, items, broadcast=down, costs=costs)
    sent = [
        (item.client_id, result.update)
        for item, result in zip(items, results, strict=True)
        if result.update is not None
    ]
    return results, Updates([client for client, _ in sent], [update for _, update in sent])


def aggregated(algorithm: Algorithm, server: ServerState, updates: Updates) -> ServerState:
    """Return the server state that follows from the updates of a round."""
    state: Any = algorithm.aggregate(server, updates) if len(updates) else algorithm.silent(server)
    if not isinstance(state, ServerState):
        phase = "aggregate" if len(updates) else "silent"
        raise TypeError(
            f"{type(algorithm).__name__}.{phase} must return the new ServerState, for example "
            f"server.moved(mean), got {state!r}."
        )
    new: ServerState = state
    return new


def largest_first(side: ClientSide, items: Sequence[ClientItem]) -> list[int] | None:
    """Return samples per client, so that the largest clients start first.

    None at L0, where clients draw from one generator and have to keep their order.
    """
    if side.level == "L0":
        return None
    return [side.dataset.client_size(item.position) for item in items]


def evaluated(
    executor: Executor, side: Resident[ClientSide], server: ServerState
) -> dict[str, dict[str, float]]:
    """Return the metrics of every model that the algorithm evaluates, by split."""
    total = len(side.value.dataset.test_targets)
    models = side.value.algorithm.evaluated_models(server)
    chunks = [
        (split, start, min(start + EVALUATION_CHUNK, total))
        for split in models
        for start in range(0, total, EVALUATION_CHUNK)
    ]
    sums = executor.map(EvaluationTask(side), chunks, broadcast=dict(models))
    totals = dict.fromkeys(models, EvaluationSums())
    for (split, _, _), part in zip(chunks, sums, strict=True):
        totals[split] += part
    return {split: part.metrics(side.value.loss) for split, part in totals.items()}
