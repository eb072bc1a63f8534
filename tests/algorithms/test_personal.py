"""Personal models: what they are at the limits of their coefficients."""

import dataclasses
import math

import pytest
import torch

import fedbench
from fedbench.algorithms.ditto import Ditto
from fedbench.algorithms.fedavg import FedAvg
from fedbench.algorithms.pfedme import PFedMac, PFedMe
from tests.algorithms.quadratics import Q2, AffineRound, simulate, trajectory
from tests.simulation.helpers import NUM_CLIENTS, batch_norm_model, plain_model, tiny_workload

MODELS = pytest.mark.parametrize("model", [plain_model, batch_norm_model])


def run(algorithm, rounds=3, model=plain_model, **changes):
    simulation = fedbench.Simulation(tiny_workload(model, **changes), algorithm=algorithm, seed=6)
    simulation.run(rounds)
    return simulation


def personal_points(simulation):
    model = simulation.algorithm.personal_model
    return [float(model(simulation.client_states[i]).parameters[0]) for i in (0, 1)]


@dataclasses.dataclass(frozen=True)
class Alone(FedAvg):
    """Every client trains its own model on the stream of Ditto's personal models."""

    stateful = True

    def init_client(self, model):
        return {"personal": model}

    def train(self, client, down):
        loss = client.train(client.state["personal"], stream="shuffle-personal")
        client.state["personal"] = client.model.state()
        return {"loss": loss}


@MODELS
def test_ditto_without_pull_is_local_training(model):
    ours = run(Ditto(lam=0.0), model=model, cohort_size=NUM_CLIENTS)
    alone = run(Alone(), model=model, cohort_size=NUM_CLIENTS)
    for client, state in alone.client_states.items():
        own, reference = ours.client_states[client]["personal"], state["personal"]
        assert torch.equal(own.parameters, reference.parameters)
        assert all(torch.equal(own.buffers[n], reference.buffers[n]) for n in own.buffers)


def test_ditto_with_a_strong_pull_has_the_received_model():
    simulation = simulate(Ditto(lam=1e4), steps=60, lr=1e-4)
    points = trajectory(simulation, 2)
    # The second round received the model of the first.
    assert personal_points(simulation) == pytest.approx([points[0]] * 2, abs=1e-3)


def envelope(lam):
    """Return the clients whose objectives are the Moreau envelopes of those of Q2."""
    return tuple((lam * h / (lam + h), c) for h, c in Q2)


@pytest.mark.parametrize(("lam", "steps"), [(1.0, 1), (1.0, 4), (5.0, 3)])
def test_pfedme_is_fedavg_on_the_envelopes(lam, steps):
    inner_lr = 2.0 / (4.0 + 2.0 * lam)
    algorithm = PFedMe(lam=lam, outer_lr=0.1, inner_steps=40, outer_steps=steps)
    ours = trajectory(simulate(algorithm, lr=inner_lr, start=0.5), 8)
    reference = simulate(FedAvg(), clients=envelope(lam), steps=steps, lr=0.1, start=0.5)
    # The curvatures of the envelopes are float32 in the data.
    assert ours == pytest.approx(trajectory(reference, 8), rel=1e-6)


def test_pfedme_with_a_strong_pull_is_fedavg():
    lam = 1e4
    algorithm = PFedMe(lam=lam, outer_lr=0.1, inner_steps=10, outer_steps=2)
    ours = trajectory(simulate(algorithm, lr=1.0 / (lam + 2.0), start=0.5), 6)
    reference = trajectory(simulate(FedAvg(), steps=2, lr=0.1, start=0.5), 6)
    assert ours == pytest.approx(reference, abs=1e-3)


def test_the_server_of_pfedme_may_mix():
    half = PFedMe(lam=1.0, outer_lr=0.1, beta=0.5, outer_steps=2)
    whole = PFedMe(lam=1.0, outer_lr=0.1, beta=1.0, outer_steps=2)
    moves = [trajectory(simulate(a, lr=0.1, start=0.5), 1)[0] - 0.5 for a in (half, whole)]
    assert moves[0] == pytest.approx(0.5 * moves[1], rel=1e-12)


def test_pfedmac_is_pfedme_with_less_curvature():
    """Its inner objective is that of pFedMe less lam |theta|^2 / 2."""
    lam, clients = 0.5, ((1.0, 2.0), (3.0, -2.0))
    softer = tuple((h - lam, h * c / (h - lam)) for h, c in clients)
    options = {"lam": lam, "outer_lr": 0.2, "inner_steps": 60, "outer_steps": 3}
    left = simulate(PFedMac(**options), clients=clients, lr=0.5, start=0.3)
    right = simulate(PFedMe(**options), clients=softer, lr=0.5, start=0.3)
    assert trajectory(left, 6) == pytest.approx(trajectory(right, 6), rel=1e-6)
    assert personal_points(left) == pytest.approx(personal_points(right), rel=1e-6)


def test_pfedmac_has_its_optimum_and_rate():
    lam, clients = 0.4, ((1.0, 2.0), (4.0, -1.0))
    algorithm = PFedMac(lam=lam, outer_lr=0.5, inner_steps=60, outer_steps=1)
    a_round = AffineRound(simulate(algorithm, clients=clients, lr=0.4, start=0.5))
    slopes = [lam * (1 - lam / h) for h, _ in clients]
    optimum = sum(lam * c for _, c in clients) / sum(slopes)
    assert a_round.limit() == pytest.approx(optimum, abs=1e-6)
    assert a_round.rate() == pytest.approx(1 - 0.5 * sum(slopes) / 2, abs=1e-6)


def test_pfedmac_without_coupling_has_the_local_optima():
    simulation = simulate(PFedMac(lam=0.0, inner_steps=60, outer_steps=1), lr=0.5, start=0.5)
    assert trajectory(simulation, 2) == [0.5, 0.5]
    assert personal_points(simulation) == pytest.approx([2.0, -2.0], abs=1e-9)


def test_the_sparsity_term_of_pfedmac_shrinks_the_personal_models():
    """At the personal point the gradient of loss and smooth l1 norm is zero."""
    rho, gamma = 0.2, 1.5
    algorithm = PFedMac(lam=0.0, sparsity=gamma, rho=rho, inner_steps=400, outer_steps=1)
    simulation = simulate(algorithm, lr=0.05, start=0.5)
    simulation.run_round()
    for (h, c), theta in zip(Q2, personal_points(simulation), strict=True):
        assert abs(theta) < abs(c)
        assert h * (theta - c) + gamma * math.tanh(theta / rho) == pytest.approx(0.0, abs=1e-6)


def test_the_sparsity_of_the_local_model_adds_to_the_envelope():
    options = {"lam": 0.5, "outer_lr": 0.1, "inner_steps": 3, "outer_steps": 1, "rho": 0.3}
    one = ((1.0, 2.0),)
    plain = trajectory(simulate(PFedMac(**options), clients=one, lr=0.1, start=0.4), 1)[0]
    pulled = trajectory(
        simulate(PFedMac(local_sparsity=0.7, **options), clients=one, lr=0.1, start=0.4), 1
    )[0]
    assert pulled - plain == pytest.approx(-0.1 * 0.7 * math.tanh(0.4 / 0.3), rel=1e-9)
