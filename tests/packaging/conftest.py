"""One source distribution and one wheel, built as a stranger would: no git, an odd folder."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD_TIMEOUT_S = 900  # a build takes about a minute on an idle machine
# What is tested of the wheel does not depend on the optimiser, which takes most of a build; the
# editable install, which all other tests use, is an optimised one.
QUICKLY = [
    "-Ccmake.define.CMAKE_CXX_FLAGS_RELEASE=-O0",
    "-Ccmake.define.CMAKE_INTERPROCEDURAL_OPTIMIZATION=OFF",
]


def build_environment() -> dict[str, str]:
    """Return the environment of a builder who has no git repository."""
    tools = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "GIT_DIR": "/nonexistent",
        "PATH": os.pathsep.join([tools, os.environ["PATH"]]),
    }


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run `command` in `cwd`; return what it printed, fail with all of it otherwise."""
    result = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**build_environment(), **environment},
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the source distribution of this checkout."""
    out = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "-o", out, ROOT, cwd=out)
    (archive,) = out.glob("*.tar.gz")
    return archive


@pytest.fixture(scope="session")
def source_tree(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the unpacked source distribution, in a folder with a space and no ``.git`` above."""
    folder = tmp_path_factory.mktemp("source tree")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (tree,) = folder.iterdir()
    return tree


@pytest.fixture(scope="session")
def wheel(source_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel built from the unpacked source distribution."""
    out = tmp_path_factory.mktemp("wheel")
    options = ["--wheel", "--no-isolation", *QUICKLY]
    run(sys.executable, "-m", "build", *options, "-o", out, source_tree, cwd=out)
    (archive,) = out.glob("*.whl")
    return archive


@pytest.fixture(scope="session")
def clean_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of an environment that holds the wheel and numpy, nothing else.

    numpy is linked from the environment of the tests, which saves downloading it; torch, pandas
    and ray are not importable there.
    """
    import numpy as np

    folder = tmp_path_factory.mktemp("clean environment")
    run(sys.executable, "-m", "venv", folder / "env", cwd=folder)
    python = folder / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel, cwd=folder)
    site = Path(
        run(python, "-c", "import site; print(site.getsitepackages()[0])", cwd=folder).strip()
    )
    numpy = Path(np.__file__).parent
    for part in numpy.parent.glob("numpy*"):
        (site / part.name).symlink_to(part)
    return python
