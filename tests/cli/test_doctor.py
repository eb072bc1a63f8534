"""The diagnosis: each fault has a line that says what to do."""

import importlib.util
import sys

import pytest

from fedbench import doctor, environment
from fedbench.cli import main


def find(topic):
    (found,) = [finding for finding in doctor.diagnose() if finding.topic == topic]
    return found


def run():
    with pytest.raises(SystemExit) as stop:
        main(["doctor"])
    return stop.value.code


def test_a_sound_machine_has_nothing_broken(capsys):
    assert run() == 0
    assert not any(finding.broken for finding in doctor.diagnose())
    assert capsys.readouterr().err == ""


def test_topics_are_unique():
    topics = [finding.topic for finding in doctor.diagnose()]
    assert len(topics) == len(set(topics))


def test_a_missing_required_package_is_broken(monkeypatch, capsys):
    real = environment.package_version
    monkeypatch.setattr(
        environment, "package_version", lambda name: None if name == "torch" else real(name)
    )
    assert find("torch").broken
    assert run() == 1
    line = next(line for line in capsys.readouterr().out.splitlines() if " torch " in line)
    assert line.startswith("! torch")


def test_an_extension_that_was_not_built_is_broken(monkeypatch):
    monkeypatch.setitem(sys.modules, "fedbench._native", None)
    finding = find("C++ extension")
    assert finding.broken
    assert "not usable" in finding.value


@pytest.mark.parametrize(
    ("name", "extra"),
    [("ray", "ray"), ("mlxtend", "data"), ("matplotlib", "plot"), ("pyarrow", "parquet")],
)
def test_a_missing_optional_package_says_how_to_install_it(monkeypatch, name, extra, capsys):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda module: None if module == name else real(module)
    )
    finding = find(name)
    assert finding.value.startswith("not installed; only ")
    assert f"pip install -c constraints.txt -e '.[{extra}]'" in finding.advice
    assert not finding.broken
    assert run() == 0
    assert f".[{extra}]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("memory", "advice"),
    [((64 << 20, 64 << 20), "--shm-size"), (None, "Linux"), ((8 << 30, 4 << 30), "")],
)
def test_little_shared_memory_is_noted(monkeypatch, memory, advice):
    monkeypatch.setattr(environment, "shared_memory", lambda: memory)
    finding = find("shared memory")
    assert advice in finding.advice
    assert bool(finding.advice) == bool(advice)


def test_held_back_cores_are_noted(monkeypatch):
    monkeypatch.setattr(doctor, "available_cpus", lambda: 1)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    finding = find("cores")
    assert finding.value == "1 usable of 8"
    assert "affinity" in finding.advice


@pytest.mark.parametrize(("value", "advice"), [("many", "FEDBENCH_WORKERS"), ("64", "slow each")])
def test_a_wrong_number_of_workers_is_noted(monkeypatch, value, advice):
    monkeypatch.setenv("FEDBENCH_WORKERS", value)
    assert advice in find("workers by default").advice


def test_the_environment_is_plain_values():
    import json

    facts = environment.describe_environment()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["packages"]["torch"]
    assert facts["cores_available"] >= 1


def test_the_commit_is_that_of_the_checkout_and_marks_changes(monkeypatch, tmp_path):
    import subprocess

    package = tmp_path / "fedbench"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "environment.py").touch()
    monkeypatch.setattr(environment, "__file__", str(package / "environment.py"))
    assert environment.source_commit() is None  # no repository

    def git(*arguments):
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
        command = ["git", *identity, "-C", str(tmp_path), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    assert environment.source_commit() is None  # the package is not part of it
    git("add", ".")
    git("commit", "-q", "-m", "first")
    assert environment.source_commit() == git("rev-parse", "HEAD")
    (package / "__init__.py").write_text("# changed")
    assert environment.source_commit() == git("rev-parse", "HEAD") + "+dirty"
