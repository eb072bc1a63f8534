"""What the command line says to somebody who asks it in the wrong way, or for too much."""

import re
from pathlib import Path

import pandas as pd
import pytest

from fedbench.cli import COMMANDS, main
from fedbench.configuration.yaml_text import dump
from fedbench.executors import resources

ROOT = Path(__file__).parents[2]
CHEAP = ("--workload", "quadratic", "--rounds", "1")


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
