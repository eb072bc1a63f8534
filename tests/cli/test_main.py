"""Help, version, errors and exit codes, as a user sees them: in a process of its own."""

import json
import os
import subprocess
import sys

import pytest

from fedbench.cli import main
from fedbench.cli.app import COMMANDS

HEAVY = ("torch", "pandas", "numpy", "ray", "sklearn", "scipy", "mlxtend", "psutil", "tqdm")


def fedbench(*arguments, **options):
    command = [sys.executable, "-m", "fedbench", *arguments]
    return subprocess.run(command, capture_output=True, check=False, timeout=120, **options)


@pytest.mark.parametrize(
    "arguments",
    [[], ["--help"], ["-h"], ["--version"], *([name, "--help"] for name in COMMANDS)],
    ids=" ".join,
)
def test_help_and_version_import_nothing_heavy(arguments):
    code = (
        "import sys, json, atexit\n"
        "from fedbench.cli import main\n"
        "atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))\n"
        f"main({arguments!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    loaded = {name.partition(".")[0] for name in json.loads(done.stderr)}
    assert loaded.isdisjoint(HEAVY)
    assert done.stdout.startswith("fedbench " if "--version" in arguments else "Usage: fedbench")


@pytest.mark.parametrize("module", ["click", "fedbench.registry", "fedbench.cli.list_command"])
def test_an_interrupt_of_the_imports_is_one_line_and_exit_code_130(module):
    code = (
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}:\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from fedbench.cli import main\n"
        "main(['list'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.strip() == "fedbench: error: interrupted."


def test_version_is_that_of_the_distribution():
    from importlib.metadata import version

    assert fedbench("--version").stdout.decode() == f"fedbench {version('fedbench-sim')}\n"


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in COMMANDS)])
def test_help_has_examples_and_fits_80_columns(arguments):
    text = fedbench(*arguments, env=os.environ | {"COLUMNS": "80"}).stdout.decode()
    assert max(map(len, text.splitlines())) <= 80
    assert "Examples:" in text or arguments[0] == "doctor"


def test_help_lists_every_command():
    text = fedbench("--help").stdout.decode()
    assert all(f"  {name} " in text for name in COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["repot"], "Did you mean 'report'?"),
        (
            ["nonsense"],
            "one of report, compare, peers, scale, run, verify, list, doctor, got 'nonsense'",
        ),
        (["--nope"], "No such option"),
        (["report", "--round", "3", "--nope"], "Try 'fedbench report --help'."),
        (["report", "--rounds", "many"], "'many' is not a valid integer"),
        (["report", "--rounds", "0"], "rounds must be at least 1, got 0"),
        (["report", "--workers", "0"], "workers must be at least 1, got 0"),
        (["report", "--workers", "1", "two"], "'two' is not a valid integer"),
        (["report", "--preset", "smok"], "Did you mean 'smoke'?"),
        (["report", "--workload", "digits-logrek"], "Did you mean 'digits-logreg'?"),
        (["report", "--backend", "thread"], "Did you mean 'threads'?"),
        (["report", "--algorithm", "fedagv"], "Did you mean 'fedavg'?"),
        (["report", "--reproducibility", "L2"], "Use reproducibility='L1'"),
        (["report", "--timeout", "-1"], "timeout must be a positive number of seconds"),
        (["report", "--seed", "-1"], "seed must be at least 0, got -1"),
        (["report", "--out", "table.cvs"], "Did you mean '.csv'?"),
        (["report", "--out", "/proc/x.csv"], "cannot write '/proc/x.csv'"),
        (["report", "--out", "/"], "must end in one of"),
        (["report", "--trace", "t.csv"], "must end in one of .json"),
        (["report", "--trace", "t.json", "--out", "t.json"], "must be different files"),
        (["report", "stray"], "must follow the option that it is for"),
        (["run"], "workload is missing. Name one of `fedbench list workloads`"),
        (["run", "--workload", "digits-logrek"], "Did you mean 'digits-logreg'?"),
        (
            ["run", "--workload", "digits-logreg", "--rounds", "0"],
            "rounds must be at least 1, got 0",
        ),
        (["run", "--workload", "digits-logreg", "--cohort", "101"], "cohort_size must be at most"),
        (["run", "--workload", "digits-logreg", "--out", "h.html"], "must end in one of"),
        (["verify"], "Missing option '--workload'"),
        (["verify", "--workload", "digits-logrek"], "Did you mean 'digits-logreg'?"),
        (["verify", "--workload", "quadratic", "--algorithm", "x"], "algorithm must be one of"),
        (["verify", "--workload", "quadratic", "--backend", "thread"], "Did you mean 'threads'?"),
        (["peers", "--peer", "flowr"], "Did you mean 'flower'?"),
        (["peers", "--workload", "logrek"], "Did you mean 'logreg'?"),
        (["peers", "--rounds", "1"], "rounds must be at least 2, got 1"),
        (["peers", "--out", "peers.html"], "must end in one of .csv"),
        (["scale", "--clients", "100"], "clients must have at least two values, got (100,)"),
        (["scale", "--cohort", "1", "1001"], "cohorts must be at least 1 and at most 1000"),
        (["scale", "--workers", "1"], "workers must be at least 2, got 1"),
        (["list", "workload"], "Did you mean 'workloads'?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_use_is_one_line_on_stderr_and_exit_code_2(arguments, expected, capfd):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    out, line = capfd.readouterr()
    assert out == ""
    assert line.count("\n") == 1
    assert line.startswith("fedbench")
    assert ": error: " in line
    assert expected in line


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
@pytest.mark.parametrize("buffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["--version"], ["report", "--help"], ["list"]])
def test_a_full_disk_behind_stdout_is_one_line_and_exit_code_2(arguments, buffered):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fedbench", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            timeout=120,
            env=os.environ | {"PYTHONUNBUFFERED": buffered},
        )
    line = done.stderr.decode()
    assert line.count("\n") == 1
    assert "error: cannot write to the standard output: No space left on device" in line
    assert done.returncode == 2


def test_a_folder_as_target_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "t.csv").mkdir()
    done = fedbench("report", "--out", str(tmp_path / "t.csv"))
    assert done.returncode == 2
    assert done.stderr.decode().count("\n") == 1
    assert b"it is a folder" in done.stderr


def test_list_names_every_registry_with_its_summaries():
    done = fedbench("list")
    assert done.returncode == 0
    text = done.stdout.decode()
    names = ("digits-logreg", "fedavg", "sequential", "dirichlet", "krum", "cross_entropy")
    for expected in (*names, "[extra: data]"):
        assert expected in text
    assert done.stderr == b""


def test_list_of_one_table_shows_only_that():
    text = fedbench("list", "backends").stdout.decode()
    assert text.startswith("backends\n  sequential")
    assert "fedavg" not in text


def test_list_has_the_columns_of_the_report():
    from fedbench.report import COLUMNS

    title, *lines = fedbench("list", "columns").stdout.decode().splitlines()
    assert title == "columns"
    assert [line.split()[0] for line in lines] == [column.name for column in COLUMNS]
    (line,) = [line for line in lines if line.startswith("  round_s ")]
    assert line.split(maxsplit=1)[1] == "Median round without evaluation. [s]"


def test_doctor_shows_what_matters():
    done = fedbench("doctor")
    text = done.stdout.decode()
    assert done.returncode == 0, text
    for topic in ("processor", "cores", "workers by default", "shared memory", "C++ extension"):
        assert topic in text
    for package in ("torch", "ray", "mlxtend", "pyarrow"):
        assert package in text


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-8"])
def test_output_survives_any_encoding(encoding):
    code = (
        "from fedbench.cli import app, main; import click\n"
        "@app.cli.command('show')\n"
        "def show(): click.echo('表 é')\n"
        "app.COMMANDS['show'] = app.Command('__main__:show', '')\n"
        "main(['show'])\n"
    )
    env = os.environ | {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    # Output in ASCII is taken for a locale that was never set, and replaced by UTF-8.
    text = done.stdout.decode("utf-8" if encoding == "ascii" else encoding).strip()
    assert text in ("表 é", "\\u8868 é")


def test_a_reader_that_goes_away_is_no_traceback():
    command = f"{sys.executable} -m fedbench list | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, check=False)
    assert done.stdout.count(b"\n") == 1
    assert b"Traceback" not in done.stderr
