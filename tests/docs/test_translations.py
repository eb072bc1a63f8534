"""The gate of the translation lets a complete one through and names what is missing in another."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]

TEMPLATE = """
msgid "Install"
msgstr ""

msgid "Run `make` or see {doc}`the guide <guide/x>`."
msgstr ""
"""
COMPLETE = """
msgid "Install"
msgstr "安装"

msgid "Run `make` or see {doc}`the guide <guide/x>`."
msgstr "运行 `make` 或参阅 {doc}`指南 <guide/x>`。"
"""


@pytest.fixture(scope="module")
def gate() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "check_translations", ROOT / "tools" / "check_translations.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("catalog", "expected"),
    [
        (COMPLETE, []),
        (COMPLETE.replace("安装", ""), ["untranslated: 'Install'"]),
        (COMPLETE.replace('msgid "Install"', '#, fuzzy\nmsgid "Install"'), ["fuzzy: 'Install'"]),
        (COMPLETE.replace('"Install"', '"Set up"'), ["not in the catalog: 'Install'"]),
        (COMPLETE + '\n#~ msgid "Old"\n#~ msgstr "旧"\n', ["obsolete: 'Old'"]),
        (COMPLETE.replace("运行 `make`", "运行它"), ["lost ['`make`'], added []"]),
        (COMPLETE.replace("<guide/x>`。", "<guide/y>`。"), ["added ['`guide/y`']"]),
        (None, ["missing"]),
    ],
)
def test_the_gate_names_what_is_wrong(
    gate: ModuleType, tmp_path: Path, catalog: str | None, expected: list[str]
) -> None:
    template, translated = tmp_path / "page.pot", tmp_path / "page.po"
    template.write_text(TEMPLATE, encoding="utf-8")
    if catalog is not None:
        translated.write_text(catalog, encoding="utf-8")
    found = list(gate.check_catalog(template, translated))
    assert len(found) == len(expected)
    for line, part in zip(found, expected, strict=True):
        assert part in line


def test_a_readme_must_follow_the_english_one(gate: ModuleType, tmp_path: Path) -> None:
    english, translated = tmp_path / "README.md", tmp_path / "README.zh_CN.md"
    assert "missing" in next(gate.check_readme(english, translated))
    english.write_text("# Name\n\nText.\n\n```python\n# a comment\n```\n", encoding="utf-8")
    translated.write_text("# 名称\n\n文字。\n\n```python\n# a comment\n```\n", encoding="utf-8")
    [problem] = gate.check_readme(english, translated)
    assert "another version" in problem
    gate.stamp_readme(english, translated)
    gate.stamp_readme(english, translated)
    assert not list(gate.check_readme(english, translated))
    english.write_text("# Name\n\n## More\n\n```python\n# b\n```\n", encoding="utf-8")
    assert len(list(gate.check_readme(english, translated))) == 3
    gate.stamp_readme(english, translated)
    [problem] = gate.check_readme(english, translated)
    assert "headings" in problem
    assert "# b\n" in translated.read_text(encoding="utf-8")


def test_a_catalog_without_a_page_is_named(gate: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "locales" / "zh_CN" / "LC_MESSAGES"
    folder.mkdir(parents=True)
    (folder / "gone.po").write_text(COMPLETE, encoding="utf-8")
    (tmp_path / "templates").mkdir()
    found = list(gate.problems(tmp_path / "templates", tmp_path / "locales", "zh_CN"))
    assert any("gone.po: has no page" in line for line in found)
