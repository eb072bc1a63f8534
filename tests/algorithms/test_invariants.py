"""What an algorithm keeps in every round, and the points at which it stands still."""

import itertools

import numpy as np
import pytest
import torch

from fedbench.algorithms.fedavg import FedAvg
from fedbench.algorithms.feddc import FedDC
from fedbench.algorithms.feddr import FedDR
from fedbench.algorithms.feddyn import FedDyn
from fedbench.algorithms.fedopt import FedAdagrad, FedAdam, FedYogi
from fedbench.algorithms.fedpd import FedPD
from fedbench.algorithms.fedprox import FedProx
from fedbench.algorithms.fedsplit import FedSplit
from fedbench.algorithms.proxskip import ProxSkip
from fedbench.algorithms.scaffold import Scaffold
from fedbench.training import ModelState
from tests.algorithms.quadratics import Q2, exact, simulate, trajectory, x_of

FOUR = (*Q2, (2.0, 1.0), (0.5, 4.0))
OPTIMUM = -1.0
GRADIENTS = (-3.0, 3.0)
"""Gradients of the clients of Q2 at the optimum of their mean."""


def values(simulation, name):
    """Return an entry of every client's state that took part, as numbers."""
    states = simulation.client_states
    return {client: state[name][0].item() for client, state in states.items()}


def with_parameters(model, value):
    parameters = model.parameters.clone()
    parameters[0] = value
    return ModelState(parameters, model.buffers)


def settled(algorithm, work, client_states, **extra):
    """Return a simulation of Q2 at the optimum, with these entries at server and clients."""
    simulation = simulate(algorithm, **work)
    simulation.run_round()
    server = simulation.server

    def like(kept, value):
        if isinstance(kept, ModelState):
            return with_parameters(kept, value)
        vector = torch.zeros_like(kept)
        vector[0] = value
        return vector

    entries = {name: like(server.extra[name], value) for name, value in extra.items()}
    simulation.server = type(server)(
        with_parameters(server.model, OPTIMUM), {**server.extra, **entries}
    )
    for client, state in enumerate(client_states):
        kept = simulation.client_states[client]
        kept.update({name: like(kept[name], value) for name, value in state.items()})
    return simulation


@pytest.mark.parametrize("cohort_size", [1, 2, 4])
@pytest.mark.parametrize(
    ("algorithm", "on_server", "on_client"),
    [
        (Scaffold(option="I"), "control", "control"),
        (Scaffold(option="II"), "control", "control"),
        (FedDyn(alpha=0.5), "correction", "gradient"),
        (FedDC(), "mean_update", "update"),
        (FedDC(drift="scaffold"), "mean_update", "update"),
    ],
)
def test_the_server_holds_the_mean_over_the_population(
    algorithm, on_server, on_client, cohort_size
):
    simulation = simulate(algorithm, clients=FOUR, steps=3, lr=0.1, cohort_size=cohort_size)
    for _ in range(10):
        simulation.run_round()
        mean = sum(values(simulation, on_client).values()) / len(FOUR)
        assert simulation.server.extra[on_server][0].item() == pytest.approx(mean, abs=1e-12)


@pytest.mark.parametrize("cohort_size", [1, 3, 4])
@pytest.mark.parametrize(("algorithm", "on_client"), [(FedSplit(), "z"), (FedDR(), "reflected")])
def test_the_server_is_the_mean_of_all_clients_points(algorithm, on_client, cohort_size):
    start = 0.5
    simulation = simulate(
        algorithm, clients=FOUR, steps=3, lr=0.1, cohort_size=cohort_size, start=start
    )
    for _ in range(10):
        simulation.run_round()
        found = values(simulation, on_client)
        # Clients that have not taken part yet are where they began.
        mean = (sum(found.values()) + start * (len(FOUR) - len(found))) / len(FOUR)
        assert x_of(simulation) == pytest.approx(mean, abs=1e-12)


STANDING = [
    (Scaffold(option="I"), [{"control": g} for g in GRADIENTS], {"control": 0.0}),
    (Scaffold(option="II"), [{"control": g} for g in GRADIENTS], {"control": 0.0}),
    (FedDyn(alpha=0.7), [{"gradient": g} for g in GRADIENTS], {"correction": 0.0}),
    (FedSplit(s=0.4), [{"z": OPTIMUM - 0.4 * g} for g in GRADIENTS], {}),
    (
        FedPD(eta=0.4),
        [{"dual": -g, "model": OPTIMUM, "consensus": OPTIMUM - 0.4 * g} for g in GRADIENTS],
        {},
    ),
    (ProxSkip(p=1.0), [{"control": g, "model": OPTIMUM} for g in GRADIENTS], {}),
    (
        FedDR(eta=0.4, alpha=1.3),
        [{"x": OPTIMUM, "y": OPTIMUM + 0.4 * g, "reflected": OPTIMUM - 0.4 * g} for g in GRADIENTS],
        {"average": OPTIMUM},
    ),
]


@pytest.mark.parametrize(("algorithm", "clients", "extra"), STANDING, ids=lambda v: repr(v)[:30])
@pytest.mark.parametrize("steps", [1, 4])
def test_nothing_moves_at_the_fixed_point_however_inexact_the_local_work(
    algorithm, clients, extra, steps
):
    simulation = settled(algorithm, {"steps": steps, "lr": 0.1}, clients, **extra)
    before = [values(simulation, name) for name in clients[0] if name != "model"]
    assert trajectory(simulation, 3) == pytest.approx([OPTIMUM] * 3, abs=1e-12)
    after = [values(simulation, name) for name in clients[0] if name != "model"]
    for left, right in zip(before, after, strict=True):
        assert left == pytest.approx(right, abs=1e-12)


def test_fedavg_does_move_from_the_optimum():
    simulation = settled(FedAvg(), {"steps": 4, "lr": 0.1}, [])
    assert abs(trajectory(simulation, 1)[0] - OPTIMUM) > 0.01


def test_fedsplit_does_move_from_the_optimum_when_it_starts_its_steps_elsewhere():
    class Cold(FedSplit):
        def train(self, client, down):
            start = down["model"]
            z = client.state["z"]
            center = 2.0 * start.parameters - z
            loss = client.train(
                ModelState(torch.zeros_like(z), {}), proximal=1.0 / self.s, anchor=center
            )
            client.state["z"] = z + 2.0 * client.delta(start)
            client.outgoing["z_delta"] = client.state["z"] - z
            return {"loss": loss}

    clients = [{"z": OPTIMUM - 0.4 * g} for g in GRADIENTS]
    simulation = settled(Cold(s=0.4), {"steps": 4, "lr": 0.1}, clients)
    assert abs(trajectory(simulation, 1)[0] - OPTIMUM) > 0.01


def test_scaffold_settles_at_the_gradients():
    simulation = simulate(Scaffold(), steps=2)
    trajectory(simulation, 60)
    assert values(simulation, "control") == pytest.approx(dict(enumerate(GRADIENTS)), abs=1e-9)
    assert simulation.server.extra["control"][0].item() == pytest.approx(0.0, abs=1e-9)


def test_the_first_point_of_feddyn_is_twice_the_mean_less_the_start():
    start, alpha = 0.5, 0.3
    simulation = simulate(FedDyn(alpha=alpha), steps=3, lr=0.1, start=start)
    (point,) = trajectory(simulation, 1)
    locals_ = [start - g / alpha for g in values(simulation, "gradient").values()]
    assert point == pytest.approx(2 * sum(locals_) / 2 - start, abs=1e-12)


def test_the_memories_of_feddyn_are_the_duals_of_fedpd():
    dyn, pd = simulate(FedDyn(alpha=1.0), **exact(1.0)), simulate(FedPD(eta=1.0), **exact(1.0))
    for _ in range(12):
        dyn.run_round()
        pd.run_round()
        duals = {client: -dual for client, dual in values(pd, "dual").items()}
        assert values(dyn, "gradient") == pytest.approx(duals, abs=1e-12)


def test_the_duals_of_fedpd_are_the_negative_gradients():
    simulation = simulate(FedPD(eta=0.7), **exact(1 / 0.7))
    for _ in range(5):
        simulation.run_round()
        for client, (h, c) in enumerate(Q2):
            state = simulation.client_states[client]
            gradient = h * (state["model"].parameters[0].item() - c)
            assert state["dual"][0].item() == pytest.approx(-gradient, abs=1e-10)


def test_fedpd_broadcasts_only_what_the_last_round_has_made_new():
    seen = []

    class Watching(FedPD):
        def plan(self, server, context):
            made = super().plan(server, context)
            seen.append((bool(made.broadcast), bool(made.uplink)))
            return made

    simulation = simulate(Watching(skip=0.5), steps=2, lr=0.1, seed=3)
    trajectory(simulation, 30)
    assert not seen[0][0], "the clients hold the first model already"
    for (_, sent), (received, _) in itertools.pairwise(seen):
        assert received == sent
    assert {sent for _, sent in seen} == {True, False}


def test_fedsplit_contracts_towards_its_fixed_point():
    """With an exact proximal map and the best step, by (sqrt k - 1) / (sqrt k + 1) a round."""
    s = 1 / np.sqrt(3)
    simulation = simulate(FedSplit(s=s), **exact(np.sqrt(3)))
    goal = [OPTIMUM - s * g for g in GRADIENTS]
    distance = np.linalg.norm(goal)
    for _ in range(12):
        simulation.run_round()
        points = values(simulation, "z")
        left = np.linalg.norm([points[i] - goal[i] for i in (0, 1)])
        assert left <= (2 - np.sqrt(3)) * distance + 1e-12
        distance = left
    assert distance < 1e-5


def test_the_points_of_fedsplit_are_those_of_feddr_with_full_relaxation():
    split, dr = (
        simulate(FedSplit(s=0.5), **exact(2.0)),
        simulate(FedDR(eta=0.5, alpha=2.0), **exact(2.0)),
    )
    for _ in range(8):
        split.run_round()
        dr.run_round()
        assert values(split, "z") == pytest.approx(values(dr, "reflected"), abs=1e-12)


@pytest.mark.parametrize(
    ("regularizer", "strength", "limit"),
    [
        # Zeros of 2x + 2 + s sign(x), of the same with a slope, and of 2x + 2 + 2 s x.
        ("l1", 1.0, -0.5),
        ("l1", 3.0, 0.0),
        ("l2", 1.0, -0.5),
        ("l2sq", 1.0, -0.5),
    ],
)
def test_feddr_minimises_the_regularised_objective(regularizer, strength, limit):
    algorithm = FedDR(eta=1.0, alpha=1.0, regularizer=regularizer, strength=strength)
    points = trajectory(simulate(algorithm, **exact(1.0)), 60)
    assert points[-1] == pytest.approx(limit, abs=1e-9)


def test_proximal_maps_of_feddr():
    point = torch.tensor([3.0, -0.5, 4.0])
    shrunk = FedDR(regularizer="l2", strength=1.0).proximal_map(point)
    assert torch.allclose(shrunk, point * (1 - 1 / torch.linalg.vector_norm(point)))
    assert FedDR(regularizer="l2", strength=9.0).proximal_map(point).count_nonzero() == 0
    assert torch.equal(
        FedDR(regularizer="l1", strength=1.0).proximal_map(point), torch.tensor([2.0, 0.0, 3.0])
    )
    assert torch.allclose(FedDR(regularizer="l2sq", strength=1.0).proximal_map(point), point / 3)
    assert torch.equal(FedDR(regularizer="l2", strength=1.0).proximal_map(point * 0), point * 0)


def test_fedprox_with_a_strong_pull_stays():
    moves = [abs(trajectory(simulate(FedProx(mu=mu), **exact(mu)), 1)[0]) for mu in (1e2, 1e3, 1e4)]
    assert moves[0] > 0.01
    assert moves[1] == pytest.approx(moves[0] / 10, rel=0.05)
    assert moves[2] == pytest.approx(moves[1] / 10, rel=0.05)


def test_yogi_leaves_the_second_moment_that_is_the_square():
    """v - (1 - beta2) d^2 sign(v - d^2), and the sign of zero is zero."""
    delta = trajectory(simulate(FedAvg(), steps=1), 1)[0]
    simulation = simulate(FedYogi(beta1=0.0, tau=abs(delta)), steps=1)
    trajectory(simulation, 1)
    assert simulation.server.extra["second_moment"][0].item() == pytest.approx(delta**2, rel=1e-15)


@pytest.mark.parametrize("kind", [FedAdagrad, FedYogi, FedAdam])
def test_adaptive_servers_are_odd_and_keep_the_second_moment_positive(kind):
    mirrored = tuple((h, -c) for h, c in Q2)
    left, right = simulate(kind(), steps=1), simulate(kind(), steps=1, clients=mirrored)
    for _ in range(20):
        left.run_round()
        right.run_round()
        assert x_of(left) == -x_of(right)
        assert left.server.extra["second_moment"].min() >= 0.0


def test_a_single_client_is_centralised_training():
    x = 0.5
    points = trajectory(simulate(FedAvg(), clients=((2.0, 3.0),), steps=3, lr=0.1, start=x), 5)
    for point in points:
        for _ in range(3):
            x -= 0.1 * (2.0 * (x - 3.0))
        # The server adds the difference, which costs the last bit.
        assert point == pytest.approx(x, rel=4e-16)


def test_the_correction_of_feddc_vanishes_for_a_single_client():
    one = ((2.0, 3.0),)
    points = [
        trajectory(simulate(FedDC(alpha=0.2, drift=drift), clients=one, steps=3, lr=0.1), 6)
        for drift in ("paper", "scaffold")
    ]
    assert points[0] == points[1]
