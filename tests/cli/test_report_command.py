"""`fedbench report` with the driver replaced: what is printed, written and returned."""

import dataclasses
import os
import subprocess
import sys

import pandas as pd
import pytest

import fedbench.report
from fedbench.algorithms import ALGORITHMS
from fedbench.cli import main
from fedbench.report import Configuration, Measurement, Progress, Report, Sample


@pytest.fixture
def measured(monkeypatch):
    """Replace the measurement by a fixed one; give the settings that it was asked for."""
    asked = []

    def entry(backend, digest="ab" * 32, status="ok", workers=1):
        configuration = Configuration("digits-logreg", "fedavg", backend, workers)
        if status != "ok":
            return Measurement(configuration, status=status)
        rounds = tuple(Sample(i, {"total": 1.0 / workers}, 0.9, 1.0, 10) for i in range(6))
        return Measurement(configuration, rounds=rounds, digest=digest, clients=100, cohort=10)

    def measure(settings, *, on_progress=None):
        asked.append(settings)
        if on_progress is not None:
            for done, block in enumerate(["loading", "loading", "round 1 of 1"]):
                on_progress(Progress(done, 4, "working", block))
        settings_dict = dataclasses.asdict(settings)
        return Report(tuple(measure.entries), settings=settings_dict, created="now")

    measure.entries = [entry("sequential"), entry("threads", workers=2)]
    measure.entry, measure.asked = entry, asked
    monkeypatch.setattr(fedbench.report, "measure", measure)
    return measure


def call(*arguments):
    with pytest.raises(SystemExit) as stop:
        main(["report", *arguments])
    return stop.value.code


def test_prints_the_table_on_stdout_and_nothing_else(measured, capfd):
    assert call() == 0
    out, err = capfd.readouterr()
    assert out.splitlines()[0].startswith("digits-logreg (fedavg")
    assert out.splitlines()[3].split()[:5] == ["threads", "2", "1", "0.500", "2.00"]
    # Without a terminal there is no bar, and a line for each block.
    lines = [line.split(" s ")[1].strip() for line in err.splitlines()]
    assert lines == ["0%  loading", "50%  round 1 of 1"]


def test_options_reach_the_driver(measured):
    code = call(
        *("--workload", "digits-logreg", "digits-mlp", "--algorithm", "fedprox"),
        *("--backend", "sequential", "--backend", "threads", "--workers", "1", "2", "4"),
        *("--rounds", "9", "--seed", "5", "--reproducibility", "L0", "--timeout", "7"),
    )
    assert code == 0
    (settings,) = measured.asked
    assert settings.workloads == ("digits-logreg", "digits-mlp")
    assert settings.algorithms == ("fedprox",)
    assert settings.backends == ("sequential", "threads")
    assert settings.workers == (1, 2, 4)
    assert (settings.rounds, settings.seed, settings.timeout_s) == (9, 5, 7.0)
    assert settings.reproducibility == "L0"


def test_all_stands_for_every_algorithm(measured):
    assert call("--preset", "smoke", "--algorithm", "all") == 0
    assert measured.asked[0].algorithms == ALGORITHMS.names()
    assert measured.asked[0].workloads == ("digits-logreg",)


def test_algorithms_of_your_own_are_named_by_their_module(measured, capsys):
    own = "fedbench.algorithms.fedavg:FedAvg"
    assert call("--algorithm", own, "fedprox") == 0
    assert measured.asked[0].algorithms == (own, "fedprox")
    assert call("--algorithm", "json:dumps") == 2
    assert "must be a subclass of fedbench.algorithms.Algorithm" in capsys.readouterr().err


def test_equals_signs_and_repetition_mix(measured):
    assert call("--workers=1", "2", "--workers", "4") == 0
    assert measured.asked[0].workers == (1, 2, 4)


def test_rounds_may_be_left_to_the_driver(measured):
    assert call("--rounds", "auto", "--budget", "5") == 0
    assert measured.asked[0].rounds is None
    assert measured.asked[0].budget_s == 5.0


def test_defaults_are_all_backends_and_the_presets_workloads(measured):
    from fedbench.executors import EXECUTORS

    assert call("--preset", "smoke") == 0
    assert measured.asked[0].backends == EXECUTORS.names()
    assert measured.asked[0].workloads == ("digits-logreg",)


def test_files_are_written_and_read_back(measured, tmp_path, capfd):
    targets = [tmp_path / "new" / f"表 t.{suffix}" for suffix in ("csv", "md", "json", "parquet")]
    assert call("--out", *map(str, targets)) == 0
    frame = pd.read_csv(targets[0])
    assert frame["speedup"].tolist() == [1.0, 2.0]
    assert Report.load(targets[2]).measurements == tuple(measured.entries)
    assert pd.read_parquet(targets[3])["backend"].tolist() == ["sequential", "threads"]
    assert capfd.readouterr().err.count("wrote ") == 4


def test_writing_twice_replaces(measured, tmp_path):
    target = tmp_path / "t.csv"
    assert call("--out", str(target)) == 0
    first = target.read_bytes()
    assert call("--out", str(target)) == 0
    assert target.read_bytes() == first


def test_a_failed_backend_is_a_row_and_exit_code_0(measured, capfd):
    measured.entries.append(measured.entry("ray", status="ray is not installed"))
    assert call() == 0
    assert "ray is not installed" in capfd.readouterr().out


def test_a_broken_promise_is_exit_code_1(measured, tmp_path, capfd):
    measured.entries.append(measured.entry("processes", digest="cd" * 32))
    assert call("--out", str(tmp_path / "t.csv")) == 1
    assert "must be bitwise that of the baseline and is not" in " ".join(
        capfd.readouterr().out.split()
    )
    assert (tmp_path / "t.csv").exists()


def test_a_difference_that_nobody_promised_is_exit_code_0(measured):
    measured.entries.append(measured.entry("processes", digest="cd" * 32))
    assert call("--reproducibility", "L0") == 0


def test_nothing_ran_is_exit_code_1(measured):
    measured.entries = [measured.entry("ray", status="ray is not installed")]
    assert call() == 1


def test_a_full_disk_keeps_the_table_and_the_other_files(measured, tmp_path, capfd):
    full = tmp_path / "full.csv"
    full.symlink_to("/dev/full")
    assert call("--out", str(full), str(tmp_path / "t.md")) == 2
    out, err = capfd.readouterr()
    assert "speedup" in out
    assert [line for line in err.splitlines() if "error" in line] == [
        f"fedbench: error: cannot write '{full}': No space left on device. "
        "Choose another file with --out."
    ]
    assert (tmp_path / "t.md").exists()


def test_an_interrupt_is_one_line_and_exit_code_130(measured, monkeypatch, capfd):
    def measure(settings, *, on_progress=None):
        raise KeyboardInterrupt

    monkeypatch.setattr(fedbench.report, "measure", measure)
    assert call() == 130
    assert capfd.readouterr().err.strip() == "fedbench: error: interrupted."


def test_progress_is_drawn_on_a_terminal_only_on_stderr(measured, monkeypatch, capsys):
    import sys

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert call() == 0
    out, err = capsys.readouterr()
    assert "working" in err
    assert "working" not in out


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_the_table_fits_the_terminal(measured, monkeypatch, capfd, columns):
    monkeypatch.setenv("COLUMNS", columns)
    assert call() == 0
    assert max(map(len, capfd.readouterr().out.splitlines())) <= int(columns)


@pytest.mark.parametrize(
    "environment",
    [{"LC_ALL": "C"}, {"LC_ALL": "POSIX", "PYTHONUTF8": "0"}, {"PYTHONIOENCODING": "cp1252"}],
    ids=str,
)
def test_names_that_the_locale_cannot_show_survive_in_files(tmp_path, environment):
    status = "ü\n→"
    code = (
        "import sys, fedbench.report\n"
        "from fedbench.cli import main\n"
        "from fedbench.report import Configuration, Measurement, Report\n"
        f"name, status = {'тест-表'!a}, {status!a}\n"
        "row = Measurement(Configuration(name, 'fedavg', 'sequential', 1), status=status)\n"
        "fedbench.report.measure = lambda settings, on_progress: Report((row,), {})\n"
        "main(['report', '--out', sys.argv[1]])\n"
    )
    target = tmp_path / "тест ü" / "表.csv"
    done = subprocess.run(
        [sys.executable, "-c", code, target],
        capture_output=True,
        check=False,
        env={key: value for key, value in os.environ.items() if key != "PYTHONIOENCODING"}
        | environment,
    )
    assert done.returncode == 1  # nothing ran
    assert b"Traceback" not in done.stderr
    assert b"fedavg" in done.stdout
    frame = pd.read_csv(target)
    assert frame["workload"].tolist() == ["тест-表"]
    assert frame["status"].tolist() == [status]
