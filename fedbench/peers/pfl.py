"""pfl-research (https://github.com/apple/pfl-research): in one process, or one for each worker.

Its processes each train a share of the cohort and add up their sums with an all-reduce.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import socket
import subprocess
import sys
import time
from typing import Any

from fedbench.environment import package_version
from fedbench.errors import FedbenchError
from fedbench.peers.job import Job, Outcome
from fedbench.registry import missing_extra

__all__ = ["run", "run_processes"]


def run(job: Job) -> Outcome:
    """Run the job in this process.

    Raises
    ------
    MissingExtraError
        If pfl-research is not installed.
    """
    return _train(job)


def run_processes(job: Job) -> Outcome:
    """Run the job in `job.workers` processes, of which this one is the first.

    Raises
    ------
    MissingExtraError
        If pfl-research is not installed.
    FedbenchError
        If another process failed.
    """
    addresses = ",".join(f"localhost:{port}" for port in _free_ports(job.workers))
    # Not multiprocessing: pfl takes part in the exchange in main processes only.
    code = (
        f"import json, sys; sys.path[:] = {sys.path!r}; from fedbench.peers import Job; "
        "from fedbench.peers.pfl import run; run(Job(**json.loads(sys.argv[1])))"
    )
    others = [
        subprocess.Popen(  # noqa: S603 - our own interpreter and code
            [sys.executable, "-c", code, json.dumps(dataclasses.asdict(job))],
            env=os.environ | {"PFL_WORKER_ADDRESSES": addresses, "PFL_WORKER_RANK": str(rank)},
        )
        for rank in range(1, job.workers)
    ]
    os.environ |= {"PFL_WORKER_ADDRESSES": addresses, "PFL_WORKER_RANK": "0"}
    outcome = _train(job)
    for other in others:
        if other.wait() != 0:
            raise FedbenchError(f"a process of pfl ended with exit code {other.returncode}")
    return outcome


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [int(entry.getsockname()[1]) for entry in sockets]
    for entry in sockets:
        entry.close()
    return ports


def _train(job: Job) -> Outcome:
    try:
        from pfl.algorithm.base import NNAlgorithmParams
        from pfl.algorithm.federated_averaging import FederatedAveraging
        from pfl.callback.base import TrainingProcessCallback
        from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
        from pfl.metrics import Metrics
    except ModuleNotFoundError as error:
        raise missing_extra("peer 'pfl'", error.name, "pfl") from error
    import torch

    from fedbench.peers.plain import numpy_state

    logging.disable(logging.WARNING)  # a line for each round
    torch.set_num_threads(1)
    workload = job.load()
    ends: list[float] = []

    class RoundDone(TrainingProcessCallback):  # type: ignore[misc]
        def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
            ends.append(time.perf_counter())
            return False, Metrics()

    model, backend = _model_and_backend(job, workload, ends)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=job.rounds,
            evaluation_frequency=job.rounds + 1,
            train_cohort_size=workload.cohort_size,
            val_cohort_size=0,
        ),
        backend=backend,
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=workload.local_epochs,
            local_learning_rate=workload.lr,
            local_batch_size=workload.batch_size,
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[RoundDone()],
        send_metrics_to_platform=False,
    )
    return Outcome(tuple(ends), numpy_state(model.pytorch_model), package_version("pfl") or "")


def _model_and_backend(job: Job, workload: Any, ends: list[float]) -> tuple[Any, Any]:
    """Return pfl's model and its backend with the clients' data, `ends` telling the round."""
    import numpy as np
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.metrics import Weighted
    from pfl.model.pytorch import PyTorchModel

    from fedbench.peers.plain import sample_order

    np.random.seed(job.seed)  # noqa: NPY002 - pfl draws from it, alike in all processes
    net = workload.model(seed=job.seed)

    def loss(x: Any, y: Any, is_eval: bool = False) -> Any:
        return torch.nn.functional.cross_entropy(net(x), y)

    net.loss = loss
    net.metrics = lambda x, y, is_eval=False: {"loss": Weighted(0.0, len(x))}
    dataset = workload.dataset()

    def user(client: int) -> Any:
        data = dataset.client(client)
        order = sample_order(job.seed, client, len(ends), len(data.inputs))
        return Dataset(
            (data.inputs.index_select(0, order), data.targets.index_select(0, order)),
            user_id=client,
        )

    clients = list(range(workload.cohort_size))
    users = FederatedDataset(user, get_user_sampler("minimize_reuse", clients))
    model = PyTorchModel(
        net,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
    )
    return model, SimulatedBackend(
        training_data=users, val_data=users, postprocessors=[WeightByDatapoints()]
    )
