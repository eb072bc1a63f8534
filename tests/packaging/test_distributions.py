"""The source distribution builds anywhere, and the wheel holds what it should and works.

What users reported of other packages, and the tests that would fail with that fault:

- optree#229, POMDPPlanners#139, old pip, no build isolation: `test_an_old_pip_installs_the_wheel`
  and `test_an_old_pip_builds_without_isolation_and_without_ninja`;
- python-samplerate#28, CMake releases, no ninja: `test_cmake_releases_configure_the_project`,
  `test_a_cmake_before_the_minimum_says_which_one_is_needed` and the build without ninja;
- openfl#999, pytorch#132179, numpy 1 and none: `test_the_oldest_numpy_aggregates`,
  `test_the_core_loads_without_numpy`;
- flower#3259, an extra that a platform lacks: `test_an_extra_is_never_left_out`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import HeaderParser
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from .conftest import BUILD_TIMEOUT_S, ROOT, build_environment, run

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


def test_an_extra_is_never_left_out(wheel: Path) -> None:
    """Where there is no ray, pip says so: no marker drops it, no release lacks the extra."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        headers = HeaderParser().parsestr(archive.read(metadata).decode())
    assert "ray" in headers.get_all("Provides-Extra", [])
    requirements = [Requirement(text) for text in headers.get_all("Requires-Dist", [])]
    (ray,) = [requirement for requirement in requirements if requirement.name == "ray"]
    for system, python in [("Linux", "3.14"), ("Windows", "3.11"), ("Darwin", "3.13")]:
        environment = {"platform_system": system, "python_version": python, "extra": "ray"}
        assert ray.marker is not None
        assert ray.marker.evaluate(environment)
        assert not ray.marker.evaluate({**environment, "extra": ""})


def download(requirement: str, target: Path) -> None:
    """Install one package from the package index into a folder; skip where it offers none."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--only-binary", ":all:"]
    result = subprocess.run(
        [*command, "--target", str(target), requirement],
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    if "No matching distribution found" in result.stderr:
        pytest.skip(f"the package index offers no {requirement} for this platform")
    assert result.returncode == 0, result.stderr


def cmake_of_release(release: str, folder: Path) -> Path:
    """Return the CMake of a release, from its wheel."""
    download(f"cmake=={release}", folder)
    (cmake,) = (folder / "cmake" / "data" / "bin").glob("cmake")
    cmake.chmod(0o755)
    return cmake


CONFIGURE = ["-DFEDBENCH_BUILD_PYTHON=OFF", "-DFEDBENCH_BUILD_TESTS=OFF"]


@pytest.mark.slow
@pytest.mark.parametrize("release", ["3.22.*", "3.31.*", "4.*"])
def test_cmake_releases_configure_the_project(
    release: str, source_tree: Path, tmp_path: Path
) -> None:
    """The stated minimum, the last 3.x and the newest 4.x."""
    cmake = cmake_of_release(release, tmp_path / "cmake")
    run(cmake, "-S", source_tree, "-B", tmp_path / "build", *CONFIGURE, cwd=tmp_path)


@pytest.mark.slow
def test_a_cmake_before_the_minimum_says_which_one_is_needed(
    source_tree: Path, tmp_path: Path
) -> None:
    cmake = cmake_of_release("3.15.*", tmp_path / "cmake")
    result = subprocess.run(
        [cmake, "-S", source_tree, "-B", tmp_path / "build", *CONFIGURE],
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    assert result.returncode != 0
    assert "CMake 3.22 or higher is required" in result.stderr


@pytest.mark.slow
def test_the_oldest_numpy_aggregates(clean_python: Path, tmp_path: Path) -> None:
    download("numpy==1.26.4", tmp_path / "numpy")
    code = (
        "import numpy, fedbench\n"
        "assert numpy.__version__ == '1.26.4'\n"
        "mean = fedbench.aggregation.mean\n"
        "rows = [numpy.float32([1, 2]), numpy.float32([3, 6])]\n"
        "print(mean(rows, [1, 3]).tolist(), mean([{'w': row} for row in rows])['w'].tolist())\n"
    )
    printed = run(clean_python, "-P", "-c", code, cwd=tmp_path, PYTHONPATH=str(tmp_path / "numpy"))
    assert printed == "[2.5, 5.0] [2.0, 4.0]\n"


@pytest.mark.slow
def test_an_old_pip_installs_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """Pip 21.3 is the first that knows editable installs of projects like this one."""
    run(sys.executable, "-m", "venv", tmp_path / "env", cwd=tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "pip==21.3.1", cwd=tmp_path)
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    code = "from fedbench._native import core; print(core.cpu_features())"
    assert run(python, "-P", "-c", code, cwd=tmp_path).startswith("[")


@pytest.mark.slow
def test_an_old_pip_builds_without_isolation_and_without_ninja(
    source_tree: Path, tmp_path: Path
) -> None:
    """The build requirements come from the environment of the tests, all but ninja."""
    run(sys.executable, "-m", "venv", tmp_path / "env", cwd=tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "pip==21.3.1", cwd=tmp_path)
    site = Path(
        run(python, "-c", "import site; print(site.getsitepackages()[0])", cwd=tmp_path).strip()
    )
    for name in ("scikit_build_core", "pybind11", "packaging", "pathspec"):
        for part in Path(str(distribution(name).locate_file(""))).glob(f"{name}*"):
            (site / part.name).symlink_to(part)
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("cmake", "make", "c++", "cc", "as", "ld", "ar", "ranlib"):
        found = shutil.which(tool, path=build_environment()["PATH"])
        assert found is not None, tool
        (tools / tool).symlink_to(found)
    fresh = shutil.copytree(source_tree, tmp_path / "fresh", ignore=shutil.ignore_patterns("build"))
    command = ("wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", tmp_path)
    run(python, "-m", "pip", *command, fresh, cwd=tmp_path, PATH=str(tools), CC="cc", CXX="c++")
    assert list(tmp_path.glob("fedbench_sim-*.whl"))
