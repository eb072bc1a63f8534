"""Flower's simulation (https://flower.ai): one Ray actor a worker."""

from __future__ import annotations

import functools
import os
import time
from typing import TYPE_CHECKING, Any

from fedbench.environment import package_version
from fedbench.errors import FedbenchError
from fedbench.peers.job import Job, Outcome
from fedbench.registry import missing_extra

if TYPE_CHECKING:
    from torch import nn

    from fedbench.data import FederatedDataset
    from fedbench.workloads import Workload

__all__ = ["run"]


def run(job: Job) -> Outcome:
    """Run the job with Flower's FedAvg.

    Raises
    ------
    MissingExtraError
        If Flower is not installed.
    FedbenchError
        If a client failed: Flower itself goes on without it.
    """
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        from flwr.simulation import run_simulation
    except ModuleNotFoundError as error:
        raise missing_extra("peer 'flower'", error.name, "flower") from error

    clients = job.load().cohort_size
    ends: list[float] = []
    final: dict[str, Any] = {}
    run_simulation(
        server_app=_server_app(job, clients, ends, final),
        client_app=_client_app(job),
        num_supernodes=clients,
        backend_config={
            "init_args": {"num_cpus": job.workers, "log_to_driver": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    if len(ends) != job.rounds:
        raise FedbenchError(f"Flower ended after {len(ends)} of {job.rounds} rounds")
    return Outcome(tuple(ends), final, package_version("flwr") or "")


def _server_app(job: Job, clients: int, ends: list[float], final: dict[str, Any]) -> Any:
    from flwr.app import ArrayRecord, MetricRecord
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg

    app = ServerApp()

    def count(contents: list[Any], _weight: str) -> MetricRecord:
        if len(contents) != clients:
            raise FedbenchError(f"only {len(contents)} of {clients} clients sent an update")
        return MetricRecord({})

    def round_done(number: int, _arrays: ArrayRecord) -> None:
        if number:  # 0 is the model before the first round
            ends.append(time.perf_counter())

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Any, _context: Any) -> None:
        result = FedAvg(
            fraction_train=1.0,
            fraction_evaluate=0.0,
            min_train_nodes=clients,
            min_available_nodes=clients,
            train_metrics_aggr_fn=count,
        ).start(
            grid=grid,
            initial_arrays=ArrayRecord(job.load().model(seed=job.seed).state_dict()),
            num_rounds=job.rounds,
            evaluate_fn=round_done,
        )
        state = result.arrays.to_torch_state_dict()
        final.update({name: value.numpy() for name, value in state.items()})

    return app


def _client_app(job: Job) -> Any:
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator]
    def train(message: Any, context: Any) -> Any:
        from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

        from fedbench.peers.plain import sample_order, train_client

        workload, dataset, model = _of_this_actor(job)
        client = int(context.node_config["partition-id"])
        round_index = int(message.content["config"]["server-round"]) - 1
        data = dataset.client(client)
        size = len(data.inputs)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        train_client(model, data, workload, sample_order(job.seed, client, round_index, size))
        records = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": size}),
        }
        return Message(content=RecordDict(records), reply_to=message)

    return app


@functools.lru_cache(maxsize=1)
def _of_this_actor(job: Job) -> tuple[Workload, FederatedDataset, nn.Module]:
    """Return what an actor makes once and uses for all of its clients."""
    import torch

    torch.set_num_threads(1)
    workload = job.load()
    return workload, workload.dataset(), workload.model(seed=job.seed)
