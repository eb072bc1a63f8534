import json
import os
import subprocess
import sys

import pandas as pd
import pytest

from fedbench.cli import main
from fedbench.configuration.yaml_text import parse_document

COMMAND = [sys.executable, "-m", "fedbench", "run", "--workload", "digits-logreg"]


def run(*arguments):
    with pytest.raises(SystemExit) as exit_info:
        main(["run", "--workload", "digits-logreg", *arguments])
    return exit_info.value.code


def test_a_resumed_run_ends_with_the_metrics_of_the_unbroken_one(tmp_path, capsys):
    saved = str(tmp_path / "saved")
    assert run("--rounds", "4", "--out", str(tmp_path / "whole.csv")) == 0
    assert run("--rounds", "2", "--checkpoints", saved) == 0
    assert (
        run("--rounds", "4", "--checkpoints", saved, "--resume", "--out", str(tmp_path / "two.csv"))
        == 0
    )
    assert "resuming after round 2 of 4" in capsys.readouterr().err
    whole, two = pd.read_csv(tmp_path / "whole.csv"), pd.read_csv(tmp_path / "two.csv")
    # The first part evaluated its own last round as well.
    last = whole["round"] == 4
    assert whole[last].reset_index(drop=True).equals(two[two["round"] == 4].reset_index(drop=True))


def test_resuming_a_finished_run_does_nothing_more(tmp_path, capsys):
    saved = str(tmp_path)
    assert run("--rounds", "1", "--checkpoints", saved) == 0
    first = capsys.readouterr().out
    assert run("--rounds", "1", "--checkpoints", saved, "--resume") == 0
    assert capsys.readouterr().out == first


def test_resume_without_a_folder_is_a_usage_error(capsys):
    assert run("--rounds", "1", "--resume") == 2
    assert "resume needs checkpoints" in capsys.readouterr().err


def test_a_foreign_checkpoint_is_one_line(tmp_path, capsys):
    saved = str(tmp_path)
    assert run("--rounds", "1", "--checkpoints", saved) == 0
    capsys.readouterr()
    assert run("--rounds", "2", "--checkpoints", saved, "--resume", "--seed", "9") == 1
    error = capsys.readouterr().err
    assert "belongs to another simulation: its seed is 0" in error
    assert "Traceback" not in error


def test_an_unwritable_folder_of_checkpoints_is_one_line(capsys):
    assert run("--rounds", "1", "--checkpoints", "/proc/x") == 2
    assert capsys.readouterr().err.startswith("fedbench: error: cannot write checkpoints to '/proc")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
def test_the_files_are_written_although_the_table_cannot_be_shown(tmp_path):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, "--rounds", "1", "--out", str(tmp_path / "h.csv")],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            timeout=120,
        )
    assert done.returncode == 2
    assert done.stderr.decode().splitlines()[-1].startswith("fedbench: error: cannot write to the")
    assert len(pd.read_csv(tmp_path / "h.csv")) > 0


@pytest.mark.parametrize("suffix", [".md", ".json"])
def test_a_file_name_that_an_ascii_locale_cannot_decode(tmp_path, suffix):
    name = f"тест ü 表{suffix}"
    ascii_locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [*COMMAND, "--rounds", "1", "--out", name.encode()],
        capture_output=True,
        check=False,
        timeout=120,
        cwd=tmp_path,
        env=os.environ | ascii_locale | {"PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, done.stdout.count(b"\n")) == (0, 3), done.stderr
    if suffix == ".json":
        configuration = json.loads((tmp_path / name).read_text("utf-8"))["configuration"]
    else:
        text = (tmp_path / f"{name}.config.yaml").read_text("utf-8")
        assert f"configuration of {name}." in text
        configuration = parse_document(text).value
    assert os.fsencode(configuration["out"]) == name.encode()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
def test_no_configuration_is_written_beside_a_table_that_cannot_be(tmp_path, capsys):
    (tmp_path / "full.csv").symlink_to("/dev/full")
    plot = tmp_path / "curves.svg"
    assert run("--rounds", "1", "--out", str(tmp_path / "full.csv"), "--plot", str(plot)) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert {entry.name for entry in tmp_path.iterdir()} == {"full.csv", "curves.svg"}
