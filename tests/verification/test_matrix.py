"""One digest over backends, worker counts, delays, retries and models that draw.

The small matrix runs with the other tests; ``pytest -m slow tests/verification`` runs it in full.
"""

import functools
import itertools
import os
import random
import signal
import time

import pytest

import fedbench
from fedbench.algorithms import ALGORITHMS
from tests.simulation.helpers import (
    NUM_CLIENTS,
    batch_norm_model,
    dropout_model,
    lstm_model,
    tiny_workload,
)

MODELS = {"batch-norm": batch_norm_model, "dropout": dropout_model, "lstm": lstm_model}
# Every algorithm, with the models taking turns.
SMALL = list(zip(ALGORITHMS, itertools.cycle(MODELS), strict=False))
FULL = [(algorithm, model) for algorithm in ALGORITHMS for model in MODELS]


def delay(client):
    time.sleep(random.SystemRandom().uniform(0.0, 0.02))


def run(algorithm, model, rounds=2, **options):
    workload = tiny_workload(MODELS[model], cohort_size=NUM_CLIENTS, local_epochs=1)
    simulation = fedbench.Simulation(workload, algorithm=algorithm, seed=8, **options)
    with simulation:
        history = simulation.run(rounds)
        return simulation.state_digest(), history.to_frame().to_csv()


@functools.cache
def expected(algorithm, model):
    return run(algorithm, model)


@pytest.mark.parametrize(("algorithm", "model"), SMALL)
def test_one_digest_with_delays(executor, algorithm, model):
    assert run(algorithm, model, executor=executor, around_client=delay) == expected(
        algorithm, model
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_one_digest_of_everything(new_executor, backend, workers):
    if backend == "sequential" and workers > 1:
        pytest.skip("sequential has one worker")
    executor = new_executor(None if backend == "sequential" else workers)
    different = [
        (algorithm, model)
        for algorithm, model in FULL
        if run(algorithm, model, executor=executor, around_client=delay)
        != expected(algorithm, model)
    ]
    assert not different


class KillsItsWorkerOnce:
    """Kills the worker of one client the first time that it trains in a given round."""

    def __init__(self, folder, client_id, round_index):
        self.mark = os.path.join(folder, "killed")
        self.client_id, self.round_index = client_id, round_index

    def __call__(self, client):
        if (client.client_id, client.round_index) != (self.client_id, self.round_index):
            return
        try:
            os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


def killed_once(executor, folder, algorithm, model):
    """Run with one worker killed in the middle of a task, which is then run again."""
    os.makedirs(folder)
    killer = KillsItsWorkerOnce(str(folder), "client-3", 1)
    result = run(algorithm, model, executor=executor, around_client=killer)
    assert os.path.exists(killer.mark)
    return result


@pytest.fixture
def mortal(backend):
    """Skip the backends whose workers live in this process."""
    if backend not in ("processes", "ray"):
        pytest.skip("a worker of this backend cannot die alone")


def test_a_retried_task_draws_the_same_numbers(mortal, new_executor, tmp_path):
    result = killed_once(new_executor(2, retries=1), tmp_path / "kill", "scaffold", "dropout")
    assert result == expected("scaffold", "dropout")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_retries_of_everything(mortal, new_executor, tmp_path):
    executor = new_executor(2, retries=1)
    different = [
        (algorithm, model)
        for algorithm, model in FULL
        if killed_once(executor, tmp_path / f"{algorithm}-{model}", algorithm, model)
        != expected(algorithm, model)
    ]
    assert not different
