"""Modes, evaluation, metrics, arguments, and errors about the classes themselves."""

import numpy as np
import pytest
import torch

from fedbench.errors import ClientTaskError
from fedbench.executors import make_executor
from fedbench.legacy import run, state_of
from fedbench.reproducibility import digest
from tests.legacy.base import Client, Server, deep_model, linear_model
from tests.legacy.families import ProxSkipServer
from tests.legacy.loops import local_loop, seed_everything, sequential_loop


def made(server_class=Server, *arguments, **options):
    seed_everything(4)
    return server_class(*arguments, **options)


# -- modes -----------------------------------------------------------------------------------------


def test_local_training_has_the_bits_of_its_loop():
    plain, shimmed = made(model=deep_model), made(model=deep_model)
    seed_everything(2)
    local_loop(plain, 3)
    run(shimmed, 3, mode="local", seed=2)
    assert digest(state_of(plain)) == digest(state_of(shimmed))


def test_local_training_is_the_same_on_every_backend_and_leaves_the_server_alone(executor):
    reference, other = made(model=deep_model), made(model=deep_model)
    untouched = digest(state_of(other)["server"]["model.0.weight"])
    history = run(reference, 2, mode="local", reproducibility="L1")
    run(other, 2, mode="local", reproducibility="L1", executor=executor)
    assert digest(state_of(reference)) == digest(state_of(other))
    assert digest(state_of(other)["server"]["model.0.weight"]) == untouched
    assert history.records[1].metrics["val"]["num_samples"] == 20
    assert history.records[1].uplink_bytes == 0


def test_centralized_training_has_the_bits_of_its_own_method():
    plain, shimmed = made(), made()
    seed_everything(2)
    plain.train_centralized()
    history = run(shimmed, mode="centralized", seed=2)
    assert digest(state_of(plain)) == digest(state_of(shimmed))
    assert shimmed.n_iter == 3
    expected = plain.evaluate_centralized("train")["acc"]
    assert history.last("train", "acc") == history.last("val", "acc") == expected
    assert len(history) == 1


def test_centralized_training_is_keyed_at_l1():
    states = []
    for start in (1, 2):  # what the global generators are at does not matter
        server = made()
        torch.manual_seed(start)
        run(server, mode="centralized", seed=9, reproducibility="L1")
        states.append(digest(state_of(server)))
    assert states[0] == states[1]


# -- evaluation and the history --------------------------------------------------------------------


def test_clients_are_evaluated_by_part_in_the_rounds_of_the_plain_loop(executor):
    server = made(ratio=0.5)
    history = run(server, 4, executor=executor, reproducibility="L1")
    assert [sorted(record.metrics) for record in history] == [[], ["train", "val"]] * 2
    assert [record.round for record in history] == [1, 2, 3, 4]
    assert all(len(record.cohort) == 2 for record in history)
    assert server._num_communications == 4 * 2 * 2  # broadcasts and uplinks
    assert server.n_iter == 3
    assert len(server._cached_metrics) == 2


def test_metrics_are_means_by_samples():
    server = made()
    history = run(server, 2)
    by_client = [client._cached_metrics[1]["val"] for client in server._clients]
    total = sum(one["num_samples"] for one in by_client)
    mean = sum(one["acc"] * one["num_samples"] for one in by_client) / total
    assert history.last("val", "acc") == pytest.approx(mean, rel=1e-15)
    assert history.last("val", "num_samples") == total
    assert set(history.to_frame()["metric"]) == {"acc", "loss", "num_samples"}
    table = history.records[1].clients["val"]
    assert table["client"] == list(history.records[1].cohort)
    by_id = dict(zip(table["client"], table["acc"], strict=True))
    assert [by_id[number] for number in range(4)] == [one["acc"] for one in by_client]
    assert dict(zip(table["client"], table["samples"], strict=True))[3] == 8.0


def test_the_first_round_is_never_evaluated_and_zero_never_evaluates():
    assert [bool(r.metrics) for r in run(made(), 3, evaluate_every=1)] == [False, True, True]
    assert not any(record.metrics for record in run(made(), 4, evaluate_every=0))
    only = run(made(), 2, parts=["val"])
    assert set(only.records[1].metrics) == {"val"}


def test_a_silent_round_leaves_the_server_as_it_was(executor):
    server = made(ProxSkipServer)
    for client in server._clients:
        client.pattern = np.zeros(4, dtype=bool)
    before = digest(state_of(server)["server"]["model.weight"])
    history = run(server, 2, executor=executor, evaluate_every=0)
    assert digest(state_of(server)["server"]["model.weight"]) == before
    assert [record.uplink_bytes for record in history] == [0, 0]


def test_the_uplink_is_counted_in_bytes_and_the_rounds_are_shown():
    seen = []
    history = run(made(), 2, on_round=seen.append)
    assert [record.uplink_bytes for record in history] == [4 * (6 + 2) * 4] * 2
    assert seen == history.records
    timings = history.timings()
    assert (timings[["train", "uplink", "aggregate", "broadcast"]] >= 0).all().all()
    assert history.pinned["torch"] == torch.__version__


# -- plain classes without wrappers ----------------------------------------------------------------


class Bare:
    """A client with nothing but the hooks."""

    def __init__(self, target):
        self.target = target

    def update(self):
        self.x = (self._received_messages["x"] + self.target) / 2

    def communicate(self, server):
        server._received_messages.append({"x": self.x})


class BareServer:
    def __init__(self):
        self.x, self._received_messages = torch.zeros(2), []
        self._clients = [Bare(float(target)) for target in range(3)]

    def _sample_clients(self):
        return self._clients  # the objects, not their positions

    def communicate(self, client):
        client._received_messages = {"x": self.x.clone()}

    def update(self):
        assert len(self._received_messages) == 3
        self.x = sum(message["x"] for message in self._received_messages) / 3


def test_classes_without_wrappers_run(executor):
    server = BareServer()
    history = run(server, 2, executor=executor)
    assert server.x.tolist() == [0.75, 0.75]
    assert server._received_messages == []
    assert history.records[0].cohort == (0, 1, 2)


# -- settings --------------------------------------------------------------------------------------


def test_rounds_come_from_the_config():
    assert len(run(made())) == 4


def test_at_l0_the_intraop_threads_are_those_of_the_caller(monkeypatch):
    seen = []
    monkeypatch.setattr(
        Client, "adjust_gradients", lambda self: seen.append(torch.get_num_threads())
    )
    for threads in (1, 2):
        torch.set_num_threads(threads)
        run(made(), 1)
        run(made(), 1, reproducibility="L1")
    torch.set_num_threads(1)
    half = len(seen) // 2
    quarter = half // 2
    assert seen == [1] * half + [2] * quarter + [1] * quarter


def test_the_environment_sets_the_level(monkeypatch):
    left, right = made(), made()
    run(left, 1, seed=3, reproducibility="L1")
    monkeypatch.setenv("FEDBENCH_REPRODUCIBILITY", "L1")
    run(right, 1, seed=3)
    assert digest(state_of(left)) == digest(state_of(right))


def test_at_l0_no_seed_leaves_the_global_generators_as_they_are():
    plain, shimmed = made(), made()
    seed_everything(31)
    sequential_loop(plain, 2)
    seed_everything(31)
    run(shimmed, 2)
    assert digest(state_of(plain)) == digest(state_of(shimmed))


def test_an_executor_of_the_callers_stays_open():
    with make_executor("threads", 1) as executor:
        run(made(), 1, executor=executor)
        assert executor.map(lambda x: x, [1]) == [1]


# -- errors ----------------------------------------------------------------------------------------


class WithoutUpdate:
    _received_messages = ()

    def communicate(self, other):
        """Nothing to say."""


def broken(change):
    server = made()
    change(server)
    return server


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda s: setattr(s, "_clients", None), ValueError, r"_clients must be a list .*lazy=F"),
        (lambda s: setattr(s, "_clients", []), ValueError, "_clients must be a list"),
        (lambda s: delattr(s, "_received_messages"), TypeError, "a list _received_messages"),
        (
            lambda s: s._clients.append(WithoutUpdate()),
            TypeError,
            r"client must have the hook update\(\), got WithoutUpdate",
        ),
        (
            lambda s: setattr(s, "_sample_clients", lambda: [0, 9]),
            ValueError,
            r"positions in _clients, below 4, got 9",
        ),
        (
            lambda s: setattr(s, "_sample_clients", lambda: [1, 1]),
            ValueError,
            "a client once per round, got 1 twice",
        ),
        (
            lambda s: setattr(s._clients[1], "client_id", 0),
            ValueError,
            "client_id must be different for every client, got 0 twice",
        ),
        (lambda s: setattr(s._clients[1], "client_id", 1.5), TypeError, "an int or a str, got 1.5"),
    ],
)
def test_what_is_no_such_server_is_refused(change, error, words):
    with pytest.raises(error, match=words):
        run(broken(change), 1)


def test_an_object_without_hooks_is_refused():
    with pytest.raises(
        TypeError, match=r"server must have the hook _sample_clients\(\), got object"
    ):
        run(object(), 1)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"rounds": 0}, ValueError, "rounds must be an integer of at least 1, got 0"),
        ({"rounds": True}, ValueError, "rounds must be an integer"),
        ({"mode": "global"}, ValueError, "mode must be 'federated', 'local' or 'centralized'"),
        ({"mode": "centralized", "rounds": 2}, ValueError, "rounds must be left out"),
        ({"reproducibility": "L2"}, ValueError, "L2 would mean"),
        ({"executor": "thread"}, ValueError, "executor must be one of"),
        ({"evaluate_every": -1}, ValueError, "evaluate_every must be an integer of at least 0"),
        ({"first_round": -1}, ValueError, "first_round must be an integer of at least 0"),
        ({"seed": "a", "reproducibility": "L1"}, TypeError, "seed must be an int"),
        ({"seed": 1.5}, TypeError, "seed must be an int"),
        ({"parts": "train"}, TypeError, "parts must be a sequence of names"),
        ({"executor": "sequential", "workers": 2}, ValueError, "workers must be 1"),
    ],
)
def test_wrong_arguments_are_refused(options, error, words):
    with pytest.raises(error, match=words):
        run(made(), **{"rounds": 1, **options} if options.get("mode") != "centralized" else options)


@pytest.mark.parametrize("returned", [None, 0.5, {"acc": "high"}, {"acc": [0.5, 0.5]}])
def test_what_evaluate_returns_is_checked(returned, executor):
    client_class = type("Returns", (Client,), {"evaluate": lambda self, part: returned})
    server = made(type("S", (Server,), {"client_class": client_class}))
    with pytest.raises(
        ClientTaskError, match=r"Returns\.evaluate\('train'\) must return a dict of metrics that"
    ):
        run(server, 2, executor=executor)


def test_metrics_may_be_tensors_and_numpy_numbers(executor):
    metrics = {"loss": torch.tensor(0.5), "acc": np.float32(0.25), "num_samples": 4}
    client_class = type("Returns", (Client,), {"evaluate": lambda self, part: metrics})
    server = made(type("S", (Server,), {"client_class": client_class}))
    server.aggregate_client_metrics = lambda: None
    history = run(server, 2, executor=executor)
    assert history.records[1].metrics["val"] == {"loss": 0.5, "acc": 0.25, "num_samples": 16.0}
    assert all(type(v) is float for v in history.records[1].metrics["val"].values())


def test_an_error_of_a_client_names_the_client(executor):
    class Fails(Client):
        def update(self):
            super().update()
            if self.client_id == 2:
                raise ArithmeticError("as planned")

    server = made(type("S", (Server,), {"client_class": Fails}))
    with pytest.raises(
        ClientTaskError, match=r"client_id 2.*ArithmeticError: as planned"
    ) as caught:
        run(server, 1, executor=executor)
    assert isinstance(caught.value.__cause__, ArithmeticError)
    assert caught.value.item == 2


def test_the_linear_model_is_trained():
    """The comparisons of bits are of models that learn."""
    server = made(model=linear_model)
    history = run(server, 8, seed=0)
    frame = history.to_frame().query("split == 'train' and metric == 'loss'")["value"]
    assert frame.iloc[-1] < frame.iloc[0]


@pytest.mark.parametrize("hook", ["communicate", "update", "_sample_clients"])
def test_an_error_of_the_server_comes_as_it_is(hook, executor):
    def fails(*arguments):
        raise ArithmeticError("on the server")

    server = made()
    setattr(server, hook, fails)
    with pytest.raises(ArithmeticError, match="on the server"):
        run(server, 1, executor=executor)
    assert executor.map(abs, [-1]) == [1], "the executor stays usable"
