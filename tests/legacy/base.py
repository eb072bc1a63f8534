"""Server and client base classes in the style of code that runs in one sequential loop.

They have the hooks and wrappers that such code has, and its habits: messages are appended to the
server's list, drivers read ``n_iter``, shuffles draw from the global generators, optimizers and
gradients live as long as the client.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

NUM_CLIENTS = 4


class FederatedData(Dataset):
    """Two classes on the plane, in one part for training and one for validation."""

    data_parts = ("train", "val")

    def __init__(self, num_clients: int = NUM_CLIENTS) -> None:
        generator = torch.Generator().manual_seed(11)
        self.clients = []
        for number in range(num_clients):
            size = 8 * (1 + number)
            inputs = torch.randn(size, 3, generator=generator) + 0.3 * number
            targets = (inputs.sum(1) > number * 0.9).long()
            self.clients.append((inputs, targets))

    def __len__(self) -> int:
        return sum(len(inputs) for inputs, _ in self.clients)

    def loaders(self, number: int, batch_size: int):
        inputs, targets = self.clients[number]
        cut = len(inputs) * 3 // 4
        train = TensorDataset(inputs[:cut], targets[:cut])
        val = TensorDataset(inputs[cut:], targets[cut:])
        return (
            DataLoader(train, batch_size, shuffle=True),
            DataLoader(val, batch_size, shuffle=False),
        )


def linear_model() -> nn.Module:
    return nn.Linear(3, 2)


def deep_model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.3), nn.Linear(5, 2)
    )


class Message(dict):
    """What a client sends."""

    def __init__(self, client_id, train_samples, metrics, **more):
        super().__init__(client_id=client_id, train_samples=train_samples, metrics=metrics, **more)


class Node:
    def get_detached_model_parameters(self):
        return [p.detach().clone() for p in self.model.parameters()]

    def set_parameters(self, values, model=None):
        for own, value in zip((model or self.model).parameters(), values, strict=True):
            own.data = value.clone()


class Client(Node):
    """Trains from the received parameters and sends the difference."""

    def __init__(self, client_id, device, model, dataset, config):
        self.client_id, self.device, self.model = client_id, device, model
        self.dataset, self.config = dataset, config
        self.criterion = nn.CrossEntropyLoss()
        self.train_loader, self.val_loader = dataset.loaders(client_id, config.batch_size)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=config.lr, momentum=0.5)
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda epoch: 1.0 / (1 + epoch)
        )
        self._received_messages = {}
        self._metrics = {}
        self._cached_metrics = []
        self._post_init()

    def _post_init(self):
        pass

    # -- wrappers -------------------------------------------------------------------------------

    def _update(self):
        self.update()
        self._received_messages = {}

    def _communicate(self, target):
        for metrics in self._metrics.values():
            assert "num_samples" in metrics
        self.communicate(target)
        target._num_communications += 1
        self._cached_metrics.append(dict(self._metrics))
        self._metrics = {}

    # -- hooks ----------------------------------------------------------------------------------

    def update(self):
        self._cached_parameters = copy.deepcopy(self._received_messages["parameters"])
        self.set_parameters(self._cached_parameters)
        self.train()

    def train(self):
        self.model.train()
        for _ in range(self.config.num_epochs):
            for inputs, targets in self.train_loader:
                self.optimizer.zero_grad()
                self.criterion(self.model(inputs), targets).backward()
                self.adjust_gradients()
                self.optimizer.step()
        self.lr_scheduler.step()

    def adjust_gradients(self):
        pass

    def communicate(self, target):
        delta = [
            new - old
            for new, old in zip(
                self.get_detached_model_parameters(), self._cached_parameters, strict=True
            )
        ]
        target._received_messages.append(
            Message(self.client_id, self.num_samples, self._metrics, delta_parameters=delta)
        )

    def evaluate(self, part):
        self.model.eval()
        loader = self.train_loader if part == "train" else self.val_loader
        loss, right, count = 0.0, 0, 0
        with torch.no_grad():
            for inputs, targets in loader:
                scores = self.model(inputs)
                loss += self.criterion(scores, targets).item() * len(targets)
                right += int((scores.argmax(1) == targets).sum())
                count += len(targets)
        self._metrics[part] = {"loss": loss / count, "acc": right / count, "num_samples": count}
        return self._metrics[part]

    @property
    def num_samples(self):
        return len(self.train_loader.dataset)


class Server(Node):
    """Averages the differences; samples from numpy's global generator."""

    client_class = Client

    def __init__(self, model=linear_model, ratio=1.0, num_clients=NUM_CLIENTS, **client_config):
        self.dataset = FederatedData(num_clients)
        self.config = SimpleNamespace(num_iters=4, eval_every=2, clients_sample_ratio=ratio)
        self._client_config = SimpleNamespace(
            **{"batch_size": 4, "lr": 0.2, "num_epochs": 2, **client_config}
        )
        self.model = model()
        self.n_iter = 0
        self._num_communications = 0
        self._received_messages = []
        self._cached_metrics = []
        self._clients = [
            self.client_class(
                number, "cpu", copy.deepcopy(self.model), self.dataset, self._client_config
            )
            for number in range(num_clients)
        ]
        self._post_init()

    def _post_init(self):
        pass

    # -- wrappers -------------------------------------------------------------------------------

    def _sample_clients(self):
        size = max(1, round(self.config.clients_sample_ratio * len(self._clients)))
        return [int(k) for k in np.random.choice(len(self._clients), size, replace=False)]

    def _communicate(self, target):
        self.communicate(target)
        self._num_communications += 1

    def _update(self):
        if not self._received_messages:
            return
        assert all(isinstance(message, Message) for message in self._received_messages)
        self.update()
        self._received_messages = []

    def aggregate_client_metrics(self):
        found = [m["metrics"] for m in self._received_messages if m["metrics"]]
        if not found:
            raise ValueError("no client sent metrics")
        self._cached_metrics.append(
            {part: [metrics[part]["loss"] for metrics in found] for part in found[0]}
        )

    # -- hooks ----------------------------------------------------------------------------------

    def communicate(self, target):
        target._received_messages = {"parameters": self.get_detached_model_parameters()}

    def update(self):
        share = 1.0 / len(self._received_messages)
        for message in self._received_messages:
            self.add([delta * share for delta in message["delta_parameters"]])

    def add(self, values):
        for own, value in zip(self.model.parameters(), values, strict=True):
            own.data.add_(value)

    # -- other modes ----------------------------------------------------------------------------

    def train_centralized(self):
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        inputs = torch.cat([inputs for inputs, _ in self.dataset.clients])
        targets = torch.cat([targets for _, targets in self.dataset.clients])
        for n_iter in range(self.config.num_iters):
            self.n_iter = n_iter
            for chosen in torch.randperm(len(inputs)).split(8):
                optimizer.zero_grad()
                nn.functional.cross_entropy(self.model(inputs[chosen]), targets[chosen]).backward()
                optimizer.step()

    def evaluate_centralized(self, part):
        inputs = torch.cat([inputs for inputs, _ in self.dataset.clients])
        targets = torch.cat([targets for _, targets in self.dataset.clients])
        with torch.no_grad():
            right = (self.model(inputs).argmax(1) == targets).float().mean()
        return {"acc": float(right), "num_samples": len(targets)}
