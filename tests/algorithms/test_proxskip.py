"""ProxSkip: one coin for all, variates that cancel, and the Lyapunov function of the paper."""

import math

import pytest

from fedbench.algorithms.fedavg import FedAvg
from fedbench.algorithms.proxskip import ProxSkip
from fedbench.reproducibility import python_random
from tests.algorithms.quadratics import Q2, simulate, trajectory, x_of

UNIFORM = FedAvg(weighting="uniform")
OPTIMUM, GRADIENTS = -1.0, (-3.0, 3.0)
GAMMA = 1 / 3


def test_proxskip_that_always_communicates_is_gradient_descent():
    points = trajectory(simulate(ProxSkip(p=1.0), steps=1, lr=1 / 3), 12)
    reference = trajectory(simulate(UNIFORM, steps=1, lr=1 / 3), 12)
    assert points == pytest.approx(reference, abs=1e-12)


def test_the_variates_of_proxskip_add_up_to_zero_and_its_coin_is_one_for_all():
    simulation = simulate(ProxSkip(p=0.4), steps=1, lr=1 / 3, seed=11)
    sent = []
    for index in range(120):
        record = simulation.run_round()
        sent.append(record.uplink_bytes > 0)
        coin = python_random(11, "server-coin", index).random() < 0.4
        assert sent[-1] == coin
        total = sum(s["control"][0].item() for s in simulation.client_states.values())
        assert total == pytest.approx(0.0, abs=1e-12)
    assert 0.2 < sum(sent) / len(sent) < 0.6
    assert x_of(simulation) == pytest.approx(-1.0, abs=1e-6)
    controls = [simulation.client_states[i]["control"][0].item() for i in (0, 1)]
    assert controls == pytest.approx([-3.0, 3.0], abs=1e-5)


def lyapunov(simulation, p, gamma=GAMMA):
    """Return Psi with what the clients are still to receive already applied."""
    fresh, x = simulation.server.extra["fresh"], x_of(simulation)
    total = 0.0
    for client, gradient in enumerate(GRADIENTS):
        state = simulation.client_states[client]
        own, control = state["model"].parameters[0].item(), state["control"][0].item()
        if fresh:
            control, own = control + p / gamma * (x - own), x
        total += (own - OPTIMUM) ** 2 + (gamma / p) ** 2 * (control - gradient) ** 2
    return total


def mean_lyapunov(seeds, rounds, p):
    totals = [0.0] * rounds
    for seed in range(seeds):
        simulation = simulate(ProxSkip(p=p), steps=1, lr=GAMMA, seed=seed)
        for index in range(rounds):
            simulation.run_round()
            totals[index] += lyapunov(simulation, p) / seeds
    return totals


@pytest.mark.parametrize(
    ("seeds", "rounds"), [(20, 8), pytest.param(250, 25, marks=pytest.mark.slow)]
)
def test_the_lyapunov_function_falls_at_the_rate_of_the_paper(seeds, rounds):
    """E Psi_t <= (1 - min(gamma mu, p^2))^t Psi_0, here 2/3 a round."""
    p = 1 / math.sqrt(3)
    start = sum(OPTIMUM**2 + (GAMMA / p) ** 2 * g**2 for g in GRADIENTS)
    bound = 1 - min(GAMMA * 1.0, p**2)
    assert bound == pytest.approx(2 / 3)
    for index, value in enumerate(mean_lyapunov(seeds, rounds, p)):
        assert value <= 1.05 * bound ** (index + 1) * start


def test_as_many_communications_as_the_coins_say():
    p, rounds = 0.3, 200
    simulation = simulate(ProxSkip(p=p), steps=1, lr=GAMMA, seed=5)
    trajectory(simulation, rounds)
    sent = [record.uplink_bytes > 0 for record in simulation.history]
    coins = [python_random(5, "server-coin", index).random() < p for index in range(rounds)]
    assert sent == coins
    assert abs(sum(sent) - p * rounds) < 3 * math.sqrt(rounds * p * (1 - p))


def test_the_broadcast_comes_once_after_each_communication():
    received = []

    class Watching(ProxSkip):
        def plan(self, server, context):
            made = super().plan(server, context)
            received.append((bool(made.broadcast), bool(made.uplink)))
            return made

    trajectory(simulate(Watching(p=0.5), steps=1, lr=GAMMA, seed=2), 40)
    assert received[0][0] is False
    for index in range(1, len(received)):
        assert received[index][0] is received[index - 1][1]


def test_more_local_steps_keep_the_sum_of_the_variates():
    simulation = simulate(ProxSkip(p=0.5), clients=(*Q2, (2.0, 1.0)), steps=4, lr=0.1, seed=1)
    for _ in range(30):
        simulation.run_round()
        total = sum(state["control"][0].item() for state in simulation.client_states.values())
        assert total == pytest.approx(0.0, abs=1e-12)
