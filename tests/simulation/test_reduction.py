import dataclasses

import pytest
import torch

import fedbench
from fedbench.algorithms import ALGORITHMS, Reduction, make_algorithm
from fedbench.algorithms.fedavg import FedAvg
from fedbench.errors import ClientTaskError
from fedbench.simulation import reduction
from tests.simulation.helpers import NUM_CLIENTS, batch_norm_model, plain_model, tiny_workload

FOLDING = [
    name
    for name in ALGORITHMS
    if make_algorithm(name).reduction(fedbench.Simulation(tiny_workload(), algorithm=name).server)
    is not None
]


def run(algorithm, model=batch_norm_model, **options):
    workload = tiny_workload(model, cohort_size=NUM_CLIENTS)
    simulation = fedbench.Simulation(workload, algorithm=algorithm, **options)
    return simulation, simulation.run(3)


@pytest.mark.parametrize("algorithm", FOLDING)
def test_folding_in_workers_has_the_bits_of_the_list(algorithm):
    listed, first = run(algorithm, executor="sequential", reduce_in_workers=False)
    folded, second = run(algorithm, executor="threads", reduce_in_workers=True)
    assert folded.state_digest() == listed.state_digest()
    assert first.to_frame().equals(second.to_frame())
    assert all(record.reduced_in_workers for record in second)
    assert not any(record.reduced_in_workers for record in first)
    assert [r.uplink_bytes for r in first] == [r.uplink_bytes for r in second]
    folded.close()


def test_every_backend_folds_to_the_same_bits(executor):
    listed, _ = run("scaffold", reduce_in_workers=False)
    folded, history = run("scaffold", executor=executor, reduce_in_workers=True)
    assert folded.state_digest() == listed.state_digest()
    assert history.records[0].reduced_in_workers


def test_fedavg_and_its_family_fold():
    assert {"fedavg", "fedprox", "fedadam", "fedavgm", "scaffold", "feddyn"} <= set(FOLDING)
    assert "ifca" not in FOLDING


def test_folding_is_chosen_for_many_large_updates(monkeypatch):
    class Executor:
        folds_in_workers = True

    entries = {"delta": Reduction(torch.zeros(1000), "samples")}
    monkeypatch.setattr(
        reduction.psutil, "virtual_memory", lambda: type("M", (), {"available": 10**6})
    )
    assert not reduction.pays(Executor, entries, 10)
    assert reduction.pays(Executor, entries, 100)
    Executor.folds_in_workers = False
    assert not reduction.pays(Executor, entries, 100)


@dataclasses.dataclass(frozen=True)
class Forgetful(FedAvg):
    """Reads a mean that it did not announce."""

    def aggregate(self, server, updates):
        return server.moved(updates.mean("delta", "uniform"))


@dataclasses.dataclass(frozen=True)
class Curious(FedAvg):
    """Reads the updates one by one although it announced means."""

    def aggregate(self, server, updates):
        return server.moved(next(iter(updates))[1].tensors["delta"])


@pytest.mark.parametrize(
    ("algorithm", "words"), [(Forgetful(), "does not announce"), (Curious(), "one by one")]
)
def test_a_wrong_announcement_is_an_error_and_nothing_is_committed(algorithm, words):
    simulation = fedbench.Simulation(tiny_workload(), algorithm=algorithm, reduce_in_workers=True)
    before = simulation.state_digest()
    with pytest.raises(TypeError, match=words):
        simulation.run_round()
    assert simulation.state_digest() == before


@dataclasses.dataclass(frozen=True)
class SendsNaN(FedAvg):
    def uplink(self, client, down):
        update = super().uplink(client, down)
        if client.client_id == "client-4":
            update.tensors["delta"][0] = float("nan")
        return update


def test_nan_is_refused_while_folding_and_nothing_is_committed():
    simulation = fedbench.Simulation(
        tiny_workload(plain_model, cohort_size=NUM_CLIENTS),
        algorithm=SendsNaN(),
        reduce_in_workers=True,
    )
    before = simulation.state_digest()
    with pytest.raises(ClientTaskError, match="client-4"):
        simulation.run_round()
    assert simulation.state_digest() == before


def test_observed_rounds_are_not_folded():
    seen = []
    simulation = fedbench.Simulation(
        tiny_workload(),
        reduce_in_workers=True,
        observer=lambda phase, client, state: seen.append(phase),
    )
    record = simulation.run_round()
    assert not record.reduced_in_workers
    assert "uplink" in seen
