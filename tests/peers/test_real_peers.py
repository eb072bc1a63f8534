"""The real peers do the same work: their models differ by the rounding of the mean alone."""

import dataclasses
import functools
import importlib.util

import numpy as np
import pytest
import torch

import fedbench
from fedbench.peers import PEERS, Job, PeerSettings, measure_peers
from fedbench.peers.plain import PlainLoop, numpy_state
from fedbench.peers.workloads import logreg, random_dataset
from fedbench.report.contender import largest_difference


@pytest.fixture(autouse=True)
def same_threads():
    """Undo what a peer does to its process: here it shares that of the tests."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_plain_loop_takes_the_same_steps_on_the_same_batches():
    # With one client the mean is that client's model, and nothing is left that may round.
    one = functools.partial(random_dataset, shape=(784,), classes=10, clients=1, samples=95)
    workload = dataclasses.replace(logreg(), dataset=one, cohort_size=1)
    torch.set_num_threads(1)
    loop = PlainLoop(workload, seed=3)
    simulation = fedbench.Simulation(workload, seed=3)
    for _ in range(3):
        loop.run_round([0])
        simulation.run_round()
    ours = {name: value.numpy() for name, value in simulation.model_state().items()}
    assert all(np.array_equal(value, ours[name]) for name, value in numpy_state(loop.model).items())


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
