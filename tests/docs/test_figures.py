"""The pictures of the documentation are what their scripts draw, and can be read by everyone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

DOCS = Path(__file__).parents[2] / "docs"
FIGURES = DOCS / "figures"
FIGURE = re.compile(r"^```\{(?:figure|image)\} (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_scripts_reproduce_the_committed_pictures(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, str(FIGURES / "draw.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    drawn = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    kept = {file.name: file.read_bytes() for file in FIGURES.glob("*.svg")}
    assert sorted(drawn) == sorted(kept)
    differing = [name for name, content in drawn.items() if kept[name] != content]
    assert not differing, "run: python docs/figures/draw.py"


def figures_of(page: Path) -> list[tuple[str, str]]:
    return FIGURE.findall(page.read_text(encoding="utf-8"))


def test_every_picture_is_shown_and_has_an_alternative_text() -> None:
    shown = set()
    for page in DOCS.glob("*/*.md"):
        for target, options in figures_of(page):
            assert re.search(r"^alt: >-\n  \S", options, re.MULTILINE), f"{page.name}: {target}"
            shown.add((page.parent / target).resolve())
    assert shown == {file for file in FIGURES.glob("*.svg") if file.name.count(".") == 1}


@pytest.mark.parametrize("file", sorted(FIGURES.glob("*.svg")), ids=lambda file: file.name)
def test_a_picture_is_readable_on_a_phone_and_in_the_dark(file: Path) -> None:
    root = ElementTree.fromstring(file.read_text(encoding="utf-8"))
    space = "{http://www.w3.org/2000/svg}"
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    assert root.findtext(f"{space}title")
    assert "prefers-color-scheme: dark" in (root.findtext(f"{space}style") or "")
    for text in root.iter(f"{space}text"):
        # 358 pixels are what a phone of 390 leaves for a picture.
        assert int(text.attrib["font-size"]) * 358 / width >= 9.5
        assert 0 <= float(text.attrib["x"]) <= width
        assert 0 <= float(text.attrib["y"]) <= height
