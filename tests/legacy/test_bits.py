"""The shim has the bits of the sequential loop that the classes were written for."""

import copy

import pytest
import torch

from fedbench.legacy import run, state_of
from fedbench.reproducibility import digest
from fedbench.verification import first_difference
from tests.legacy.base import Client, Server, deep_model, linear_model
from tests.legacy.families import FAMILIES
from tests.legacy.loops import keyed_loop, seed_everything, sequential_loop

ROUNDS = 4


def made(server_class, model=linear_model, **options):
    seed_everything(7)
    return server_class(model, **{"ratio": 0.75, **options})


def assert_same(left, right):
    difference = first_difference(
        state_of(left), state_of(right), round_index=ROUNDS, phase="aggregate"
    )
    assert difference is None, str(difference)
    assert digest(state_of(left)) == digest(state_of(right))


@pytest.mark.parametrize("family", FAMILIES)
def test_at_l0_a_sequential_run_has_the_bits_of_the_plain_loop(family):
    plain, shimmed = made(*FAMILIES[family]), made(*FAMILIES[family])
    seed_everything(1)
    sequential_loop(plain, ROUNDS)
    after_plain = torch.rand(1)
    run(shimmed, ROUNDS, seed=1)
    assert_same(plain, shimmed)
    assert torch.equal(torch.rand(1), after_plain), "the global generator is elsewhere"


@pytest.fixture(scope="module")
def keyed_states():
    """What the sequential loop with keyed generators leaves, by family."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    states = {}
    for family, (server_class, model) in FAMILIES.items():
        server = made(server_class, model)
        keyed_loop(server, ROUNDS, seed=5)
        states[family] = state_of(server)
    torch.set_num_threads(threads)
    return states


@pytest.mark.parametrize("family", FAMILIES)
def test_at_l1_every_backend_has_the_bits_of_the_keyed_loop(family, executor, keyed_states):
    server = made(*FAMILIES[family])
    run(server, ROUNDS, executor=executor, seed=5, reproducibility="L1")
    difference = first_difference(
        keyed_states[family], state_of(server), round_index=ROUNDS, phase="aggregate"
    )
    assert difference is None, str(difference)


def test_the_states_depend_on_what_the_classes_do(keyed_states):
    """Or the comparisons above would compare nothing."""
    digests = {digest(state) for state in keyed_states.values()}
    assert len(digests) == len(FAMILIES)
    server = made(Server)
    paths = state_of(server)["clients"][0]
    run(server, 1)
    moved = state_of(server)["clients"][0]
    for path in ("model.weight", "model.weight.grad", "lr_scheduler.last_epoch"):
        assert path not in paths or digest(paths[path]) != digest(moved[path])
    assert "model.weight.grad" in moved
    assert any(path.startswith("optimizer.state[0, 0]['momentum_buffer']") for path in moved)


def test_a_run_can_be_taken_up_where_it_stopped(executor):
    whole, halves = made(Server, deep_model), made(Server, deep_model)
    run(whole, 4, executor=executor, reproducibility="L1")
    run(halves, 2, executor=executor, reproducibility="L1")
    run(halves, 2, executor=executor, reproducibility="L1", first_round=2)
    assert_same(whole, halves)


def test_at_l1_evaluation_changes_no_training(executor):
    often, never = made(Server, deep_model), made(Server, deep_model)
    run(often, 4, executor=executor, reproducibility="L1", evaluate_every=1)
    run(never, 4, executor=executor, reproducibility="L1", evaluate_every=0)
    for path, value in state_of(never)["clients"][1].items():
        if "metrics" not in path:
            assert digest(value) == digest(state_of(often)["clients"][1][path]), path
    assert digest(state_of(never)["server"]["model.0.weight"]) == digest(
        state_of(often)["server"]["model.0.weight"]
    )


class OwnLoaderGenerators(Client):
    """Loaders with a generator that all clients share, which a sequential loop doesn't mind."""

    shared = torch.Generator().manual_seed(4)

    def _post_init(self):
        self.train_loader.generator = self.train_loader.sampler.generator = self.shared


class OwnLoaderServer(Server):
    client_class = OwnLoaderGenerators


def test_shared_generators_of_loaders_are_replaced_by_keyed_ones_at_l1(executor):
    states = []
    for start in (4, 99):  # their history does not matter
        OwnLoaderGenerators.shared.manual_seed(start)
        server = made(OwnLoaderServer)
        run(server, 2, executor=executor, reproducibility="L1", evaluate_every=1)
        states.append(state_of(server)["server"]["model.weight"])
        assert server._clients[0].train_loader.generator is OwnLoaderGenerators.shared
        assert OwnLoaderGenerators.shared.initial_seed() == start
    assert digest(states[0]) == digest(states[1])


def test_loaders_in_a_dict_are_found(executor):
    class Gathered(OwnLoaderGenerators):
        def _post_init(self):
            super()._post_init()
            self.loaders = {"train": self.train_loader}
            del self.train_loader

        def __getattr__(self, name):
            if name == "train_loader":
                return self.__dict__["loaders"]["train"]
            raise AttributeError(name)

    OwnLoaderGenerators.shared.manual_seed(4)
    state = OwnLoaderGenerators.shared.get_state()
    server = made(type("S", (Server,), {"client_class": Gathered}))
    run(server, 1, executor=executor, reproducibility="L1")
    assert torch.equal(OwnLoaderGenerators.shared.get_state(), state)


def test_shared_generators_of_loaders_are_used_as_they_are_at_l0():
    plain, shimmed = made(OwnLoaderServer), made(OwnLoaderServer)
    OwnLoaderGenerators.shared.manual_seed(4)
    sequential_loop(plain, 3)
    state = state_of(plain)
    OwnLoaderGenerators.shared.manual_seed(4)
    seed_everything(7)
    shimmed = made(OwnLoaderServer)
    run(shimmed, 3)
    assert digest(state["server"]) == digest(state_of(shimmed)["server"])


class Draws(Client):
    """Keeps what it drew."""

    def update(self):
        self.drawn = torch.rand(1).item()

    def communicate(self, target):
        target._received_messages.append(copy.deepcopy(self.drawn))


class DrawsServer(Server):
    client_class = Draws

    def update(self):
        self.drawn = list(self._received_messages)

    def _update(self):
        self.update()
        self._received_messages = []


def test_at_l0_no_two_clients_draw_the_same_numbers(executor):
    """Worker processes all start with torch's default seed."""
    server = made(DrawsServer, num_clients=8, ratio=1.0)
    run(server, 1, executor=executor, seed=3)
    first = server.drawn
    run(server, 1, executor=executor, first_round=1, evaluate_every=0)
    assert len({*first, *server.drawn}) == 16


class ForgetsTheMode(Client):
    """Evaluates in training mode, which moves the buffers, or trains in the mode that is left."""

    evaluates_in_training_mode = False

    def train(self):
        mode = self.model.train
        self.model.train = lambda: None
        try:
            super().train()
        finally:
            self.model.train = mode
            del self.model.__dict__["train"]

    def evaluate(self, part):
        if not self.evaluates_in_training_mode:
            return super().evaluate(part)
        inputs, _ = next(iter(self.train_loader))
        self.model.train()
        with torch.no_grad():
            value = float(self.model(inputs).sum())
        self._metrics[part] = {"loss": value, "num_samples": 1}
        return self._metrics[part]


@pytest.mark.parametrize("in_training_mode", [False, True])
def test_at_l1_modes_and_buffers_are_as_before_the_evaluation(in_training_mode, executor):
    client_class = type(
        "Forgets", (ForgetsTheMode,), {"evaluates_in_training_mode": in_training_mode}
    )
    weights = []
    for every in (0, 1):
        server = made(type("S", (Server,), {"client_class": client_class}), deep_model)
        run(server, 3, executor=executor, reproducibility="L1", evaluate_every=every)
        weights.append(digest([client.model.state_dict() for client in server._clients]))
    assert weights[0] == weights[1]


class SendsTwice(Client):
    """Sends its difference in two messages, and one for the record."""

    def communicate(self, target):
        for number in range(3):
            target._received_messages.append((self.client_id, number))


class KeepsAll(Server):
    client_class = SendsTwice

    def _update(self):
        self.received = self._received_messages
        self._received_messages = []


def test_messages_arrive_in_the_order_of_the_cohort_and_of_each_client(executor):
    server = made(KeepsAll)
    history = run(server, 1, executor=executor)
    assert server.received == [(c, n) for c in history.records[0].cohort for n in range(3)]
