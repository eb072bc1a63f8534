"""What the documentation points at is there: pages, sections, files, make targets, options.

Sphinx checks references to names of the package (``make docs``); nothing here needs the network.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from fedbench.cli.app import cli

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("*/*.md")]
    if "_build" not in page.parts
)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
DOCUMENT = re.compile(r"\{doc\}`(?:[^`<]*<)?([^`>]+)>?`")
INCLUDED = re.compile(r"^```\{(?:figure|image|literalinclude|include)\} (\S+)$", re.MULTILINE)
FOLDERS = "benchmarks|csrc|docs|examples|fedbench|tests|tools"
FILE = re.compile(rf"(?<![\w/.{{])((?:{FOLDERS})/[\w./-]*[\w/])")
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def sections_of(page: Path) -> set[str]:
    """Return the anchors of a page, made from its headings as GitHub and MyST make them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text_of(page)), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", heading.lower().replace("`", "")) for heading in headings)
    return {heading.replace(" ", "-") for heading in kept}


@pages
def test_links_lead_to_pages_and_sections(page: Path) -> None:
    for target in LINK.findall(FENCE.sub("", text_of(page))):
        if re.match(r"https?://|mailto:", target):
            continue
        file, _, section = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        assert there.exists(), target
        if section:
            assert section in sections_of(there), target


@pages
def test_named_documents_and_files_exist(page: Path) -> None:
    text = text_of(page)
    for name in DOCUMENT.findall(text):
        start = ROOT / "docs" if name.startswith("/") else page.parent
        assert (start / f"{name.lstrip('/')}.md").is_file(), name
    for name in INCLUDED.findall(text):
        assert (page.parent / name).is_file(), name
    for name in FILE.findall(re.sub(r"https?://\S+", "", text)):
        # Written by a command, or a pattern such as fedbench/executors/<name>.py.
        if name.startswith("docs/_build") or f"{name}/<" in text or f"{name}<" in text:
            continue
        assert (ROOT / name).exists(), name


def commands_of(page: Path) -> list[list[str]]:
    lines = "\n".join(CONSOLE.findall(text_of(page))).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines]


@pages
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of(ROOT / "Makefile"), re.MULTILINE))
    for words in commands_of(page):
        if "make" in words:
            arguments = [word for word in words[words.index("make") + 1 :] if "=" not in word]
            assert set(arguments) <= targets, words
    prose = FENCE.sub("", text_of(page))
    for target in re.findall(r"`make ([a-z-]+)", prose):
        assert target in targets, target


@pages
def test_commands_and_their_options_exist(page: Path) -> None:
    for words in commands_of(page):
        programs = [word for word in words if Path(word).name == "fedbench"]
        if not programs:
            continue
        name, *arguments = words[words.index(programs[0]) + 1 :]
        command = cli.get_command(click.Context(cli), name)
        assert command is not None, words
        known = {option for one in command.params for option in [*one.opts, *one.secondary_opts]}
        used = {word.partition("=")[0] for word in arguments if word.startswith("--")}
        assert used <= known, words


def test_every_page_is_reached_from_the_index() -> None:
    listed = set()
    for index in (ROOT / "docs" / "index.md", ROOT / "docs" / "api" / "index.md"):
        for body in re.findall(r"^```\{toctree\}\n(.*?)^```$", text_of(index), re.M | re.S):
            listed |= {
                (index.parent / f"{line}.md").resolve()
                for line in body.splitlines()
                if line and not line.startswith(":")
            }
    written = {page for page in PAGES if ROOT / "docs" in page.parents}
    assert listed == written - {ROOT / "docs" / "index.md"}


def test_the_two_pages_on_parallel_execution_name_each_other() -> None:
    guide = ROOT / "docs" / "guide"
    assert "{doc}`parallel_execution_design`" in text_of(guide / "parallel_execution.md")
    assert "{doc}`parallel_execution`" in text_of(guide / "parallel_execution_design.md")
