"""The real peers do the same work: their models differ by the rounding of the mean alone."""

import copy
import importlib.util

import pytest
import torch

import fedbench
from fedbench.peers import PEERS, Job, PeerSettings, measure_peers
from fedbench.peers.plain import sample_order, train_client
from fedbench.peers.workloads import logreg
from fedbench.report.contender import largest_difference


@pytest.fixture(autouse=True)
def one_thread():
    """Work with one intra-op thread, as peers do, and undo it: they share the tests' process."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_plain_loop_takes_the_same_steps_on_the_same_batches():
    # What a client sends has the very bits; the means differ, as ours is correctly rounded.
    workload = logreg()
    sent = {}

    def observer(phase, client, state):
        if phase == "uplink":
            sent[client] = state["delta"]

    simulation = fedbench.Simulation(workload, seed=3, observer=observer)
    start = workload.model(seed=3)
    simulation.run_round()
    for client in (0, 7):
        model, data = copy.deepcopy(start), simulation.dataset.client(client)
        train_client(model, data, workload, sample_order(3, client, 0, len(data.inputs)))
        for trained, initial, delta in zip(
            model.parameters(),
            start.parameters(),
            sent[client][:7850].split([7840, 10]),
            strict=True,
        ):
            assert torch.equal((trained - initial).flatten(), delta)


def test_our_rows_and_the_plain_loop_agree():
    job = Job("logreg", rounds=2, workers=2, seed=1)
    first, second, plain = (
        PEERS.load(name)(job) for name in ("fedbench-sequential", "fedbench-threads", "plain")
    )
    assert largest_difference(first.state, second.state) == 0.0
    assert 0.0 < largest_difference(first.state, plain.state) < 1e-6
    for outcome in (first, second, plain):
        assert len(outcome.ends) == 2
        assert list(outcome.ends) == sorted(outcome.ends)
        assert outcome.version


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("workload", ["logreg", "resnet18-step"])
@pytest.mark.parametrize(
    ("peer", "package"), [("flower", "flwr"), ("pfl", "pfl"), ("pfl-processes", "pfl")]
)
def test_other_frameworks_end_near_our_model(workload, peer, package):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install -e '.[{PEERS.entry(peer).extra}]'")
    settings = PeerSettings((workload,), ("fedbench-sequential", peer), rounds=2, repeats=1)
    ours, theirs = measure_peers(settings)
    assert ours.status == theirs.status == "ok"
    assert theirs.max_abs_diff < 1e-4
    assert theirs.version
