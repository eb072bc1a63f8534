"""Parts of a user's own, named in configurations as ``tests.configuration.jobs:NAME``."""

import os
import signal
from dataclasses import dataclass

import torch

from fedbench.algorithms.fedavg import FedAvg
from fedbench.data import ArrayDataset
from fedbench.models import logistic_regression

TINY = {
    "dataset": {"name": "tests.configuration.jobs:samples", "count": 60},
    "partitioner": "iid",
    "num_clients": 6,
    "model": {"name": "logistic_regression", "in_features": 5, "num_classes": 3},
    "cohort_size": 3,
    "rounds": 2,
    "batch_size": 4,
    "lr": 0.1,
    "eval_every": 1,
}


def samples(*, count: int = 60, seed: int = 0) -> ArrayDataset:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count + 30, 5, generator=generator)
    targets = (inputs[:, :3] + 0.1 * inputs[:, 2:]).argmax(dim=1)
    return ArrayDataset(inputs[:count], targets[:count], inputs[count:], targets[count:], 3)


def noisy_model(*, seed: int = 0) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Dropout(0.5), logistic_regression(5, 3, seed=seed))


def unseeded_model() -> torch.nn.Module:
    return logistic_regression(5, 3)


def unseeded_samples(*, count: int = 60) -> ArrayDataset:
    return samples(count=count)


@dataclass(frozen=True)
class Bounded(FedAvg):
    """Checks its hyperparameter by hand."""

    mu: float = 1.0

    def __post_init__(self):
        if self.mu < 0:
            raise ValueError(f"mu must be at least 0, got {self.mu}.")


@dataclass(frozen=True)
class Failing(FedAvg):
    """Fails where a test wants it to."""

    how: str = "raise"

    def train(self, client, down):
        if self.how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("planted")
