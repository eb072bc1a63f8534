"""Vectorised clients in simulations: the results of clients one by one, on every backend."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedbench
from fedbench.algorithms import ALGORITHMS, RoundPlan
from fedbench.algorithms.fedavg import FedAvg
from fedbench.data import FederatedDataset
from fedbench.errors import VectorizationError
from fedbench.simulation.vectorized import chunks
from fedbench.verification import Candidate
from tests.simulation.helpers import (
    NUM_CLIENTS,
    batch_norm_model,
    dropout_model,
    lstm_model,
    tiny_dataset,
    tiny_workload,
)

TOLERANCE = 2e-6
VECTORIZABLE = {"fedavg", "fedprox", "fedavgm", "fedadagrad", "fedyogi", "fedadam"}


def run(rounds=3, workload=None, **options):
    workload = workload or tiny_workload(cohort_size=NUM_CLIENTS)
    with fedbench.Simulation(workload, **options) as simulation:
        return simulation, simulation.run(rounds)


def difference(first, second):
    mine, theirs = first.model_state(), second.model_state()
    assert mine.keys() == theirs.keys()
    return max(float((mine[name] - theirs[name]).abs().max()) for name in mine)


def metrics(history):
    frame = history.to_frame()
    return frame[~frame["metric"].str.contains("seconds")]["value"].tolist()


@pytest.mark.parametrize("algorithm", sorted(VECTORIZABLE))
def test_results_are_those_of_clients_one_by_one(algorithm):
    alone, first = run(algorithm=algorithm)
    together, second = run(algorithm=algorithm, vectorized=True)
    assert 0 <= difference(alone, together) < TOLERANCE
    assert metrics(second) == pytest.approx(metrics(first), rel=1e-4)
    assert [r.cohort for r in first] == [r.cohort for r in second]
    assert [r.uplink_bytes for r in first] == [r.uplink_bytes for r in second]


def test_on_every_backend(executor):
    alone, _ = run()
    together, _ = run(executor=executor, vectorized=True)
    assert difference(alone, together) < TOLERANCE


def test_the_same_run_has_the_same_bits():
    digests = {run(vectorized=True, executor="threads", workers=2)[0].state_digest() for _ in "ab"}
    assert len(digests) == 1


def test_local_settings_and_schedules_count():
    workload = tiny_workload(momentum=0.9, nesterov=True, weight_decay=0.05, local_epochs=3)
    options = {"schedule": {"name": "step", "every": 1, "gamma": 0.5}}
    alone, _ = run(workload=workload, **options)
    together, _ = run(workload=workload, vectorized=True, **options)
    plain, _ = run(workload=dataclasses.replace(workload, momentum=0.0, nesterov=False), **options)
    assert difference(alone, together) < TOLERANCE
    assert difference(alone, plain) > 100 * TOLERANCE


def test_workers_may_fold_the_updates_of_a_chunk():
    listed, _ = run(vectorized=True, reduce_in_workers=False)
    folded, history = run(vectorized=True, reduce_in_workers=True)
    assert history.records[0].reduced_in_workers
    assert folded.state_digest() == listed.state_digest()


def test_a_workload_can_ask_for_it():
    workload = tiny_workload(vectorized=True)
    with fedbench.Simulation(workload) as simulation:
        assert simulation.history.pinned["vectorized"] == "on 1 workers"
    with fedbench.Simulation(workload, vectorized=False) as simulation:
        assert simulation.history.pinned["vectorized"] == "no"


def test_what_is_verified_are_clients_one_by_one():
    workload = tiny_workload(vectorized=True, cohort_size=NUM_CLIENTS)
    candidates = [Candidate("threads", 2)]
    assert fedbench.verify(workload, rounds=1, candidates=candidates).identical


@dataclasses.dataclass(frozen=True)
class HalfUplink(FedAvg):
    def plan(self, server, context):
        everyone = context.cohort
        return RoundPlan(broadcast=everyone, train=everyone, uplink=everyone[::2])


def test_clients_that_do_not_send_are_left_out():
    alone, first = run(algorithm=HalfUplink())
    together, second = run(algorithm=HalfUplink(), vectorized=True)
    assert difference(alone, together) < TOLERANCE
    assert [r.uplink_bytes for r in first] == [r.uplink_bytes for r in second]


@dataclasses.dataclass(frozen=True)
class SomeTrain(FedAvg):
    def plan(self, server, context):
        everyone = context.cohort
        return RoundPlan(broadcast=everyone, train=everyone[1:], uplink=everyone[1:])


def test_a_plan_without_training_is_refused():
    with pytest.raises(VectorizationError, match="leaves client 'client-0' out of one of them"):
        run(algorithm=SomeTrain(), vectorized=True)


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - VECTORIZABLE))
def test_other_algorithms_are_refused_with_a_reason(name):
    with pytest.raises(VectorizationError, match=r"^vectorized must be False here, got True: "):
        fedbench.Simulation(tiny_workload(), algorithm=name, vectorized=True)


@dataclasses.dataclass(frozen=True)
class OtherTraining(FedAvg):
    def train(self, client, down):
        return {"loss": client.train(down["model"], proximal=1.0, anchor=client.model.flat)}


@dataclasses.dataclass(frozen=True)
class OtherUplink(FedAvg):
    def uplink(self, client, down):
        return super().uplink(client, down)


class OtherData(FederatedDataset):
    def client(self, client):
        return super().client(client)


def other_data(seed=0):
    dataset = tiny_dataset(seed)
    dataset.__class__ = OtherData
    return dataset


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (batch_norm_model, "buffers or frozen parameters .1.num_batches_tracked"),
        (dropout_model, "the model uses"),
        (lstm_model, "the model uses"),
    ],
)
def test_other_models_are_refused_with_a_reason(model, reason):
    with pytest.raises(VectorizationError, match=reason):
        fedbench.Simulation(tiny_workload(model), vectorized=True)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"algorithm": OtherTraining()}, "OtherTraining does not say"),
        ({"algorithm": OtherUplink()}, "OtherUplink has its own uplink"),
        ({"reproducibility": "L0"}, "the level is L0"),
        ({"check_enclosure": True}, "watch one client at a time"),
        ({"around_client": print}, "watch one client at a time"),
        ({"clip_norm": 1.0}, "the local work sets clip_norm"),
        ({"optimizer": "adam"}, "the local work sets optimizer"),
        ({"compression": "top_k"}, "compression, validation"),
        ({"validation": 0.2}, "compression, validation"),
        ({"personal": ["2.*"]}, "personal entries and local buffers"),
        ({"frozen": ["0.*"]}, "the model has buffers or frozen parameters"),
    ],
)
def test_other_simulations_are_refused_with_a_reason(options, reason):
    with pytest.raises(VectorizationError, match=reason):
        fedbench.Simulation(tiny_workload(), vectorized=True, **options)


def test_data_of_another_kind_are_refused():
    workload = dataclasses.replace(tiny_workload(), dataset=other_data)
    with pytest.raises(VectorizationError, match="OtherData makes the samples of its clients"):
        fedbench.Simulation(workload, vectorized=True)


@given(
    sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=200),
    numel=st.sampled_from([16, 7856, 200_000, 30_000_000]),
    workers=st.integers(1, 8),
)
def test_chunks_hold_every_client_once(sizes, numel, workers):
    found = chunks(sizes, numel, workers)
    assert sorted(place for chunk in found for place in chunk) == list(range(len(sizes)))
    flat = [sizes[place] for chunk in found for place in chunk]
    assert flat == sorted(sizes, reverse=True)
    assert all(chunk for chunk in found)
    assert all(
        len(chunk) <= 50 and len(chunk) * numel * 4 <= max(4e6, numel * 4) for chunk in found
    )


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_equal_clients_make_equal_chunks_for_all_workers(workers):
    lengths = [len(chunk) for chunk in chunks([100] * 100, 7856, workers)]
    assert len(lengths) == workers * math.ceil(100 / 50 / workers)
    assert max(lengths) - min(lengths) <= 1


def test_the_global_generator_stays():
    before = torch.get_rng_state()
    run(vectorized=True)
    assert torch.equal(torch.get_rng_state(), before)
