import json

import pytest

from fedbench.cli import main
from fedbench.verification.trace import entry_digests

CHEAP = ["verify", "--workload", "digits-logreg", "--rounds", "2", "--backend", "threads"]

MODULE = """
import dataclasses
import threading

import torch

from fedbench.algorithms.fedavg import FedAvg

_total = 0.0
_lock = threading.Lock()


@dataclasses.dataclass(frozen=True)
class Sound(FedAvg):
    pass


@dataclasses.dataclass(frozen=True)
class Leaky(FedAvg):
    def train(self, client, down):
        global _total
        metrics = super().train(client, down)
        with _lock:
            _total += 1.0
            client.model.flat[0] += _total
        return metrics


@dataclasses.dataclass(frozen=True)
class Failing(FedAvg):
    def train(self, client, down):
        torch.nn.functional.cross_entropy(torch.ones(2, 3), torch.ones(4).long())


def loop():
    import fedbench

    simulation = fedbench.Simulation("digits-logreg")
    while True:
        simulation.run_round()
        yield simulation.model_state()


class NotAnAlgorithm:
    pass
"""


def run(arguments):
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    return exit_info.value.code


@pytest.fixture
def own_module(tmp_path, monkeypatch, request):
    name = f"own_{request.node.name.replace('[', '_').replace(']', '').replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_identical_candidates_give_zero_and_a_table(capsys, tmp_path):
    out = tmp_path / "verification.json"
    assert run([*CHEAP, "--workers", "2", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "threads" in printed
    assert "yes" in printed
    assert json.loads(out.read_text())


def test_worker_counts_are_whole_numbers(capsys):
    backends = ["--backend", "sequential", "--backend", "threads", "--workers", "1"]
    assert run(["verify", "--workload", "digits-logreg", "--rounds", "1", *backends]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[1] for row in rows] == ["workers", "-", "1"]


def test_one_round_is_singular(capsys):
    assert run([*CHEAP, "--workers", "1", "--rounds", "1"]) == 0
    assert capsys.readouterr().out.startswith("reference sequential, 1 round\n")


def test_a_failing_task_is_one_line_with_its_place(capsys, own_module, tmp_path):
    assert run([*CHEAP, "--workers", "1", "--algorithm", f"{own_module}:Failing"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "ValueError: Expected input batch_size" in error
    line = next(n for n, text in enumerate(MODULE.splitlines(), 1) if "cross_entropy" in text)
    assert f" ({tmp_path / own_module}.py:{line}, in train) Help: " in error


def test_a_difference_gives_one_and_is_named(capsys, own_module):
    assert run([*CHEAP, "--workers", "2", "--algorithm", f"{own_module}:Leaky"]) == 1
    printed = capsys.readouterr().out
    assert "NO" in printed
    assert "threads x2 delayed: round 1, uplink, client" in printed
    assert "entry ['delta']" in printed
    assert "\nTwo runs of sequential differ as well: it is not the backend." in printed


def test_an_own_algorithm_and_an_own_loop(capsys, own_module):
    arguments = ["--algorithm", f"{own_module}:Sound", "--reference", f"{own_module}:loop"]
    assert run([*CHEAP, "--workers", "2", *arguments]) == 0
    assert "threads" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--backend", "thread"], "Did you mean 'threads'"),
        (["--algorithm", "fedavgg"], "Did you mean 'fedavg'"),
        (["--algorithm", "no_such_module:A"], "MODULE:NAME"),
        (["--algorithm", "json:NoSuchThing"], "has no 'NoSuchThing'"),
        (["--algorithm", "json:JSONDecoder"], "subclass of fedbench.algorithms.Algorithm"),
        (["--algorithm", "my.Algorithm"], "MODULE:NAME"),
        (["--reference", "missing.json"], "missing.json cannot be read"),
        (["--reference", "sequentiall"], "Did you mean 'sequential'"),
        (["--workload", "digit-logreg"], "Did you mean 'digits-logreg'"),
        (["--out", "table.xyz"], "xyz"),
    ],
)
def test_wrong_arguments_give_two_and_one_line(capsys, arguments, words):
    assert run(["verify", "--workload", "digits-logreg", "--rounds", "1", *arguments]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""


def test_options_of_an_algorithm_are_given_as_for_run(capsys, tmp_path):
    trace = tmp_path / "here.json"
    arguments = [*CHEAP, "--workers", "1", "--save-trace", str(trace), "--algorithm"]
    assert run([*arguments, "{name: fedprox, mu: 0.125}"]) == 0
    assert "mu=0.125" in json.loads(trace.read_text())["job"]["algorithm"]
    capsys.readouterr()
    assert run([*arguments, "{name: fedprox, mu: -1}"]) == 2
    assert capsys.readouterr().err.startswith("fedbench verify: error: --algorithm: mu must be ")


CONFIG = """
dataset: {name: "tests.configuration.jobs:samples", count: 60}
partitioner: iid
num_clients: 6
model: {name: logistic_regression, in_features: 5, num_classes: 3}
algorithm: {name: fedprox, mu: 0.5}
cohort_size: 3
rounds: 50
batch_size: 4
lr: 0.1
clip_norm: 0.25
participation: {name: weighted}
seed: 3
"""


def test_a_file_for_run_is_verified_as_it_stands(capsys, tmp_path):
    from fedbench.configuration import load, make_simulation

    file = tmp_path / "experiment.yaml"
    file.write_text(CONFIG)
    trace = tmp_path / "trace.json"
    arguments = ["verify", "--config", str(file), "--backend", "threads", "--workers", "2"]
    assert run([*arguments, "--rounds", "2", "--save-trace", str(trace)]) == 0
    assert capsys.readouterr().out.startswith("reference sequential, 2 rounds\n")
    content = json.loads(trace.read_text())
    assert content["job"]["seed"] == 3
    (planned,) = load(file, environ={}).runs
    simulation = make_simulation(planned.configuration)
    with simulation.executor:
        simulation.run_round(evaluate=True)
        seen = entry_digests(simulation.model_state())
    [found] = [entry[2] for entry in content["rounds"][0] if entry[0] == "model"]
    assert found == seen
    capsys.readouterr()
    for old, new, name in (("lr: 0.1", "lr: 0.2", "lr"), ("norm: 0.25", "norm: 0.5", "options")):
        file.write_text(CONFIG.replace(old, new))
        assert run([*arguments, "--rounds", "1", "--reference", str(trace)]) == 1
        assert f"the trace is of another job: its {name} is" in capsys.readouterr().err
    file.write_text(CONFIG)
    assert run([*arguments, "--rounds", "2", "--reference", str(trace)]) == 0
    assert run([*arguments, "--rounds", "1", "--seed", "4", "--save-trace", str(trace)]) == 0
    [found] = [e[2] for e in json.loads(trace.read_text())["rounds"][0] if e[0] == "model"]
    assert found != seen


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("reproducibility: L0", "reproducibility must be L1 for a verification, got 'L0'"),
        ("intraop_threads: 2", "intraop_threads must be 1 for a verification, got 2"),
        ("matrix: {lr: [0.1, 0.2]}", "must be the file of a single run, got"),
        ("lrr: 0.1", "experiment.yaml:14: unknown key 'lrr'. Did you mean 'lr'?"),
    ],
)
def test_what_a_file_cannot_ask_of_verify(line, words, capsys, tmp_path):
    file = tmp_path / "experiment.yaml"
    file.write_text(f"{CONFIG}{line}\n")
    assert run(["verify", "--config", str(file)]) == 2
    assert words in capsys.readouterr().err


def test_something_has_to_be_named(capsys):
    assert run(["verify"]) == 2
    assert "name what to run, or give a file with --config" in capsys.readouterr().err


def test_a_trace_is_compared_elsewhere(capsys, tmp_path):
    trace = tmp_path / "here.json"
    arguments = [*CHEAP, "--workers", "2"]
    assert run([*arguments, "--save-trace", str(trace)]) == 0
    assert run([*arguments, "--reference", str(trace)]) == 0
    content = json.loads(trace.read_text())
    assert content["pinned"]["torch_capability"]

    entry = next(e for e in content["rounds"][1] if e[0] == "uplink")
    entry[2]["['delta']"] = "0" * 64
    trace.write_text(json.dumps(content))
    capsys.readouterr()
    assert run([*arguments, "--reference", str(trace)]) == 1
    assert f"round 2, uplink, client {entry[1]!r}" in capsys.readouterr().out


def test_a_trace_that_is_too_short_is_one_line(capsys, tmp_path):
    trace = tmp_path / "short.json"
    arguments = ["verify", "--workload", "digits-logreg", "--backend", "threads", "--workers", "2"]
    assert run([*arguments, "--rounds", "1", "--save-trace", str(trace)]) == 0
    capsys.readouterr()
    assert run([*arguments, "--rounds", "2", "--reference", str(trace)]) == 1
    error = capsys.readouterr().err
    assert "the trace has 1 rounds, but 2 are to be verified" in error
    assert "Traceback" not in error


def test_a_reference_that_wants_arguments_is_refused(capsys, own_module, tmp_path):
    (tmp_path / f"{own_module}.py").write_text("def loop(rounds, lr=0.1):\n    yield {}\n")
    assert run([*CHEAP, "--reference", f"{own_module}:loop"]) == 2
    assert "without arguments" in capsys.readouterr().err


def test_the_seed_reaches_the_loop_or_is_refused(capsys, own_module, tmp_path):
    arguments = [*CHEAP, "--workers", "1", "--reference", f"{own_module}:loop"]
    assert run([*arguments, "--seed", "3"]) == 2
    error = capsys.readouterr().err
    assert "seed must be 0 with a hand-written loop that takes no seed, got 3" in error
    assert f"{own_module}:loop" in error
    name = f"{own_module}_seeded"
    text = MODULE.replace("def loop()", "def loop(*, seed)").replace('greg")', 'greg", seed=seed)')
    (tmp_path / f"{name}.py").write_text(text)
    arguments[-1] = f"{name}:loop"
    assert run([*arguments, "--seed", "3"]) == 0


def test_traces_of_other_machines_and_jobs_are_refused(capsys, tmp_path):
    trace = tmp_path / "there.json"
    arguments = [*CHEAP, "--workers", "2"]
    assert run([*arguments, "--save-trace", str(trace)]) == 0
    assert run([*arguments, "--reference", str(trace), "--seed", "3"]) != 0
    assert "another job: its seed is 0" in capsys.readouterr().err
    content = json.loads(trace.read_text())
    content["pinned"]["torch_capability"] = "AVX9000"
    trace.write_text(json.dumps(content))
    assert run([*arguments, "--reference", str(trace)]) == 2
    error = capsys.readouterr().err
    assert "cannot be compared with runs on this machine" in error
    assert "torch_capability is 'AVX9000' on one side" in error
    trace.write_text("{}")
    assert run([*arguments, "--reference", str(trace)]) == 2
    assert "is not a trace" in capsys.readouterr().err
