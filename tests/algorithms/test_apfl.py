"""APFL: the phases of a block, the two sets of buffers, one gradient for each step."""

import pytest
import torch

import fedbench
from fedbench.algorithms.apfl import APFL
from fedbench.algorithms.fedavg import FedAvg
from fedbench.reproducibility import digest
from tests.algorithms.quadratics import simulate, trajectory
from tests.simulation.helpers import batch_norm_model, plain_model, tiny_workload


def run(algorithm, rounds=3, model=plain_model, **changes):
    simulation = fedbench.Simulation(tiny_workload(model, **changes), algorithm=algorithm, seed=6)
    simulation.run(rounds)
    return simulation


@pytest.mark.parametrize("tau", [1, 2, 3, 5])
def test_a_block_of_one_step_rounds_is_a_round_of_fedavg_with_as_many_steps(tau):
    points = trajectory(simulate(APFL(tau=tau), steps=1), 2 * tau + 1)
    reference = trajectory(simulate(FedAvg(), steps=tau), 2)
    assert points[tau - 1 :: tau][:2] == reference
    # Inside of a block the server waits.
    for index, point in enumerate(points):
        blocks = (index + 1) // tau
        assert point == (reference[blocks - 1] if blocks in (1, 2) else point)
        if blocks == 0:
            assert point == 0.0


def test_a_block_keeps_its_cohort_and_sends_at_its_end():
    simulation = run(APFL(tau=2), rounds=6)
    cohorts = [record.cohort for record in simulation.history]
    assert cohorts[0] == cohorts[1]
    assert cohorts[2] == cohorts[3]
    assert len({cohorts[0], cohorts[2], cohorts[4]}) > 1
    assert [record.uplink_bytes > 0 for record in simulation.history] == [False, True] * 3


def test_cohorts_are_those_of_fedavg():
    ours, reference = run(APFL(), 5), run(FedAvg(), 5)
    assert [r.cohort for r in ours.history] == [r.cohort for r in reference.history]


def test_the_two_models_have_their_own_buffers():
    """The step of the personal model does not show in the buffers of the shared one."""
    seen = {}

    def sent(name):
        def observe(phase, client, state):
            if phase == "uplink":
                seen.setdefault(name, []).append(digest(state))

        return observe

    for algorithm in (APFL(alpha=0.3), FedAvg()):
        workload = tiny_workload(batch_norm_model)
        simulation = fedbench.Simulation(
            workload, algorithm=algorithm, seed=6, observer=sent(type(algorithm).__name__)
        )
        simulation.run(2)
    assert seen["APFL"] == seen["FedAvg"]
    apfl = run(APFL(alpha=0.3), 2, batch_norm_model)
    start = fedbench.Simulation(tiny_workload(batch_norm_model), seed=6).server.model.buffers
    for state in apfl.client_states.values():
        personal, local = state["personal"].buffers, state["local"].buffers
        assert personal["1.num_batches_tracked"] > start["1.num_batches_tracked"]
        assert not torch.equal(personal["1.running_mean"], start["1.running_mean"])
        assert not torch.equal(personal["1.running_mean"], local["1.running_mean"])


def test_every_step_takes_a_new_gradient():
    """With one gradient for all steps, the personal model would move on a straight line."""
    moves = []
    for steps in (1, 2, 3):
        simulation = simulate(APFL(alpha=0.5), steps=steps, lr=0.1)
        simulation.run_round()
        moves.append(simulation.client_states[1]["personal"].parameters[0].item())
    first, second, third = moves[0], moves[1] - moves[0], moves[2] - moves[1]
    assert first != pytest.approx(second, rel=1e-3)
    assert second != pytest.approx(third, rel=1e-3)


def test_weight_zero_makes_the_shared_model_the_personal_one():
    simulation = run(APFL(alpha=0.0))
    start = fedbench.Simulation(tiny_workload(), seed=6).server.model.parameters
    for state in simulation.client_states.values():
        assert torch.equal(state["personal"].parameters, start)
        mixture = simulation.algorithm.personal_model(state)
        assert torch.equal(mixture.parameters, state["local"].parameters)


def test_without_the_chain_factor_weight_zero_still_trains_the_personal_model():
    simulation = run(APFL(alpha=0.0, chain_factor=False))
    start = fedbench.Simulation(tiny_workload(), seed=6).server.model.parameters
    for state in simulation.client_states.values():
        assert not torch.equal(state["personal"].parameters, start)


def test_a_client_may_learn_its_weight():
    simulation = run(APFL(alpha=0.5, adaptive=True), 5)
    weights = [state["alpha"] for state in simulation.client_states.values()]
    assert all(0.0 <= weight <= 1.0 for weight in weights)
    assert len(set(weights)) > 1
