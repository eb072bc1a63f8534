"""Quadratic problems whose optimum and whose rates of convergence are known in closed form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

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


def exact(penalty=0.0, low=1.0, high=3.0):
    """Return local work that solves f_i plus a quadratic penalty to rounding.

    The curvatures of f_i lie between `low` and `high`, by default those of Q2; with the best step
    the error falls by (high - low) / (high + low + 2 penalty) in each step.
    """
    factor = (high - low) / (high + low + 2.0 * penalty)
    return {"steps": math.ceil(-36 / math.log(factor)), "lr": 2.0 / (low + high + 2.0 * penalty)}


class Quadratic(nn.Module):
    """The scalar x; its mean squared output on a client's row (h, c) is h (x - c)^2 / 2."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor([start], dtype=torch.float64))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        h, c = rows.double().unbind(1)
        return (h / 2).sqrt() * (self.x - c)


class VectorQuadratic(nn.Module):
    """The vector x; its mean squared output on a row (H, c) is (x - c)' H (x - c) / 2."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(dimension, dtype=torch.float64))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        d = len(self.x)
        curvatures, centers = rows[:, : d * d].double().view(-1, d, d), rows[:, d * d :].double()
        factors = torch.linalg.cholesky(curvatures)
        return math.sqrt(d / 2) * torch.einsum("bij,bi->bj", factors, self.x - centers)


@dataclass(frozen=True)
class Vectors:
    """Clients with (x - c_i)' H_i (x - c_i) / 2; client i has sizes[i] copies of it."""

    curvatures: np.ndarray
    centers: np.ndarray
    sizes: tuple[int, ...]

    @classmethod
    def drawn(cls, seed=0, clients=4, dimension=3, sizes=(1, 2, 3, 1)):
        """Return clients with curvatures in [0.5, 3] and centres from N(0, 4)."""
        rng = np.random.default_rng(seed)
        curvatures = []
        for _ in range(clients):
            rotation = np.linalg.qr(rng.standard_normal((dimension, dimension)))[0]
            matrix = rotation @ np.diag(rng.uniform(0.5, 3.0, dimension)) @ rotation.T
            curvatures.append((matrix + matrix.T) / 2)
        centers = 2 * rng.standard_normal((clients, dimension))
        # What the clients hold is float32.
        return cls(np.float32(curvatures).astype(float), np.float32(centers).astype(float), sizes)

    def weights(self, weighting):
        """Return the normalised weights of the clients."""
        sizes = np.array(self.sizes if weighting == "samples" else [1] * len(self.sizes))
        return sizes / sizes.sum()

    def optimum(self, weighting="uniform"):
        """Return the minimum of the weighted mean of the clients' objectives."""
        return self.solve(self.curvatures, weighting)

    def solve(self, matrices, weighting):
        """Return ``(sum q_i M_i)^-1 sum q_i M_i c_i``."""
        q = self.weights(weighting)
        pulls = np.einsum("n,nij,nj->i", q, matrices, self.centers)
        return np.linalg.solve(np.einsum("n,nij->ij", q, matrices), pulls)


def simulate(algorithm, *, clients=Q2, steps=1, lr=0.25, start=0.0, cohort_size=None, seed=0):
    """Return a simulation of full-batch steps on the quadratic clients."""
    if isinstance(clients, Vectors):
        rows = np.concatenate(
            [clients.curvatures.reshape(len(clients.sizes), -1), clients.centers], 1
        )
        sizes, dimension = clients.sizes, clients.centers.shape[1]
    else:
        rows, sizes, dimension = np.array(clients), (1,) * len(clients), 0
    inputs = torch.tensor(rows, dtype=torch.float32).repeat_interleave(torch.tensor(sizes), 0)
    targets = torch.zeros(len(inputs), dimension) if dimension else torch.zeros(len(inputs))

    def dataset(seed: int = 0) -> FederatedDataset:
        partition = torch.split(torch.arange(len(inputs)), list(sizes))
        return FederatedDataset(
            inputs, targets, partition, test_inputs=inputs, test_targets=targets, num_classes=None
        )

    def model(seed: int = 0) -> nn.Module:
        return VectorQuadratic(dimension) if dimension else Quadratic(start)

    workload = Workload(
        name="quadratics",
        description="quadratics",
        dataset=dataset,
        model=model,
        loss="mse",
        cohort_size=len(sizes) if cohort_size is None else cohort_size,
        rounds=1,
        local_epochs=steps,
        batch_size=max(sizes),
        lr=lr,
    )
    return fedbench.Simulation(workload, algorithm=algorithm, seed=seed)


def x_of(simulation):
    """Return the server's scalar."""
    return float(simulation.model_state()["x"][0])


def vector_of(simulation):
    """Return the server's vector."""
    return simulation.model_state()["x"].numpy()


def trajectory(simulation, rounds, point_of=x_of):
    """Return the server's x after each round."""
    points = []
    for _ in range(rounds):
        simulation.run_round()
        points.append(point_of(simulation))
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
        for _ in range(warm_up):
            simulation.run_round()
        self._simulation = simulation
        self._width = simulation.num_parameters
        self.state = self._read()
        origin = self._round(np.zeros_like(self.state))
        units = np.eye(len(self.state))
        self.matrix = np.stack([self._round(unit) - origin for unit in units], axis=1)
        self.offset = origin

    def _read(self):
        leaves = _leaves(_whole(self._simulation))
        return np.concatenate([leaf[: self._width].numpy() for leaf in leaves])

    def _round(self, vector):
        simulation = self._simulation
        # Flat vectors are padded to 64 bytes; their first elements are x.
        leaves = []
        parts = vector.reshape(-1, self._width)
        for leaf, values in zip(_leaves(_whole(simulation)), parts, strict=True):
            copy = torch.zeros_like(leaf)
            copy[: self._width] = torch.from_numpy(values)
            leaves.append(copy)
        whole = _replaced(_whole(simulation), iter(leaves))
        simulation.server = ServerState(whole["a"], whole["b"])
        simulation.client_states = whole["c"]
        simulation.run_round()
        return self._read()

    def rate(self):
        """Return the spectral radius outside of the conserved directions."""
        return abs(self.dominant())

    def dominant(self):
        """Return the largest eigenvalue outside of the conserved directions."""
        values = np.linalg.eigvals(self.matrix)
        return max((v for v in values if abs(abs(v) - 1.0) > 1e-7), key=abs)

    def limit(self, rounds=4000):
        """Return where x goes from the state after the warm-up; a float for a scalar."""
        state = self.state
        for _ in range(rounds):
            state = self.matrix @ state + self.offset
        return state[0] if self._width == 1 else state[: self._width]
