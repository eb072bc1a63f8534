"""What ``import fedbench`` loads, in which order it may stand, and what a missing extra says."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"torch", "pandas", "ray", "sklearn", "scipy", "matplotlib", "mlxtend"}


def python(code: str, tmp_path: Path, *options: str) -> str:
    """Run `code` in a fresh interpreter; return what it printed."""
    result = subprocess.run(
        [sys.executable, "-P", "-W", "error", *options, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "COVERAGE_PROCESS_START": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""
    return result.stdout


def loaded_by(statements: str, tmp_path: Path) -> set[str]:
    """Return the heavy packages that `statements` load."""
    code = f"{statements}\nimport sys\nprint(*{HEAVY!r} & set(sys.modules))"
    return set(python(code, tmp_path).split())


def test_importing_the_package_loads_no_heavy_package(tmp_path: Path) -> None:
    assert loaded_by("import fedbench; dir(fedbench); fedbench.__version__", tmp_path) == set()


def test_importing_the_package_does_not_even_load_numpy(tmp_path: Path) -> None:
    assert python("import fedbench, sys; print('numpy' in sys.modules)", tmp_path) == "False\n"


def test_aggregating_numpy_arrays_loads_no_heavy_package(tmp_path: Path) -> None:
    statements = (
        "import fedbench, numpy\n"
        "fedbench.aggregation.mean([numpy.ones(3), numpy.zeros(3)])\n"
        "fedbench.aggregation.mean([{'w': numpy.ones(3)}, {'w': numpy.zeros(3)}], weights=[1, 2])"
    )
    assert loaded_by(statements, tmp_path) == set()


@pytest.mark.parametrize("statements", ["import fedbench.cli", "import fedbench.executors"])
def test_the_command_and_the_executors_start_light(statements: str, tmp_path: Path) -> None:
    assert loaded_by(statements, tmp_path) == set()


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["report", "--help"]])
def test_help_and_version_load_no_heavy_package(arguments: list[str], tmp_path: Path) -> None:
    code = (
        "import sys\nfrom fedbench.cli import main\n"
        f"try:\n    main({arguments!r})\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        f"print('loaded:', *{HEAVY!r} & set(sys.modules))"
    )
    assert python(code, tmp_path).splitlines()[-1].strip() == "loaded:"


ORDERS = list(itertools.permutations(["torch", "sklearn", "fedbench"]))


# Every second one: each two packages come in both orders. The slow tests have the others.
@pytest.mark.parametrize(
    "order",
    [
        pytest.param(one, marks=pytest.mark.slow if place % 2 else [])
        for place, one in enumerate(ORDERS)
    ],
)
def test_any_import_order_works(order: tuple[str, ...], tmp_path: Path) -> None:
    """Two OpenMP runtimes in one process abort or deadlock in some order; ours brings none."""
    code = (
        f"import {', '.join(order)}\n"
        "import numpy, sklearn.cluster\n"
        "from fedbench import aggregation\n"
        "updates = [torch.ones(300_000), torch.zeros(300_000)]\n"
        "mean = aggregation.mean(updates)\n"
        "assert (mean == 0.5).all()\n"
        "(torch.ones(200, 200) @ torch.ones(200, 200)).sum()\n"
        "print('fine')"
    )
    assert python(code, tmp_path, "-W", "ignore::DeprecationWarning") == "fine\n"


# Python's own sign for "not installed": importing the name raises ModuleNotFoundError, and
# importlib.util.find_spec finds nothing.
HIDE = "import sys; sys.modules[{name!r}] = None\n"


def test_a_missing_ray_says_what_to_install(tmp_path: Path) -> None:
    code = HIDE.format(name="ray") + (
        "import fedbench\n"
        "from fedbench.errors import MissingExtraError\n"
        "try:\n"
        "    fedbench.make_executor('ray', workers=1).start()\n"
        "except MissingExtraError as error:\n"
        "    assert isinstance(error, ImportError)\n"
        "    print(error)\n"
    )
    message = python(code, tmp_path)
    assert "'ray'" in message
    assert "-e '.[ray]'" in message
    assert "pip install fedbench" not in message.replace("fedbench-sim", "")


def test_a_missing_mlxtend_says_what_to_install(tmp_path: Path) -> None:
    code = HIDE.format(name="mlxtend") + (
        "from fedbench import workloads\n"
        "from fedbench.errors import MissingExtraError\n"
        "try:\n"
        "    workloads.load('mnist5k-cnn').dataset()\n"
        "except MissingExtraError as error:\n"
        "    print(error)\n"
    )
    message = python(code, tmp_path)
    assert "'mlxtend'" in message
    assert "-e '.[data]'" in message


@pytest.mark.skipif(
    not hasattr(sys, "_is_gil_enabled") or sys._is_gil_enabled(),
    reason="needs a free-threaded interpreter; this one has a GIL to begin with",
)
def test_the_extension_leaves_the_gil_off(tmp_path: Path) -> None:
    code = "import fedbench._core, sys; print(sys._is_gil_enabled())"
    assert python(code, tmp_path) == "False\n"
