"""Layers, validation, suggestions and the matrix."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbench.configuration import load
from fedbench.configuration.layers import flag_of, variable_of
from fedbench.configuration.schema import RunConfiguration
from fedbench.configuration.yaml_text import dump, parse_value
from fedbench.errors import ConfigurationError, MissingExtraError

BASE = {"workload": "digits-logreg"}


def only(source=None, **options):
    (run,) = load(source, **{"environ": {}, **options}).runs
    return run.configuration


# -- precedence ---------------------------------------------------------------------------------

# Key, the text of it in a higher layer, the value that a file gives, and the one of the text.
SCALARS = [
    ("seed", "7", 3, 7),
    ("rounds", "5", 2, 5),
    ("cohort_size", "4", 3, 4),
    ("lr", "1e-3", 0.5, 0.001),
    ("reproducibility", "L0", "L1", "L0"),
    ("eval_every", "0", 4, 0),
    ("check_enclosure", "true", False, True),
    ("checkpoints", "0123", "saved", "0123"),
    ("loss", "mse", "cross_entropy", "mse"),
    ("momentum", "0.9", 0.5, 0.9),
    ("weight_decay", "1e-4", 0, 0.0001),
    ("vectorized", "true", False, True),
]


@pytest.mark.parametrize(("key", "text", "in_file", "value"), SCALARS, ids=lambda v: str(v))
def test_flags_win_over_environment_over_file_over_defaults(key, text, in_file, value, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(dump({**BASE, key: in_file}))
    assert getattr(only(file), key) == in_file
    assert getattr(only(file, environ={variable_of(key): text}), key) == value
    other = {variable_of(key): "true" if in_file is False else str(in_file)}
    assert getattr(only(file, environ=other, flags={key: text}), key) == value


@pytest.mark.parametrize("key", ["lr", "rounds", "cohort_size", "algorithm", "eval_every"])
def test_null_leaves_a_key_to_the_workload(key):
    assert only({**BASE, key: None}) == only(BASE)


def test_defaults_come_from_the_workload_and_the_schema():
    found = only(BASE)
    assert (found.cohort_size, found.rounds, found.lr, found.eval_every) == (20, 40, 0.5, 10)
    assert (found.seed, found.reproducibility, found.backend.name) == (0, "L1", "sequential")


def test_a_component_is_replaced_as_a_whole():
    source = {**BASE, "algorithm": {"name": "fedprox", "mu": 0.5}}
    assert only(source).algorithm.options["mu"] == 0.5
    assert only(source, flags={"algorithm": "fedprox"}).algorithm.options["mu"] == 0.01
    flagged = only(source, flags={"algorithm": "{name: fedavgm, momentum: 0.5}"})
    assert flagged.algorithm.name == "fedavgm"
    assert flagged.algorithm.options["momentum"] == 0.5


def test_an_empty_variable_is_not_set():
    assert only(BASE, environ={"FEDBENCH_SEED": ""}).seed == 0


def test_the_process_environment_counts_by_default(monkeypatch):
    monkeypatch.setenv("FEDBENCH_SEED", "11")
    (run,) = load(BASE).runs
    assert run.configuration.seed == 11


def test_the_workers_variable_speaks_for_parallel_backends_only():
    environ = {"FEDBENCH_WORKERS": "2"}
    assert only(BASE, environ=environ).workers is None
    assert only({**BASE, "backend": "threads"}, environ=environ).workers == 2
    with pytest.raises(ConfigurationError, match="workers must be 1 on backend 'sequential'"):
        only({**BASE, "workers": 2})


def test_sequential_in_a_higher_layer_leaves_out_what_pools_know(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(dump({**BASE, "backend": "processes", "workers": 2, "timeout": 60.0}))
    assert only(file).workers == 2
    plan = load(file, environ={}, flags={"backend": "sequential"})
    assert plan.runs[0].configuration.workers is None
    assert plan.runs[0].configuration.timeout is None
    assert plan.notes == (
        "--backend sequential leaves out workers (2) of a lower layer.",
        "--backend sequential leaves out timeout (60.0) of a lower layer.",
    )
    assert only(file, environ={"FEDBENCH_BACKEND": "sequential"}).workers is None
    with pytest.raises(ConfigurationError, match="--workers: workers must be 1 on backend"):
        only(file, flags={"backend": "sequential", "workers": "2"})
    swept = load(file, environ={}, sweeps={"backend": "sequential,processes"})
    assert [run.configuration.workers for run in swept.runs] == [None, 2]


def test_the_backend_variable():
    assert only(BASE, environ={"FEDBENCH_BACKEND": "threads"}).backend.name == "threads"


def test_every_key_has_a_flag_and_a_variable_of_its_own():
    keys = list(RunConfiguration.model_fields)
    assert len({flag_of(key) for key in keys}) == len({variable_of(key) for key in keys})
    assert variable_of("cohort_size") == "FEDBENCH_COHORT_SIZE"
    assert flag_of("cohort_size") == "--cohort-size"
    assert all(field.description for field in RunConfiguration.model_fields.values())


# -- what is refused -----------------------------------------------------------------------------

WRONG = [
    ("workload: digits-logreg\nalgoritm: fedavg", "f:2: unknown key 'algoritm'. Did you mean 'alg"),
    ("workload: digits-logreg\nzzz: 1", "f:2: unknown key 'zzz'. The keys are: workload,"),
    ("workload: digits-logrek", "f:1: workload must be one of .* Did you mean 'digits-logreg'"),
    ("workload: digits-logreg\nlr: fast", "f:2: lr must be a number, got 'fast'"),
    (
        "workload: digits-logreg\nnesterov: true",
        "f: momentum must be greater than 0 with nesterov, got 0",
    ),
    ("workload: digits-logreg\nmomentum: 1", "f:2: momentum must be less than 1, got 1"),
    ("workload: digits-logreg\ndevice: gpu", "f:2: device must be 'cpu', 'cuda' or 'cuda:N'"),
    ("workload: digits-logreg\nrotate: 90", "f:2: rotate must be a list, got 90"),
    ("workload: digits-logreg\nrotate: []", "f:2: rotate must be a list that is not empty, got"),
    ("workload: digits-logreg\nrotate: [.nan]", "f:2: rotate.0 must be a finite number, got nan"),
    ("workload: digits-logreg\nvectorized: 1", "f:2: vectorized must be true or false, got 1"),
    ("workload: digits-logreg\nlr: 0", "f:2: lr must be greater than 0, got 0"),
    ("workload: digits-logreg\nlr: .inf", "f:2: lr must be a finite number, got inf"),
    ("workload: digits-logreg\nseed: true", "f:2: seed must be an integer, got True"),
    ("workload: digits-logreg\nseed: 1.0", "f:2: seed must be an integer, got 1.0"),
    ("workload: digits-logreg\nresume: 1", "f:2: resume must be true or false, got 1"),
    ("workload: digits-logreg\nout: 3", "f:2: out must be text, got 3"),
    ("workload: digits-logreg\nrounds: 0", "f:2: rounds must be at least 1, got 0"),
    ("workload: [a]", "f:1: workload must be a name, or a mapping with a name and options"),
    ("workload: digits-logreg\nmodel: {hidden: [3]}", "f:2: model.name is missing"),
    ("workload: digits-logreg\nloss: mce", "f:2: loss must be one of .* Did you mean 'mse'"),
    ("workload: digits-logreg\nreproducibility: L2", "f:2: .*Use reproducibility='L1'"),
    ("workload: digits-logreg\nbackend: thread", "f:2: .*Did you mean 'threads'"),
    ("workload: digits-logreg\nresume: true", "f:2: resume needs checkpoints"),
    ("workload: digits-logreg\nnum_clients: 3", "f:2: num_clients needs a partitioner"),
    (
        "workload: digits-logreg\nbackend: threads\ntimeout: 3",
        "f:3: timeout must be None on backend",
    ),
    (
        "workload: digits-logreg\nalgorithm: {name: fedprox, mux: 1}",
        "f:2: unknown option 'mux' of 'fedprox'. Did you mean 'mu'",
    ),
    (
        "workload: digits-logreg\nalgorithm:\n  name: fedprox\n  mu: high",
        "f:4: algorithm.mu must be a number, got 'high'",
    ),
    ("workload: digits-logreg\nalgorithm: {name: fedprox,\n  mu: -1}", "f:3: mu must be .* -1"),
    (
        "workload: digits-logreg\nalgorithm: {name: scaffold, option: III}",
        "f:2: algorithm.option must be one of 'I' or 'II', got 'III'",
    ),
    (
        "workload: digits-logreg\npartitioner: {name: dirichlet, alpha: [1]}",
        r"f:2: partitioner.alpha must be a number, got \[1\]",
    ),
    (
        "workload: digits-logreg\nmodel: {name: mlp, in_features: 64}",
        "f:2: model.num_classes is missing: 'mlp' needs it",
    ),
    (
        "workload: digits-logreg\nmodel: {name: mlp, in_features: 64, num_classes: x, hidden: [a]}",
        "f:2: model.num_classes must be an integer, got 'x'",
    ),
    ("dataset: digits\npartitioner: iid\nmodel: fedavg_cnn\nlr: 1", "f: rounds is missing"),
    ("dataset: digits\npartitioner: iid\nmodel: fedavg_cnn\nlr: 1", "f:2: .*needs num_clients"),
    ("seed: 1", "f: workload is missing. Name one of `fedbench list workloads`"),
    ("workload: digits-logreg\nseed: 1\nseed: 2", "f:3: the key 'seed'"),
    ("- a", "f: must be a mapping of keys to values, got list"),
    ("workload: no_such_module:job", "f:1: workload must be a name of .* can be imported"),
    ("workload: math:job", "f:1: .*the module has no 'job'"),
    ("workload: digits-logreg\nmatrix: 3", "f:2: matrix must be a mapping"),
    ("workload: digits-logreg\nmatrix:\n  sed: [1]", "f:3: unknown key 'sed'. Did you mean 'seed'"),
    ("workload: digits-logreg\nmatrix:\n  seed: 1", "f:3: matrix.seed must be a list"),
    ("workload: digits-logreg\nmatrix:\n  seed: []", "f:3: matrix.seed must be a list"),
    ("workload: digits-logreg\nmatrix:\n  seed: [1, 1]", "f:2: matrix must not list a value twice"),
    ("workload: digits-logreg\nmatrix:\n  out: [a]", "f:3: out is the same for all runs"),
    ("workload: digits-logreg\nmatrix:\n  seed.x: [1]", "f:3: seed has no options"),
    (
        "workload: digits-logreg\nmatrix:\n  seed:\n    - 1\n    - two",
        "f:5: seed must be an integer, got 'two'",
    ),
    (
        "workload: digits-logreg\nalgorithm: fedavg\nmatrix:\n  algorithm.mu: [1]",
        "f:4: unknown option 'mu' of 'fedavg'",
    ),
    ("workload: digits-logreg\nparallel: 2\nbackend: threads", "f:3: backend must be sequential"),
]


@pytest.mark.parametrize(("text", "message"), WRONG, ids=lambda text: text[-40:])
def test_what_is_wrong_is_said_with_place_key_value_and_remedy(text, message, tmp_path):
    file = tmp_path / "f"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        load(file, environ={})


def test_everything_that_is_wrong_is_said_at_once():
    with pytest.raises(ConfigurationError) as info:
        load({"workloads": 1, "lr": "x"}, environ={"FEDBENCH_SEED": "a"}, flags={"rounds": "b"})
    assert sorted(str(info.value).splitlines()) == [
        "--rounds: rounds must be an integer, got 'b'.",
        "FEDBENCH_SEED: seed must be an integer, got 'a'.",
        "lr must be a number, got 'x'.",
        "unknown key 'workloads'. Did you mean 'workload'?",
    ]


def test_a_near_miss_among_the_variables_is_an_error():
    with pytest.raises(ConfigurationError, match="Did you mean 'FEDBENCH_REPRODUCIBILITY'"):
        load(BASE, environ={"FEDBENCH_REPRODUCIBILTY": "L0"})
    only(BASE, environ={"FEDBENCH_ISA": "scalar", "FEDBENCH_NUM_THREADS": "1"})


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigurationError, match=r"must be a readable file, got .*No such file"):
        load(tmp_path / "none.yaml", environ={})
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ConfigurationError, match="must be UTF-8 text"):
        load(tmp_path / "binary", environ={})


def test_a_python_object_has_no_place_in_a_configuration():
    with pytest.raises(ConfigurationError, match=r"algorithm.mu must be text.* got complex"):
        load({**BASE, "algorithm": {"name": "fedprox", "mu": 1j}}, environ={})


def test_a_missing_package_is_not_a_wrong_value(monkeypatch):
    import sys

    monkeypatch.delitem(sys.modules, "fedbench.executors.ray.executor", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match="ray"):
        load({**BASE, "backend": "ray"}, environ={})


# -- the matrix ----------------------------------------------------------------------------------


def test_a_matrix_is_every_combination_with_a_label_for_each():
    plan = load(
        {
            **BASE,
            "matrix": {
                "algorithm": ["fedavg", {"name": "fedprox", "mu": 0.5}],
                "partitioner": ["iid", {"name": "dirichlet", "alpha": 0.3}],
                "seed": [0, 1],
            },
        },
        environ={},
    )
    assert len(plan.runs) == 8
    assert [run.keys for run in plan.runs[:3]] == [
        {"algorithm": "fedavg", "partitioner": "iid", "seed": 0},
        {"algorithm": "fedavg", "partitioner": "iid", "seed": 1},
        {"algorithm": "fedavg", "partitioner": "dirichlet(alpha=0.3)", "seed": 0},
    ]
    assert plan.runs[-1].label == (
        "algorithm=fedprox(mu=0.5), partitioner=dirichlet(alpha=0.3), seed=1"
    )
    assert plan.runs[-1].configuration.algorithm.options["mu"] == 0.5


def test_options_are_swept_after_the_names_they_belong_to():
    plan = load(
        {
            **BASE,
            "matrix": {"algorithm.weighting": ["samples"], "algorithm": ["fedavg", "fedyogi"]},
        },
        environ={},
    )
    assert [run.configuration.algorithm.name for run in plan.runs] == ["fedavg", "fedyogi"]
    assert [run.keys["algorithm.weighting"] for run in plan.runs] == ["samples", "samples"]


def test_a_higher_layer_replaces_a_sweep_and_says_so():
    source = {**BASE, "matrix": {"seed": [0, 1], "lr": [0.1, 0.2]}}
    plan = load(source, environ={"FEDBENCH_SEED": "5"})
    assert [run.keys for run in plan.runs] == [{"lr": 0.1}, {"lr": 0.2}]
    assert {run.configuration.seed for run in plan.runs} == {5}
    assert plan.notes == ("FEDBENCH_SEED replaces the sweep over seed.",)
    again = load(source, environ={"FEDBENCH_SEED": "5"}, sweeps={"seed": "7,8"})
    assert [run.configuration.seed for run in again.runs] == [7, 8, 7, 8]
    with pytest.raises(ConfigurationError, match="seed must be swept or set, got both"):
        load(source, environ={}, flags={"seed": "1"}, sweeps={"seed": "1,2"})


def test_every_run_has_its_own_folder_of_checkpoints():
    plan = load(
        {
            **BASE,
            "checkpoints": "saved",
            "matrix": {"algorithm": [{"name": "fedprox", "mu": m} for m in (0.1, 0.2)]},
        },
        environ={},
    )
    folders = [run.configuration.checkpoints for run in plan.runs]
    assert len(set(folders)) == 2
    assert all(folder.startswith("saved/algorithm=fedprox") for folder in folders)
    assert all(set("() ").isdisjoint(folder) for folder in folders)


# -- round trips ---------------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
COUNTS = st.integers(1, 10**9)
RATES = st.floats(1e-300, 1e300, exclude_min=True)
CONFIGURATIONS = st.fixed_dictionaries(
    {"workload": st.sampled_from(["digits-logreg", "quadratic", "synthetic-logreg"])},
    optional={
        "algorithm": st.sampled_from(["fedavg", "scaffold", "ifca"])
        | st.fixed_dictionaries({"name": st.just("fedprox"), "mu": st.floats(0, 1e10)}),
        "partitioner": st.fixed_dictionaries({"name": st.just("dirichlet"), "alpha": RATES}),
        "data_seed": st.integers(),
        "seed": st.integers(),
        "lr": RATES,
        "rounds": COUNTS,
        "batch_size": COUNTS,
        "local_epochs": COUNTS,
        "eval_every": st.integers(0, 100),
        "reproducibility": st.sampled_from(["L0", "L1"]),
        "backend": st.sampled_from(["sequential", "threads", "processes"]),
        "retries": st.integers(0, 5),
        "checkpoints": TEXT,
        "out": TEXT,
        "plot": TEXT,
    },
)


@given(CONFIGURATIONS)
def test_a_resolved_configuration_read_again_is_the_same(values):
    plan = load(values, environ={})
    again = load(parse_value(plan.to_yaml()), environ={})
    assert again.runs == plan.runs
    assert again.to_yaml() == plan.to_yaml()


@given(CONFIGURATIONS, st.lists(st.integers(), min_size=1, max_size=3, unique=True))
@settings(max_examples=30)
def test_so_is_a_matrix(values, seeds):
    plan = load({**values, "matrix": {"seed": seeds, "lr": [0.5, 1]}}, environ={})
    again = load(parse_value(plan.to_yaml()), environ={})
    assert again.runs == plan.runs
    assert len(again.runs) == 2 * len(seeds)
