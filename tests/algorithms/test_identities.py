"""Reductions of one algorithm to another: bitwise where the arithmetic is the same."""

import dataclasses

import pytest
import torch

import fedbench
from fedbench.algorithms.apfl import APFL
from fedbench.algorithms.ditto import Ditto
from fedbench.algorithms.fedavg import FedAvg
from fedbench.algorithms.feddc import FedDC
from fedbench.algorithms.feddr import FedDR
from fedbench.algorithms.feddyn import FedDyn
from fedbench.algorithms.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from fedbench.algorithms.fedpd import FedPD
from fedbench.algorithms.fedprox import FedProx
from fedbench.algorithms.fedsplit import FedSplit
from fedbench.algorithms.ifca import IFCA
from fedbench.algorithms.pfedme import PFedMac, PFedMe
from fedbench.algorithms.scaffold import Scaffold
from tests.algorithms.quadratics import AffineRound, exact, simulate, trajectory
from tests.simulation.helpers import NUM_CLIENTS, batch_norm_model, plain_model, tiny_workload

UNIFORM = FedAvg(weighting="uniform")
MODELS = pytest.mark.parametrize("model", [plain_model, batch_norm_model])


def run(algorithm, rounds=4, model=plain_model, **changes):
    simulation = fedbench.Simulation(tiny_workload(model, **changes), algorithm=algorithm, seed=6)
    simulation.run(rounds)
    return simulation


def assert_same_model(left, right):
    a, b = left.model_state(), right.model_state()
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


@MODELS
@pytest.mark.parametrize(
    ("algorithm", "reference"),
    [
        (FedProx(mu=0.0), FedAvg()),
        (FedProx(mu=0.0, weighting="uniform"), UNIFORM),
        (FedAvgM(momentum=0.0, server_lr=1.0), FedAvg()),
        (Ditto(lam=0.7), FedAvg()),
        (APFL(alpha=0.3), FedAvg()),
        (APFL(alpha=1.0, adaptive=True), FedAvg()),
        (IFCA(clusters=1), FedAvg()),
    ],
    ids=lambda value: repr(value),
)
def test_the_server_model_has_the_bits_of_fedavg(model, algorithm, reference):
    assert_same_model(run(algorithm, model=model), run(reference, model=model))


@MODELS
def test_the_first_round_of_scaffold_is_that_of_fedavg(model):
    assert_same_model(run(Scaffold(), 1, model), run(UNIFORM, 1, model))


@dataclasses.dataclass(frozen=True)
class PinnedScaffold(Scaffold):
    """Scaffold whose variates are zero for ever."""

    def train(self, client, down):
        metrics = super().train(client, down)
        for tensor in (client.state["control"], client.outgoing["control_delta"]):
            tensor.zero_()
        return metrics


def test_scaffold_without_variates_is_fedavg():
    assert_same_model(run(PinnedScaffold()), run(UNIFORM))


def test_the_variates_of_scaffold_matter():
    a, b = run(Scaffold(), 3).model_state(), run(UNIFORM, 3).model_state()
    assert not all(torch.equal(a[name], b[name]) for name in a)


def test_the_first_local_models_of_feddyn_are_those_of_fedprox():
    captured = {}

    def capturing(base, key):
        @dataclasses.dataclass(frozen=True)
        class Capturing(base):
            def uplink(self, client, down):
                update = super().uplink(client, down)
                captured.setdefault(key, {})[client.client_id] = update.tensors["delta"].clone()
                return update

        return Capturing

    run(capturing(FedDyn, "dyn")(alpha=0.2), 1)
    run(capturing(FedProx, "prox")(mu=0.2), 1)
    assert captured["dyn"].keys() == captured["prox"].keys()
    for client, delta in captured["dyn"].items():
        assert torch.equal(delta, captured["prox"][client])


@dataclasses.dataclass(frozen=True)
class LocalOnly(FedAvg):
    """Every client trains its own model and never looks at the server's."""

    stateful = True

    def init_client(self, model):
        return {"personal": model}

    def train(self, client, down):
        loss = client.train(client.state["personal"])
        client.state["personal"] = client.model.state()
        return {"loss": loss}


@MODELS
def test_apfl_with_weight_one_is_local_training(model):
    left, right = run(APFL(alpha=1.0), model=model), run(LocalOnly(), model=model)
    assert left.client_states.keys() == right.client_states.keys()
    for client, state in left.client_states.items():
        own, alone = state["personal"], right.client_states[client]["personal"]
        assert torch.equal(own.parameters, alone.parameters)
        assert all(torch.equal(own.buffers[name], alone.buffers[name]) for name in own.buffers)


def test_ditto_without_pull_does_not_see_the_server():
    short, long = run(Ditto(lam=0.0), 1, cohort_size=NUM_CLIENTS), run(Ditto(lam=0.0), 1)
    for client, state in long.client_states.items():
        own = short.client_states[client]["personal"].parameters
        assert torch.equal(state["personal"].parameters, own)


@pytest.mark.parametrize("algorithm", [PFedMe(beta=0.0), PFedMe(lam=0.0), PFedMac(lam=0.0)])
def test_envelopes_that_do_not_move_the_server(algorithm):
    start = fedbench.Simulation(tiny_workload(), seed=6).model_state()
    after = run(algorithm, 2).model_state()
    assert all(torch.equal(start[name], after[name]) for name in start)


def solved(algorithm, penalty):
    return trajectory(simulate(algorithm, **exact(penalty)), 30)


def test_feddyn_fedpd_and_feddr_are_one_method():
    dyn, pd = solved(FedDyn(alpha=1.0), 1.0), solved(FedPD(eta=1.0), 1.0)
    dr = solved(FedDR(eta=1.0, alpha=1.0), 1.0)
    assert dyn == pytest.approx(pd, abs=1e-12)
    assert dyn == pytest.approx(dr, abs=1e-12)


def test_feddr_with_full_relaxation_is_fedsplit():
    assert solved(FedDR(eta=0.5, alpha=2.0), 2.0) == pytest.approx(
        solved(FedSplit(s=0.5), 2.0), abs=1e-12
    )


@dataclasses.dataclass(frozen=True)
class WithoutDrift(FedDC):
    """FedDC that sends the plain model."""

    def train(self, client, down):
        metrics = super().train(client, down)
        client.outgoing["corrected_delta"] = client.delta(down["model"])
        return metrics


@pytest.mark.parametrize(("alpha", "limit"), [(0.1, -20 / 21), (0.01, -200 / 201)])
def test_feddc_that_sends_its_model_without_the_drift_is_biased(alpha, limit):
    a_round = AffineRound(simulate(WithoutDrift(alpha=alpha, drift="paper"), steps=2))
    assert a_round.limit(20000) == pytest.approx(limit, abs=1e-9)


def test_feddc_in_scaffold_form_without_drift_is_scaffold():
    feddc = trajectory(simulate(WithoutDrift(alpha=0.0, drift="scaffold"), steps=4, lr=0.1), 20)
    scaffold = trajectory(simulate(Scaffold(), steps=4, lr=0.1), 20)
    assert feddc == pytest.approx(scaffold, abs=1e-12)


def test_feddr_with_an_l1_term_is_exactly_sparse():
    simulation = simulate(FedDR(eta=1.0, alpha=1.0, regularizer="l1", strength=5.0), **exact(1.0))
    assert trajectory(simulation, 30)[-1] == 0.0


def test_the_first_step_of_fedadagrad_has_its_closed_form():
    algorithm = FedAdagrad(server_lr=0.3, tau=0.05)
    point = trajectory(simulate(algorithm, steps=1), 1)[0]
    delta = trajectory(simulate(FedAvg(), steps=1), 1)[0]
    assert point == pytest.approx(0.3 * delta / ((0.05**2 + delta**2) ** 0.5 + 0.05), rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "options"), [(FedAdagrad, {}), (FedAdam, {"beta2": 1.0}), (FedYogi, {"beta2": 1.0})]
)
def test_adaptive_servers_with_a_large_tau_are_fedavg(kind, options):
    tau = 1e9
    algorithm = kind(server_lr=tau, tau=tau, beta1=0.0, **options)
    points = trajectory(simulate(algorithm, steps=1), 5)
    # sqrt(v) starts at tau as well, so the step is half of FedAvg's.
    reference = trajectory(simulate(FedAvgM(momentum=0.0, server_lr=0.5), steps=1), 5)
    assert points == pytest.approx(reference, rel=1e-6)


def test_a_frozen_second_moment_and_its_sign():
    simulation = simulate(FedAdam(beta2=1.0, tau=0.1), steps=1)
    trajectory(simulation, 4)
    assert simulation.server.extra["second_moment"][0].item() == pytest.approx(0.1**2)
    yogi = simulate(FedYogi(), steps=1)
    for _ in range(30):
        yogi.run_round()
        assert yogi.server.extra["second_moment"].min() >= 0
