"""The evaluate phase: the server's models on test samples, and models on the clients' own data.

Nothing here draws from a generator or changes a state, so that how often a simulation evaluates
does not show in what it trains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedbench.algorithms import ServerState
from fedbench.executors import Executor, Resident
from fedbench.simulation.client_task import ClientResult, ClientSide, parted
from fedbench.training import EvaluationSums, Loss, ModelState, evaluate_batches

__all__ = [
    "ClientTable",
    "EvaluationItem",
    "Metrics",
    "evaluated",
    "evaluated_on_clients",
    "train_table",
]

EVALUATION_CHUNK = 256
"""Test samples in an evaluation task. Fixed, so that sums do not depend on the workers."""

Metrics = dict[str, dict[str, float]]
"""Metrics by split."""

ClientTable = dict[str, list[Any]]
"""Columns of one split: ``client``, ``samples`` and the metrics, an entry for each client."""


@dataclass(frozen=True)
class EvaluationTask:
    """Evaluates a broadcast model on one chunk of the test set: ``task(broadcast, chunk)``."""

    side: Resident[ClientSide]

    def __call__(
        self, models: Mapping[str, ModelState], chunk: tuple[str, int, int]
    ) -> EvaluationSums:
        """Return the sums of the model ``chunk[0]`` over a range of the test samples."""
        side = self.side.value
        split, start, stop = chunk
        model = side.worker_model()
        model.load(models[split])
        rows = slice(start, stop)
        dataset = side.dataset
        samples = (dataset.test_inputs[rows], dataset.test_targets[rows])
        inputs, targets = side.there(samples)
        return evaluate_batches(model, inputs, targets, side.loss)


def evaluated(executor: Executor, side: Resident[ClientSide], server: ServerState) -> Metrics:
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


@dataclass(frozen=True)
class EvaluationItem:
    """One client's part in the evaluation."""

    client_id: int | str
    position: int
    state: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientEvaluationTask:
    """Evaluates models on one client's own data: ``task(broadcast, item) -> sums by split``.

    The samples are those that are held out for validation; all of the client's, if none are.
    """

    side: Resident[ClientSide]

    def __call__(
        self, models: Mapping[str, ModelState], item: EvaluationItem
    ) -> dict[str, EvaluationSums]:
        """Return the sums of the server's models and of the client's own, if it has one."""
        side = self.side.value
        state, own, _ = parted(item.state)
        inputs, targets = side.client_data(item.position)[1]
        model = side.worker_model()
        model.begin(own)
        found = {}
        try:
            for split, server_model in models.items():
                model.load(server_model)
                name = "clients" + split.removeprefix("test")
                found[name] = evaluate_batches(model, inputs, targets, side.loss)
            personal = side.algorithm.personal_model(state) if state else None
            if personal is not None:
                model.load(personal, "personal" if model.has_own("personal") else "shared")
                found["personal"] = evaluate_batches(model, inputs, targets, side.loss)
        finally:
            model.begin({})
        return found


def evaluated_on_clients(
    executor: Executor,
    side: Resident[ClientSide],
    server: ServerState,
    items: Sequence[EvaluationItem],
) -> tuple[Metrics, dict[str, ClientTable]]:
    """Return metrics over clients, and those of each client, by split.

    The splits are ``"clients"`` for the server's model and ``"personal"`` for the clients' own.
    Means are weighted by samples. Beside each there are two figures of fairness, in which all
    clients count alike: the mean over the tenth of the clients that is worst off (rounded up), and
    the variance over the clients [1]_.

    References
    ----------
    .. [1] Li, Sanjabi, Beirami and Smith, "Fair Resource Allocation in Federated Learning",
       ICLR 2020, section 4.
    """
    loss = side.value.loss
    models = dict(side.value.algorithm.evaluated_models(server))
    found = executor.map(ClientEvaluationTask(side), items, broadcast=models)
    metrics: Metrics = {}
    tables: dict[str, ClientTable] = {}
    for split in dict.fromkeys(name for sums in found for name in sums):
        total = EvaluationSums()
        table: ClientTable = {"client": [], "samples": [], "loss": [], loss.score_name: []}
        for item, sums in zip(items, found, strict=True):
            part = sums[split]
            if not part.count:
                continue
            total += part
            row = {"client": item.client_id, "samples": part.count, **part.metrics(loss)}
            for name, value in row.items():
                table[name].append(value)
        metrics[split] = total.metrics(loss) | _fairness(table, loss)
        tables[split] = table
    return metrics, tables


def _fairness(table: ClientTable, loss: Loss) -> dict[str, float]:
    found = {}
    for name in ("loss", loss.score_name):
        higher_is_better = name != "loss" and loss.higher_is_better
        values = sorted(table[name], reverse=not higher_is_better)
        if values:
            worst = values[: math.ceil(len(values) / 10)]
            spoilt = any(map(math.isnan, values))  # then there is no order
            found[f"{name}_worst_decile"] = math.nan if spoilt else sum(worst) / len(worst)
            found[f"{name}_variance"] = _variance(values)
    return found


def _variance(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return sum((value - mean) * (value - mean) for value in values) / len(values)


def train_table(ids: Sequence[int | str], results: Sequence[ClientResult]) -> ClientTable:
    """Return the training metrics of each client, NaN where a client has not got one."""
    names = dict.fromkeys(name for result in results for name in result.metrics)
    trained = [pair for pair in zip(ids, results, strict=True) if pair[1].metrics]
    table: ClientTable = {
        "client": [client_id for client_id, _ in trained],
        "samples": [result.num_samples for _, result in trained],
    }
    for name in names:
        table[name] = [float(result.metrics.get(name, math.nan)) for _, result in trained]
    return table
