"""Every option of a simulation: the same bits on every backend and after a resume."""

import copy
import dataclasses
import functools
import inspect

import numpy as np
import pytest
import torch
from torch import nn

import fedbench
from fedbench import algorithms
from fedbench.algorithms.ditto import Ditto
from fedbench.algorithms.fedavg import FedAvg
from fedbench.algorithms.fedprox import FedProx
from fedbench.errors import CheckpointError, ClientTaskError, VectorizationError
from fedbench.reproducibility import digest
from fedbench.simulation import Lognormal, SimulationOptions, TopK, Trace, Weighted
from fedbench.simulation.options import ARGUMENTS
from tests.simulation.helpers import batch_norm_model, dropout_model, plain_model, tiny_workload


def available(round_number):
    return [f"client-{position}" for position in range(6) if (position + round_number) % 3]


def halved(round_index):
    return 0.5**round_index


def adam(parameters, lr):
    return torch.optim.Adam(parameters, lr, betas=(0.8, 0.9))


def own_training(model, data, rng):
    """One step on a random half of the client's samples."""
    rows = torch.randperm(len(data.inputs), generator=rng)[: len(data.inputs) // 2]
    loss = nn.functional.cross_entropy(model(data.inputs[rows]), data.targets[rows])
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.2).step()
    return loss


CASES = {
    "weighted": {"participation": "weighted"},
    "trace": {"participation": Trace(available)},
    "client_dropout": {"client_dropout": 0.4},
    "stragglers": {"stragglers": {"name": "lognormal", "deadline": 0.06}},
    "schedule": {"schedule": {"name": "cosine", "rounds": 4}},
    "own schedule": {"schedule": halved},
    "clipping": {"clip_norm": 0.5, "clip_value": 0.1},
    "adam": {"optimizer": "adam"},
    "own optimizer": {"optimizer": adam},
    "own training": {"train": own_training},
    "no small batches": {"drop_last": True},
    "local buffers": {"buffers": "local"},
    "summed integers": {"integers": "sum"},
    "the server's integers": {"integers": "server"},
    "personal": {"personal": ["2.*"]},
    "frozen": {"frozen": ["0.*"]},
    "top k": {"compression": {"name": "top_k", "fraction": 0.2}},
    "quantized": {"compression": "quantized"},
    "quantized with feedback": {"compression": {"name": "quantized", "error_feedback": True}},
    "validation": {"validation": 0.3, "evaluate_clients": "all"},
    "everything": {
        "participation": Weighted(),
        "client_dropout": 0.2,
        "stragglers": Lognormal(0.1),
        "schedule": "exponential",
        "optimizer": "rmsprop",
        "clip_norm": 1.0,
        "buffers": "local",
        "personal": ["2.*"],
        "frozen": ["0.bias"],
        "compression": TopK(0.3),
        "validation": 0.3,
        "evaluate_clients": "cohort",
    },
}

ALGORITHMS = {
    name: "ditto" if name in ("local buffers", "personal", "validation") else "scaffold"
    for name in CASES
} | {"own training": "fedavg", "adam": "fedprox"}


def make(case, executor="sequential", **changes):
    model = dropout_model if case in ("weighted", "trace") else batch_norm_model
    options = {**CASES[case], **changes}
    return fedbench.Simulation(
        tiny_workload(model),
        algorithm=ALGORITHMS[case],
        executor=executor,
        seed=5,
        **options,
    )


def outcome(simulation, rounds):
    with simulation:
        history = simulation.run(rounds)
        return simulation.state_digest(), history.to_frame().to_json(), history.client_frame()


@functools.cache
def reference(case):
    return outcome(make(case), 4)


# What these do is done before a client runs, or is part of "everything".
OFTEN = {"own training", "local buffers", "top k", "quantized", "validation", "everything"}


@pytest.mark.parametrize(
    "case",
    [case if case in OFTEN else pytest.param(case, marks=pytest.mark.slow) for case in CASES],
)
def test_the_bits_are_those_of_sequential(executor, case):
    digest, frame, clients = outcome(make(case, executor), 4)
    assert digest == reference(case)[0]
    assert frame == reference(case)[1]
    assert clients.equals(reference(case)[2])


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_has_the_bits_of_the_unbroken_one(tmp_path, case):
    with make(case) as first:
        first.run(2, checkpoint_dir=tmp_path)
    with make(case, "threads") as second:
        assert second.load_checkpoint(tmp_path) == 2
        assert outcome(second, 2)[:2] == reference(case)[:2]


@pytest.mark.parametrize("case", [case for case in CASES if case != "everything"])
def test_every_option_does_something(case):
    plain = fedbench.Simulation(
        make(case).workload, algorithm=ALGORITHMS[case], seed=5, evaluate_clients=None
    )
    digest, frame, _ = outcome(plain, 4)
    assert (digest, frame) != reference(case)[:2]
    if case == "the server's integers":
        assert plain.server.model.buffers["1.num_batches_tracked"] > 0


@pytest.mark.parametrize("case", CASES)
def test_client_tasks_keep_their_enclosure(case):
    simulation = fedbench.Simulation(
        tiny_workload(batch_norm_model if case != "trace" else plain_model),
        algorithm=ALGORITHMS[case],
        check_enclosure=True,
        **CASES[case],
    )
    with simulation:
        simulation.run(2)


@dataclasses.dataclass(frozen=True)
class FailingInTheSecondRound(Ditto):
    def uplink(self, client, down):
        if client.round_index == 1 and client.client_id == "client-2":
            raise OSError("the disk of this client is gone")
        return super().uplink(client, down)


def test_a_failed_round_leaves_states_residuals_and_own_entries_alone(executor):
    simulation = fedbench.Simulation(
        tiny_workload(batch_norm_model, cohort_size=6),
        algorithm=FailingInTheSecondRound(),
        executor=executor,
        buffers="local",
        compression=TopK(0.1),
    )
    simulation.run_round()
    before = simulation.state_digest()
    kept = copy.deepcopy(simulation.client_states)
    with pytest.raises(ClientTaskError, match="client-2"):
        simulation.run_round()
    assert simulation.state_digest() == before
    assert digest(simulation.client_states) == digest(kept)
    assert {"own entries", "personal", "uplink residuals"} == kept["client-0"].keys()


def test_options_may_belong_to_the_workload():
    workload = tiny_workload(options={"client_dropout": 0.5, "clip_norm": 1.0})
    simulation = fedbench.Simulation(workload, client_dropout=0.0)
    assert simulation.options == SimulationOptions(clip_norm=1.0)
    assert "clip_norm=1" in repr(simulation)


def test_long_options_are_told_apart_by_a_digest():
    many = [SimulationOptions(participation=Weighted([1.0] * 1000 + [last])) for last in (1, 2)]
    texts = [options.changed()["participation"] for options in many]
    assert texts[0] != texts[1]
    assert len(texts[0]) < 100


class Constant:
    """A schedule whose repr shows its address."""

    def __call__(self, round_index):
        return 0.5


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"clip_norm": 1, "schedule": Constant()}, {"clip_norm": 1.0, "schedule": Constant()}),
        ({"compression": TopK(1)}, {"compression": {"name": "top_k", "fraction": 1.0}}),
        ({"optimizer": "adam"}, {"optimizer": torch.optim.Adam}),
        ({"algorithm": FedProx(mu=1)}, {"algorithm": FedProx(mu=1.0)}),
    ],
)
def test_equal_options_resume(tmp_path, one, other):
    with fedbench.Simulation(tiny_workload(), **one) as simulation:
        simulation.run(1, checkpoint_dir=tmp_path)
    assert fedbench.Simulation(tiny_workload(), **other).load_checkpoint(tmp_path) == 1


def test_another_lambda_does_not_resume(tmp_path):
    with fedbench.Simulation(tiny_workload(), schedule=lambda index: 1.0) as simulation:
        simulation.run(1, checkpoint_dir=tmp_path)
    other = fedbench.Simulation(tiny_workload(), schedule=lambda index: 0.1)
    with pytest.raises(CheckpointError, match="belongs to another simulation"):
        other.load_checkpoint(tmp_path)


def test_level_l0_draws_from_the_global_generators():
    digests = []
    for seed in (1, 1, 2):
        simulation = fedbench.Simulation(
            tiny_workload(batch_norm_model), reproducibility="L0", **CASES["everything"]
        )
        torch.manual_seed(seed)
        np.random.seed(seed)
        with simulation:
            simulation.run(2)
        digests.append(simulation.state_digest())
    assert digests[0] == digests[1] != digests[2]


def test_scalars_of_numpy_are_numbers():
    half = np.float32(0.5)
    given = SimulationOptions(
        client_dropout=half,
        clip_norm=np.float64(1.0),
        validation=half,
        stragglers=Lognormal(half, step_seconds=half),
        compression=TopK(half),
        schedule={"name": "step", "every": np.int64(2), "gamma": half},
        participation=Trace(available, period=np.int64(3)),
    )
    assert given == SimulationOptions(
        client_dropout=0.5,
        clip_norm=1.0,
        validation=0.5,
        stragglers=Lognormal(0.5, step_seconds=0.5),
        compression=TopK(0.5),
        schedule={"name": "step", "every": 2, "gamma": 0.5},
        participation=Trace(available, period=3),
    )
    options = {"cohort_size": np.int64(2), "clip_norm": half, "vectorized": np.bool_(False)}
    with fedbench.Simulation(tiny_workload(), **options) as simulation:
        simulation.run(np.int64(2), evaluate_every=np.int64(2))
    assert simulation.cohort_size == 2
    assert [record.metrics.keys() for record in simulation.history] == [
        {"train"},
        {"train", "test"},
    ]


@pytest.mark.parametrize("every", ["x", -1, 1.5, True])
def test_rounds_are_evaluated_every_whole_number_of_rounds(every):
    simulation = fedbench.Simulation(tiny_workload())
    with pytest.raises(ValueError, match="evaluate_every must be an integer of at least 0"):
        simulation.run(1, evaluate_every=every)
    assert simulation.rounds_done == 0


def test_a_checkpoint_belongs_to_its_options(tmp_path):
    with fedbench.Simulation(tiny_workload(), clip_norm=1.0) as simulation:
        simulation.run(1, checkpoint_dir=tmp_path)
    other = fedbench.Simulation(tiny_workload(), clip_norm=2.0)
    with pytest.raises(CheckpointError, match=r"its options is \{'clip_norm': '1'\}"):
        other.load_checkpoint(tmp_path)
    evaluating = fedbench.Simulation(tiny_workload(), clip_norm=1.0, evaluate_clients="all")
    assert evaluating.load_checkpoint(tmp_path) == 1


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (
            {"client_dropuot": 0.1},
            TypeError,
            "'client_dropuot'. Did you mean 'client_dropout'",
        ),
        ({"zzz": 0.1}, TypeError, "There are algorithm, executor"),
        ({"client_dropout": 1.0}, ValueError, r"client_dropout must be a probability in \[0, 1\)"),
        ({"client_dropout": "some"}, ValueError, "client_dropout must be"),
        ({"participation": "weightd"}, ValueError, "Did you mean 'weighted'"),
        ({"participation": 3}, TypeError, "participation must be a name"),
        ({"stragglers": "lognormal"}, TypeError, "deadline"),
        ({"stragglers": 2.0}, TypeError, "stragglers must be a name"),
        ({"schedule": 0.1}, TypeError, "schedule must be a name"),
        ({"compression": {"name": "top_k", "fraction": 0}}, ValueError, "fraction"),
        ({"compression": 0.1}, TypeError, "compression must be a name"),
        ({"validation": 1.0}, ValueError, "validation must be a share"),
        ({"evaluate_clients": "some"}, ValueError, "evaluate_clients must be 'cohort', 'all'"),
        ({"buffers": "mean"}, ValueError, "buffers must be one of"),
        ({"personal": ["3.*"]}, ValueError, "'3.\\*' matches none"),
        ({"clip_norm": 0}, ValueError, "clip_norm"),
        ({"vectorized": "yes"}, TypeError, "vectorized must be True or False, got 'yes'"),
        ({"check_enclosure": 1}, TypeError, "check_enclosure must be True or False, got 1"),
        ({"reduce_in_workers": "no"}, TypeError, "reduce_in_workers must be True or False"),
        (
            {"compression": {"name": "quantized", "stochastic": 0}},
            TypeError,
            r"stochastic must be True or False, got 0\.$",
        ),
        (
            {"compression": {"name": "top_k", "error_feedback": "no"}},
            TypeError,
            "error_feedback must be True or False, got 'no'",
        ),
        ({"optimizer": torch.optim.LBFGS}, TypeError, "without a closure, but torch.optim"),
        ({"train": own_training, "clip_norm": 1.0}, ValueError, "clip_norm must be left out"),
        (
            {"train": own_training, "schedule": {"name": "cosine", "rounds": 4}},
            ValueError,
            "schedule must be left out beside train, got Cosine",
        ),
        ({"train": own_training, "schedule": halved}, ValueError, "schedule must be left out"),
        ({"drop_last": "yes"}, TypeError, "drop_last must be True or False, got 'yes'"),
        ({"drop_last": True, "vectorized": True}, VectorizationError, "drop_last"),
        ({"train": own_training, "algorithm": "pfedme"}, ValueError, "train must be left out"),
        ({"train": own_training, "algorithm": "scaffold"}, ValueError, "train must be left out"),
        ({"stragglers": "lognormal"}, TypeError, "stragglers.deadline is missing: 'lognormal'"),
        ({"participation": "trace"}, TypeError, "participation.available is missing: 'trace'"),
        ({"optimizer": "adam", "algorithm": "apfl"}, ValueError, "optimizer must be left out"),
        (
            {"compression": "top_k", "algorithm": "fedpd"},
            ValueError,
            "compression must be left out with FedPD",
        ),
        ({"compression": "top_k", "vectorized": True}, VectorizationError, "compression"),
        ({"clip_norm": 1.0, "vectorized": True}, VectorizationError, "clip_norm"),
    ],
)
def test_wrong_options_are_refused(options, error, words):
    with pytest.raises(error, match=words):
        fedbench.Simulation(tiny_workload(plain_model), **options)


@pytest.mark.parametrize("name", list(algorithms.ALGORITHMS))
def test_a_function_that_trains_is_refused_before_the_first_round_or_never(name):
    """Terms that an algorithm adds to the gradient would not be known to the function."""
    kind = algorithms.ALGORITHMS.load(name)
    if "train" in kind.unsupported:
        with pytest.raises(ValueError, match=f"train must be left out with {kind.__name__}"):
            fedbench.Simulation(tiny_workload(), algorithm=kind(), train=own_training)
    else:
        with fedbench.Simulation(tiny_workload(), algorithm=kind(), train=own_training) as made:
            assert len(made.run(2)) == 2


def test_an_own_algorithm_that_adds_terms_refuses_a_function_that_trains():
    class Pulled(FedAvg):
        def local_terms(self, down):
            return {"proximal": 0.1, "anchor": down["model"].parameters}

    simulation = fedbench.Simulation(tiny_workload(), algorithm=Pulled(), train=own_training)
    with simulation, pytest.raises(ClientTaskError, match="train must be left out"):
        simulation.run_round()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("backend", "Pass executor='NAME'"),
        ("num_workers", "Did you mean 'workers'"),
        ("num_clients", "Pass cohort_size for the clients of a round"),
        ("clients_per_round", "Did you mean 'cohort_size'"),
        ("rounds", r"Pass rounds to its method run\(\)"),
        ("lr", r"lr belongs to the workload: pass dataclasses.replace\(workload, lr=\.\.\.\)"),
        ("learning_rate", r".*replace\(workload, lr=\.\.\.\), where fedbench.workloads.load"),
        ("local_epochs", r".*replace\(workload, local_epochs="),
        ("worker", "Did you mean 'workers'"),
        ("cohort_sizes", "Did you mean 'cohort_size'"),
        ("evaluate_client", "Did you mean 'evaluate_clients'"),
        ("xyz", "There are algorithm, executor, .*, evaluate_clients"),
    ],
)
def test_an_unknown_argument_is_told_where_it_belongs(name, words):
    with pytest.raises(TypeError, match=rf"^a simulation has no option '{name}'\. {words}"):
        fedbench.Simulation(tiny_workload(), **{name: 0.1})


def test_an_argument_among_the_options_of_a_workload_is_told_where_it_belongs():
    with pytest.raises(TypeError, match=r"'seed'\. Pass seed to the Simulation itself"):
        fedbench.Simulation(tiny_workload(options={"seed": 1}))


def test_the_known_arguments_are_those_of_a_simulation():
    parameters = inspect.signature(fedbench.Simulation).parameters.values()
    assert [p.name for p in parameters if p.kind is p.KEYWORD_ONLY] == list(ARGUMENTS)


def test_an_algorithm_is_a_name_a_mapping_or_an_object():
    simulation = fedbench.Simulation(tiny_workload(), algorithm={"name": "fedprox", "mu": 0.25})
    assert simulation.algorithm == algorithms.make_algorithm("fedprox", mu=0.25)


@pytest.mark.parametrize(
    ("algorithm", "error", "words"),
    [
        (FedAvg, TypeError, r"got the class FedAvg\. Pass FedAvg\(\)\."),
        ({"mu": 0.1}, ValueError, r"algorithm must have a name, got \{'mu': 0.1\}"),
        ({"name": "fedprox", "nu": 1}, TypeError, "'fedprox' has no hyperparameter 'nu'"),
        ({"name": "fedprx"}, ValueError, "Did you mean 'fedprox'"),
        (3, TypeError, "algorithm must be a name, a mapping .* got int"),
    ],
)
def test_what_is_no_algorithm_is_refused(algorithm, error, words):
    with pytest.raises(error, match=words):
        fedbench.Simulation(tiny_workload(), algorithm=algorithm)
