import dataclasses
import math

import pytest
import torch
from torch import nn

import fedbench
from fedbench.algorithms import make_algorithm
from fedbench.algorithms.fedavg import FedAvg
from fedbench.simulation.options import held_out
from tests.simulation.helpers import (
    NUM_CLIENTS,
    batch_norm_model,
    dropout_model,
    plain_model,
    tiny_dataset,
    tiny_workload,
)


def simulation_of(model=plain_model, **options):
    workload = tiny_workload(model, cohort_size=options.pop("cohort_size", NUM_CLIENTS))
    return fedbench.Simulation(workload, seed=2, **options)


def losses_by_hand(state, position, model=plain_model):
    """Return the loss and the accuracy of a state dict on a client's own samples."""
    module = model()
    module.load_state_dict(state)
    module.eval()
    inputs, targets = tiny_dataset().client(position)
    with torch.no_grad():
        outputs = module(inputs)
    loss = float(nn.functional.cross_entropy(outputs, targets))
    return loss, float((outputs.argmax(1) == targets).float().mean())


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "ditto", "apfl", "pfedme", "ifca"])
@pytest.mark.parametrize("model", [batch_norm_model, dropout_model])
def test_evaluation_draws_nothing_and_changes_nothing(algorithm, model):
    digests = set()
    for every, clients in ((0, None), (1, "all"), (2, "cohort")):
        options = {"algorithm": algorithm, "evaluate_clients": clients, "cohort_size": 3}
        with simulation_of(model, **options) as simulation:
            for _ in range(2):
                simulation.run(1, evaluate_every=every)
                if every:
                    before = simulation.state_digest()
                    simulation.evaluate(clients="all")
                    assert simulation.state_digest() == before
            digests.add(simulation.state_digest())
    assert len(digests) == 1


def test_evaluation_is_of_the_servers_new_model_on_each_clients_samples():
    with simulation_of(evaluate_clients="all", cohort_size=2) as simulation:
        record = simulation.run_round(evaluate=True)
        state = simulation.model_state()
    table = record.clients["clients"]
    assert table["client"] == list(tiny_dataset().client_ids)
    assert table["samples"] == tiny_dataset().client_sizes().tolist()
    for position in range(NUM_CLIENTS):
        loss, accuracy = losses_by_hand(state, position)
        assert math.isclose(table["loss"][position], loss, rel_tol=1e-5)
        assert table["accuracy"][position] == pytest.approx(accuracy)
    total = sum(table["samples"])
    for name in ("loss", "accuracy"):
        pairs = zip(table[name], table["samples"], strict=True)
        mean = sum(value * size for value, size in pairs) / total
        assert record.metrics["clients"][name] == pytest.approx(mean)


def test_training_metrics_of_each_client_are_kept():
    with simulation_of(cohort_size=3) as simulation:
        record = simulation.run_round()
    table = record.clients["train"]
    assert table["client"] == list(record.cohort)
    pairs = zip(table["loss"], table["samples"], strict=True)
    mean = sum(loss * size for loss, size in pairs) / sum(table["samples"])
    assert record.metrics["train"]["loss"] == pytest.approx(mean)


@pytest.mark.parametrize("algorithm", ["ditto", "apfl", "pfedme", "pfedmac", "fedcr"])
def test_personal_models_are_evaluated_on_their_own_clients(algorithm):
    with simulation_of(algorithm=algorithm, evaluate_clients="all") as simulation:
        record = simulation.run_round(evaluate=True)
        personal = record.clients["personal"]
        if algorithm == "ditto":
            for position, client in enumerate(personal["client"]):
                loss, _ = losses_by_hand(simulation.client_model_state(client), position)
                assert math.isclose(personal["loss"][position], loss, rel_tol=1e-5)
    assert len(personal["client"]) == NUM_CLIENTS
    assert "personal" in record.metrics
    assert "clients" in record.metrics or algorithm == "fedcr"


@pytest.mark.parametrize(
    "options",
    [{"personal": ["2.*"]}, {"buffers": "local"}, {"algorithm": "ditto", "buffers": "local"}],
)
def test_what_stays_on_a_client_is_evaluated_with_it(options):
    with simulation_of(batch_norm_model, evaluate_clients="all", **options) as simulation:
        record = simulation.run_round(evaluate=True)
    split = "personal" if "algorithm" in options else "clients"
    table = record.clients[split]
    for position, client in enumerate(table["client"]):
        state = simulation.client_model_state(client)
        loss, accuracy = losses_by_hand(state, position, batch_norm_model)
        assert math.isclose(table["loss"][position], loss, rel_tol=1e-5)
        assert table["accuracy"][position] == pytest.approx(accuracy)
    # On the server these entries are the initial ones.
    name = "2.weight" if "personal" in options else "1.running_mean"
    assert torch.equal(simulation.model_state()[name], batch_norm_model(seed=2).state_dict()[name])


def test_the_model_of_a_client():
    with simulation_of(cohort_size=1) as simulation:
        (client,) = simulation.run_round().cohort
    plain = simulation.client_model_state(client)
    assert all(torch.equal(plain[name], v) for name, v in simulation.model_state().items())
    with pytest.raises(ValueError, match="got 'client-9'"):
        simulation.client_model_state("client-9")


def test_clients_that_never_took_part_evaluate_the_initial_personal_model():
    with simulation_of(algorithm="ditto", cohort_size=1, evaluate_clients="all") as simulation:
        record = simulation.run_round(evaluate=True)
        assert list(simulation.client_states) == list(record.cohort)
    start = plain_model(seed=2).state_dict()
    for position, client in enumerate(record.clients["personal"]["client"]):
        same = math.isclose(
            record.clients["personal"]["loss"][position],
            losses_by_hand(start, position)[0],
            rel_tol=1e-6,
        )
        assert same == (client not in record.cohort)


def test_clusters_have_a_split_each():
    algorithm = make_algorithm("ifca", clusters=2)
    with simulation_of(algorithm=algorithm, evaluate_clients="cohort") as simulation:
        record = simulation.run_round(evaluate=True)
    assert {"clients-cluster-0", "clients-cluster-1"} <= record.metrics.keys()


def test_fairness_figures():
    with simulation_of(evaluate_clients="all") as simulation:
        record = simulation.run_round(evaluate=True)
    table, metrics = record.clients["clients"], record.metrics["clients"]
    # Six clients: the worst tenth is one.
    assert metrics["accuracy_worst_decile"] == min(table["accuracy"])
    assert metrics["loss_worst_decile"] == max(table["loss"])
    mean = sum(table["loss"]) / NUM_CLIENTS
    variance = sum((loss - mean) ** 2 for loss in table["loss"]) / NUM_CLIENTS
    assert metrics["loss_variance"] == pytest.approx(variance)


def test_the_worst_of_an_error_is_the_largest():
    with fedbench.Simulation("quadratic", evaluate_clients="all") as simulation:
        record = simulation.run_round(evaluate=True)
    table, metrics = record.clients["clients"], record.metrics["clients"]
    worst = sorted(table["absolute_error"])[-2:]  # of twenty clients
    assert metrics["absolute_error_worst_decile"] == pytest.approx(sum(worst) / 2)


@dataclasses.dataclass(frozen=True)
class Diverging(FedAvg):
    def aggregate(self, server, updates):
        return server.at(server.model.parameters * float("nan"))


def test_a_model_of_nan_has_metrics_of_nan():
    with simulation_of(algorithm=Diverging(), evaluate_clients="all") as simulation:
        metrics = simulation.run_round(evaluate=True).metrics["clients"]
    assert math.isnan(metrics["loss"])
    assert math.isnan(metrics["loss_worst_decile"])
    assert math.isnan(metrics["loss_variance"])


@dataclasses.dataclass(frozen=True)
class AsksTwo(FedAvg):
    """Its plan says who evaluates, whoever trains."""

    def plan(self, server, context):
        return dataclasses.replace(super().plan(server, context), train=(), evaluate=(5, 0))


def test_the_plan_may_say_who_evaluates():
    with simulation_of(algorithm=AsksTwo(), cohort_size=3, client_dropout=0.9) as simulation:
        record = simulation.run_round(evaluate=True)
    assert record.clients["clients"]["client"] == ["client-5", "client-0"]


def test_clients_that_drop_out_still_evaluate():
    options = {"client_dropout": 0.9, "evaluate_clients": "cohort"}
    with simulation_of(**options) as simulation:
        record = simulation.run_round(evaluate=True)
    assert record.dropped
    assert record.clients["clients"]["client"] == list(record.cohort)


def test_evaluation_on_demand():
    with simulation_of() as simulation:
        simulation.run(1, evaluate_every=0)
        assert set(simulation.evaluate()) == {"test"}
        some = simulation.evaluate(clients=["client-1", "client-4"])
        assert set(some) == {"test", "clients"}
        assert simulation.evaluate(clients="all")["clients"] != some["clients"]
        with pytest.raises(ValueError, match="got 'client-9'"):
            simulation.evaluate(clients=["client-9"])
        with pytest.raises(ValueError, match="'all' or a list"):
            simulation.evaluate(clients="client-1")
        with pytest.raises(TypeError, match=r"clients must be 'all' or a list .*, got 3\. For one"):
            simulation.evaluate(clients=3)
        with pytest.raises(ValueError, match=r"ids of the data's clients, got \[1\]"):
            simulation.client_model_state([1])


@pytest.mark.parametrize(
    ("samples", "share", "count"),
    [(10, 0.0, 0), (10, 0.25, 3), (1, 0.5, 0), (2, 0.01, 1), (2, 0.99, 1), (100, 0.2, 20)],
)
def test_how_many_samples_are_held_out(samples, share, count):
    assert held_out(samples, share) == count


def test_held_out_samples_are_not_trained_on():
    with simulation_of(validation=0.5, evaluate_clients="all") as simulation:
        record = simulation.run_round(evaluate=True)
        side = simulation._side.value
        for position in range(NUM_CLIENTS):
            train, held = side.client_data(position)
            whole = tiny_dataset().client(position)
            rows = {tuple(row.tolist()) for row in (*train.inputs, *held.inputs)}
            assert rows == {tuple(row.tolist()) for row in whole.inputs}
            assert len(train.inputs) + len(held.inputs) == len(whole.inputs)
            again = side.client_data(position)
            assert torch.equal(again[0].inputs, train.inputs)
    halves = [2 + position for position in range(NUM_CLIENTS)]
    assert record.clients["train"]["samples"] == halves
    assert record.clients["clients"]["samples"] == halves


def test_the_history_has_a_frame_of_the_clients():
    with simulation_of(evaluate_clients="all", cohort_size=2) as simulation:
        history = simulation.run(2, evaluate_every=2)
    frame = history.client_frame()
    assert list(frame.columns) == ["round", "split", "client", "samples", "metric", "value"]
    assert len(frame[frame["split"] == "train"]) == 2 * 2
    assert len(frame[frame["split"] == "clients"]) == NUM_CLIENTS * 2
    assert set(frame.loc[frame["split"] == "clients", "round"]) == {2}
    tidy = history.to_frame()
    assert "accuracy_worst_decile" in set(tidy.loc[tidy["split"] == "clients", "metric"])
    assert len(history.rounds_frame()) == 2


def test_what_is_printed_helps():
    simulation = simulation_of(cohort_size=3, client_dropout=0.5)
    with simulation:
        history = simulation.run(2, evaluate_every=1)
    assert repr(history).startswith("History(2 rounds, train loss ")
    assert "test accuracy" in repr(history)
    assert len(repr(history)) < 200
    assert repr(simulation) == (
        "Simulation('tiny', FedAvg(weighting='samples'), sequential, seed=2, 3 of 6 clients, "
        "2 rounds done, client_dropout=0.5)"
    )
