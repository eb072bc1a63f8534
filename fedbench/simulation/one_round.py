"""One round, from the committed state to what there is to commit.

Nothing is changed here. Whoever calls commits the outcome, or, if an exception is raised, has
nothing to undo.
"""

from __future__ import annotations

import dataclasses
import time
from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedbench.algorithms import Reduction, RoundContext, RoundPlan, ServerState, Updates
from fedbench.executors import Executor, Resident
from fedbench.simulation.client_state import new_state
from fedbench.simulation.client_task import ClientItem, ClientResult, ClientSide, parted
from fedbench.simulation.evaluation import (
    ClientTable,
    EvaluationItem,
    Metrics,
    evaluated,
    evaluated_on_clients,
    train_table,
)
from fedbench.simulation.faults import Absences, without_absent
from fedbench.simulation.history import RoundRecord
from fedbench.simulation.measure import PhaseClock, mean_metrics, round_seconds
from fedbench.simulation.options import SimulationOptions
from fedbench.simulation.participation import Sampler
from fedbench.simulation.reduction import trained
from fedbench.simulation.rounds import (
    Observer,
    aggregated,
    client_items,
    dispatch,
    round_context,
    unobserved,
)
from fedbench.training import ModelState, VectorizedModel, WorkerModel, scheduled_lr

__all__ = ["Committed", "Outcome", "RoundRunner"]

ClientStates = MutableMapping[int | str, dict[str, Any]]


@dataclass(frozen=True)
class Committed:
    """The state between two rounds.

    Attributes
    ----------
    server : ServerState
        Of the server.
    clients : mapping
        State of the clients that have one, by client id.
    rounds_done : int
        Number of committed rounds.
    """

    server: ServerState
    clients: ClientStates
    rounds_done: int


@dataclass(frozen=True)
class Outcome:
    """What a round leaves to be committed.

    Attributes
    ----------
    server : ServerState
        The new state of the server.
    clients : dict
        New states of the clients that took part, by client id; empty if clients keep none.
    record : RoundRecord
        What is reported.
    """

    server: ServerState
    clients: dict[int | str, dict[str, Any]]
    record: RoundRecord


@dataclass(frozen=True)
class RoundRunner:
    """Runs rounds of one simulation.

    Attributes
    ----------
    side : Resident of ClientSide
        What client tasks need.
    options : SimulationOptions
        The simulation's options.
    sample : callable
        Samples the cohort.
    initial : ModelState
        The initial model, from which the state of a new client is made.
    model : WorkerModel
        The server's copy of the model.
    stacked : VectorizedModel or None
        How clients are trained at once, if they are.
    reduce_in_workers : bool or None
        Whether workers fold the updates; None where it pays.
    observe : callable
        Is shown what each phase left.
    """

    side: Resident[ClientSide]
    options: SimulationOptions
    sample: Sampler
    initial: ModelState
    model: WorkerModel
    stacked: VectorizedModel | None
    reduce_in_workers: bool | None
    observe: Observer

    @property
    def keeps_state(self) -> bool:
        """Whether clients keep anything between rounds."""
        compression = self.options.compression
        return (
            self.side.value.algorithm.stateful
            or bool(self.model.own_names)
            or (compression is not None and compression.error_feedback)
        )

    def run(self, executor: Executor, before: Committed, *, evaluate: bool) -> Outcome:
        """Run a round and return what it leaves."""
        side, algorithm, index = self.side.value, self.side.value.algorithm, before.rounds_done
        clock = PhaseClock()
        begin = time.perf_counter()
        with clock("broadcast"), side.server_draws("broadcast", index):
            context = round_context(side, index, self.sample)
            planned = algorithm.plan(before.server, context)
            absences = self._absences(planned, index)
            plan = without_absent(planned, absences)
            down = algorithm.broadcast(before.server, plan)
            lr = scheduled_lr(self.options.schedule, side.work.lr, index)
            items = client_items(side, before.server, plan, index, lr, self._state_of(before))
        self.observe("broadcast", None, down)
        results, updates, reduces = self._train(executor, before.server, items, down)
        self._show(items, results)
        with clock("aggregate"), side.server_draws("aggregate", index):
            server = aggregated(algorithm, before.server, updates)
        self.observe("aggregate", None, server)
        total = time.perf_counter() - begin
        states = self._new_states(items, results)
        ids = [item.client_id for item in items]
        metrics = {"train": mean_metrics(results)}
        tables = {"train": train_table(ids, results)}
        if evaluate:
            with clock("evaluate"):
                # The new states before the old ones, without a copy of all.
                after = Committed(server, ChainMap(states, before.clients), index + 1)
                found = self.evaluate(executor, after, self._evaluators(planned, context))
            metrics |= found[0]
            tables |= found[1]
            self.observe("evaluate", None, metrics)
        record = RoundRecord(
            round=index + 1,
            cohort=self._ids(context.cohort),
            metrics=metrics,
            seconds=round_seconds(clock, results, total),
            task_s=sum(result.train_s + result.uplink_s for result in results),
            uplink_bytes=sum(result.uplink_bytes for result in results),
            reduced_in_workers=reduces,
            lr=lr,
            dropped=self._ids(absences.dropped),
            late=self._ids(absences.late),
            simulated_s=absences.seconds,
            clients=tables,
        )
        return Outcome(server, states, record)

    def evaluate(
        self, executor: Executor, state: Committed, positions: Sequence[int]
    ) -> tuple[Metrics, dict[str, ClientTable]]:
        """Return the metrics of the server's models, and of clients on their own data."""
        metrics = evaluated(executor, self.side, state.server)
        if not positions:
            return metrics, {}
        ids, state_of = self.side.value.dataset.client_ids, self._state_of(state)
        items = [EvaluationItem(ids[p], p, state_of(ids[p])) for p in positions]
        found, tables = evaluated_on_clients(executor, self.side, state.server, items)
        return metrics | found, tables

    def client_model_state(self, state: Committed, client_id: int | str) -> dict[str, Tensor]:
        """Return copies of the entries of a client's model, by name."""
        mine, own, _ = parted(self._state_of(state)(client_id))
        personal = self.side.value.algorithm.personal_model(mine) if mine else None
        self.model.begin(own)
        try:
            if personal is None:
                self.model.load(state.server.model)
            else:
                which = "personal" if self.model.has_own("personal") else "shared"
                self.model.load(personal, which)
            return self.model.state_dict()
        finally:
            self.model.begin({})

    def _ids(self, positions: Sequence[int]) -> tuple[int | str, ...]:
        ids = self.side.value.dataset.client_ids
        return tuple(ids[position] for position in positions)

    def _absences(self, plan: RoundPlan, index: int) -> Absences:
        side = self.side.value
        return Absences.of(
            plan,
            index,
            seed=side.seed,
            dropout=self.options.client_dropout,
            stragglers=self.options.stragglers,
            id_of=side.dataset.client_ids.__getitem__,
            steps_of=lambda position: side.work.steps(side.train_size(position)),
        )

    def _evaluators(self, plan: RoundPlan, context: RoundContext) -> Sequence[int]:
        if plan.evaluate is not None:
            return plan.evaluate
        if self.options.evaluate_clients == "all":
            return range(context.num_clients)
        return context.cohort if self.options.evaluate_clients == "cohort" else ()

    def _train(
        self,
        executor: Executor,
        server: ServerState,
        items: list[ClientItem],
        down: Mapping[str, Any],
    ) -> tuple[list[ClientResult], Updates, bool]:
        """Run the client tasks; return results, updates, and whether workers folded them."""
        asked = self.reduce_in_workers
        work = dispatch(self.side, items, self.stacked, executor.workers)
        reduction = None
        may = self.observe is unobserved and self.options.compression is None
        if asked is not False and may:
            reduction = self._sent_only(self.side.value.algorithm.reduction(server))
        return trained(executor, work, items, down, reduction, asked)

    def _sent_only(
        self, reduction: Mapping[str, Reduction] | None
    ) -> Mapping[str, Reduction] | None:
        """Return the reduction without the buffers that clients do not send."""
        if reduction is None or "buffers" not in reduction:
            return reduction
        entry = reduction["buffers"]
        kept = {name: entry.like[name] for name in self.model.sent}
        others = {name: other for name, other in reduction.items() if name != "buffers"}
        return {**others, "buffers": dataclasses.replace(entry, like=kept)} if kept else others

    def _show(self, items: Sequence[ClientItem], results: Sequence[ClientResult]) -> None:
        for item, result in zip(items, results, strict=True):
            trained_state = {"state": result.state, "metrics": dict(result.metrics)}
            self.observe("train", item.client_id, trained_state)
            if result.update is not None:
                self.observe("uplink", item.client_id, dict(result.update.tensors))

    def _state_of(self, state: Committed) -> Any:
        """Return the function that gives the state of a client, new or known."""
        side = self.side.value

        def of(client_id: int | str) -> dict[str, Any]:
            known = state.clients.get(client_id)
            if known is not None:
                return known
            # A stream of each client's own: it may be asked for in any round, and more than once.
            with side.server_draws("init_client", client_id):
                return new_state(side.algorithm, self.initial, client_id)

        return of

    def _new_states(
        self, items: Sequence[ClientItem], results: Sequence[ClientResult]
    ) -> dict[int | str, dict[str, Any]]:
        if not self.keeps_state:
            return {}
        return {item.client_id: result.state for item, result in zip(items, results, strict=True)}
