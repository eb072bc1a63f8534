"""What the commands say about modules of the user's own that cannot be imported."""

import pytest

from fedbench.cli import main

BROKEN = {
    "syntax": ("x = 1\ndef f(:\n", "SyntaxError: invalid syntax", 2),
    "name": ("x = 1\n\ny = z\n", "NameError: name 'z' is not defined", 3),
    "value": ("raise ValueError('mine')\n", "ValueError: mine", 1),
    "dots": ("raise TypeError('mine.')\n", "TypeError: mine", 1),
    "runtime": ("raise RuntimeError('a\\nb')\n", "RuntimeError: a b", 1),
    "needs": ("import no_such_thing\n", "ModuleNotFoundError: No module named 'no_such_thing'", 1),
    "leaves": ("import sys\nsys.exit(3)\n", "SystemExit: 3", 2),
    "library": ("import json\nX = json.loads('')\n", "JSONDecodeError: Expecting value", 2),
}


def run(*arguments):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return stop.value.code


@pytest.fixture
def broken(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(kind):
        text, words, line = BROKEN[kind]
        file = tmp_path / f"broken_{kind}.py"
        file.write_text(text)
        return f"broken_{kind}:X", words, f"({file}:{line}). Try 'fedbench "

    return make


@pytest.mark.parametrize("command", ["run", "verify"])
@pytest.mark.parametrize("kind", BROKEN)
def test_an_algorithm_is_named_with_error_and_line(kind, command, broken, capsys):
    target, words, place = broken(kind)
    assert run(command, "--workload", "digits-logreg", "--algorithm", target) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert (
        f"algorithm must be MODULE:NAME of a module that can be imported, got '{target}'" in error
    )
    assert f"'{target[:-2]}' raised {words}" in error
    assert place in error


@pytest.mark.parametrize("key", ["workload", "dataset", "model", "train", "optimizer"])
def test_so_are_the_other_parts(key, broken, capsys):
    target, words, place = broken("name")
    workload = () if key == "workload" else ("--workload", "digits-logreg")
    assert run("run", *workload, f"--{key}", target) == 2
    error = capsys.readouterr().err
    assert f"error: --{key}: {key} must be MODULE:NAME" in error
    assert words in error
    assert place in error


def test_a_loop_is_too(broken, capsys):
    target, words, place = broken("syntax")
    assert run("verify", "--workload", "digits-logreg", "--reference", target) == 2
    error = capsys.readouterr().err
    assert (
        f"reference must be MODULE:NAME of a module that can be imported, got '{target}'" in error
    )
    assert words in error
    assert place in error


def test_a_message_without_an_end_gets_one(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "terse_algorithm.py").write_text(
        "import dataclasses\n"
        "from fedbench.algorithms.fedavg import FedAvg\n"
        "@dataclasses.dataclass(frozen=True)\n"
        "class X(FedAvg):\n"
        "    def __post_init__(self):\n"
        "        raise ValueError('mine')\n"
    )
    assert run("run", "--workload", "digits-logreg", "--algorithm", "terse_algorithm:X") == 2
    assert capsys.readouterr().err == (
        "fedbench run: error: --algorithm: mine. Try 'fedbench run --help'. "
        "Help: docs/guide/troubleshooting.md#configurationerror\n"
    )


@pytest.mark.parametrize("options", ["", ", beta: 0.5"])
def test_a_forgotten_decorator_is_named(options, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "undecorated_algorithm.py").write_text(
        "from fedbench.algorithms.fedavg import FedAvg\nclass X(FedAvg):\n    beta: float = 0.9\n"
    )
    algorithm = f"{{name: 'undecorated_algorithm:X'{options}}}"
    assert run("run", "--workload", "digits-logreg", "--algorithm", algorithm) == 2
    error = capsys.readouterr().err
    assert "X must be a dataclass to have the hyperparameter 'beta'" in error
    assert "Put @dataclass(frozen=True) above it." in error
