"""What the command line says to somebody who asks it in the wrong way, or for too much."""

import os
import re
import signal
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from fedbench.cli import main
from fedbench.cli.app import COMMANDS
from fedbench.configuration.yaml_text import dump
from fedbench.executors import resources

ROOT = Path(__file__).parents[2]
CHEAP = ("--workload", "quadratic", "--rounds", "1")
MEASUREMENTS = {
    "report": "fedbench.report.measure",
    "scale": "fedbench.scaling.measure_scaling",
    "peers": "fedbench.peers.measure_peers",
}


def call(*arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return stop.value.code


def refused(capsys, *arguments):
    """Return the line of a usage error."""
    assert call(*arguments) == 2
    out, line = capsys.readouterr()
    assert out == ""
    assert line.count("\n") == 1
    return line


@pytest.mark.parametrize(
    ("dataset", "sentence"),
    [
        (
            {"name": "table", "path": "nope.csv", "target": "y"},
            "path must be an existing file, got 'nope.csv'. Check the path.",
        ),
        (
            {"name": "mnist", "folder": "/nope"},
            "folder must be an existing folder, got '/nope'. Check the path.",
        ),
    ],
    ids=["file", "folder"],
)
@pytest.mark.parametrize("command", ["run", "verify"])
def test_data_that_do_not_exist_are_named(command, dataset, sentence, capsys, tmp_path):
    config = tmp_path / "job.yaml"
    config.write_text(dump({"workload": "digits-logreg", "dataset": dataset}))
    arguments = [config] if command == "run" else ["--config", config, "--backend", "threads"]
    line = refused(capsys, command, *arguments)
    assert f"fedbench {command}: error: {sentence}" in line


@pytest.mark.parametrize(("cpus", "noted"), [(1, True), (2, True), (3, False)])
def test_more_workers_than_cpus_are_noted(cpus, noted, capsys, monkeypatch):
    monkeypatch.setattr(resources, "available_cpus", lambda: cpus)
    assert call("run", *CHEAP, "--backend", "threads", "--workers", 3) == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    assert len(notes) == noted
    for note in notes:
        assert note.startswith(f"note: 3 workers share {cpus} usable CPU")
        assert f"--workers {cpus} keeps" in note


@pytest.mark.parametrize("command", MEASUREMENTS)
def test_so_they_are_before_a_measurement(command, capsys, monkeypatch):
    def interrupted(*_arguments, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(MEASUREMENTS[command], interrupted)
    monkeypatch.setattr(resources, "available_cpus", lambda: 2)
    assert call(command, "--workers", 3) == 130
    assert "note: 3 workers share 2 usable CPUs and slow each other down: --workers 2 keeps" in (
        capsys.readouterr().err
    )
    assert call(command, "--workers", 2) == 130
    assert "note: " not in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        *([name] for name in MEASUREMENTS),
        ["run", *CHEAP, "--backend", "processes"],
        ["verify", *CHEAP],
    ],
    ids=" ".join,
)
def test_a_zero_too_many_is_refused_before_it_takes_the_memory(arguments, capsys, monkeypatch):
    monkeypatch.setattr(resources, "available_cpus", lambda: 2)
    line = refused(capsys, *arguments, "--workers", 129)
    assert (
        "--workers must be at most 128 on 2 usable CPUs (64 each), got 129. Try --workers 2."
        in (line)
    )


def test_a_cluster_has_cpus_of_its_own(capsys, monkeypatch):
    def interrupted(*_arguments, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(resources, "available_cpus", lambda: 2)
    monkeypatch.setattr(MEASUREMENTS["report"], interrupted)
    clustered = ("report", "--backend", "sequential", "ray+vectorized", "--workers", 500)
    assert call(*clustered) == 130
    assert "workers" not in capsys.readouterr().err
    assert "must be at most 128" in refused(capsys, *clustered, "--backend", "threads+vectorized")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("command", MEASUREMENTS)
def test_a_signal_ends_a_measurement_as_an_interrupt_does(command, number, monkeypatch):
    unwound = []

    def measure(*_arguments, **_options):
        try:
            os.kill(os.getpid(), number)
            time.sleep(30)  # ended by the signal
        finally:
            unwound.append(command)

    monkeypatch.setattr(MEASUREMENTS[command], measure)
    before = signal.signal(number, signal.SIG_DFL)  # ignored, if nohup started the tests
    try:
        assert call(command) == 128 + number
        assert unwound == [command]
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_an_ignored_signal_stays_ignored(monkeypatch):
    def measure(*_arguments, **_options):
        os.kill(os.getpid(), signal.SIGHUP)
        raise KeyboardInterrupt

    monkeypatch.setattr(MEASUREMENTS["report"], measure)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert call("report") == 130
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_workers_that_a_backend_does_not_have_are_not_noted(capsys, monkeypatch):
    monkeypatch.setattr(resources, "available_cpus", lambda: 1)
    assert call("run", *CHEAP) == 0
    assert "note: " not in capsys.readouterr().err


def test_verify_notes_them_too(capsys, monkeypatch):
    monkeypatch.setattr(resources, "available_cpus", lambda: 1)
    assert call("verify", *CHEAP, "--backend", "threads", "--workers", "1", "3") == 0
    assert capsys.readouterr().err.count("note: 3 workers share 1 usable CPU and slow") == 1


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if command.page])
def test_a_usage_error_names_the_page_of_its_command(name, capsys):
    page = COMMANDS[name].page
    assert refused(capsys, name, "--nope").endswith(f"Try 'fedbench {name} --help'. Help: {page}\n")
    file, _, section = page.partition("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / file).read_text("utf-8"), re.MULTILINE)
    assert section in {"", *(heading.lower().replace(" ", "-") for heading in headings)}


def test_an_error_with_a_page_of_its_own_names_that(capsys):
    line = refused(capsys, "peers", "--peer", "flowr")
    assert line.endswith("Help: docs/guide/troubleshooting.md#unknownnameerror\n")


@pytest.mark.parametrize("has_pages", [False, True])
def test_the_page_is_found_from_another_folder(has_pages, capsys, monkeypatch, tmp_path):
    if has_pages:
        (tmp_path / "docs" / "guide").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    line = refused(capsys, "report", "--workload", "digits")
    page, _, section = line.rpartition("Help: ")[2].strip().partition("#")
    assert Path(page) == ROOT / "docs" / "guide" / "troubleshooting.md"
    assert section == "unknownnameerror"


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["report", "digits-mlp"], "'digits-mlp' must follow the option that it is for, as in "),
        (["verify", "digits-mlp", "--rounds", "2"], "as in --workload digits-mlp."),
        (["peers", "logreg"], "as in --workload logreg."),
        (["scale", "100"], "as in --clients 100."),
    ],
)
def test_a_name_without_its_option_is_told_which(arguments, advice, capsys):
    assert advice in refused(capsys, *arguments)


@pytest.mark.parametrize("arguments", [["report", "--out"], ["run", "--seed"], ["list", "-x"]])
def test_a_value_that_is_missing_is_an_error_of_the_command(arguments, capsys):
    line = refused(capsys, *arguments)
    name, option = arguments
    assert line.startswith(f"fedbench {name}: error: ")
    assert repr(option) in line
    assert f"Try 'fedbench {name} --help'." in line


def digest_printed(capsys, *arguments):
    assert call("run", *CHEAP, *arguments) == 0
    found = re.fullmatch(
        r"final state: sha256 ([0-9a-f]{64})", capsys.readouterr().out.splitlines()[-1]
    )
    return found[1]


def test_the_digest_of_the_final_state_is_printed_and_written(capsys, tmp_path):
    table = tmp_path / "history.csv"
    digest = digest_printed(capsys, "--out", table)
    assert digest == digest_printed(capsys, "--backend", "threads", "--workers", "2")
    assert digest != digest_printed(capsys, "--seed", "1")
    assert f"# all rounds: {digest}" in re.sub(
        " +", " ", Path(f"{table}.config.yaml").read_text("utf-8")
    )
    assert "digest" not in pd.read_csv(table)


def test_a_matrix_shows_the_beginning_of_each_digest(capsys, tmp_path):
    table = tmp_path / "sweep.csv"
    digest = digest_printed(capsys)
    assert call("run", *CHEAP, "--matrix", "seed=0,1", "--out", table) == 0
    head, first, second = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head[-1] == "digest"
    assert first[-1] == digest[:12] != second[-1]
    assert f"seed=0: {digest}\n" in Path(f"{table}.config.yaml").read_text("utf-8")


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Give a module of the user's own in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_parts.py").write_text(
        "from dataclasses import replace\n"
        "from fedbench.workloads import load\n"
        "from fedbench.algorithms.fedavg import FedAvg\n"
        "class AdaptiveServer(FedAvg):\n"
        "    pass\n"
        "def job(seed=0):\n"
        "    return replace(load('quadratic'), name='mine')\n"
        "JOB = job()\n"
    )
    monkeypatch.delitem(sys.modules, "my_parts", raising=False)
    return tmp_path


def test_a_workload_of_your_own_is_named_as_it_stands(own, capsys):
    assert call("run", "--rounds", "1", "--workload", "my_parts:job") == 0
    by_function = capsys.readouterr().out
    assert call("run", "--rounds", "1", "--workload", "my_parts:JOB") == 0
    assert capsys.readouterr().out == by_function
    (own / "file.yaml").write_text("workload: my_parts:JOB\nrounds: 1\n")
    assert call("run", "file.yaml") == 0
    assert capsys.readouterr().out == by_function
    arguments = ("--backend", "threads", "--workers", "1", "--rounds", "1")
    assert call("verify", "--workload", "my_parts:JOB", *arguments) == 0


def test_a_workload_that_stands_has_no_options(own, capsys):
    line = refused(capsys, "run", "--workload", "{name: my_parts:JOB, lr: 0.1}")
    assert "must be a function to have options, got 'my_parts:JOB', which is a Workload" in line
    assert "set the key lr beside it" in line


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("my_parts.py:AdaptiveServer", "Write my_parts:AdaptiveServer, without .py"),
        ("./my_parts.py:AdaptiveServer", "and run it where the file is"),
        ("parts/my_parts.py:A", "Write my_parts:A, without .py, and run it in the folder 'parts'"),
        ("my_parts:Adaptive_server", "Did you mean 'AdaptiveServer'?"),
        (":AdaptiveServer", "Give both, the module first"),
        ("fedprox:mu=0.1", 'Write "{name: fedprox, mu: 0.1}"'),
        ("fedprox(mu = 0.1)", 'Write "{name: fedprox, mu: 0.1}"'),
        ("my_parts:Own(a=1, b=x)", 'Write "{name: my_parts:Own, a: 1, b: x}"'),
        ("mu=0.1", 'Write "{name: NAME, OPTION: VALUE}"'),
    ],
)
def test_an_algorithm_that_is_written_wrongly_is_set_right(target, words, own, capsys):
    line = refused(capsys, "run", *CHEAP, "--algorithm", target)
    assert repr(target) in line
    assert words in line


def test_a_part_as_tables_print_it_is_set_right(capsys):
    line = refused(capsys, "run", *CHEAP, "--partitioner", "dirichlet(alpha=0.5, min_size=2)")
    assert 'Write "{name: dirichlet, alpha: 0.5, min_size: 2}".' in line


@pytest.mark.parametrize("command", ["run", "verify"])
def test_an_option_of_a_part_as_a_flag_is_told_where_it_belongs(command, capsys):
    line = refused(capsys, command, *CHEAP, "--mu", "0.1")
    assert "No such option '--mu'. Options of an algorithm" in line
    assert '--algorithm "{name: fedprox, mu: 0.1}"' in line


def test_a_flag_that_is_nearly_right_is_suggested(capsys):
    line = refused(capsys, "run", *CHEAP, "--worker", "2")
    assert "No such option '--worker'. Did you mean '--workers'?" in line
    assert "fedprox" not in line
    assert "Did you mean '--rounds'?" in refused(capsys, "report", "--round", "2")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("digits-mlp", "digits-mlp"),
        ("digits_mlp", "digits-mlp"),
        ("my_parts:JOB", "my_parts:JOB"),
        ("nothing.yaml", None),
        ("a", None),
    ],
)
def test_a_workload_in_place_of_a_file_is_suggested(given, meant, capsys):
    line = refused(capsys, "run", given)
    assert f"got {given!r} (No such file or directory)" in line
    if meant is None:
        assert "Did you mean" not in line
    else:
        assert f"Did you mean '--workload {meant}'?" in line


def test_words_for_numbers_and_small_letters_are_told(capsys):
    line = refused(capsys, "verify", *CHEAP, "--workers", "two")
    assert "'two' is not a valid integer." in line
    line = refused(capsys, "run", *CHEAP, "--reproducibility", "l1")
    assert "Did you mean 'L1'?" in line
