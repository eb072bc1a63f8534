"""A million registered clients of whom a few take part: the work and the memory are theirs."""

import collections
import dataclasses
import functools
import tracemalloc

import pytest
import torch

import fedbench
from fedbench.algorithms.ditto import Ditto
from fedbench.data import ClientData, FederatedDataset
from fedbench.simulation import Weighted
from tests.simulation.helpers import plain_model, tiny_workload

COHORT = 20
MILLION = 1_000_000


class Generated(FederatedDataset):
    """Clients whose samples are made when they are asked for; counts what is asked."""

    def __init__(self, num_clients):
        self.asked = collections.Counter()
        self.client_ids = range(num_clients)
        self.inputs, self.targets = torch.zeros(2, 13), torch.tensor([0, 1])
        self.test_inputs, self.test_targets = torch.ones(4, 13), torch.tensor([0, 1, 2, 0])
        self.num_classes = 3

    def client_size(self, client):
        self.asked["size"] += 1
        return 8

    def client_sizes(self):
        return torch.full((self.num_clients,), 8)

    def client(self, client):
        self.asked["samples"] += 1
        generator = torch.Generator().manual_seed(client)
        inputs = torch.randn(8, 13, generator=generator)
        return ClientData(inputs, torch.randint(0, 3, (8,), generator=generator))


made = collections.Counter()


@dataclasses.dataclass(frozen=True)
class CountedDitto(Ditto):
    """Counts the client states that are made."""

    def init_client(self, model):
        made["states"] += 1
        return super().init_client(model)


OPTIONS = {
    "plain": {},
    "weighted": {"participation": "weighted"},
    "everything": {
        "client_dropout": 0.1,
        "stragglers": {"name": "lognormal", "deadline": 1.0},
        "compression": "top_k",
        "personal": ["2.*"],
        "validation": 0.25,
        "evaluate_clients": "cohort",
    },
}


def simulation_of(num_clients, **options):
    workload = tiny_workload(
        plain_model,
        dataset=functools.partial(_generated, num_clients=num_clients),
        cohort_size=COHORT,
    )
    return fedbench.Simulation(workload, algorithm=CountedDitto(), seed=1, **options)


def _generated(seed=0, *, num_clients):
    return Generated(num_clients)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_round_asks_for_its_cohort_only(options):
    simulation = simulation_of(MILLION, **options)
    made.clear()
    simulation.dataset.asked.clear()
    with simulation:
        record = simulation.run_round(evaluate=True)
    present = COHORT - len(record.dropped) - len(record.late)
    evaluating = COHORT if "evaluate_clients" in options else 0
    assert simulation.dataset.asked["samples"] == present + evaluating
    assert simulation.dataset.asked["size"] <= 2 * COHORT
    # An absent client that evaluates has a state for that moment.
    assert made["states"] == present + (COHORT - present if evaluating else 0)
    assert len(simulation.client_states) == present


def peak_of_rounds(num_clients, **options):
    simulation = simulation_of(num_clients, **options)
    with simulation:
        simulation.run_round(evaluate=True)  # what is made once
        tracemalloc.start()
        try:
            for _ in range(2):
                simulation.run_round(evaluate=True)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_memory_of_rounds_does_not_grow_with_the_population(options):
    few, million = (peak_of_rounds(count, **options) for count in (10 * COHORT, MILLION))
    # A list over the population would be 8 MB.
    assert million < few + 200_000


def test_sampling_draws_for_the_cohort_only():
    class Counting:
        def __init__(self):
            self.draws = 0

        def random(self):
            self.draws += 1
            return (self.draws * 0.618034) % 1.0

    rng = Counting()
    cohort = Weighted().sampler(Generated(MILLION), COHORT)(0, rng)
    assert len(set(cohort)) == COHORT
    assert rng.draws < 2 * COHORT


def test_a_checkpoint_holds_those_who_took_part(tmp_path):
    with simulation_of(MILLION) as simulation:
        simulation.run(2, checkpoint_dir=tmp_path, evaluate_every=0)
    again = simulation_of(MILLION)
    assert again.load_checkpoint(tmp_path) == 2
    assert again.state_digest() == simulation.state_digest()
    assert len(again.client_states) <= 2 * COHORT
    size = sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
    assert size < 1_000_000
