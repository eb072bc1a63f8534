"""Clients as replicas in other processes: what arrives, what comes back, what is refused."""

import copy
import functools
import os
import pathlib
import signal
import threading

import numpy as np
import pytest
import torch
from torch import nn

from fedbench.errors import ClientTaskError
from fedbench.executors import make_executor
from fedbench.executors.packing import pack, unpack
from fedbench.legacy import run, state_of
from fedbench.legacy.sharing import Parties
from fedbench.legacy.transport import ClientParcel, Host
from fedbench.reproducibility import digest
from tests.legacy.base import Client, Server, deep_model
from tests.legacy.loops import seed_everything


def server_of(client_class=Client, *arguments, **options):
    seed_everything(6)
    return type("MadeServer", (Server,), {"client_class": client_class})(*arguments, **options)


@pytest.fixture
def processes(shared_executors):
    if "processes" not in shared_executors:
        shared_executors["processes"] = make_executor("processes", 2)
        shared_executors["processes"].start()
    return shared_executors["processes"]


def roundtrip(server, position=0, change=lambda client: None):
    """Send a client there and back in this process, as a transport does."""
    clients = server._clients
    names = ["the server", *(f"client {number}" for number in range(len(clients)))]
    parties = Parties(server, clients, names)
    host = Host(parties, range(len(clients)))
    watched = parties.watched(position + 1, generators=True)
    shared = {path: value for path, (_, value) in watched.items()}
    there = unpack(*pack(host))
    arrived = unpack(*pack(ClientParcel(host, position, shared)))
    replica, _, returned = arrived.open(there, lambda name: f"stand-in of {name}")
    assert replica is not clients[position]
    change(replica)
    unpack(*pack(returned)).settle(host, position, shared)
    return replica


def test_a_replica_holds_everything_that_the_client_does():
    server = server_of(model=deep_model)
    run(server, 2)
    before = state_of(server)["clients"][0]
    replica = roundtrip(server)
    assert digest(before) == digest(state_of(server)["clients"][0])
    assert replica.model[0].weight.grad is not None
    assert replica.optimizer.param_groups[0]["params"][0] is replica.model[0].weight
    assert replica.lr_scheduler.optimizer is replica.optimizer
    assert replica.dataset is not server.dataset


def test_what_a_replica_does_comes_back():
    server = server_of(model=deep_model)
    client = server._clients[0]
    client.gone = 1

    def change(replica):
        replica.model[0].weight.data.fill_(2.0)
        replica.model[0].bias.grad = torch.ones(5)
        replica.new = {"mask": np.arange(3)}
        del replica.gone
        replica.model.eval()

    roundtrip(server, change=change)
    assert (client.model[0].weight == 2.0).all()
    assert (client.model[0].bias.grad == 1.0).all()
    assert client.new["mask"].tolist() == [0, 1, 2]
    assert not hasattr(client, "gone")
    assert not client.model.training
    assert client.dataset is server.dataset
    assert client.config is server._client_config
    assert client.optimizer.param_groups[0]["params"][0] is client.model[0].weight


class ChangesItsOwnConfig(Client):
    def _post_init(self):
        self.config = copy.copy(self.config)

    def update(self):
        super().update()
        self.config.lr *= 0.5


def test_a_config_of_the_clients_own_is_state(executor):
    server = server_of(ChangesItsOwnConfig)
    run(server, 2, executor=executor)
    assert [client.config.lr for client in server._clients] == [0.05] * 4
    assert server._client_config.lr == 0.2


def test_references_to_the_server_and_to_others_come_back_as_they_were():
    server = server_of()
    client = server._clients[0]
    client.boss, client.friends = server, {"a": [server._clients[2]]}
    replica = roundtrip(server)
    assert replica.boss == "stand-in of ('server',)"
    assert client.boss is server
    assert client.friends["a"][0] is server._clients[2]


class WrappedStep(Client):
    """Counts in a closure around the optimizer's step, which plain pickling would lose."""

    def _post_init(self):
        step = self.optimizer.step  # which torch's scheduler has wrapped already

        @functools.wraps(step)
        def counted(scale=1.0):
            self.steps = getattr(self, "steps", 0) + 1
            for group in self.optimizer.param_groups:
                group["lr"] *= scale
            return step()

        self.optimizer.step = counted

    def update(self):
        super().update()
        self.optimizer.step(scale=0.5)


def test_a_closure_around_the_optimizers_step_arrives(processes):
    here, there = server_of(WrappedStep), server_of(WrappedStep)
    run(here, 2, reproducibility="L1")
    run(there, 2, reproducibility="L1", executor=processes)
    assert digest(state_of(here)) == digest(state_of(there))
    assert there._clients[0].steps > 0


class CapturesFeatures(Client):
    """A forward hook that writes to the client."""

    def _post_init(self):
        self.features = []
        self.hook = self.model.register_forward_pre_hook(self.capture)

    def capture(self, module, inputs):
        self.features.append(float(inputs[0].sum()))


def test_a_hook_on_the_model_writes_to_its_own_client(executor):
    reference, other = server_of(CapturesFeatures), server_of(CapturesFeatures)
    run(reference, 2, reproducibility="L1")
    run(other, 2, reproducibility="L1", executor=executor)
    assert other._clients[1].features == reference._clients[1].features != []


class OwnRandomness(Client):
    """Draws from generators of its own, which go on from round to round."""

    def _post_init(self):
        self.torch_generator = torch.Generator().manual_seed(self.client_id)
        self.numpy_generator = np.random.default_rng(self.client_id)

    def adjust_gradients(self):
        noise = torch.randn(2, generator=self.torch_generator)
        self.model.bias.grad.add_(noise * self.numpy_generator.random())


def test_generators_of_the_clients_own_go_on_from_round_to_round(executor):
    reference, other = server_of(OwnRandomness), server_of(OwnRandomness)
    run(reference, 3, reproducibility="L1")
    run(other, 3, reproducibility="L1", executor=executor)
    assert digest(state_of(reference)) == digest(state_of(other))


class Adaptive(Client):
    """Adam keeps counters and moments; a frozen and a tied parameter stay what they are."""

    def _post_init(self):
        body = nn.Linear(3, 3)
        head = nn.Linear(3, 2)
        self.model = nn.Sequential(body, nn.ReLU(), body, head)
        head.bias.requires_grad_(False)
        self.optimizer = torch.optim.Adam(p for p in self.model.parameters() if p.requires_grad)
        self.lr_scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer)
        self.lr_scheduler.step = functools.partial(self.lr_scheduler.step, 1.0)

    def update(self):
        self._cached_parameters = self.get_detached_model_parameters()
        self.train()

    def communicate(self, target):
        target._num_communications += 1


def test_adam_tied_and_frozen_parameters_travel(executor):
    reference, other = server_of(Adaptive), server_of(Adaptive)
    run(reference, 2, reproducibility="L1", evaluate_every=0)
    run(other, 2, reproducibility="L1", evaluate_every=0, executor=executor)
    assert digest(state_of(reference)) == digest(state_of(other))
    model = other._clients[0].model
    assert model[0] is model[2]
    assert not model[3].bias.requires_grad
    assert state_of(other)["clients"][0]["optimizer.state[0, 0]['step']"].item() > 0


# -- what cannot travel ----------------------------------------------------------------------------


class HoldsALock(Client):
    def _post_init(self):
        self.lock = threading.Lock()

    def update(self):
        with self.lock:
            super().update()


def test_an_attribute_that_cannot_be_pickled_is_named_on_processes(processes):
    with pytest.raises(ClientTaskError) as caught:
        run(server_of(HoldsALock), 1, executor=processes)
    message = str(caught.value)
    assert "the attribute 'lock' of client" in message
    assert "must be picklable to run in another process, got lock" in message
    assert "'threads'" in message
    assert processes.map(abs, [-1]) == [1], "the executor stays usable"


class OpensALock(Client):
    """Makes it only in its first update."""

    def update(self):
        super().update()
        self.lock = threading.Lock()


def test_an_attribute_that_cannot_come_back_is_named_on_processes(processes):
    with pytest.raises(ClientTaskError, match=r"the attribute 'lock' of client \d must be pickl"):
        run(server_of(OpensALock), 1, executor=processes)


@pytest.mark.parametrize("backend", ["sequential", "threads"])
def test_it_runs_where_memory_is_shared(backend):
    server, other = server_of(HoldsALock), server_of()
    run(server, 2, executor=backend, reproducibility="L1")
    run(other, 2, reproducibility="L1")
    assert digest(state_of(server)["server"]) == digest(state_of(other)["server"])


class LeavesTheLockOut(HoldsALock):
    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name != "lock"}

    def __setstate__(self, state):
        vars(self).update(state, lock=threading.Lock())


def test_a_class_that_leaves_it_out_runs_on_processes(processes):
    server, other = server_of(LeavesTheLockOut), server_of()
    locks = [client.lock for client in server._clients]
    run(server, 2, executor=processes, reproducibility="L1")
    run(other, 2, reproducibility="L1")
    assert digest(state_of(server)["server"]) == digest(state_of(other)["server"])
    assert [client.lock for client in server._clients] == locks


class FlatViews(Client):
    """The parameters are views of one flat tensor, which a replica's would not be."""

    def _post_init(self):
        self.flat = torch.zeros(8)
        for own, view in zip(self.model.parameters(), self.flat.split([6, 2]), strict=True):
            view.copy_(own.data.flatten())
            own.data = view.view_as(own)


def test_overlapping_memory_is_refused_on_processes_and_fine_elsewhere(processes):
    with pytest.raises(ClientTaskError, match=r"of client \d must have its own memory .* part of"):
        run(server_of(FlatViews), 1, executor=processes)
    reference, threads = server_of(FlatViews), server_of(FlatViews)
    run(reference, 2, reproducibility="L1")
    run(threads, 2, reproducibility="L1", executor="threads", workers=2)
    assert digest(state_of(reference)) == digest(state_of(threads))


def test_slots_are_refused_on_processes(processes):
    class Slotted:
        __slots__ = ("__weakref__", "_received_messages", "x")

        def __init__(self):
            self.x, self._received_messages = 0, {}

        def update(self):
            self.x += 1

        def communicate(self, target):
            target._received_messages.append(self.x)

    server = server_of()
    server._clients = [Slotted() for _ in range(2)]
    with pytest.raises(TypeError, match="Slotted without a __dict__"):
        run(server, 1, executor=processes)


def test_a_failed_round_on_processes_leaves_the_clients_alone(processes):
    class FailsLater(Client):
        def update(self):
            super().update()
            if self.client_id == 3:
                raise ArithmeticError

    server = server_of(FailsLater, num_clients=6)
    before = [digest(c.model.weight.detach()) for c in server._clients]
    with pytest.raises(Exception, match="ArithmeticError"):
        run(server, 1, executor=processes)
    assert [digest(c.model.weight.detach()) for c in server._clients] == before


def test_the_data_travels_once(processes, monkeypatch):
    """Not with every client in every round."""
    server = server_of()
    sizes = []
    reduce = ClientParcel.__reduce__

    def measured(parcel):
        reduced = reduce(parcel)
        payload, arrays = reduced[1][1]
        sizes.append(len(payload) + sum(array.nbytes for array in arrays))
        return reduced

    monkeypatch.setattr(ClientParcel, "__reduce__", measured)
    server.dataset.ballast = torch.zeros(100_000)
    for client in server._clients:
        client.train_loader.dataset.ballast = torch.zeros(100_000)
    run(server, 2, executor=processes)
    assert len(sizes) == 8
    assert max(sizes) < 40_000


def test_copies_of_a_client_are_not_confused():
    server = server_of()
    server._clients[1].model = copy.deepcopy(server._clients[0].model)
    run(server, 1)
    assert not torch.equal(server._clients[0].model.weight, server._clients[1].model.weight)


class SplitsItsData(Client):
    """Two parts of one tensor, which do not overlap."""

    def _post_init(self):
        everything = torch.arange(6.0)
        self.left, self.right = everything[:4], everything[4:]

    def update(self):
        super().update()
        self.left += self.right.sum()


def test_parts_of_one_tensor_that_do_not_overlap_travel(processes):
    reference, other = server_of(SplitsItsData), server_of(SplitsItsData)
    run(reference, 2, reproducibility="L1")
    run(other, 2, reproducibility="L1", executor=processes)
    assert digest(state_of(reference)) == digest(state_of(other))


class DiesOnce(Client):
    """Ends its worker in the middle of the first update."""

    def update(self):
        super().update()
        if self.client_id == 1 and self.flag.parent.exists() and not self.flag.exists():
            self.flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_client_whose_worker_died_is_run_again_with_the_same_bits(tmp_path, no_leaks):
    servers = [server_of(DiesOnce), server_of(DiesOnce)]
    for server in servers:
        for client in server._clients:
            client.flag = pathlib.Path(tmp_path, "died")
    with make_executor("processes", 2, retries=1) as executor:
        run(servers[0], 2, executor=executor, reproducibility="L1")
    assert (tmp_path / "died").exists()
    run(servers[1], 2, reproducibility="L1")  # it does not die again
    assert digest(state_of(servers[0])) == digest(state_of(servers[1]))
