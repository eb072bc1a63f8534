"""The usual hand-written federated loop, the reference of the round benchmarks.

Written as most people write it: a deep copy of the model for each client, a ``DataLoader``,
``torch.optim.SGD``, ``loss.item()`` in each step, and a running weighted sum on the server.
"""

import copy

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from fedbench.reproducibility import torch_generator

LOSSES = {"cross_entropy": functional.cross_entropy, "mse": functional.mse_loss}


class PlainLoop:
    """FedAvg on a workload, one client after the other."""

    def __init__(self, workload, seed=0):
        self.workload = workload
        self.dataset = workload.dataset()
        self.model = workload.model(seed=seed)
        self.seed = seed
        self.rounds_done = 0

    def run_round(self, cohort):
        """Train the clients at these positions and average their models."""
        total = sum(self.dataset.client_size(position) for position in cohort)
        mean = {name: torch.zeros_like(v) for name, v in self.model.state_dict().items()}
        for position in cohort:
            model, size = self._train(position)
            for name, value in model.state_dict().items():
                if value.is_floating_point():
                    mean[name].add_(value, alpha=size / total)
        self.model.load_state_dict(mean)
        self.rounds_done += 1

    def _train(self, position):
        workload = self.workload
        model = copy.deepcopy(self.model)
        model.train()
        data = self.dataset.client(position)
        generator = torch_generator(self.seed, "shuffle", position, self.rounds_done)
        loader = DataLoader(
            TensorDataset(*data), workload.batch_size, shuffle=True, generator=generator
        )
        optimiser = torch.optim.SGD(model.parameters(), lr=workload.lr)
        loss_of = LOSSES[workload.loss]
        running = 0.0
        for _ in range(workload.local_epochs):
            for x, y in loader:
                optimiser.zero_grad()
                loss = loss_of(model(x), y)
                loss.backward()
                optimiser.step()
                running += loss.item()
        return model, len(data.inputs)
