"""IFCA and FPFC: planted clusters, and what happens without any."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

import fedbench
from fedbench.algorithms.fpfc import FPFC
from fedbench.algorithms.ifca import IFCA
from tests.algorithms.quadratics import Q2, Vectors, exact, simulate, trajectory
from tests.simulation.helpers import batch_norm_model, tiny_workload

CENTERS = (3.1, 2.9, 3.05, 2.95, -3.1, -2.9, -3.05, -2.95)
CLUSTERED = tuple((1.0, center) for center in CENTERS)


def plane(count=4, seed=3):
    """Return clients |x - c|^2 / 2 in the plane, with centres near (3, 0) and near (-3, 1)."""
    rng = np.random.default_rng(seed)
    planted = np.repeat([[3.0, 0.0], [-3.0, 1.0]], count, 0)
    centers = np.float32(planted + 0.1 * rng.standard_normal(planted.shape)).astype(float)
    return Vectors(np.repeat(np.eye(2)[None], 2 * count, 0), centers, (1,) * (2 * count))


@dataclasses.dataclass(frozen=True)
class Planted(IFCA):
    """IFCA whose centres start at +1 and -1 in the first direction."""

    swapped: bool = False

    def init_server(self, setup):
        state = super().init_server(setup)
        starts = (-1.0, 1.0) if self.swapped else (1.0, -1.0)
        for center, value in zip(state.extra["centers"], starts, strict=True):
            center.parameters[0] = value
            center.parameters[1:] = 0.0
        return state


def labels_of(simulation):
    states = simulation.client_states
    return [states[client]["cluster"] for client in sorted(states)]


@pytest.mark.parametrize("averaging", ["model", "gradient"])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_ifca_recovers_planted_clusters(averaging, weighting):
    algorithm = Planted(averaging=averaging, weighting=weighting)
    simulation = simulate(algorithm, clients=CLUSTERED, steps=1, lr=0.5, start=1.0)
    trajectory(simulation, 60)
    assert labels_of(simulation) == [0] * 4 + [1] * 4
    centers = [center.parameters[0].item() for center in simulation.server.extra["centers"]]
    assert centers == pytest.approx([3.0, -3.0], abs=1e-6)


def test_ifca_finds_the_means_of_clusters_in_the_plane():
    clients = plane()
    simulation = simulate(Planted(), clients=clients, steps=1, lr=0.5)
    for _ in range(50):
        simulation.run_round()
    assert labels_of(simulation) == [0] * 4 + [1] * 4
    means = [clients.centers[:4].mean(0), clients.centers[4:].mean(0)]
    for center, mean in zip(simulation.server.extra["centers"], means, strict=True):
        assert center.parameters[:2].numpy() == pytest.approx(mean, abs=1e-9)


def test_permuting_the_centres_of_ifca_permutes_the_labels():
    runs = [simulate(Planted(swapped=s), clients=CLUSTERED, lr=0.5) for s in (False, True)]
    for _ in range(5):
        for simulation in runs:
            simulation.run_round()
        first, second = map(labels_of, runs)
        assert [1 - label for label in first] == second
        ours, swapped = (s.server.extra["centers"] for s in runs)
        assert torch.equal(ours[0].parameters, swapped[1].parameters)
        assert torch.equal(ours[1].parameters, swapped[0].parameters)


def test_equal_centres_of_ifca_send_everyone_to_the_first():
    simulation = simulate(IFCA(clusters=3, spread=0.0), clients=CLUSTERED, steps=1)
    simulation.run_round()
    assert set(labels_of(simulation)) == {0}


def test_a_centre_that_nobody_chose_stays():
    simulation = simulate(Planted(), clients=CLUSTERED[:4], steps=1)
    before = simulation.server.extra["centers"][1].parameters.clone()
    trajectory(simulation, 3)
    assert torch.equal(simulation.server.extra["centers"][1].parameters, before)


def test_gradient_averaging_divides_by_the_cohort_and_not_by_the_cluster():
    """Two of eight clients in a cluster move its centre by a quarter of what two alone would."""
    clients = ((1.0, 3.0), (1.0, 3.0), *((1.0, -3.0),) * 6)
    moves = {}
    for averaging in ("model", "gradient"):
        simulation = simulate(Planted(averaging=averaging), clients=clients, steps=1, lr=0.1)
        simulation.run_round()
        moves[averaging] = simulation.server.extra["centers"][0].parameters[0].item() - 1.0
    assert moves["model"] == pytest.approx(0.1 * 2.0)
    assert moves["gradient"] == pytest.approx(0.1 * 2.0 * 2 / 8)


def test_choosing_a_centre_leaves_the_buffers_alone():
    """The statistics of batch normalisation are those of FedAvg, whatever was looked at."""
    buffers = []
    for clusters in (1, 4):
        algorithm = IFCA(clusters=clusters, spread=0.0)
        simulation = fedbench.Simulation(
            tiny_workload(batch_norm_model), algorithm=algorithm, seed=6
        )
        simulation.run(2)
        buffers.append(simulation.server.extra["centers"][0].buffers)
    assert all(torch.equal(buffers[0][name], buffers[1][name]) for name in buffers[0])


def fuse_by_hand(difference, algorithm):
    """Return the proximal map of one difference, case by case."""
    rho, lam, a, xi = algorithm.rho, algorithm.lam, algorithm.a, algorithm.xi
    norm = np.linalg.norm(difference)
    if norm <= xi + lam / rho:
        return difference * (xi * rho / (lam + xi * rho))
    if norm <= lam + lam / rho:
        return difference * (1 - lam / (rho * norm))
    if norm <= a * lam:
        factor = max(0.0, 1 - a * lam / ((a - 1) * rho * norm))
        return difference * factor / (1 - 1 / ((a - 1) * rho))
    return difference


def test_fpfc_follows_its_server_step_written_as_a_loop():
    algorithm = FPFC(rho=0.8, lam=0.7)
    clients = plane()
    simulation = simulate(algorithm, clients=clients, steps=2, lr=0.3, cohort_size=5)
    count = len(clients.sizes)
    theta = {pair: np.zeros(2) for pair in itertools.combinations(range(count), 2)}
    dual = {pair: np.zeros(2) for pair in theta}
    for _ in range(8):
        record = simulation.run_round()
        w = simulation.server.extra["models"][:, :2].numpy()
        for i, j in theta:
            if i in record.cohort or j in record.cohort:
                shifted = w[i] - w[j] + dual[i, j] / algorithm.rho
                theta[i, j] = fuse_by_hand(shifted, algorithm)
                dual[i, j] = algorithm.rho * (shifted - theta[i, j])
        for i in range(count):
            pulls = [
                theta[i, j] - dual[i, j] / algorithm.rho
                if i < j
                else -(theta[j, i] - dual[j, i] / algorithm.rho)
                for j in range(count)
                if j != i
            ]
            expected = (w.sum(0) + np.sum(pulls, 0)) / count
            target = simulation.server.extra["targets"][i, :2].numpy()
            assert target == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize(
    ("cohort_size", "rounds", "tolerance"),
    [
        (8, 100, 0.02),
        (4, 200, 0.02),
        pytest.param(8, 400, 1e-3, marks=pytest.mark.slow),
        pytest.param(4, 800, 1e-3, marks=pytest.mark.slow),
    ],
)
def test_fpfc_recovers_planted_clusters_in_the_plane(cohort_size, rounds, tolerance):
    clients = plane()
    work = {"steps": 1, "lr": 0.5}  # curvature 1 and rho 1: one step of 1/2 solves it
    simulation = simulate(FPFC(), clients=clients, cohort_size=cohort_size, **work)
    for _ in range(rounds):
        simulation.run_round()
    models = simulation.server.extra["models"][:, :2].numpy()
    for part in (slice(4), slice(4, 8)):
        spread = np.linalg.norm(models[part] - models[part].mean(0), axis=1).max()
        assert spread < tolerance
        assert models[part].mean(0) == pytest.approx(clients.centers[part].mean(0), abs=tolerance)
    assert np.linalg.norm(models[0] - models[7]) > 5


def test_the_duals_of_fpfc_are_bounded_and_vanish_between_clusters():
    algorithm = FPFC(rho=1.0, lam=0.6)
    simulation = simulate(algorithm, clients=plane(), steps=1, lr=0.5)
    for _ in range(30):
        simulation.run_round()
        duals = torch.linalg.vector_norm(simulation.server.extra["duals"], dim=1)
        apart = torch.linalg.vector_norm(simulation.server.extra["fused"], dim=1)
        assert duals.max() <= algorithm.lam * (1 + 1e-12)
        far = apart > algorithm.a * algorithm.lam
        assert (duals[far] == 0.0).all()
    assert far.sum() == 16, "every pair across the clusters"


def test_fpfc_targets_have_the_mean_of_the_models():
    simulation = simulate(FPFC(), clients=CLUSTERED, steps=3, lr=0.2)
    for _ in range(10):
        simulation.run_round()
        extra = simulation.server.extra
        assert torch.allclose(extra["models"].mean(0), extra["targets"].mean(0), atol=1e-12)


def test_fpfc_without_a_penalty_leaves_the_clients_alone():
    simulation = simulate(FPFC(lam=0.0), clients=CLUSTERED, steps=1, lr=0.5)
    for _ in range(60):
        simulation.run_round()
        extra = simulation.server.extra
        assert torch.allclose(extra["targets"], extra["models"], atol=1e-12)
    models = simulation.server.extra["models"][:, 0].tolist()
    assert models == pytest.approx(CENTERS, abs=1e-5)


def test_fpfc_with_a_large_penalty_is_one_model_at_the_optimum():
    simulation = simulate(FPFC(rho=1.0, lam=50.0), clients=Q2, **exact(1.0))
    trajectory(simulation, 60)
    models = simulation.server.extra["models"][:, 0].tolist()
    assert models == pytest.approx([-1.0, -1.0], abs=1e-3)


def test_the_clients_of_fpfc_have_their_own_models_and_buffers():
    simulation = fedbench.Simulation(tiny_workload(batch_norm_model), algorithm=FPFC(), seed=6)
    simulation.run(3)
    ids = simulation.dataset.client_ids
    own = {
        client: simulation.algorithm.personal_model(state)
        for client, state in simulation.client_states.items()
    }
    for client, model in own.items():
        kept = simulation.server.extra["models"][ids.index(client)]
        assert torch.equal(model.parameters, kept)
    means = {tuple(model.buffers["1.running_mean"].tolist()) for model in own.values()}
    assert len(means) == len(own)
