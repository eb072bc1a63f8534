"""The ladder: L0 is the loop that one writes by hand, L1 belongs to the clients."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import fedbench
from tests.simulation.helpers import (
    NUM_CLIENTS,
    dropout_model,
    lstm_model,
    tiny_dataset,
    tiny_workload,
)


@pytest.fixture(autouse=True)
def one_intraop_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def hand_written_loop(server, rounds, work):
    """FedAvg as in any tutorial: one global generator, one client after the other."""
    dataset = tiny_dataset()
    for _ in range(rounds):
        models, sizes = [], []
        for position in range(NUM_CLIENTS):
            x_all, y_all = dataset.client(position)
            model = copy.deepcopy(server)
            model.train()
            optimiser = torch.optim.SGD(model.parameters(), lr=work.lr)
            for _ in range(work.local_epochs):
                for rows in torch.randperm(len(x_all)).split(work.batch_size):
                    optimiser.zero_grad()
                    loss = nn.functional.cross_entropy(model(x_all[rows]), y_all[rows])
                    loss.backward()
                    optimiser.step()
            models.append(model)
            sizes.append(len(x_all))
        with torch.no_grad():
            for name, parameter in server.named_parameters():
                deltas = [dict(m.named_parameters())[name] - parameter for m in models]
                mean = fedbench.aggregation.mean(deltas, [float(n) for n in sizes])
                parameter += mean
    return {name: value.clone() for name, value in server.state_dict().items()}


@pytest.mark.parametrize("model_of", [dropout_model, lstm_model])
def test_l0_has_the_bits_of_the_hand_written_loop(model_of):
    work = tiny_workload(model_of, cohort_size=NUM_CLIENTS)
    server = model_of()
    torch.manual_seed(17)
    expected = hand_written_loop(server, 3, work)
    after_the_loop = torch.get_rng_state()

    torch.manual_seed(17)
    with fedbench.Simulation(work, reproducibility="L0") as simulation:
        simulation.run(3)
        state = simulation.model_state()
    for name, value in expected.items():
        assert torch.equal(value, state[name]), name
    assert torch.equal(torch.get_rng_state(), after_the_loop)


def test_l0_on_the_sequential_backend_repeats_under_a_seed():
    digests = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        with fedbench.Simulation(tiny_workload(dropout_model), reproducibility="L0") as simulation:
            simulation.run(2)
            digests.append(simulation.state_digest())
    assert digests[0] == digests[1] != digests[2]


def test_l1_does_not_see_the_global_generators():
    digests = []
    for seed in (3, 4):
        torch.manual_seed(seed)
        np.random.seed(seed)
        with fedbench.Simulation(tiny_workload(dropout_model)) as simulation:
            simulation.run(2)
            digests.append(simulation.state_digest())
    assert digests[0] == digests[1]


def test_a_client_draws_other_numbers_in_every_round():
    draws = []

    def draw(client):
        draws.append((client.client_id, client.round_index, float(torch.rand(()))))

    with fedbench.Simulation(
        tiny_workload(cohort_size=NUM_CLIENTS), around_client=draw
    ) as simulation:
        simulation.run(3)
    assert len({value for _, _, value in draws}) == len(draws) == 3 * NUM_CLIENTS


def test_another_client_does_not_change_a_client_s_numbers():
    def draws_of(cohort_size):
        draws = {}

        def draw(client):
            draws[client.client_id, client.round_index] = float(torch.rand(()))

        with fedbench.Simulation(
            tiny_workload(cohort_size=cohort_size), around_client=draw
        ) as simulation:
            simulation.run(4)
        return draws

    few, all_of_them = draws_of(2), draws_of(NUM_CLIENTS)
    assert few.items() <= all_of_them.items()


def test_the_intra_op_threads_of_the_caller_stay_as_they_were():
    torch.set_num_threads(2)
    with fedbench.Simulation(tiny_workload()) as simulation:
        simulation.run(1)
    assert torch.get_num_threads() == 2
