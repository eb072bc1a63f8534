"""Buffers, frozen, tied and personal entries: what they mean, beyond being the same everywhere."""

import pytest
import torch
from torch import nn

import fedbench
from fedbench.algorithms import ALGORITHMS
from fedbench.simulation import Trace
from tests.simulation.helpers import (
    NUM_CLIENTS,
    batch_norm_model,
    keyed_init,
    plain_model,
    tiny_dataset,
    tiny_workload,
)

BUFFERS = ("1.running_mean", "1.running_var", "1.num_batches_tracked")


def run(rounds=1, model=batch_norm_model, algorithm="fedavg", **options):
    workload = tiny_workload(model, cohort_size=options.pop("cohort_size", NUM_CLIENTS))
    simulation = fedbench.Simulation(workload, algorithm=algorithm, seed=2, **options)
    with simulation:
        simulation.run(rounds, evaluate_every=0)
    return simulation


def test_averaged_buffers_are_the_mean_of_the_clients_and_integers_the_largest():
    sent = {}

    def observer(phase, client, state):
        if phase == "uplink":
            sent[client] = state["buffers"]

    model = run(observer=observer).server.model
    sizes = dict(zip(tiny_dataset().client_ids, tiny_dataset().client_sizes(), strict=True))
    mean = sum(int(sizes[c]) * sent[c]["1.running_mean"].double() for c in sent) / sum(
        int(sizes[c]) for c in sent
    )
    assert torch.equal(model.buffers["1.running_mean"], mean.float())
    counts = [int(sent[c]["1.num_batches_tracked"]) for c in sent]
    assert int(model.buffers["1.num_batches_tracked"]) == max(counts)


def test_integers_may_add_up_or_stay():
    # Two epochs in batches of four over 4, 6, ..., 14 samples.
    steps = [2 * -(-(4 + 2 * position) // 4) for position in range(NUM_CLIENTS)]
    name = "1.num_batches_tracked"
    assert int(run(integers="max").server.model.buffers[name]) == max(steps)
    assert int(run(integers="sum").server.model.buffers[name]) == sum(steps)
    assert int(run(2, integers="sum").server.model.buffers[name]) == 2 * sum(steps)
    assert int(run(2, integers="server").server.model.buffers[name]) == 0


@pytest.mark.parametrize("integers", ["max", "sum", "server"])
def test_folding_in_workers_has_the_bits_of_the_list(integers):
    options = {"integers": integers, "frozen": ["0.bias"]}
    folded = run(2, reduce_in_workers=True, **options)
    assert folded.history.records[0].reduced_in_workers
    assert folded.state_digest() == run(2, reduce_in_workers=False, **options).state_digest()


def test_local_buffers_stay_on_their_clients():
    simulation = run(2, buffers="local")
    assert simulation.server.model.buffers == {}
    assert simulation.model_state()["1.running_mean"].eq(0).all()
    found = [
        simulation.client_states[client]["own entries"]["shared"]["1.running_mean"]
        for client in simulation.dataset.client_ids
    ]
    assert len({tuple(mean.tolist()) for mean in found}) == NUM_CLIENTS
    counts = [
        int(state["own entries"]["shared"]["1.num_batches_tracked"])
        for state in simulation.client_states.values()
    ]
    assert counts == [2 * 2 * -(-(4 + 2 * position) // 4) for position in range(NUM_CLIENTS)]


def test_local_statistics_do_not_change_what_is_trained():
    # In training mode batch normalisation uses the batch, so the parameters go the same way.
    local, average = run(3, buffers="local"), run(3)
    assert torch.equal(local.server.model.parameters, average.server.model.parameters)
    sent = [simulation.history.records[-1].uplink_bytes for simulation in (average, local)]
    assert sent[0] - sent[1] == NUM_CLIENTS * (7 * 4 + 7 * 4 + 8)


def test_a_personal_layer_is_the_clients_own():
    simulation = run(2, personal=["2.*"])
    start = batch_norm_model(seed=2).state_dict()
    assert torch.equal(simulation.model_state()["2.weight"], start["2.weight"])
    assert not torch.equal(simulation.model_state()["0.weight"], start["0.weight"])
    heads = [
        state["own entries"]["shared"]["2.weight"] for state in simulation.client_states.values()
    ]
    assert len({tuple(head.flatten().tolist()) for head in heads}) == NUM_CLIENTS
    everything, without = run(), run(personal=["2.*"])
    saved = everything.history.records[0].uplink_bytes - without.history.records[0].uplink_bytes
    assert saved == NUM_CLIENTS * 4 * (7 * 3 + 3)


def test_a_personal_layer_goes_on_where_the_client_left_it():
    ends = []
    for rounds, epochs in ((2, 1), (1, 2)):
        workload = tiny_workload(plain_model, cohort_size=1, local_epochs=epochs, batch_size=100)
        # Full batches, so that the order of the samples does not matter to the last round.
        simulation = fedbench.Simulation(
            workload,
            participation=Trace(lambda number: ["client-2"]),
            personal=["2.*"],
            frozen=["0.weight"],
        )
        with simulation:
            simulation.run(rounds, evaluate_every=0)
        ends.append(simulation.client_states["client-2"]["own entries"]["shared"]["2.weight"])
    torch.testing.assert_close(*ends, rtol=1e-5, atol=1e-6)
    assert not torch.equal(ends[0], plain_model().state_dict()["2.weight"])


def test_own_entries_are_made_when_a_client_first_takes_part():
    simulation = run(1, personal=["2.*"], cohort_size=2)
    assert set(simulation.client_states) == set(simulation.history.records[0].cohort)


def test_frozen_parameters_stay_and_are_not_sent():
    simulation = run(2, frozen=["0.*"])
    start = batch_norm_model(seed=2).state_dict()
    state = simulation.model_state()
    for name in ("0.weight", "0.bias"):
        assert torch.equal(state[name], start[name])
    assert not torch.equal(state["2.weight"], start["2.weight"])
    saved = run().history.records[0].uplink_bytes - simulation.history.records[0].uplink_bytes
    assert saved == NUM_CLIENTS * 4 * (13 * 7 + 7)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(13, 13, bias=False)
        self.outer = nn.Linear(13, 13, bias=False)
        self.outer.weight = self.inner.weight
        self.head = nn.Linear(13, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.outer(torch.tanh(self.inner(x)))))


def tied_model(seed=0):
    return keyed_init(Tied(), seed)


@pytest.mark.parametrize(
    "options", [{}, {"personal": ["inner.*", "outer.*"]}, {"personal": ["head.*"]}]
)
def test_tied_weights_stay_tied(options):
    simulation = run(2, model=tied_model, **options)
    state = simulation.model_state()
    assert torch.equal(state["inner.weight"], state["outer.weight"])
    sent = 3 * 13 + 3 + 13 * 13
    if options:
        sent = 13 * 13 if options["personal"] == ["head.*"] else 3 * 13 + 3
    assert simulation.history.records[0].uplink_bytes == NUM_CLIENTS * 4 * sent


@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
@pytest.mark.parametrize(
    "options",
    [
        {"buffers": "local", "frozen": ["0.bias"]},
        {"integers": "sum", "personal": ["2.*"]},
        {"integers": "server"},
    ],
    ids=["local buffers, frozen", "summed integers, personal", "the server's integers"],
)
def test_every_algorithm_takes_every_option(algorithm, options):
    kind = ALGORITHMS.load(algorithm)
    names = {field.name for field in kind.options()}
    made = kind(**({"outer_steps": 2} if "outer_steps" in names else {}))
    if made.unsupported & options.keys():
        with pytest.raises(ValueError, match=f"must be left out with {kind.__name__}"):
            run(algorithm=made, **options)
        return
    digests = set()
    for executor in ("sequential", "threads"):
        simulation = run(2, algorithm=made, executor=executor, **options)
        digests.add(simulation.state_digest())
    assert len(digests) == 1
    if "frozen" in options:
        frozen = simulation.model_state()["0.bias"]
        assert torch.equal(frozen, batch_norm_model(seed=2).state_dict()["0.bias"])


def test_the_two_models_of_ditto_have_their_own_entries():
    simulation = run(2, algorithm="ditto", buffers="local")
    for state in simulation.client_states.values():
        own = state["own entries"]
        assert set(own) == {"shared", "personal"}
        assert not torch.equal(own["shared"][BUFFERS[0]], own["personal"][BUFFERS[0]])
    shared = run(2, buffers="local")
    assert torch.equal(simulation.server.model.parameters, shared.server.model.parameters)
    for client, state in shared.client_states.items():
        theirs = simulation.client_states[client]["own entries"]["shared"]
        assert all(torch.equal(theirs[n], v) for n, v in state["own entries"]["shared"].items())
