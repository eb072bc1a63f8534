"""What clients may keep between rounds, and what they are told when it cannot be kept."""

import dataclasses
import re
from types import MappingProxyType

import numpy as np
import pytest
import torch

import fedbench
from fedbench.algorithms.fedavg import FedAvg
from fedbench.errors import ClientTaskError, EnclosureError
from tests.simulation.helpers import tiny_workload


@dataclasses.dataclass(frozen=True)
class ForgetsToSayStateful(FedAvg):
    def train(self, client, down):
        client.state["n"] = client.state.get("n", 0) + 1
        return super().train(client, down)


@dataclasses.dataclass(frozen=True)
class AssignsAState(FedAvg):
    def uplink(self, client, down):
        client.state = {"kept": client.delta(down["model"])}
        return super().uplink(client, down)


@dataclasses.dataclass(frozen=True)
class AssignsSomethingElse(FedAvg):
    def train(self, client, down):
        client.state = 3
        return super().train(client, down)


@dataclasses.dataclass(frozen=True)
class Keeps(FedAvg):
    stateful = True

    def kept(self):
        return {"h": object()}

    def train(self, client, down):
        client.state.update(self.kept())
        return super().train(client, down)


@dataclasses.dataclass(frozen=True)
class KeepsDeepInside(Keeps):
    def kept(self):
        return {"good": torch.ones(2), "h": [1, {"g": torch.Generator()}]}


@dataclasses.dataclass(frozen=True)
class KeepsSomethingElse(Keeps):
    def train(self, client, down):
        client.state = None
        return FedAvg.train(self, client, down)


def cause_of(algorithm, executor):
    simulation = fedbench.Simulation(tiny_workload(), algorithm=algorithm, executor=executor)
    with pytest.raises(ClientTaskError) as caught:
        simulation.run_round()
    assert simulation.rounds_done == 0
    assert simulation.client_states == {}
    return caught.value


@pytest.mark.parametrize(
    ("algorithm", "found"),
    [
        (ForgetsToSayStateful(), "got 'n'"),
        (AssignsAState(), "got 'kept'"),
        (AssignsSomethingElse(), "got int"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_a_state_that_would_be_forgotten_is_refused(executor, algorithm, found):
    error = cause_of(algorithm, executor)
    assert isinstance(error.__cause__, EnclosureError)
    said = str(error.__cause__)
    assert said.startswith(f"client {error.item!r} in round 1 must leave client.state empty")
    assert f"{type(algorithm).__name__}.stateful is False" in said
    assert found in said
    assert "Set stateful = True in the class" in said


@pytest.mark.parametrize(
    ("algorithm", "found"),
    [
        (Keeps(), r"state\['h'\] must be a mapping, a sequence, .* got object"),
        (KeepsDeepInside(), r"state\['h'\]\[1\]\['g'\] must be .* got Generator"),
        (KeepsSomethingElse(), "got NoneType. Use a dict"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_a_state_that_cannot_be_kept_is_refused_by_the_task(executor, algorithm, found):
    error = cause_of(algorithm, executor)
    assert isinstance(error.__cause__, TypeError)
    said = str(error.__cause__)
    assert said.startswith(f"client {error.item!r} in round 1 must leave a state")
    assert re.search(found, said)


@pytest.mark.parametrize(
    ("made", "found"),
    [
        ({"h": object()}, r"state\['h'\] must be a mapping, .* got object\. Convert it first"),
        ({"h": np.array([None])}, r"state\['h'\] must be an array of plain numbers"),
        (torch.ones(2), "got Tensor. Use a dict"),
        (None, "got NoneType. Use a dict"),
    ],
)
def test_a_state_that_cannot_be_kept_is_refused_where_it_is_made(made, found):
    @dataclasses.dataclass(frozen=True)
    class Makes(FedAvg):
        stateful = True

        def init_client(self, model):
            return made

    simulation = fedbench.Simulation(tiny_workload(), algorithm=Makes())
    must = r"Makes\.init_client must return a state that can be kept, for client 'client-\d'"
    with pytest.raises(TypeError, match=f"^{must}.*{found}"):
        simulation.run_round()


def test_any_mapping_of_plain_values_and_tensors_is_kept():
    @dataclasses.dataclass(frozen=True)
    class Makes(FedAvg):
        stateful = True

        def init_client(self, model):
            state = {
                "a": model,
                "b": [1, None, "x"],
                "c": np.ones(3),
                "d": {"e": torch.ones(2, 3).t()},
            }
            return MappingProxyType(state)

    simulation = fedbench.Simulation(tiny_workload(), algorithm=Makes())
    simulation.run(2)
    assert all(list(state) == ["a", "b", "c", "d"] for state in simulation.client_states.values())
    simulation.state_digest()
