import copy
import dataclasses
import hashlib
import pickle
import re

import numpy as np
import pytest
import torch

import fedbench
from fedbench.algorithms import Updates
from fedbench.algorithms.fedavg import FedAvg
from fedbench.data import ArrayDataset
from fedbench.errors import ClientTaskError, NonFiniteError, UnknownNameError
from fedbench.reproducibility import torch_generator
from tests.simulation.helpers import (
    NUM_CLIENTS,
    batch_norm_model,
    dropout_model,
    plain_model,
    tiny_dataset,
    tiny_workload,
)


def run(workload, rounds=3, **options):
    with fedbench.Simulation(workload, **options) as simulation:
        history = simulation.run(rounds)
        return simulation.state_digest(), history, simulation.model_state()


@dataclasses.dataclass(frozen=True)
class FailingInTheSecondRound(FedAvg):
    def train(self, client, down):
        if client.round_index == 1 and client.client_id == "client-2":
            raise OSError("the disk of this client is gone")
        return super().train(client, down)


@dataclasses.dataclass(frozen=True)
class SendingNaN(FedAvg):
    def train(self, client, down):
        metrics = super().train(client, down)
        if client.client_id == "client-3":
            client.model.flat[0] = float("nan")
        return metrics


@dataclasses.dataclass(frozen=True)
class Counting(FedAvg):
    """Every client counts its participations and sends only every second time."""

    stateful = True

    def init_client(self, model):
        return {"count": torch.zeros(())}

    def train(self, client, down):
        client.state["count"] = client.state["count"] + 1
        return super().train(client, down)


@dataclasses.dataclass(frozen=True)
class SilentRounds(FedAvg):
    """Odd rounds train but nobody sends."""

    def plan(self, server, context):
        plan = super().plan(server, context)
        return dataclasses.replace(plan, uplink=()) if context.index % 2 else plan


@pytest.mark.parametrize("model", [plain_model, batch_norm_model, dropout_model])
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "ditto"])
def test_every_backend_gives_the_bits_of_sequential(executor, model, algorithm):
    workload = tiny_workload(model, algorithm=algorithm)
    expected, expected_history, _ = run(workload)
    digest, history, _ = run(workload, executor=executor)
    assert digest == expected
    assert history.to_frame().equals(expected_history.to_frame())


def test_the_number_of_workers_does_not_show(new_executor, backend):
    if backend == "sequential":
        pytest.skip("sequential has one worker")
    workload = tiny_workload(dropout_model, algorithm="scaffold", cohort_size=NUM_CLIENTS)
    digests = {run(workload, executor=new_executor(workers))[0] for workers in (1, 3)}
    assert digests == {run(workload)[0]}


def test_the_result_is_that_of_a_loop_written_by_hand():
    """FedAvg as one writes it with torch alone; the mean in float64, rounded once."""
    workload = tiny_workload()
    dataset = tiny_dataset()
    _, history, state = run(workload, rounds=2, seed=3)
    server = plain_model(seed=3)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    for index, record in enumerate(history):
        deltas, sizes = [], []
        for client_id in record.cohort:
            position = dataset.client_ids.index(client_id)
            data = dataset.client(position)
            model = plain_model()
            model.load_state_dict(server.state_dict())
            optimiser = torch.optim.SGD(model.parameters(), lr=workload.lr)
            for epoch in range(workload.local_epochs):
                generator = torch_generator(3, "shuffle", client_id, index, epoch)
                order = torch.randperm(len(data.inputs), generator=generator)
                for rows in order.split(workload.batch_size):
                    optimiser.zero_grad()
                    loss = torch.nn.functional.cross_entropy(
                        model(data.inputs[rows]), data.targets[rows]
                    )
                    loss.backward()
                    optimiser.step()
            deltas.append(
                [
                    p.detach() - s
                    for p, s in zip(model.parameters(), server.parameters(), strict=True)
                ]
            )
            sizes.append(len(data.inputs))
        with torch.no_grad():
            for j, parameter in enumerate(server.parameters()):
                total = sum(n * d[j].double() for n, d in zip(sizes, deltas, strict=True))
                parameter.add_((total / sum(sizes)).float())
    torch.set_num_threads(before)
    for name, value in server.state_dict().items():
        assert torch.equal(value, state[name]), name


def test_seeds_and_repeats():
    workload = tiny_workload()
    assert run(workload, seed=1)[0] == run(workload, seed=1)[0]
    assert run(workload, seed=1)[0] != run(workload, seed=2)[0]


def test_global_generators_are_left_alone():
    import random

    def fingerprint():
        state = (torch.get_rng_state().numpy().tobytes(), repr(np.random.get_state()))
        return hashlib.sha256(repr((state, random.getstate())).encode()).hexdigest()

    before = fingerprint()
    run(tiny_workload(dropout_model))
    assert fingerprint() == before


def test_mu_zero_has_the_bits_of_fedavg():
    options = {"algorithm_options": {"mu": 0.0}}
    assert run(tiny_workload(algorithm="fedprox", **options))[0] == run(tiny_workload())[0]


def test_a_large_mu_freezes_the_model():
    free = run(tiny_workload(lr=0.001), rounds=1)[2]
    options = {"algorithm": "fedprox", "algorithm_options": {"mu": 900.0}, "lr": 0.001}
    held = run(tiny_workload(**options), rounds=1)[2]
    start = plain_model().state_dict()
    for name in start:
        moved_free = (free[name] - start[name]).norm()
        assert (held[name] - start[name]).norm() < 0.5 * moved_free


def test_training_learns():
    _, history, _ = run(tiny_workload(), rounds=12)
    assert history.last("test", "accuracy") > 0.9
    losses = [r.metrics["train"]["loss"] for r in history]
    assert losses[-1] < 0.5 * losses[0]


def test_full_participation_keeps_the_order_of_the_population():
    _, history, _ = run(tiny_workload(cohort_size=NUM_CLIENTS), rounds=2)
    assert all(record.cohort == tiny_dataset().client_ids for record in history)


def test_cohorts_differ_over_rounds_and_do_not_depend_on_evaluation():
    def cohorts(**options):
        with fedbench.Simulation(tiny_workload(), seed=4) as simulation:
            return [record.cohort for record in simulation.run(8, **options)]

    evaluated = cohorts(evaluate_every=1)
    assert evaluated == cohorts(evaluate_every=0)
    assert len(set(evaluated)) > 1
    assert all(len(set(cohort)) == 4 for cohort in evaluated)


def test_a_failed_round_leaves_no_trace(executor):
    simulation = fedbench.Simulation(
        tiny_workload(cohort_size=NUM_CLIENTS),
        algorithm=FailingInTheSecondRound(),
        executor=executor,
    )
    simulation.run(1)
    digest = simulation.state_digest()
    with pytest.raises(ClientTaskError) as caught:
        simulation.run_round()
    assert caught.value.item == "client-2"
    assert isinstance(caught.value.__cause__, OSError)
    assert simulation.state_digest() == digest
    assert simulation.rounds_done == len(simulation.history) == 1


def test_nan_in_an_update_is_refused_before_anything_is_committed():
    simulation = fedbench.Simulation(tiny_workload(cohort_size=NUM_CLIENTS), algorithm=SendingNaN())
    digest = simulation.state_digest()
    with simulation, pytest.raises(NonFiniteError):
        simulation.run_round()
    assert simulation.state_digest() == digest


def test_client_state_is_kept_by_name_and_only_for_those_who_took_part(executor):
    simulation = fedbench.Simulation(tiny_workload(), algorithm=Counting(), executor=executor)
    history = simulation.run(5)
    counts = {name: int(state["count"]) for name, state in simulation.client_states.items()}
    taken = [name for record in history for name in record.cohort]
    assert counts == {name: taken.count(name) for name in set(taken)}


def test_a_round_without_uplink_trains_and_leaves_the_server_alone():
    with fedbench.Simulation(tiny_workload(), algorithm=SilentRounds()) as simulation:
        simulation.run_round()
        digest = simulation.state_digest()
        record = simulation.run_round(evaluate=True)
        assert simulation.state_digest() == digest
        assert record.uplink_bytes == 0
        assert "loss" in record.metrics["train"]
        assert "accuracy" in record.metrics["test"]
        simulation.run_round()
        assert simulation.state_digest() != digest


def test_the_history_is_tidy():
    _, history, _ = run(tiny_workload(), rounds=4)
    frame = history.to_frame()
    assert list(frame.columns) == ["round", "split", "metric", "value"]
    assert set(frame["split"]) == {"train", "test"}
    assert sorted(frame["round"].unique()) == [1, 2, 3, 4]
    timings = history.timings()
    assert len(timings) == 4
    assert (timings[["train", "total", "task_s"]] > 0).all(axis=None)
    with pytest.raises(KeyError, match="test/accuracy"):
        history.last("test", "auc")


def test_uplink_bytes_count_the_parameters_that_were_sent_and_no_padding():
    with fedbench.Simulation(tiny_workload()) as simulation:
        record = simulation.run_round()
        assert record.uplink_bytes == 4 * 4 * simulation.num_parameters
        assert simulation.server.model.parameters.numel() > simulation.num_parameters


def test_an_executor_that_is_given_stays_open(executor):
    with fedbench.Simulation(tiny_workload(), executor=executor) as simulation:
        simulation.run(1)
    assert executor.map(abs, [-1]) == [1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cohort_size": 0}, "cohort_size must be an integer of at least 1, got 0"),
        ({"cohort_size": 7}, "at most the number of clients, 6, got 7"),
        ({"algorithm": "fedavgg"}, "Did you mean 'fedavg'"),
        ({"executor": "thread"}, "Did you mean 'threads'"),
        ({"reproducibility": "L2"}, "L1"),
    ],
)
def test_wrong_arguments_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        fedbench.Simulation(tiny_workload(), **options)


def test_parts_may_be_given_instead_of_a_workload():
    parts = {
        field.name: getattr(tiny_workload(), field.name)
        for field in dataclasses.fields(tiny_workload())
    }
    assert run(parts)[0] == run(tiny_workload())[0]
    with pytest.raises(TypeError, match="a name, a Workload or a mapping"):
        fedbench.Simulation(3)


@pytest.mark.parametrize(
    ("part", "result", "words"),
    [
        ("dataset", None, "dataset function must return a FederatedDataset, got NoneType"),
        ("model", 5, "model function must return a torch.nn.Module, got int"),
    ],
)
def test_a_part_that_returns_something_else_is_named(part, result, words):
    with pytest.raises(TypeError, match=f"^the workload's {words}"):
        fedbench.Simulation(tiny_workload(**{part: lambda seed=0: result}))


def test_a_last_batch_of_one_names_batch_normalisation_and_the_client():
    # Clients have 4, 6, 8, 10, ... samples: batches of three leave one of four and of ten.
    workload = tiny_workload(batch_norm_model, batch_size=3, cohort_size=6)
    with (
        fedbench.Simulation(workload) as simulation,
        pytest.raises(ClientTaskError, match=r"client-[03]'") as caught,
    ):
        simulation.run_round()
    assert isinstance(caught.value.__cause__, ValueError)
    assert "at least 2 samples for batch normalisation, got 1" in str(caught.value)
    assert "Set drop_last=True to leave it out" in str(caught.value)


def test_a_last_batch_of_one_is_left_out_on_request(executor):
    workload = tiny_workload(batch_norm_model, batch_size=3, cohort_size=6)
    options = {"drop_last": True, "seed": 3}
    with fedbench.Simulation(workload, executor="sequential", **options) as simulation:
        simulation.run(2)
        expected = simulation.state_digest()
    with fedbench.Simulation(workload, executor=executor, **options) as simulation:
        simulation.run(2)
        assert simulation.state_digest() == expected


def test_rounds_must_be_positive():
    with (
        fedbench.Simulation(tiny_workload()) as simulation,
        pytest.raises(ValueError, match="rounds"),
    ):
        simulation.run(0)


@dataclasses.dataclass(frozen=True)
class ForgetsMetrics(FedAvg):
    def train(self, client, down):
        super().train(client, down)


@dataclasses.dataclass(frozen=True)
class ForgetsUpdate(FedAvg):
    def uplink(self, client, down):
        super().uplink(client, down)


@dataclasses.dataclass(frozen=True)
class ForgetsState(FedAvg):
    def aggregate(self, server, updates):
        super().aggregate(server, updates)


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (ForgetsMetrics(), "ForgetsMetrics.train must return a mapping of metrics"),
        (ForgetsUpdate(), "ForgetsUpdate.uplink must return an Update"),
        (ForgetsState(), "ForgetsState.aggregate must return the new ServerState"),
    ],
)
def test_a_forgotten_return_is_named(algorithm, words):
    simulation = fedbench.Simulation(tiny_workload(), algorithm=algorithm)
    with pytest.raises((TypeError, ClientTaskError), match=words):
        simulation.run_round()


@dataclasses.dataclass(frozen=True)
class ReturnsATensor(FedAvg):
    def aggregate(self, server, updates):
        return updates.mean("delta")


@dataclasses.dataclass(frozen=True)
class AveragesWhatNobodySent(FedAvg):
    def aggregate(self, server, updates):
        return server.moved(updates.mean("deltas"))


@dataclasses.dataclass(frozen=True)
class ForgetsInitServer(FedAvg):
    def aggregate(self, server, updates):
        return server.moved(server.extra["velocity"])


@pytest.mark.parametrize(
    ("algorithm", "error", "words"),
    [
        (ReturnsATensor(), TypeError, r"must return the new ServerState, .*, got Tensor\.$"),
        (
            AveragesWhatNobodySent(),
            ValueError,
            r"name must be an entry of every update, got 'deltas', while that of client "
            r"'client-\d' has 'delta'\. Did you mean 'delta'\? What clients send is up to uplink\.",
        ),
        (
            ForgetsInitServer(),
            KeyError,
            r"server\.extra has no entry 'velocity'\. It has none\. Make the entry in init_server",
        ),
    ],
    ids=lambda v: type(v).__name__,
)
def test_mistakes_of_the_server_are_explained(algorithm, error, words):
    simulation = fedbench.Simulation(tiny_workload(), algorithm=algorithm)
    with pytest.raises(error, match=words):
        simulation.run_round()
    assert simulation.rounds_done == 0


def test_what_the_server_keeps_is_a_mapping_as_any_other():
    state = fedbench.Simulation(tiny_workload()).server.keeping(a=1)
    assert pickle.loads(pickle.dumps(state)).extra == copy.deepcopy(state).extra == {"a": 1}
    assert state.extra.get("b") is None
    assert "b" not in state.extra


def test_data_that_is_not_divided_is_told_so():
    whole = ArrayDataset(*2 * (torch.zeros(4, 13), torch.zeros(4).long()), num_classes=3)
    with pytest.raises(
        TypeError, match=r"got ArrayDataset\. Divide .*: return dataset\.federate\("
    ):
        fedbench.Simulation(tiny_workload(dataset=lambda: whole))


@dataclasses.dataclass(frozen=True)
class PassesARate(FedAvg):
    def train(self, client, down):
        return {"loss": client.train(down["model"], lr=0.05)}


@dataclasses.dataclass(frozen=True)
class PassesAMisspeltTerm(FedAvg):
    def train(self, client, down):
        return {"loss": client.train(down["model"], proximl=0.05)}


@dataclasses.dataclass(frozen=True)
class SetsARate(FedAvg):
    def train(self, client, down):
        client.work.lr = 0.05
        return super().train(client, down)


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (
            PassesARate(),
            "client.train has no argument 'lr'. It belongs to the local work: set client.work = "
            "dataclasses.replace(client.work, lr=...) before.",
        ),
        (PassesAMisspeltTerm(), "There are 'anchor', 'correction', 'proximal'. Did you mean 'prox"),
        (
            SetsARate(),
            "the local work must not be changed, got lr = 0.05. Replace all of it: client.work = "
            "dataclasses.replace(client.work, lr=0.05).",
        ),
    ],
    ids=lambda v: type(v).__name__,
)
def test_a_rate_of_the_clients_own_is_explained(algorithm, words):
    simulation = fedbench.Simulation(tiny_workload(), algorithm=algorithm)
    with pytest.raises(ClientTaskError, match=re.escape(words)):
        simulation.run_round()


def test_the_mean_of_no_updates_is_refused():
    with pytest.raises(ValueError, match="must be updates to take the mean of 'delta', got none"):
        Updates([], []).mean("delta")


@dataclasses.dataclass(frozen=True)
class ReportsTensors(FedAvg):
    def train(self, client, down):
        loss = super().train(client, down)["loss"]
        return {"loss": torch.tensor(loss, dtype=torch.float64), "seen": np.int64(2), "p": [1]}


@dataclasses.dataclass(frozen=True)
class ReportsNumbersAsTensors(ReportsTensors):
    def train(self, client, down):
        metrics = super().train(client, down)
        return {name: metrics[name] for name in ("loss", "seen")}


def test_metrics_are_numbers_even_if_they_are_returned_as_tensors(executor):
    simulation = fedbench.Simulation(
        tiny_workload(), algorithm=ReportsNumbersAsTensors(), executor=executor
    )
    history = simulation.run(1)
    plain = fedbench.Simulation(tiny_workload()).run(1)
    assert history.last("train", "loss") == plain.last("train", "loss")
    assert type(history.last("train", "loss")) is float
    assert history.last("train", "seen") == 2.0
    assert history.to_frame()["value"].dtype == np.float64


def test_a_metric_that_is_no_number_is_named():
    simulation = fedbench.Simulation(tiny_workload(), algorithm=ReportsTensors())
    with pytest.raises(ClientTaskError, match="the metric 'p' that train returns must be a number"):
        simulation.run_round()


def test_an_unknown_executor_is_named_as_the_argument():
    message = r"executor must be one of 'sequential', .*'thread'.* mean 'threads'"
    with pytest.raises(UnknownNameError, match=message):
        fedbench.Simulation(tiny_workload(), executor="thread")


def test_the_help_of_a_failed_task_is_that_of_its_cause():
    error = ClientTaskError("failed", index=0)
    assert error.help.endswith("#clienttaskerror")
    error.__cause__ = NonFiniteError("NaN")
    assert error.help.endswith("#nonfiniteerror")
    error.__cause__ = ValueError("else")
    assert error.help.endswith("#clienttaskerror")
