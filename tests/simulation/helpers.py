"""A workload of a few milliseconds, importable by every worker."""

from __future__ import annotations

import torch
from torch import nn

from fedbench.data import FederatedDataset
from fedbench.workloads import Workload

NUM_CLIENTS = 6


def tiny_dataset(seed: int = 0, num_clients: int = NUM_CLIENTS) -> FederatedDataset:
    generator = torch.Generator().manual_seed(5 + seed)
    # Even sizes: batch normalisation cannot train on a batch of one.
    sizes = [4 + 2 * position for position in range(num_clients)]
    total = sum(sizes)
    centers = torch.randn(3, 13, generator=generator) * 2
    targets = torch.randint(0, 3, (total + 60,), generator=generator)
    inputs = centers[targets] + torch.randn(total + 60, 13, generator=generator)
    starts = [sum(sizes[:position]) for position in range(num_clients)]
    return FederatedDataset(
        inputs[:total],
        targets[:total],
        [torch.arange(s, s + n) for s, n in zip(starts, sizes, strict=True)],
        test_inputs=inputs[total:],
        test_targets=targets[total:],
        num_classes=3,
        client_ids=[f"client-{position}" for position in range(num_clients)],
    )


def keyed_init(model: nn.Module, seed: int) -> nn.Module:
    generator = torch.Generator().manual_seed(7 + seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model


def plain_model(seed: int = 0) -> nn.Module:
    return keyed_init(nn.Sequential(nn.Linear(13, 7), nn.Tanh(), nn.Linear(7, 3)), seed)


def batch_norm_model(seed: int = 0) -> nn.Module:
    return keyed_init(nn.Sequential(nn.Linear(13, 7), nn.BatchNorm1d(7), nn.Linear(7, 3)), seed)


def dropout_model(seed: int = 0) -> nn.Module:
    return keyed_init(
        nn.Sequential(nn.Linear(13, 7), nn.ReLU(), nn.Dropout(0.4), nn.Linear(7, 3)), seed
    )


class Recurrent(nn.Module):
    """Reads the features one by one; drops out between its two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, 5, num_layers=2, dropout=0.4, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x.unsqueeze(2))[0][:, -1])


def lstm_model(seed: int = 0) -> nn.Module:
    return keyed_init(Recurrent(), seed)


def tiny_workload(model=plain_model, **changes) -> Workload:
    parts = {
        "name": "tiny",
        "description": "three Gaussian classes over six clients of different sizes",
        "dataset": tiny_dataset,
        "model": model,
        "loss": "cross_entropy",
        "algorithm": "fedavg",
        "cohort_size": 4,
        "rounds": 3,
        "local_epochs": 2,
        "batch_size": 4,
        "lr": 0.1,
        "eval_every": 1,
    }
    return Workload(**{**parts, **changes})
