import dataclasses
import random

import numpy as np
import pytest
import torch

import fedbench
from fedbench.algorithms import ALGORITHMS
from fedbench.algorithms.fedavg import FedAvg
from fedbench.errors import BroadcastModifiedError, ClientTaskError, EnclosureError
from tests.simulation.helpers import batch_norm_model, dropout_model, tiny_workload


@dataclasses.dataclass(frozen=True)
class WritesThroughNumpy(FedAvg):
    def train(self, client, down):
        down["model"].parameters.numpy()[0] = 7.0
        return super().train(client, down)


@dataclasses.dataclass(frozen=True)
class WritesInPlace(FedAvg):
    def train(self, client, down):
        down["model"].parameters.add_(1.0)
        return super().train(client, down)


@dataclasses.dataclass(frozen=True)
class SendsTheModelItself(FedAvg):
    def uplink(self, client, down):
        update = super().uplink(client, down)
        return dataclasses.replace(update, tensors={"delta": client.model.flat})


@dataclasses.dataclass(frozen=True)
class KeepsTheBroadcast(FedAvg):
    stateful = True

    def train(self, client, down):
        client.state["start"] = down["model"].parameters[4:]
        return super().train(client, down)


@dataclasses.dataclass(frozen=True)
class KeepsAGraph(FedAvg):
    stateful = True

    def train(self, client, down):
        loss = super().train(client, down)
        client.state["graph"] = (client.model.trainable[0].clone() * 2).sum()
        return loss


@dataclasses.dataclass(frozen=True)
class DrawsFromAHeldGenerator(FedAvg):
    def train(self, client, down):
        torch.default_generator.manual_seed(torch.default_generator.initial_seed() + 1)
        return super().train(client, down)


FAULTS = [
    (
        WritesThroughNumpy(),
        r"'client-.' in round 1 changed the entry broadcast\['model'\]",
    ),
    (
        SendsTheModelItself(),
        r"the entry update\['delta'\] of its update in the memory",
    ),
    (KeepsTheBroadcast(), r"the entry state\['start'\] of its state in the memory of the entry"),
    (KeepsAGraph(), r"the entry state\['graph'\] of its state with an autograd graph"),
    (DrawsFromAHeldGenerator(), "must draw from their own generators"),
]


@pytest.mark.parametrize(("algorithm", "message"), FAULTS, ids=lambda v: type(v).__name__)
def test_every_fault_is_found_and_named(executor, algorithm, message):
    simulation = fedbench.Simulation(
        tiny_workload(batch_norm_model),
        algorithm=algorithm,
        executor=executor,
        check_enclosure=True,
    )
    with pytest.raises(ClientTaskError) as caught:
        simulation.run_round()
    assert isinstance(caught.value.__cause__, EnclosureError)
    with pytest.raises(EnclosureError, match=message):
        raise caught.value.__cause__


def test_in_place_writes_are_found_without_the_guard(executor):
    simulation = fedbench.Simulation(tiny_workload(), algorithm=WritesInPlace(), executor=executor)
    before = simulation.state_digest()
    with pytest.raises(ClientTaskError) as caught:
        simulation.run_round()
    assert isinstance(caught.value.__cause__, BroadcastModifiedError)
    assert simulation.state_digest() == before


@pytest.mark.parametrize("name", ALGORITHMS.names())
def test_the_built_in_algorithms_keep_their_enclosure(name):
    simulation = fedbench.Simulation(
        tiny_workload(batch_norm_model), algorithm=name, check_enclosure=True
    )
    simulation.run(3)


def test_the_guard_does_not_change_the_bits():
    digests = []
    for check in (False, True):
        simulation = fedbench.Simulation(
            tiny_workload(dropout_model), algorithm="scaffold", check_enclosure=check
        )
        simulation.run(3)
        digests.append(simulation.state_digest())
    assert digests[0] == digests[1]


@pytest.mark.parametrize("action", ["read", "write"])
def test_server_access_from_a_client_task_is_refused(action):
    holder = {}

    @dataclasses.dataclass(frozen=True)
    class Peeks(FedAvg):
        def train(self, client, down):
            if action == "read":
                _ = holder["simulation"].server
            else:
                holder["simulation"].server = None
            return super().train(client, down)

    for backend in ("sequential", "threads"):
        with fedbench.Simulation(
            tiny_workload(), algorithm=Peeks(), executor=backend
        ) as simulation:
            holder["simulation"] = simulation
            with pytest.raises(ClientTaskError) as caught:
                simulation.run_round()
            assert isinstance(caught.value.__cause__, EnclosureError)


def test_states_of_clients_share_no_memory():
    simulation = fedbench.Simulation(tiny_workload(batch_norm_model), algorithm="feddr")
    simulation.run(2)
    pointers = [
        tensor.untyped_storage().data_ptr()
        for state in simulation.client_states.values()
        for tensor in state.values()
    ]
    pointers.append(simulation.server.model.parameters.untyped_storage().data_ptr())
    assert len(set(pointers)) == len(pointers)


def test_numpy_and_python_draws_are_the_clients_own():
    @dataclasses.dataclass(frozen=True)
    class Draws(FedAvg):
        def train(self, client, down):
            noise = np.random.rand() + random.random() + float(torch.rand(()))
            return {**super().train(client, down), "noise": noise}

    values = []
    for backend in ("sequential", "threads"):
        with fedbench.Simulation(
            tiny_workload(), algorithm=Draws(), executor=backend
        ) as simulation:
            history = simulation.run(3)
            values.append([record.metrics["train"]["noise"] for record in history])
    assert values[0] == values[1]
    assert len(set(values[0])) == 3
