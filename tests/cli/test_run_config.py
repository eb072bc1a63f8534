"""``fedbench run`` from a file: matrix, files, plots, resume, precedence, errors."""

import csv
import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pandas as pd
import psutil
import pytest
import torch

from fedbench.cli import main
from fedbench.configuration.yaml_text import dump, parse_value
from fedbench.executors.resources import available_cpus
from fedbench.workloads import WORKLOADS

TINY = {
    "workload": "quadratic",
    "cohort_size": 4,
    "rounds": 3,
    "eval_every": 1,
}
MATRIX = {
    "workload": "digits-logreg",
    "cohort_size": 3,
    "num_clients": 20,
    "rounds": 2,
    "local_epochs": 1,
    "eval_every": 1,
    "matrix": {
        "algorithm": ["fedavg", {"name": "fedprox", "mu": 0.1}, "scaffold"],
        "partitioner": ["iid", {"name": "dirichlet", "alpha": 0.5, "min_size": 2}],
        "seed": [0, 1],
    },
}


def run(*arguments):
    with pytest.raises(SystemExit) as stop:
        main(["run", *map(str, arguments)])
    return stop.value.code


@pytest.fixture
def tiny(tmp_path):
    file = tmp_path / "tiny.yaml"
    file.write_text(dump(TINY))
    return file


@pytest.fixture
def matrix(tmp_path):
    file = tmp_path / "matrix.yaml"
    file.write_text(dump(MATRIX))
    return file


def test_a_matrix_gives_one_tidy_table_and_plots(matrix, tmp_path, capsys):
    out, plot = tmp_path / "all.csv", tmp_path / "curves.svg"
    assert run(matrix, "--out", out, "--plot", plot) == 0
    table = pd.read_csv(out)
    assert list(table.columns) == [*MATRIX["matrix"], "round", "split", "metric", "value"]
    assert len(table) == 12 * 2 * 3
    assert table.groupby(["algorithm", "partitioner", "seed"]).size().eq(6).all()
    assert plot.read_bytes().startswith(b"<?xml")
    printed, told = capsys.readouterr()
    assert len(printed.splitlines()) == 1 + 12
    assert "fedprox(mu=0.1)" in printed
    assert "12 of 12: " in told
    # The stored configuration gives the table again, bit for bit.
    again = tmp_path / "again.csv"
    assert run(f"{out}.config.yaml", "--out", again, "--plot", tmp_path / "again.png") == 0
    assert again.read_bytes() == out.read_bytes()
    assert (tmp_path / "again.png").read_bytes().startswith(b"\x89PNG")


def test_parallel_writes_the_same_files(matrix, tmp_path, monkeypatch):
    monkeypatch.setattr("fedbench.executors.resources.available_cpus", lambda: 2)
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    fewer = ("--matrix", "algorithm=fedavg,scaffold")
    assert run(matrix, *fewer, "--out", one) == 0
    assert run(matrix, *fewer, "--out", two, "--parallel", 2) == 0
    assert one.read_bytes() == two.read_bytes()


def test_a_run_that_fails_is_shown_and_the_exit_code_is_1(tiny, tmp_path, capsys):
    out = tmp_path / "h.json"
    assert run(tiny, "--matrix", "cohort_size=4,21", "--out", out) == 1
    printed, told = capsys.readouterr()
    assert "failed: ValueError: cohort_size must be at most the number of clients" in told
    assert "Traceback" not in told
    assert [line.split()[1] for line in printed.splitlines()[1:]] == ["ok", "failed"]
    document = json.loads(out.read_text())
    assert [entry["status"] for entry in document["runs"]] == ["ok", "failed"]
    assert document["runs"][1]["error"].startswith("ValueError: cohort_size")
    assert {row["cohort_size"] for row in document["history"]} == {4}


@pytest.mark.parametrize("suffix", [".csv", ".md", ".parquet", ".json"])
def test_the_resolved_configuration_is_stored_with_the_history(suffix, tiny, tmp_path):
    out = tmp_path / f"history{suffix}"
    assert run(tiny, "--lr", "0.05", "--out", out) == 0
    if suffix == ".json":
        document = json.loads(out.read_text())
        stored = document["configuration"]
        assert document["runs"][0]["pinned"]["torch"] == torch.__version__
    else:
        text = (tmp_path / f"history{suffix}.config.yaml").read_text()
        stored = parse_value(text)
        assert f"#   torch: {torch.__version__}\n" in text
    assert stored["lr"] == 0.05
    assert stored["algorithm"] == {"name": "fedavg", "weighting": "samples"}
    assert stored["batch_size"] == 10
    assert stored["out"] == str(out)


def test_the_json_history_has_every_bit(tiny, tmp_path):
    assert run(tiny, "--out", tmp_path / "h.json") == 0
    assert run(tiny, "--out", tmp_path / "h.csv") == 0
    rows = json.loads((tmp_path / "h.json").read_text())["history"]
    with (tmp_path / "h.csv").open(newline="") as file:
        exact = [float(row["value"]) for row in csv.DictReader(file)]
    assert [row["value"] for row in rows] == exact


def test_a_resumed_run_from_a_file_has_the_history_of_the_unbroken_one(tiny, tmp_path, capsys):
    whole, two = tmp_path / "whole.csv", tmp_path / "two.csv"
    saved = ("--checkpoints", tmp_path / "saved")
    assert run(tiny, "--out", whole) == 0
    assert run(tiny, *saved, "--rounds", 1) == 0
    assert run(tiny, *saved, "--resume", "--out", two) == 0
    assert "resuming after round 1 of 3" in capsys.readouterr().err
    assert two.read_bytes() == whole.read_bytes()


def test_a_resumed_matrix_too(tiny, tmp_path):
    whole, two = tmp_path / "whole.csv", tmp_path / "two.csv"
    sweep = ("--matrix", "seed=0,1", "--matrix", "lr=0.1,0.05")
    saved = ("--checkpoints", tmp_path / "saved")
    assert run(tiny, *sweep, "--out", whole) == 0
    assert run(tiny, *sweep, *saved, "--rounds", 2) == 0
    assert len(list((tmp_path / "saved").iterdir())) == 4
    assert run(tiny, *sweep, *saved, "--resume", "--out", two) == 0
    assert two.read_bytes() == whole.read_bytes()


def test_a_checkpoint_of_another_partition_is_refused(tmp_path, capsys):
    base = ("--workload", "digits-logreg", "--rounds", 1, "--checkpoints", tmp_path)
    assert run(*base, "--partitioner", "iid") == 0
    assert run(*base, "--partitioner", "shards", "--resume") == 1
    assert "belongs to another simulation" in capsys.readouterr().err


def test_show_config_prints_what_would_run(tiny, capsys, monkeypatch):
    monkeypatch.setenv("FEDBENCH_SEED", "5")
    monkeypatch.setenv("FEDBENCH_ROUNDS", "7")
    assert run(tiny, "--rounds", 9, "--show-config") == 0
    shown = parse_value(capsys.readouterr().out)
    assert (shown["seed"], shown["rounds"], shown["cohort_size"]) == (5, 9, 4)
    assert shown["loss"] == "mse"


@pytest.mark.parametrize("workload", WORKLOADS.names())
def test_every_workload_resolves_to_a_complete_configuration(workload, capsys):
    assert run("--workload", workload, "--show-config") == 0
    shown = parse_value(capsys.readouterr().out)
    assert {"algorithm", "cohort_size", "rounds", "batch_size", "lr", "loss"} <= shown.keys()


def test_a_flag_that_ends_a_sweep_is_noted(matrix, capsys):
    assert run(matrix, "--seed", 3, "--show-config") == 0
    printed, told = capsys.readouterr()
    assert "note: --seed replaces the sweep over seed." in told
    assert "seed" not in parse_value(printed)["matrix"]


def test_no_flag_takes_back_what_the_file_says(tiny, tmp_path, capsys):
    tiny.write_text(dump({**TINY, "resume": True, "checkpoints": str(tmp_path / "none")}))
    assert run(tiny, "--no-resume", "--show-config") == 0
    assert parse_value(capsys.readouterr().out)["resume"] is False


def test_live_metrics_go_to_stderr(tiny, capsys):
    assert run(tiny) == 0
    printed, told = capsys.readouterr()
    assert told.count("\n") == 3
    assert told.startswith("round 1 of 3: test loss ")
    assert [line.split()[0] for line in printed.splitlines()] == [
        *("round", "1", "2", "3"),
        "final",
    ]


def test_without_evaluations_the_last_training_metrics_are_printed(tiny, capsys):
    assert run(tiny, "--eval-every", 0) == 0
    assert capsys.readouterr().out.split()[:3] == ["round", "train_loss", "3"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--plot", "curves.svgz"], "Did you mean '.svg'?"),
        (["--out", "h.cvs"], "Did you mean '.csv'?"),
        (["--plot", "/proc/x.svg"], "cannot write '/proc/x.svg'"),
        (["--matrix", "seed"], "--matrix must be KEY=A,B,..., got 'seed'"),
        (["--matrix", "sed=1"], "--matrix: unknown key 'sed'. Did you mean 'seed'?"),
        (["--lr", "fast"], "--lr: lr must be a number, got 'fast'."),
        (["--algorithm", "{name: fedprox"], "--algorithm: '{name: fedprox' is no value: line 1"),
        (["--reproducibility", "L2"], "Use reproducibility='L1'"),
        (["--parallel", "2", "--backend", "threads"], "backend must be sequential"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(arguments, expected, tiny, capsys):
    assert run(tiny, *arguments) == 2
    printed, told = capsys.readouterr()
    assert printed == ""
    assert told.count("\n") == 1
    assert expected in told


def test_a_missing_matplotlib_is_found_before_anything_runs(tiny, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run(tiny, "--plot", "curves.svg") == 2
    assert "a plot needs the package 'matplotlib'" in capsys.readouterr().err


def test_a_user_module_beside_the_file_can_be_named(tmp_path):
    (tmp_path / "mine.py").write_text(
        textwrap.dedent("""
        from fedbench.models import logistic_regression

        def model(*, width: int = 64, seed: int = 0):
            return logistic_regression(width, 10, seed=seed)
        """)
    )
    (tmp_path / "run.yaml").write_text("workload: digits-logreg\nrounds: 1\nmodel: mine:model\n")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "fedbench",
            "run",
            "run.yaml",
            "--matrix",
            "seed=0,1",
            "--parallel",
            "2",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env=os.environ | {"FEDBENCH_ROUNDS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ok") == 2


def test_an_interrupt_leaves_no_process_behind(tiny, tmp_path):
    process_count = 2 if available_cpus() > 1 else 0  # one at a time needs no process
    command = [sys.executable, "-m", "fedbench", "run", str(tiny), "--rounds", "1000000"]
    done = subprocess.Popen(
        [*command, "--matrix", "seed=0,1", "--parallel", "2", "--checkpoints", str(tmp_path / "c")],
        stderr=subprocess.PIPE,
        env=os.environ | {"FEDBENCH_CHECKPOINT_EVERY": "1"},
        start_new_session=True,
    )
    try:
        while not list(tmp_path.glob("c/*/round-*")):  # until a run is well on its way
            assert done.poll() is None, done.stderr.read()
            time.sleep(0.1)
        children = psutil.Process(done.pid).children(recursive=True)
        assert len(children) == process_count
        done.send_signal(signal.SIGINT)
        assert done.wait(60) == 130
        assert b"Traceback" not in done.stderr.read()
        _, alive = psutil.wait_procs(children, timeout=10)
        assert not alive
    finally:
        done.kill()
        done.wait()
        done.stderr.close()
