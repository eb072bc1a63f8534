"""The usual hand-written federated loop in PyTorch.

Written as most people write it: a deep copy of the model for each client, a ``DataLoader``,
``torch.optim.SGD``, ``loss.item()`` in each step, and a running weighted sum on the server.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from fedbench.data import ClientData
from fedbench.peers.job import Job, Outcome
from fedbench.reproducibility import torch_generator
from fedbench.workloads import Workload

__all__ = ["PlainLoop", "numpy_state", "run", "sample_order", "train_client"]

_LOSSES: dict[str, Callable[..., torch.Tensor]] = {
    "cross_entropy": functional.cross_entropy,
    "mse": functional.mse_loss,
}


def sample_order(seed: int, client: int, round_index: int, samples: int) -> torch.Tensor:
    """Return the order in which all peers visit the samples of a client in a round."""
    generator = torch_generator(seed, "shuffle", client, round_index, 0)
    return torch.randperm(samples, generator=generator)


def numpy_state(module: nn.Module) -> dict[str, Any]:
    """Return the module's state dict as numpy arrays of their own memory."""
    return {name: value.numpy().copy() for name, value in module.state_dict().items()}


def train_client(
    model: nn.Module, data: ClientData, workload: Workload, order: torch.Tensor
) -> float:
    """Train `model` in place on the client's samples in `order`; return the summed loss."""
    loader: DataLoader[Any] = DataLoader(
        TensorDataset(*data), workload.batch_size, sampler=order.tolist()
    )
    optimiser = torch.optim.SGD(model.parameters(), lr=workload.lr)
    loss_of = _LOSSES[workload.loss]
    running = 0.0
    model.train()
    for x, y in loader:
        optimiser.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        running += loss.item()
    return running


class PlainLoop:
    """FedAvg on a workload with one local epoch, one client after the other.

    Parameters
    ----------
    workload : Workload
        Data, model and local work.
    seed : int
        Seed of the initial model and of the order of the samples.
    """

    def __init__(self, workload: Workload, seed: int = 0) -> None:
        self.workload = workload
        self.dataset = workload.dataset()
        self.model = workload.model(seed=seed)
        self.seed = seed
        self.rounds_done = 0

    def run_round(self, cohort: Iterable[int]) -> None:
        """Train the clients at these positions and average their models."""
        cohort = list(cohort)
        total = sum(self.dataset.client_size(position) for position in cohort)
        mean = {name: torch.zeros_like(v) for name, v in self.model.state_dict().items()}
        for position in cohort:
            model = copy.deepcopy(self.model)
            data = self.dataset.client(position)
            size = len(data.inputs)
            order = sample_order(self.seed, position, self.rounds_done, size)
            train_client(model, data, self.workload, order)
            for name, value in model.state_dict().items():
                if value.is_floating_point():
                    mean[name].add_(value, alpha=size / total)
        self.model.load_state_dict(mean)
        self.rounds_done += 1


def run(job: Job) -> Outcome:
    """Run the job in a plain loop with one intra-op thread."""
    torch.set_num_threads(1)
    loop = PlainLoop(job.load(), job.seed)
    ends = []
    for _ in range(job.rounds):
        loop.run_round(range(loop.workload.cohort_size))
        ends.append(time.perf_counter())
    return Outcome(tuple(ends), numpy_state(loop.model), torch.__version__)
