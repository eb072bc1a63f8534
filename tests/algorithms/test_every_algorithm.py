"""What holds for every registered algorithm."""

import dataclasses
import functools
from collections.abc import Mapping

import pytest
import torch

import fedbench
from fedbench.algorithms import ALGORITHMS, RoundPlan, make_algorithm
from fedbench.reproducibility import digest
from tests.algorithms.quadratics import Q2, simulate, trajectory
from tests.simulation.helpers import batch_norm_model, tiny_workload

EVERY = pytest.mark.parametrize("name", ALGORITHMS.names())
STATEFUL = [name for name in ALGORITHMS if ALGORITHMS.load(name).stateful]
# FedCR needs classes.
ON_QUADRATICS = [name for name in ALGORITHMS if name != "fedcr"]


FEW_STEPS = {"outer_steps": 2, "inner_steps": 2}
QUICK = {"pfedme": FEW_STEPS, "pfedmac": FEW_STEPS}


def make(algorithm, **options):
    if isinstance(algorithm, str):
        algorithm = make_algorithm(algorithm, **QUICK.get(algorithm, {}))
    workload = tiny_workload(batch_norm_model)
    return fedbench.Simulation(workload, algorithm=algorithm, seed=4, **options)


@functools.cache
def plain(name):
    simulation = make(name)
    simulation.run(4, evaluate_every=0)
    return simulation.state_digest()


@EVERY
def test_evaluation_leaves_no_trace(name):
    simulation = make(name)
    simulation.run(4, evaluate_every=1)
    assert simulation.state_digest() == plain(name)


@EVERY
def test_a_checkpoint_goes_on_with_the_same_bits(name, tmp_path):
    first = make(name)
    first.run(2, evaluate_every=0, checkpoint_dir=tmp_path)
    second = make(name)
    second.load_checkpoint(tmp_path)
    second.run(2, evaluate_every=0)
    assert second.state_digest() == plain(name)


@pytest.mark.parametrize("name", STATEFUL)
def test_clients_outside_the_cohort_stay_as_they_are(name):
    simulation = make(name, cohort_size=2)
    simulation.run(2)
    for _ in range(3):
        before = {client: digest(state) for client, state in simulation.client_states.items()}
        record = simulation.run_round()
        for client in before.keys() - set(record.cohort):
            assert digest(simulation.client_states[client]) == before[client]
        changed = [
            client
            for client in before.keys() & set(record.cohort)
            if digest(simulation.client_states[client]) != before[client]
        ]
        # A client of IFCA keeps its label and nothing else.
        assert name == "ifca" or set(changed) == before.keys() & set(record.cohort)


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from tensors_in(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from tensors_in(entry)


@EVERY
def test_server_and_clients_share_no_memory_and_no_graph(name):
    seen = []
    simulation = make(name, observer=lambda phase, client, state: seen.append((phase, state)))
    simulation.run(3)
    for phase, state in seen:
        for tensor in tensors_in(state):
            assert not tensor.requires_grad, phase
            assert tensor.grad_fn is None, phase
    server = simulation.server
    owners = {"server": [server.model, *server.extra.values()]} | simulation.client_states
    found = {}
    for owner, state in owners.items():
        for tensor in tensors_in(state):
            storage = tensor.untyped_storage().data_ptr()
            if storage:
                assert found.setdefault(storage, owner) == owner


@EVERY
def test_a_round_in_which_nobody_sends_leaves_the_model(name):
    class Silent(ALGORITHMS.load(name)):
        def plan(self, server, context):
            return dataclasses.replace(super().plan(server, context), uplink=())

    simulation = make(Silent(**QUICK.get(name, {})))
    before = simulation.model_state()
    record = simulation.run_round()
    assert record.uplink_bytes == 0
    after = simulation.model_state()
    assert all(torch.equal(before[entry], after[entry]) for entry in before)


@pytest.mark.parametrize("name", ON_QUADRATICS)
def test_the_names_of_the_clients_do_not_matter(name):
    clients = (*Q2, (2.0, 1.0), (0.5, 4.0))
    points = trajectory(simulate(make_algorithm(name), clients=clients, steps=2, lr=0.1), 6)
    reversed_points = trajectory(
        simulate(make_algorithm(name), clients=clients[::-1], steps=2, lr=0.1), 6
    )
    assert points == pytest.approx(reversed_points, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("name", ON_QUADRATICS)
def test_a_cohort_may_be_one_client(name):
    simulation = simulate(make_algorithm(name), clients=(*Q2, (2.0, 1.0)), lr=0.05, cohort_size=1)
    assert all(abs(x) < 100 for x in trajectory(simulation, 8))


@dataclasses.dataclass(frozen=True)
class Perturbed:
    """An entry that an algorithm must look at."""

    name: str
    entry: str
    on_server: bool


READ = [
    Perturbed("fedavgm", "velocity", True),
    Perturbed("fedadagrad", "second_moment", True),
    Perturbed("fedyogi", "first_moment", True),
    Perturbed("fedadam", "second_moment", True),
    Perturbed("scaffold", "control", True),
    Perturbed("scaffold", "control", False),
    Perturbed("feddyn", "correction", True),
    Perturbed("feddyn", "gradient", False),
    Perturbed("proxskip", "control", False),
    Perturbed("fedpd", "dual", False),
    Perturbed("fedsplit", "z", False),
    Perturbed("feddr", "average", True),
    Perturbed("feddr", "y", False),
    Perturbed("feddr", "x", False),
    Perturbed("feddc", "mean_update", True),
    Perturbed("feddc", "update", False),
    Perturbed("feddc", "drift", False),
    Perturbed("fpfc", "targets", True),
    Perturbed("fpfc", "duals", True),
]


@pytest.mark.parametrize("what", READ, ids=str)
def test_every_kept_vector_is_read(what):
    """A correction that is computed and lost would pass many a test of convergence."""
    points = []
    for change in (0.0, 0.125):
        algorithm = make_algorithm(what.name, **({"p": 1.0} if what.name == "proxskip" else {}))
        simulation = simulate(algorithm, steps=2, lr=0.1)
        trajectory(simulation, 2)
        if what.on_server:
            kept = simulation.server.extra[what.entry]
            simulation.server = simulation.server.keeping(**{what.entry: kept + change})
        else:
            for state in simulation.client_states.values():
                state[what.entry] = state[what.entry] + change
        points.append(trajectory(simulation, 2))
    assert points[0] != points[1]


def test_a_plan_of_everyone_is_the_cohort():
    plan = RoundPlan.everyone([3, 1], coin=True)
    assert plan.broadcast == plan.train == plan.uplink == (3, 1)
    assert plan.header == {"coin": True}
