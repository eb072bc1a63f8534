"""One client, one full-batch step: every algorithm is a short recursion on a scalar."""

import math

import pytest

from fedbench.algorithms import ALGORITHMS, make_algorithm
from tests.algorithms.quadratics import simulate, trajectory

H, C, LR = 2.0, 3.0, 0.1
ROUNDS = 8
START = 0.5


def gradient(x):
    return H * (x - C)


def descent():
    x = START
    while True:
        x -= LR * gradient(x)
        yield x


def momentum(beta=0.9, server_lr=1.0, nesterov=False):
    x, m = START, 0.0
    while True:
        delta = -LR * gradient(x)
        m = beta * m + delta
        x += server_lr * (beta * m + delta if nesterov else m)
        yield x


def adaptive(renew, server_lr=0.1, beta1=0.9, tau=1e-3):
    x, m, v = START, 0.0, tau**2
    while True:
        m = beta1 * m + (1 - beta1) * -LR * gradient(x)
        v = renew(v, m * m)
        x += server_lr * m / (math.sqrt(v) + tau)
        yield x


def feddyn(alpha=0.1):
    x, g, h = START, 0.0, 0.0
    while True:
        y = x - LR * (gradient(x) - g)
        g -= alpha * (y - x)
        h -= alpha * (y - x)
        x = y - h / alpha
        yield x


def fedpd(eta=1.0):
    x0 = x = START
    dual = 0.0
    while True:
        x -= LR * (gradient(x) + dual + (x - x0) / eta)
        dual += (x - x0) / eta
        x0 = x + eta * dual
        yield x0


def fedsplit(s=1.0):
    x = z = START
    while True:
        w = x - LR * (gradient(x) + (x - (2 * x - z)) / s)
        z += 2 * (w - x)
        x = z
        yield x


def feddr(eta=1.0, alpha=1.95, threshold=0.0):
    bar = own = y = START
    while True:
        y += alpha * (bar - own)
        own = bar - LR * (gradient(bar) + (bar - y) / eta)
        reflected = 2 * own - y
        bar = math.copysign(max(0.0, abs(reflected) - threshold), reflected)
        yield bar


def feddc(alpha=0.1):
    w, h = START, 0.0
    while True:
        theta = w - LR * (gradient(w) + alpha * h)
        h += theta - w
        w = theta + h
        yield w


def pfedme(lam=15.0, outer_lr=0.01, inner_steps=5, outer_steps=20, beta=1.0):
    w = START
    while True:
        local = w
        for _ in range(outer_steps):
            theta = local
            for _ in range(inner_steps):
                theta -= LR * (gradient(theta) + lam * (theta - local))
            local -= outer_lr * lam * (local - theta)
        w = (1 - beta) * w + beta * local
        yield w


def pfedmac(lam=0.1, outer_lr=0.01, inner_steps=5, outer_steps=20, sparsity=0.0, rho=0.1):
    w = START
    while True:
        for _ in range(outer_steps):
            theta = w
            for _ in range(inner_steps):
                sparse = sparsity * math.tanh(theta / rho)
                theta -= LR * (gradient(theta) + sparse - lam * w)
            w -= outer_lr * lam * (w - theta)
        yield w


def adagrad(v, square):
    return v + square


def yogi(v, square):
    return v - 0.01 * square * math.copysign(1.0, v - square)


def adam(v, square):
    return 0.99 * v + 0.01 * square


CASES = [
    ("fedavg", {}, descent()),
    ("fedprox", {"mu": 0.7}, descent()),  # the pull is zero where the only step starts
    ("fedavgm", {}, momentum()),
    ("fedavgm", {"nesterov": True, "server_lr": 0.5}, momentum(server_lr=0.5, nesterov=True)),
    ("fedadagrad", {}, adaptive(adagrad, beta1=0.0)),
    ("fedadagrad", {"beta1": 0.5}, adaptive(adagrad, beta1=0.5)),
    ("fedyogi", {}, adaptive(yogi)),
    ("fedadam", {"tau": 0.1}, adaptive(adam, tau=0.1)),
    ("scaffold", {"option": "I"}, descent()),  # the only client's variate is the server's
    ("scaffold", {"option": "II"}, descent()),
    ("feddyn", {}, feddyn()),
    ("proxskip", {"p": 1.0}, descent()),
    ("fedpd", {}, fedpd()),
    ("fedpd", {"eta": 0.3}, fedpd(0.3)),
    ("fedsplit", {}, fedsplit()),
    ("feddr", {}, feddr()),
    ("feddr", {"regularizer": "l1", "strength": 0.4}, feddr(threshold=0.4)),
    ("feddc", {}, feddc()),  # the only client's update is the mean, so its term is zero
    ("feddc", {"alpha": 0.5, "drift": "scaffold"}, feddc(0.5)),
    ("ditto", {"lam": 0.3}, descent()),
    ("apfl", {"alpha": 0.3}, descent()),
    ("pfedme", {"lam": 1.0}, pfedme(1.0)),
    ("pfedme", {"lam": 2.0, "outer_lr": 0.1, "beta": 0.4}, pfedme(2.0, 0.1, beta=0.4)),
    ("pfedmac", {"lam": 0.5}, pfedmac(0.5)),
    ("pfedmac", {"lam": 0.5, "sparsity": 0.8}, pfedmac(0.5, sparsity=0.8)),
    ("ifca", {"clusters": 1}, descent()),
    ("ifca", {"clusters": 1, "averaging": "gradient"}, descent()),
    ("fpfc", {}, descent()),  # the only client's target is its own model
]


def test_every_algorithm_has_a_recursion():
    """FedCR alone is missing: it needs classes, and has its own tests."""
    assert {name for name, _, _ in CASES} | {"fedcr"} == set(ALGORITHMS)


@pytest.mark.parametrize(
    ("name", "options", "recursion"), CASES, ids=[f"{c[0]}-{c[1]}" for c in CASES]
)
def test_one_client_follows_the_recursion(name, options, recursion):
    simulation = simulate(make_algorithm(name, **options), clients=((H, C),), lr=LR, start=START)
    points = trajectory(simulation, ROUNDS)
    expected = [x for x, _ in zip(recursion, range(ROUNDS), strict=False)]
    assert points == pytest.approx(expected, rel=1e-12)


def test_the_personal_model_of_ditto_follows_its_recursion():
    lam, w, v = 0.3, START, START
    simulation = simulate(make_algorithm("ditto", lam=lam), clients=((H, C),), lr=LR, start=START)
    for _ in range(ROUNDS):
        simulation.run_round()
        v -= LR * (gradient(v) + lam * (v - w))
        w -= LR * gradient(w)
        personal = simulation.client_states[0]["personal"].parameters[0].item()
        assert personal == pytest.approx(v, rel=1e-12)


@pytest.mark.parametrize("adaptive_weight", [False, True])
@pytest.mark.parametrize("chain_factor", [False, True])
def test_the_personal_model_of_apfl_follows_its_recursion(adaptive_weight, chain_factor):
    alpha, w, v = 0.3, START, START
    algorithm = make_algorithm(
        "apfl", alpha=alpha, adaptive=adaptive_weight, chain_factor=chain_factor
    )
    simulation = simulate(algorithm, clients=((H, C),), lr=LR, start=START)
    for _ in range(ROUNDS):
        simulation.run_round()
        slope = gradient(alpha * v + (1 - alpha) * w)
        old_w, old_v = w, v
        w -= LR * gradient(w)
        v -= LR * (alpha if chain_factor else 1.0) * slope
        if adaptive_weight:
            alpha = min(1.0, max(0.0, alpha - LR * (old_v - old_w) * slope))
        state = simulation.client_states[0]
        assert state["personal"].parameters[0].item() == pytest.approx(v, rel=1e-12)
        assert state["alpha"] == pytest.approx(alpha, rel=1e-12)
