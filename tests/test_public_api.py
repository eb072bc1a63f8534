"""Public names: they exist, they are announced, and every registry entry leads somewhere."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedbench
from fedbench import errors
from fedbench.registry import Entry, Registry

ROOT = Path(__file__).parents[1]
FOUND = [
    module
    for module in pkgutil.walk_packages(fedbench.__path__, "fedbench.")
    if not module.name.rpartition(".")[2].startswith("_")
]
MODULES = sorted(module.name for module in FOUND)
PACKAGES = sorted(module.name for module in FOUND if module.ispkg)


def test_the_names_of_the_package_are_these() -> None:
    """A change here is a change of the public interface: say so in the changelog."""
    assert fedbench.__all__ == [
        "Executor",
        "FlatLayout",
        "History",
        "Simulation",
        "__version__",
        "aggregation",
        "errors",
        "make_executor",
        "verify",
    ]


@pytest.mark.parametrize("name", fedbench.__all__)
def test_every_name_of_the_package_resolves(name: str) -> None:
    assert getattr(fedbench, name) is not None
    assert name in dir(fedbench)


DOCUMENTED = sorted(
    {page.stem for page in (ROOT / "docs" / "api").glob("*.md")} - {"index", "fedbench"}
)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_documented_subpackage_is_an_attribute_without_an_import(name: str) -> None:
    assert name in dir(fedbench)
    # In a module of its own: here others have imported it, which makes it an attribute.
    spec = importlib.util.find_spec("fedbench")
    assert spec is not None
    assert spec.loader is not None
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    assert name not in vars(fresh)
    assert getattr(fresh, name) is importlib.import_module(f"fedbench.{name}")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Simulator'"):
        fedbench.Simulator


@pytest.mark.parametrize("name", MODULES)
def test_every_module_announces_names_that_exist(name: str) -> None:
    module = importlib.import_module(name)
    announced = getattr(module, "__all__", None)
    if announced is None:
        public = [value for key, value in vars(module).items() if not key.startswith("_")]
        assert not [v for v in public if getattr(v, "__module__", None) == name], "needs __all__"
        return
    assert len(set(announced)) == len(announced), "a name is announced twice"
    for public in announced:
        assert hasattr(module, public), f"__all__ names {public!r}, which does not exist"


@pytest.mark.parametrize("name", PACKAGES)
def test_every_package_announces_what_it_gathers(name: str) -> None:
    module = importlib.import_module(name)
    gathered = {
        attribute
        for attribute, value in vars(module).items()
        if not attribute.startswith("_")
        and isinstance(value, type | types.FunctionType)
        and value.__module__.startswith(f"{name}.")
    }
    assert gathered <= set(getattr(module, "__all__", ())), "public by name but not in __all__"


def registries() -> Iterator[tuple[str, Registry[object]]]:
    """Yield every registry under the shortest of the names that announce it."""
    seen: set[int] = set()
    for name in MODULES:
        module = importlib.import_module(name)
        for attribute in getattr(module, "__all__", ()):
            value = getattr(module, attribute)
            if isinstance(value, Registry) and id(value) not in seen:
                seen.add(id(value))
                yield f"{name}.{attribute}", value


REGISTRIES = dict(registries())
ENTRIES = [(where, key) for where, registry in REGISTRIES.items() for key in registry]


def test_the_known_registries_are_found() -> None:
    kinds = {registry.kind for registry in REGISTRIES.values()}
    assert {"backend", "algorithm", "workload"} <= kinds


@pytest.mark.parametrize(("where", "key"), ENTRIES)
def test_every_registry_entry_resolves_and_is_described(where: str, key: str) -> None:
    registry = REGISTRIES[where]
    assert registry.load(key) is not None
    summary = registry.entry(key).summary
    assert summary
    assert "\n" not in summary


@pytest.mark.parametrize("where", REGISTRIES)
def test_the_guide_has_the_table_of_every_registry(where: str) -> None:
    module, _, attribute = where.rpartition(".")
    guide = "\n".join(
        page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "guide").glob("*.md")
    )
    assert f"{{registry-table}} {module}:{attribute}" in guide


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_has_a_remedy_in_the_documentation(name: str) -> None:
    page = (ROOT / "docs" / "guide" / "troubleshooting.md").read_text(encoding="utf-8")
    assert name in page


def test_every_error_class_is_drawn_in_the_tree() -> None:
    assert errors.__doc__ is not None
    for name in errors.__all__:
        assert name in errors.__doc__
        assert issubclass(getattr(errors, name), errors.FedbenchError)


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        ("ImportError('libray.so: undefined symbol.')", "undefined symbol. Install the versions"),
        ("ModuleNotFoundError(\"No module named 'ray'\", name='ray')", "'ray', which is not inst"),
    ],
)
def test_a_package_of_an_extra_that_cannot_be_imported_says_what_to_do(
    raised: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_backend.py").write_text(f"raise {raised}\n")
    monkeypatch.syspath_prepend(tmp_path)
    table: Registry[object] = Registry(
        "backend", {"broken": Entry("broken_backend:Backend", "cannot be imported", extra="ray")}
    )
    with pytest.raises(errors.MissingExtraError, match=message) as caught:
        table.load("broken")
    assert str(caught.value).startswith("backend 'broken' needs the package")
    assert "'.[ray]'" in str(caught.value)
