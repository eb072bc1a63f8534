"""The source distribution builds anywhere, and the wheel holds what it should and works."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

from .conftest import BUILD_TIMEOUT_S, ROOT, run

pytestmark = pytest.mark.timeout(BUILD_TIMEOUT_S)

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_source_distribution_holds_what_a_build_needs_and_no_build_products(
    sdist: Path,
) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "CMakeLists.txt", "LICENSE", "README.md"} <= names
    assert {"csrc/bindings/module.cpp", "fedbench/_core.pyi", "fedbench/py.typed"} <= names
    unwanted = (".git/", ".venv/", "build/", "dist/", "docs/_build/", "table.csv")
    assert not [name for name in names if name.startswith(unwanted) or name.endswith(".so")]


def test_the_wheel_has_the_version_and_name_of_pyproject(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        headers = HeaderParser().parsestr(archive.read(metadata).decode())
    assert headers["Name"] == PROJECT["name"] == "fedbench-sim"
    assert headers["Version"] == PROJECT["version"]
    assert headers["Requires-Python"] == PROJECT["requires-python"]


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
    assert all(name.startswith("fedbench/") for name in names)
    assert [name for name in names if name.startswith("fedbench/_core.") and name.endswith(".so")]
    sources = {
        f"fedbench/{path.relative_to(ROOT / 'fedbench')}"
        for path in (ROOT / "fedbench").rglob("*")
        if path.suffix in {".py", ".pyi", ".typed"}
    }
    assert sources <= set(names)
    assert {"fedbench/_core.pyi", "fedbench/py.typed"} <= sources
    assert not [name for name in names if name.endswith((".cpp", ".hpp", ".o"))]


def test_the_wheel_is_tagged_for_this_interpreter(wheel: Path) -> None:
    interpreter = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert f"-{interpreter}-{interpreter}" in wheel.name


def test_the_installed_wheel_aggregates_numpy_arrays_without_torch(clean_python: Path) -> None:
    code = (
        "import sys, numpy, fedbench\n"
        "mean = fedbench.aggregation.mean([numpy.float32([1, 2]), numpy.float32([3, 6])], [1, 3])\n"
        "assert mean.tolist() == [2.5, 5.0] and mean.dtype == numpy.float32, mean\n"
        "assert not {'torch', 'pandas', 'ray'} & set(sys.modules)\n"
        "print(fedbench.__version__, fedbench.__file__)\n"
    )
    version, file = run(clean_python, "-P", "-c", code, cwd=clean_python.parent).split(maxsplit=1)
    assert version == PROJECT["version"]
    assert Path(file.strip()).is_relative_to(clean_python.parents[1])


def test_the_core_loads_without_numpy(clean_python: Path) -> None:
    code = (
        "import sys; sys.modules['numpy'] = None\n"
        "from fedbench._native import core\n"
        "print(core.cpu_features())\n"
    )
    assert run(clean_python, "-P", "-c", code, cwd=clean_python.parent).startswith("[")


def test_the_extension_links_no_openmp_runtime_and_not_torch(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".so")]
        extension = archive.extract(name, tmp_path)
    linked = run("ldd", extension, cwd=tmp_path)
    assert "libstdc++" in linked
    for runtime in ("libgomp", "libomp", "libiomp", "libtorch", "libpython"):
        assert runtime not in linked


def test_the_editable_install_of_the_tests_uses_the_checkout(tmp_path: Path) -> None:
    code = "import fedbench, fedbench._core; print(fedbench.__file__)"
    file = run(sys.executable, "-P", "-c", code, cwd=tmp_path).strip()
    if not Path(file).is_relative_to(ROOT):
        pytest.skip(f"fedbench is not installed from this checkout but in {Path(file).parent}")
    assert Path(file) == ROOT / "fedbench" / "__init__.py"


@pytest.mark.slow
@pytest.mark.parametrize("release", ["3.22.*", "3.31.*", "4.*"])
def test_cmake_releases_configure_the_project(
    release: str, source_tree: Path, tmp_path: Path
) -> None:
    """The stated minimum, the last 3.x and the newest 4.x, taken from their PyPI wheels."""
    download = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--target",
            str(tmp_path / "cmake"),
            f"cmake=={release}",
        ],
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    if "No matching distribution found" in download.stderr:
        pytest.skip(f"the package index offers no cmake {release} for this platform")
    assert download.returncode == 0, download.stderr
    (cmake,) = (tmp_path / "cmake" / "cmake" / "data" / "bin").glob("cmake")
    cmake.chmod(0o755)
    options = ["-DFEDBENCH_BUILD_PYTHON=OFF", "-DFEDBENCH_BUILD_TESTS=OFF"]
    run(cmake, "-S", source_tree, "-B", tmp_path / "build", *options, cwd=tmp_path)


@pytest.mark.slow
def test_an_old_pip_installs_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """Pip 21.3 is the first that knows editable installs of projects like this one."""
    run(sys.executable, "-m", "venv", tmp_path / "env", cwd=tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "pip==21.3.1", cwd=tmp_path)
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    code = "from fedbench._native import core; print(core.cpu_features())"
    assert run(python, "-P", "-c", code, cwd=tmp_path).startswith("[")
