"""The code in the documentation runs, and prints what the page says it prints."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedbench

ROOT = Path(__file__).parents[2]
RUN_PAGE = Path(__file__).with_name("run_page.py")
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
PAGES_WITH_CODE = [
    page
    for page in PAGES
    if "```python\n" in (text := page.read_text("utf-8")) or "```pycon\n" in text
]


@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_the_page_runs(page: Path, tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-P", str(RUN_PAGE), str(page)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_wrong_page_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    for body, message in [
        ("```python\n1 / 0\n```\n", "ZeroDivisionError"),
        ("```pycon\n>>> 1 + 1\n3\n```\n", "Expected:"),
    ]:
        page.write_text(body, encoding="utf-8")
        result = subprocess.run(
            [sys.executable, str(RUN_PAGE), str(page)], capture_output=True, text=True, check=False
        )
        assert result.returncode == 1
        assert message in result.stdout + result.stderr


def modules_with_examples() -> list[str]:
    names = ["fedbench"]
    names += [module.name for module in pkgutil.walk_packages(fedbench.__path__, "fedbench.")]
    sources = {
        name: importlib.util.find_spec(name) for name in names if name != "fedbench.__main__"
    }
    return [
        name
        for name, spec in sources.items()
        if spec is not None
        and spec.origin is not None
        and spec.origin.endswith(".py")
        and ">>> " in Path(spec.origin).read_text(encoding="utf-8")
    ]


@pytest.mark.parametrize("name", modules_with_examples())
def test_the_examples_in_docstrings_hold(name: str) -> None:
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0
