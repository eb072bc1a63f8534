"""What a client may not do is found, and the error names client, attribute and remedy."""

import contextlib
import copy
from typing import ClassVar

import pytest
import torch

from fedbench.errors import ClientTaskError, EnclosureError
from fedbench.executors import make_executor
from fedbench.legacy import rounds, run, state_of
from fedbench.reproducibility import digest
from tests.legacy.base import Client, Message, Server
from tests.legacy.families import FedDCServer
from tests.legacy.loops import seed_everything, sequential_loop


def server_of(client_class, server_class=Server, **options):
    seed_everything(2)
    made = type("MadeServer", (server_class,), {"client_class": client_class})
    return made(**options)


def refusal(server, rounds=2, **options):
    """Return the enclosure error of the client task that fails."""
    with pytest.raises(ClientTaskError) as caught:
        run(server, rounds, **options)
    assert isinstance(caught.value.__cause__, EnclosureError)
    return str(caught.value.__cause__)


# -- the server and other clients ------------------------------------------------------------------


class WritesToTheServer(Client):
    """Keeps a reference to the server and counts there."""

    def communicate(self, target):
        super().communicate(target)
        target.best_loss = 0.0


class ReadsTheServer(Client):
    def communicate(self, target):
        super().communicate(target)
        self.seen = target.model.weight.sum()


class ConfiguresTheServer(Client):
    def communicate(self, target):
        target.config.clients_sample_ratio = 0.5
        super().communicate(target)


@pytest.mark.parametrize(
    ("client_class", "words"),
    [
        (WritesToTheServer, "wrote the attribute 'best_loss' of the server"),
        (ReadsTheServer, "read the attribute 'model' of the server"),
        (ConfiguresTheServer, "wrote the entry 'clients_sample_ratio' of the server's config"),
    ],
)
def test_touching_the_server_in_communicate_is_named(client_class, words, executor):
    message = refusal(server_of(client_class), executor=executor)
    assert " in round 1 " in message
    assert words in message


class ReadsADictOfTheServer(Client):
    def communicate(self, target):
        super().communicate(target)
        self.rounds = target.config["num_iters"] + len(target.config)


def test_a_config_that_is_a_dict_can_be_read():
    server = server_of(ReadsADictOfTheServer)
    server.config, server._sample_clients = {"num_iters": 2}, lambda: range(4)
    run(server, 1)
    assert [client.rounds for client in server._clients] == [3] * 4


class KnowsItsServer(Client):
    """Holds the server, as its attribute and in a list."""

    verb = staticmethod(lambda client: setattr(client.boss, "n_iter", 7))

    def update(self):
        super().update()
        type(self).verb(self)


class KnownServer(Server):
    def _post_init(self):
        for client in self._clients:
            client.boss = self
            client.peers = [other for other in self._clients if other is not client]


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        (lambda c: setattr(c.boss, "n_iter", 7), "wrote the attribute 'n_iter' of the server"),
        (lambda c: c.boss.model.weight, "read the attribute 'model' of the server"),
        (lambda c: c.boss._clients[0], "read the attribute '_clients' of the server"),
        (lambda c: c.peers[0].model, "read the attribute 'model' of client "),
        (lambda c: setattr(c.peers[0], "x", 1), "wrote the attribute 'x' of client "),
    ],
)
def test_touching_the_server_or_a_sibling_in_update_is_named(verb, words, executor):
    client_class = type("Touches", (KnowsItsServer,), {"verb": staticmethod(verb)})
    assert words in refusal(server_of(client_class, KnownServer), executor=executor)


def test_a_client_may_hold_the_server_and_read_the_round(executor):
    read = staticmethod(lambda c: setattr(c, "clock", c.boss.n_iter + c.boss.config.num_iters))
    server = server_of(type("Reads", (KnowsItsServer,), {"verb": read}), KnownServer)
    run(server, 2, executor=executor)
    for client in server._clients:
        assert client.clock == 1 + server.config.num_iters
        assert client.boss is server
        assert client.peers == [other for other in server._clients if other is not client]


# -- memory ----------------------------------------------------------------------------------------


class SharesTheModel(Server):
    """Gives all clients its own model instead of copies."""

    def _post_init(self):
        for client in self._clients:
            client.model = self.model
            client.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
            client.lr_scheduler = torch.optim.lr_scheduler.StepLR(client.optimizer, 10)


def test_training_the_servers_own_model_is_named(executor):
    # Torch itself may crash where two threads train one model at once: one thread.
    is_threads = executor.backend == "threads"
    with make_executor("threads", 1) if is_threads else contextlib.nullcontext(executor) as chosen:
        message = refusal(server_of(Client, SharesTheModel), executor=chosen)
    assert "wrote to its model.weight" in message
    assert "the server's model.weight" in message
    assert "copy.deepcopy" in message


class SharesAmongClients(Server):
    """Two clients count in one tensor and one list."""

    def _post_init(self):
        shared = self.shared()
        for client in self._clients:
            client.counts = shared


class CountsInShared(Client):
    def update(self):
        super().update()
        self.count()

    def count(self):
        if isinstance(self.counts, torch.Tensor):
            self.counts.data.add_(1)  # not even counted as a new version
        elif isinstance(self.counts, dict):
            self.counts[self.client_id] = 1
        else:
            self.counts.append(self.client_id)


@pytest.mark.parametrize("shared", [lambda: torch.zeros(2), list, dict])
def test_writing_to_what_clients_share_is_named(shared, executor):
    kind = type("Sharing", (SharesAmongClients,), {"shared": staticmethod(shared)})
    message = refusal(server_of(CountsInShared, kind), executor=executor)
    assert "wrote to its counts, which is the memory of client" in message


def test_reading_what_clients_share_is_allowed(executor):
    reader = type(
        "Reader",
        (CountsInShared,),
        {"count": lambda self: setattr(self, "total", float(self.counts.sum()))},
    )
    kind = type("Sharing", (SharesAmongClients,), {"shared": staticmethod(lambda: torch.ones(3))})
    server = server_of(reader, kind)
    run(server, 2, executor=executor)
    assert [client.total for client in server._clients] == [3.0] * 4
    assert len({id(client.counts) for client in server._clients}) == 1, "still shared"


class CountsInTheClass(Client):
    total = 0
    seen: ClassVar[list] = []

    def update(self):
        super().update()
        type(self).count()

    @classmethod
    def count(cls):
        cls.total += 1


def test_writing_to_the_class_is_named(executor):
    message = refusal(server_of(CountsInTheClass), executor=executor)
    assert "wrote to the class CountsInTheClass, which all clients share" in message

    appends = type(
        "Appends", (CountsInTheClass,), {"count": classmethod(lambda cls: cls.seen.append(1))}
    )
    message = refusal(server_of(appends), executor=executor)
    assert "wrote to the class attribute CountsInTheClass.seen" in message


class ChangesTheConfig(Client):
    def update(self):
        super().update()
        self.config.lr *= 0.5


def test_changing_the_shared_config_is_named(executor):
    message = refusal(server_of(ChangesTheConfig), executor=executor)
    assert "wrote to its config, which is the memory of the server's _client_config" in message


# -- messages --------------------------------------------------------------------------------------


class SendsLiveParameters(Server):
    def communicate(self, target):
        target._received_messages = {"parameters": [p.data for p in self.model.parameters()]}


class TakesThemAsTheyAre(Client):
    """Trains in the memory that it received: in a plain loop, the server's."""

    def update(self):
        self._cached_parameters = [p.clone() for p in self._received_messages["parameters"]]
        for own, value in zip(
            self.model.parameters(), self._received_messages["parameters"], strict=True
        ):
            own.data = value
        self.train()


def test_an_aliasing_bug_is_reported(executor):
    server = server_of(TakesThemAsTheyAre, SendsLiveParameters)
    before = server.model.weight.detach().clone()
    message = refusal(server, executor=executor)
    assert "the entry ['parameters'][0] of the message from the server" in message
    assert "the memory of the server's model.weight" in message
    assert "clone()" in message
    assert torch.equal(server.model.weight, before), "and the server is unharmed"


def test_the_plain_loop_does_have_that_bug():
    server = server_of(TakesThemAsTheyAre, SendsLiveParameters)
    before = server.model.weight.detach().clone()
    client = server._clients[0]
    server._communicate(client)
    client._update()
    assert not torch.equal(server.model.weight, before)


class KeepsTheReceived(Client):
    def update(self):
        self._cached_parameters = self._received_messages["parameters"]
        self.set_parameters(self._cached_parameters)
        self.train()


def test_keeping_the_servers_live_parameters_is_named(executor):
    message = refusal(server_of(KeepsTheReceived, SendsLiveParameters), executor=executor)
    assert "keeps the entry ['parameters'][0] of the message from the server as its" in message


class MutatesTheReceived(Client):
    """Works in the received tensors, which are its own if the server sends copies."""

    def update(self):
        for value in self._received_messages["parameters"]:
            value.mul_(0.5)
        self._received_messages["extra"] = 1
        super().update()


def test_mutating_an_own_message_is_fine():
    plain, shimmed = server_of(MutatesTheReceived), server_of(MutatesTheReceived)
    seed_everything(3)
    sequential_loop(plain, 3)
    run(shimmed, 3, seed=3)
    assert digest(state_of(plain)) == digest(state_of(shimmed))


def test_mutating_an_own_message_is_fine_everywhere(executor):
    reference, other = server_of(MutatesTheReceived), server_of(MutatesTheReceived)
    run(reference, 2, reproducibility="L1")
    run(other, 2, reproducibility="L1", executor=executor)
    assert digest(state_of(reference)) == digest(state_of(other))


class SendsOneListToAll(Server):
    def communicate(self, target):
        if getattr(self, "_sent_in", None) != self.n_iter:
            self._sent_in = self.n_iter
            self._out = self.get_detached_model_parameters()
        target._received_messages = {"parameters": self._out}


def test_mutating_a_message_that_all_receive_is_named(executor):
    message = refusal(server_of(MutatesTheReceived, SendsOneListToAll), executor=executor)
    assert "wrote to the entry ['parameters'][0] of the message from the server" in message


def test_one_list_to_all_is_fine_if_nobody_writes():
    plain, shimmed = (server_of(Client, SendsOneListToAll) for _ in range(2))
    seed_everything(3)
    sequential_loop(plain, 2)
    run(shimmed, 2, seed=3)
    assert digest(state_of(plain)) == digest(state_of(shimmed))


class SendsItsLiveParameters(Client):
    def communicate(self, target):
        live = [p.data for p in self.model.parameters()]
        target._received_messages.append(
            Message(self.client_id, self.num_samples, self._metrics, parameters=live)
        )


class AveragesInPlace(Server):
    """Adds everything up in the first message."""

    def update(self):
        first, *others = self._received_messages
        for message in others:
            for own, value in zip(first["parameters"], message["parameters"], strict=True):
                own.add_(value)
        for value in first["parameters"]:
            value.div_(len(self._received_messages))
        self.set_parameters(first["parameters"])


def test_a_server_that_writes_to_a_clients_memory_is_named(executor):
    with pytest.raises(EnclosureError) as caught:
        run(server_of(SendsItsLiveParameters, AveragesInPlace), 1, executor=executor)
    message = str(caught.value)
    assert "the server in round 1 wrote to the entry [0]['parameters'][0]" in message
    assert "'s model.weight" in message


class KeepsTheSent(Server):
    """Keeps the clients' own tensors, and does not write."""

    def update(self):
        self.kept = {m["client_id"]: m["parameters"] for m in self._received_messages}


def test_a_client_that_later_writes_to_what_the_server_keeps_is_named(executor):
    """In a plain loop the server's record would change under the next round's training."""

    class TrainsInPlace(SendsItsLiveParameters):
        def update(self):
            self.train()

    message = refusal(server_of(TrainsInPlace, KeepsTheSent), 2, executor=executor)
    assert " in round 2 wrote to its model.weight" in message
    assert "the server's kept[" in message


# -- the thorough check ----------------------------------------------------------------------------

BACK_DOOR = {}


class UsesABackDoor(Client):
    """Reaches another client by way of a global."""

    def update(self):
        super().update()
        other = BACK_DOOR["clients"][(self.client_id + 1) % 4]
        other._metrics["note"] = {"num_samples": 1}


def test_the_thorough_check_finds_writes_by_a_back_door():
    server = server_of(UsesABackDoor)
    BACK_DOOR["clients"] = server._clients
    with pytest.raises(EnclosureError, match=r"client \d in round 1 changed client \d's _metrics"):
        run(server, 1, check_enclosure=True)


def test_the_thorough_check_lets_sound_classes_pass():
    checked, plain = server_of(Client), server_of(Client)
    run(checked, 2, check_enclosure=True, reproducibility="L1")
    run(plain, 2, reproducibility="L1")
    assert digest(state_of(checked)) == digest(state_of(plain))


def test_the_thorough_check_needs_clients_one_after_another():
    with pytest.raises(
        ValueError, match="check_enclosure must be used on the backend 'sequential'"
    ):
        run(server_of(Client), 1, executor="threads", workers=1, check_enclosure=True)


def test_draws_behind_the_streams_are_named_at_l1():
    class Seeds(Client):
        def update(self):
            torch.default_generator.manual_seed(1)
            super().update()

    server = copy.copy(server_of(Seeds))
    message = refusal(server, reproducibility="L1", check_enclosure=True)
    assert "client tasks must draw from their own generators" in message


class OwnRow(Client):
    """Writes to its own row of one large tensor."""

    def update(self):
        super().update()
        self.row.add_(1)


class DealsRows(Server):
    def _post_init(self):
        rows = torch.zeros(len(self._clients), 5)
        for client, row in zip(self._clients, rows, strict=True):
            client.row = row


def test_rows_of_one_tensor_are_everybodys_own(executor):
    server = server_of(OwnRow, DealsRows)
    run(server, 2, executor=executor)
    assert [client.row.tolist() for client in server._clients] == [[2.0] * 5] * 4


def test_a_row_of_the_servers_own_tensor_is_not():
    class KeepsTheRows(DealsRows):
        def _post_init(self):
            super()._post_init()
            self.rows = self._clients[0].row._base

    message = refusal(server_of(OwnRow, KeepsTheRows))
    assert "wrote to its row, which is the memory of the server's rows too" in message


class SendsRows(Server):
    """Each client gets its own slice of one tensor."""

    def communicate(self, target):
        if getattr(self, "_cut_in", None) != self.n_iter:
            flat = torch.cat([p.data.flatten() for p in self.model.parameters()] * 4)
            self._cut_in, SendsRows.slices = self.n_iter, flat.split(8)
        weight, bias = SendsRows.slices[target.client_id].split([6, 2])
        target._received_messages = {"parameters": [weight.view(2, 3), bias]}


def test_slices_of_one_tensor_are_separate_messages(executor):
    reference, other = (server_of(MutatesTheReceived, SendsRows) for _ in range(2))
    run(reference, 2, reproducibility="L1")
    run(other, 2, reproducibility="L1", executor=executor)
    assert digest(state_of(reference)) == digest(state_of(other))


class HandsOverAnAttribute(Server):
    """Puts its live list into an attribute of the client, beside the message."""

    def communicate(self, target):
        super().communicate(target)
        self.history = getattr(self, "history", [])
        target.log = self.history


class Logs(Client):
    def update(self):
        super().update()
        self.log.append(self.client_id)


def test_what_the_server_hands_over_beside_the_message_is_watched(executor):
    message = refusal(server_of(Logs, HandsOverAnAttribute), executor=executor)
    assert " in round 1 wrote to its log, which is the memory of the server's history" in message


def test_what_is_no_longer_shared_is_no_longer_watched(executor):
    """The server lends its list for one round only."""

    class LendsOnce(HandsOverAnAttribute):
        def communicate(self, target):
            super().communicate(target)
            self.history = ["new"]  # what the client has is its own now

    server = server_of(Logs, LendsOnce)
    run(server, 2, executor=executor)
    assert all(len(client.log) == 2 for client in server._clients)


def test_what_was_shared_for_a_round_is_let_go(monkeypatch):
    seen = []

    class Spied(rounds.Parties):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            seen.append(self)

    monkeypatch.setattr(rounds, "Parties", Spied)
    seed_everything(2)
    run(FedDCServer(), 2)
    after_two = len(seen[0]._kept), len(seen[0]._shared)
    seed_everything(2)
    run(FedDCServer(), 7)
    assert (len(seen[1]._kept), len(seen[1]._shared)) == after_two
    assert after_two[0] == 2 * 4 * 2  # weight and bias of every client, of the last two rounds
