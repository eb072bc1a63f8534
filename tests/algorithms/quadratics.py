"""Quadratic problems whose optimum and whose rates of convergence are known in closed form."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

import fedbench
from fedbench.algorithms import ServerState
from fedbench.data import FederatedDataset
from fedbench.training import ModelState
from fedbench.workloads import Workload

Q2 = ((1.0, 2.0), (3.0, -2.0))
"""Two clients (h, c) with f_i(x) = h (x - c)^2 / 2; the optimum of their mean is -1."""


def exact(penalty=0.0):
    """Return local work on Q2 that solves f_i plus a quadratic penalty to rounding.

    The curvatures are 1 and 3 plus the penalty; with the best step the error falls by
    1 / (2 + penalty) in each step.
    """
    return {"steps": math.ceil(36 / math.log(2.0 + penalty)), "lr": 2.0 / (4.0 + 2.0 * penalty)}


class Quadratic(nn.Module):
    """The scalar x; its mean squared output on a client's row (h, c) is h (x - c)^2 / 2."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor([start], dtype=torch.float64))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        h, c = rows.double().unbind(1)
        return (h / 2).sqrt() * (self.x - c)


def simulate(algorithm, *, clients=Q2, steps=1, lr=0.25, start=0.0, cohort_size=None, seed=0):
    """Return a simulation of full-batch steps on the quadratic clients."""

    def dataset(seed: int = 0) -> FederatedDataset:
        rows = torch.tensor(clients, dtype=torch.float32)
        zeros = torch.zeros(len(clients), dtype=torch.float32)
        partition = [torch.tensor([i]) for i in range(len(clients))]
        return FederatedDataset(
            rows, zeros, partition, test_inputs=rows, test_targets=zeros, num_classes=None
        )

    workload = Workload(
        name="quadratics",
        description="scalar quadratics",
        dataset=dataset,
        model=lambda seed=0: Quadratic(start),
        loss="mse",
        cohort_size=len(clients) if cohort_size is None else cohort_size,
        rounds=1,
        local_epochs=steps,
        batch_size=1,
        lr=lr,
    )
    return fedbench.Simulation(workload, algorithm=algorithm, seed=seed)


def x_of(simulation):
    """Return the server's scalar."""
    return float(simulation.model_state()["x"][0])


def trajectory(simulation, rounds):
    """Return the server's x after each round."""
    points = []
    for _ in range(rounds):
        simulation.run_round()
        points.append(x_of(simulation))
    return points


def _leaves(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, ModelState):
        yield value.parameters
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from _leaves(value[key])


def _replaced(value, leaves):
    if isinstance(value, torch.Tensor):
        return next(leaves).clone()
    if isinstance(value, ModelState):
        return ModelState(next(leaves).clone(), value.buffers)
    if isinstance(value, Mapping):
        return {key: _replaced(value[key], leaves) for key in sorted(value, key=str)}
    return value


def _whole(simulation):
    server = simulation.server
    return {"a": server.model, "b": dict(server.extra), "c": simulation.client_states}


class AffineRound:
    """The exact map of one round on the state of server and clients, x first.

    Every deterministic full-batch algorithm is affine on quadratics, so the map is found by
    running one real round from the origin and one from each unit vector.
    """

    def __init__(self, simulation, warm_up=1):
        trajectory(simulation, warm_up)
        self._simulation = simulation
        self.state = self._read()
        origin = self._round(np.zeros_like(self.state))
        units = np.eye(len(self.state))
        self.matrix = np.stack([self._round(unit) - origin for unit in units], axis=1)
        self.offset = origin

    def _read(self):
        return np.array([leaf[0].item() for leaf in _leaves(_whole(self._simulation))])

    def _round(self, vector):
        simulation = self._simulation
        # The flat vector is padded to 64 bytes; its first element is the scalar.
        leaves = []
        for leaf, value in zip(_leaves(_whole(simulation)), vector, strict=True):
            copy = torch.zeros_like(leaf)
            copy[0] = value
            leaves.append(copy)
        whole = _replaced(_whole(simulation), iter(leaves))
        simulation.server = ServerState(whole["a"], whole["b"])
        simulation.client_states = whole["c"]
        simulation.run_round()
        return self._read()

    def rate(self):
        """Return the spectral radius outside of the conserved directions."""
        sizes = np.abs(np.linalg.eigvals(self.matrix))
        return max(size for size in sizes if abs(size - 1.0) > 1e-7)

    def limit(self, rounds=4000):
        """Return where x goes from the state after the warm-up."""
        state = self.state
        for _ in range(rounds):
            state = self.matrix @ state + self.offset
        return state[0]
