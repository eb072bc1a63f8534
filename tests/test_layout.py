"""Rules about the shape of the repository that no other tool checks."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_FILE_LINES = 400
# One kernel family, and one subject's tests with their tables of cases, may stay together.
MAX_LINES_OF_TESTS_AND_KERNELS = 700
MAX_FUNCTION_LINES = 60

PACKAGE = sorted((ROOT / "fedbench").rglob("*.py"))
CPP = sorted(path for path in (ROOT / "csrc").rglob("*") if path.suffix in {".hpp", ".inl", ".cpp"})
PYTHON = [
    *PACKAGE,
    *(
        path
        for folder in ("tests", "benchmarks", "tools")
        for path in (ROOT / folder).rglob("*.py")
    ),
]
HEADERS = [path for path in CPP if (ROOT / "csrc" / "include") in path.parents]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", [*PYTHON, *CPP], ids=name_of)
def test_no_file_grows_past_the_cap(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    cap = MAX_FILE_LINES if path in PACKAGE else MAX_LINES_OF_TESTS_AND_KERNELS
    assert lines <= cap, f"{lines} lines: split the file by topic"


def functions_of(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize("path", PACKAGE, ids=name_of)
def test_no_function_body_grows_past_the_cap(path: Path) -> None:
    for function in functions_of(ast.parse(path.read_text(encoding="utf-8"))):
        body = function.body[1:] if ast.get_docstring(function) else function.body
        if body:
            lines = (body[-1].end_lineno or 0) - body[0].lineno + 1
            assert lines <= MAX_FUNCTION_LINES, f"{function.name} has {lines} lines"


@pytest.mark.parametrize("path", HEADERS, ids=name_of)
def test_kernel_headers_know_nothing_of_python(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"#\s*include\s*[<\"](Python\.h|pybind11/|torch/|ATen/)", text)
    assert path.suffix == ".inl" or "#pragma once" in text  # .inl: included several times


@pytest.mark.parametrize("path", CPP, ids=name_of)
def test_no_openmp_in_the_sources(path: Path) -> None:
    """Torch brings an OpenMP runtime; a second one in the process can abort or hang it."""
    assert not re.search(r"#\s*pragma\s+omp|omp\.h", path.read_text(encoding="utf-8"))


def test_the_build_is_portable() -> None:
    """A wheel runs on machines other than the one that built it."""
    text = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    assert not re.search(r"march=native|ffast-math|OpenMP", text)


@pytest.mark.parametrize("path", PACKAGE, ids=name_of)
def test_modules_import_fedbench_by_its_own_name(path: Path) -> None:
    """A package that can be imported under two names exists twice."""
    assert not re.search(r"^\s*(from|import) src\b", path.read_text(encoding="utf-8"), re.MULTILINE)


def test_the_changelog_has_a_heading_for_the_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[?{re.escape(project['version'])}\]?", changelog, re.MULTILINE)


TEXTS = [
    *PACKAGE,
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "fedbench").rglob("*.pyi"),
]


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_nobody_is_told_to_install_another_project(path: Path) -> None:
    """PyPI's distribution of the name fedbench is unrelated to this one."""
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"pip3? install (-U |--upgrade )?['\"]?fedbench(?!-sim)", text)


def test_make_test_installs_every_extra() -> None:
    """A test that skips because its package is missing must not skip there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    settings = dict(
        re.findall(r"^(\w+_EXTRAS) := (.+)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    )
    extras = settings["TEST_EXTRAS"].replace("$(RUN_EXTRAS)", settings["RUN_EXTRAS"]).split(",")
    # Other frameworks, which want older versions of what they share with us: `fedbench peers`.
    assert set(extras) == set(project["optional-dependencies"]) - {"flower", "pfl"}


def test_constraints_pin_exact_versions() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    assert "torch==2.13.0" in lines
    assert all("==" in line for line in lines)
