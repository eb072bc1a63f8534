"""What an algorithm draws on the server comes from streams of its own, too."""

import dataclasses
import random

import numpy as np
import pytest
import torch

import fedbench
from fedbench.algorithms.fedavg import FedAvg
from tests.simulation.helpers import NUM_CLIENTS, tiny_workload


def draw():
    legacy = float(np.random.rand())
    fresh = float(np.random.default_rng().random())
    return [float(torch.rand(())), legacy, fresh, random.random()]


@dataclasses.dataclass(frozen=True)
class DrawsEverywhere(FedAvg):
    stateful = True

    def init_server(self, setup):
        return super().init_server(setup).keeping(first=draw(), drawn=[])

    def init_client(self, model):
        return {"drawn": draw()}

    def plan(self, server, context):
        return dataclasses.replace(super().plan(server, context), header={"drawn": draw()})

    def broadcast(self, server, plan):
        return {**super().broadcast(server, plan), "drawn": (*plan.header["drawn"], *draw())}

    def train(self, client, down):
        client.state["down"] = down["drawn"]
        return super().train(client, down)

    def aggregate(self, server, updates):
        noise = torch.randn(server.model.parameters.shape)
        moved = super().aggregate(server, updates).moved(1e-3 * noise)
        return moved.keeping(drawn=[*server.extra["drawn"], draw()])


def run(rounds=3, global_seed=0, **arguments):
    torch.manual_seed(global_seed)
    np.random.seed(global_seed)
    random.seed(global_seed)
    arguments = {"algorithm": DrawsEverywhere(), "cohort_size": NUM_CLIENTS, **arguments}
    simulation = fedbench.Simulation(tiny_workload(), **arguments)
    simulation.run(rounds)
    return simulation


def test_draws_on_the_server_are_the_same_on_every_backend_and_in_every_run(executor):
    expected = run(global_seed=1).state_digest()
    assert run(global_seed=2, executor=executor).state_digest() == expected
    assert run(global_seed=1, seed=5).state_digest() != expected


def test_every_phase_round_and_client_has_a_stream_of_its_own():
    simulation = run(rounds=2)
    extra, states = simulation.server.extra, simulation.client_states.values()
    down = next(iter(states))["down"]
    drawn = [extra["first"], *extra["drawn"], down[:4], down[4:], *(s["drawn"] for s in states)]
    flat = [value for values in drawn for value in values]
    assert len(flat) == 4 * (1 + 2 + 2 + NUM_CLIENTS)
    assert len(set(flat)) == len(flat)


def test_the_state_of_a_new_client_does_not_depend_on_when_it_is_asked_for():
    few = run(cohort_size=2, evaluate_clients="all")
    for client_id, state in run().client_states.items():
        if client_id in few.client_states:
            assert few.client_states[client_id]["drawn"] == state["drawn"]


def test_the_global_generators_are_left_alone():
    for seed in (1, 2):
        run(global_seed=seed)
        after = torch.rand(3), random.random()
        torch.manual_seed(seed)
        random.seed(seed)
        assert torch.equal(after[0], torch.rand(3))
        assert after[1] == random.random()


def test_draws_on_the_server_are_the_same_after_a_resume(tmp_path):
    expected = run(rounds=4).state_digest()
    run(rounds=2, global_seed=1).save_checkpoint(tmp_path)
    resumed = run(rounds=1, global_seed=2)
    resumed.load_checkpoint(tmp_path)
    resumed.run(2)
    assert resumed.state_digest() == expected


@pytest.mark.parametrize("level", ["L0", "L1"])
def test_only_l1_has_streams_for_the_server(level):
    firsts = [run(1, seed, reproducibility=level).server.extra["first"] for seed in (1, 2)]
    assert (firsts[0][0] == firsts[1][0]) == (level == "L1")
