"""Limits and linear rates on two scalar quadratics, against their closed forms."""

import dataclasses
import math

import pytest

from fedbench.algorithms.apfl import APFL
from fedbench.algorithms.ditto import Ditto
from fedbench.algorithms.fedavg import FedAvg
from fedbench.algorithms.feddc import FedDC
from fedbench.algorithms.feddr import FedDR
from fedbench.algorithms.feddyn import FedDyn
from fedbench.algorithms.fedpd import FedPD
from fedbench.algorithms.fedprox import FedProx
from fedbench.algorithms.fedsplit import FedSplit
from fedbench.algorithms.pfedme import PFedMac, PFedMe
from fedbench.algorithms.proxskip import ProxSkip
from fedbench.algorithms.scaffold import Scaffold
from tests.algorithms.quadratics import AffineRound, exact, simulate, trajectory, x_of

CONVERGING = [
    # algorithm, local work, limit, rate
    (FedAvg(), {"steps": 1}, -1.0, 1 / 2),
    (FedAvg(), {"steps": 2}, -8 / 11, 5 / 16),
    (FedProx(mu=1.0), exact(1.0), -2 / 5, 3 / 8),
    (Scaffold(option="I"), {"steps": 2}, -1.0, 1 / 4),
    (Scaffold(option="II"), {"steps": 2}, -1.0, math.sqrt(7) / 8),
    (Scaffold(option="I"), {"steps": 10, "lr": 0.1}, -1.0, 0.40460),
    (Scaffold(option="II"), {"steps": 10, "lr": 0.1}, -1.0, 0.35217),
    (FedDyn(alpha=1.0), exact(1.0), -1.0, 1 / 2),
    (FedDyn(alpha=2.0), exact(2.0), -1.0, math.sqrt(4 / 15)),
    (FedDyn(alpha=4.0), exact(4.0), -1.0, 0.64639),
    (FedDyn(alpha=0.5), exact(0.5), -1.0, 0.74398),
    (FedDyn(alpha=1.0), {"steps": 5, "lr": 0.1}, -1.0, 0.69485),
    (FedPD(eta=1.0), exact(1.0), -1.0, 1 / 2),
    (FedPD(eta=0.5), exact(2.0), -1.0, math.sqrt(4 / 15)),
    (FedPD(eta=0.25), exact(4.0), -1.0, 0.64639),
    (FedPD(eta=2.0), exact(0.5), -1.0, 0.74398),
    (FedSplit(s=1 / math.sqrt(3)), exact(math.sqrt(3)), -1.0, 2 - math.sqrt(3)),
    (FedSplit(s=0.5), {"steps": 5, "lr": 0.1}, -1.0, 0.24286),
    (FedDR(eta=1.0, alpha=1.0), exact(1.0), -1.0, 1 / 2),
    (FedDR(eta=1.0, alpha=1.9), exact(1.0), -1.0, 1 / 20),
    (FedDC(alpha=0.1, drift="scaffold"), {"steps": 2}, -1.0, 0.5746),
    (FedDC(alpha=0.1, drift="paper"), {"steps": 2}, -1.0, 0.97826),
    (ProxSkip(p=1.0), {"steps": 1, "lr": 1 / 3}, -1.0, 1 / 3),
]
"""Q2, full participation, full batch. Where the limit is not -1, the algorithm is biased there."""


def name(case):
    return f"{case[0]}-{case[1]}"


@pytest.mark.parametrize("case", CONVERGING, ids=name)
def test_limit_and_rate(case):
    algorithm, work, limit, rate = case
    a_round = AffineRound(simulate(algorithm, **work))
    assert a_round.rate() == pytest.approx(rate, abs=5e-5)
    assert a_round.limit() == pytest.approx(limit, abs=1e-9)


def long(case):
    _, work, _, rate = case
    return pytest.param(case, marks=pytest.mark.slow) if work["steps"] > 10 or rate > 0.7 else case


@pytest.mark.parametrize("case", [long(case) for case in CONVERGING], ids=name)
def test_real_rounds_follow_their_matrix_to_the_limit(case):
    """The rate of the matrix is then the rate of the rounds."""
    algorithm, work, limit, rate = case
    rounds = math.ceil(math.log(1e-10) / math.log(rate)) + 20
    points = trajectory(simulate(algorithm, **work), rounds)
    a_round = AffineRound(simulate(algorithm, **work))
    state, predicted = a_round.state, []
    for _ in points:
        predicted.append(state[0])
        state = a_round.matrix @ state + a_round.offset
    assert points == pytest.approx(predicted, abs=1e-10)
    assert points[-1] == pytest.approx(limit, abs=1e-9)


def test_feddr_with_full_relaxation_is_done_after_two_rounds():
    points = trajectory(simulate(FedDR(eta=1.0, alpha=2.0), **exact(1.0)), 4)
    assert points[-1] == pytest.approx(-1.0, abs=1e-9)
    assert points[2] == pytest.approx(-1.0, abs=1e-9)


@pytest.mark.parametrize(
    ("eta", "period", "limit"), [(1.0, 2, -1 / 7), (1.0, 3, -1 / 31), (0.25, 2, -40 / 57)]
)
def test_fedpd_with_skipped_rounds_is_biased(eta, period, limit):
    """All rounds but every second or third are silent; the clients differ."""

    @dataclasses.dataclass(frozen=True)
    class Periodic(FedPD):
        def plan(self, server, context):
            plan = super().plan(server, context)
            silent = (context.index + 1) % period
            return dataclasses.replace(plan, uplink=() if silent else context.cohort)

    simulation = simulate(Periodic(eta=eta), **exact(1.0 / eta))
    assert trajectory(simulation, 28 * period)[-1] == pytest.approx(limit, abs=1e-9)


def test_fedpd_with_skipped_rounds_is_exact_for_equal_clients():
    simulation = simulate(FedPD(eta=1.0, skip=0.5), clients=((2.0, 3.0),) * 2, **exact(1.0))
    trajectory(simulation, 60)
    assert 15 < sum(record.uplink_bytes > 0 for record in simulation.history) < 45
    assert x_of(simulation) == pytest.approx(3.0, abs=1e-6)


@pytest.mark.parametrize("alpha", [0.01, 0.5])
def test_feddc_in_scaffold_form_is_exact_for_every_alpha(alpha):
    a_round = AffineRound(simulate(FedDC(alpha=alpha, drift="scaffold"), steps=2))
    assert a_round.rate() < 1.0
    assert a_round.limit(20000) == pytest.approx(-1.0, abs=1e-9)


def test_feddc_without_pull_is_biased_from_a_zero_start():
    a_round = AffineRound(simulate(FedDC(alpha=0.0, drift="paper"), steps=2))
    assert a_round.limit() == pytest.approx(-67 / 79, abs=1e-9)


def personal_points(simulation):
    model = simulation.algorithm.personal_model
    return [float(model(simulation.client_states[i]).parameters[0]) for i in (0, 1)]


def test_pfedme_reaches_the_minimum_of_the_envelopes():
    algorithm = PFedMe(lam=1.0, outer_lr=0.5, inner_steps=36, outer_steps=1)
    a_round = AffineRound(simulate(algorithm, lr=1 / 3))
    assert a_round.rate() == pytest.approx(11 / 16, abs=1e-5)
    assert a_round.limit() == pytest.approx(-2 / 5, abs=1e-9)
    settled = simulate(algorithm, lr=1 / 3, start=-2 / 5)
    trajectory(settled, 1)
    assert personal_points(settled) == pytest.approx([4 / 5, -8 / 5], abs=1e-9)


def test_pfedmac_reaches_the_minimum_of_its_envelopes():
    algorithm = PFedMac(lam=0.5, outer_lr=0.5, inner_steps=52, outer_steps=1)
    a_round = AffineRound(simulate(algorithm, lr=0.5, start=1.0))
    assert a_round.rate() == pytest.approx(5 / 6, abs=1e-5)
    assert a_round.limit() == pytest.approx(0.0, abs=1e-9)
    settled = simulate(algorithm, lr=0.5, start=0.0)
    trajectory(settled, 1)
    assert personal_points(settled) == pytest.approx([2.0, -2.0], abs=1e-9)


def test_ditto_personal_models():
    """With two steps of 1/4 the server settles at -8/11 and the personal models near it."""
    simulation = simulate(Ditto(lam=1.0), steps=2)
    points = trajectory(simulation, 60)
    assert points[-1] == pytest.approx(-8 / 11, abs=1e-12)
    assert personal_points(simulation) == pytest.approx([7 / 11, -37 / 22], abs=1e-9)


def test_apfl_personal_models_and_mixtures():
    simulation = simulate(APFL(alpha=0.5), steps=1)
    points = trajectory(simulation, 300)
    assert points[-1] == pytest.approx(-1.0, abs=1e-12)
    personal = [float(simulation.client_states[i]["personal"].parameters[0]) for i in (0, 1)]
    assert personal == pytest.approx([5.0, -3.0], abs=1e-6)
    mixed_with_server = [0.5 * v + 0.5 * points[-1] for v in personal]
    assert mixed_with_server == pytest.approx([2.0, -2.0], abs=1e-6)
    local = [float(simulation.client_states[i]["local"].parameters[0]) for i in (0, 1)]
    mixtures = [0.5 * v + 0.5 * w for v, w in zip(personal, local, strict=True)]
    assert personal_points(simulation) == pytest.approx(mixtures, abs=1e-12)
