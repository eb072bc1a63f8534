"""The same closed forms on vectors: four clients with curvatures in [0.5, 3]."""

import math

import numpy as np
import pytest

from fedbench.algorithms.fedavg import FedAvg
from fedbench.algorithms.feddc import FedDC
from fedbench.algorithms.feddr import FedDR
from fedbench.algorithms.feddyn import FedDyn
from fedbench.algorithms.fedpd import FedPD
from fedbench.algorithms.fedprox import FedProx
from fedbench.algorithms.fedsplit import FedSplit
from fedbench.algorithms.scaffold import Scaffold
from tests.algorithms.quadratics import AffineRound, Vectors, exact, simulate, trajectory, vector_of

CLIENTS = Vectors.drawn()
IDENTITY = np.eye(3)


def radius(matrix):
    return max(abs(np.linalg.eigvals(matrix)))


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_fedavg_has_its_fixed_point_and_rate(weighting, steps):
    """The local steps contract by (I - eta H)^K; the limit weighs the centres by the rest."""
    lr = 0.2
    contractions = [
        np.linalg.matrix_power(IDENTITY - lr * matrix, steps) for matrix in CLIENTS.curvatures
    ]
    limit = CLIENTS.solve(IDENTITY - np.array(contractions), weighting)
    rate = radius(np.einsum("n,nij->ij", CLIENTS.weights(weighting), contractions))
    a_round = AffineRound(
        simulate(FedAvg(weighting=weighting), clients=CLIENTS, steps=steps, lr=lr)
    )
    assert a_round.rate() == pytest.approx(rate, rel=1e-9)
    assert a_round.limit() == pytest.approx(limit, abs=1e-9)
    is_unbiased = limit == pytest.approx(CLIENTS.optimum(weighting), abs=1e-3)
    assert is_unbiased is (steps == 1)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_one_step_of_fedavg_is_gradient_descent_on_the_weighted_mean(weighting):
    lr, x, q = 0.2, np.zeros(3), CLIENTS.weights(weighting)
    simulation = simulate(FedAvg(weighting=weighting), clients=CLIENTS, steps=1, lr=lr)
    for point in trajectory(simulation, 10, vector_of):
        x = x - lr * np.einsum("n,nij,nj->i", q, CLIENTS.curvatures, x - CLIENTS.centers)
        assert point == pytest.approx(x, abs=1e-12)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_fedprox_has_its_fixed_point_and_rate(weighting):
    mu = 0.7
    inverses = np.linalg.inv(CLIENTS.curvatures + mu * IDENTITY)
    limit = CLIENTS.solve(CLIENTS.curvatures @ inverses, weighting)
    rate = radius(np.einsum("n,nij->ij", CLIENTS.weights(weighting), mu * inverses))
    work = exact(mu, low=0.5)
    a_round = AffineRound(simulate(FedProx(mu=mu, weighting=weighting), clients=CLIENTS, **work))
    assert a_round.rate() == pytest.approx(rate, rel=1e-6)
    assert a_round.limit() == pytest.approx(limit, abs=1e-8)


solved = pytest.mark.slow
"""Solving each client's problem to rounding takes many steps."""

EXACT = [
    (Scaffold(option="I"), {"steps": 3, "lr": 0.15}),
    (Scaffold(option="II"), {"steps": 3, "lr": 0.15}),
    pytest.param(FedDyn(alpha=1.0), exact(1.0, low=0.5), marks=solved),
    (FedDyn(alpha=1.0), {"steps": 4, "lr": 0.15}),
    pytest.param(FedPD(eta=1.0), exact(1.0, low=0.5), marks=solved),
    pytest.param(FedSplit(s=0.8), exact(1.25, low=0.5), marks=solved),
    (FedSplit(s=0.5), {"steps": 4, "lr": 0.15}),
    pytest.param(FedDR(eta=1.0, alpha=1.0), exact(1.0, low=0.5), marks=solved),
    pytest.param(FedDR(eta=1.0, alpha=1.7), exact(1.0, low=0.5), marks=solved),
    (FedDC(alpha=0.1, drift="scaffold", weighting="uniform"), {"steps": 3, "lr": 0.15}),
]


@pytest.mark.parametrize(("algorithm", "work"), EXACT, ids=lambda value: repr(value)[:40])
def test_the_exact_algorithms_find_the_optimum_at_the_rate_of_their_matrix(algorithm, work):
    a_round = AffineRound(simulate(algorithm, clients=CLIENTS, **work))
    rate = a_round.rate()
    assert rate < 0.95
    optimum = CLIENTS.optimum()
    assert a_round.limit() == pytest.approx(optimum, abs=1e-8)
    rounds = math.ceil(math.log(1e-10) / math.log(rate)) + 20
    simulation = simulate(algorithm, clients=CLIENTS, **work)
    errors = [
        np.linalg.norm(point - optimum) for point in trajectory(simulation, rounds, vector_of)
    ]
    assert errors[-1] < 1e-8


def test_biased_settings_stay_away_from_the_optimum():
    """The thresholds above would notice: these algorithms do not pass them."""
    optimum = CLIENTS.optimum()
    for algorithm, work in [
        (FedAvg(weighting="uniform"), {"steps": 3, "lr": 0.15}),
        (FedProx(mu=1.0, weighting="uniform"), exact(1.0, low=0.5)),
    ]:
        limit = AffineRound(simulate(algorithm, clients=CLIENTS, **work)).limit()
        assert np.linalg.norm(limit - optimum) > 0.05
