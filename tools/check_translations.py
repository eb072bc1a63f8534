"""Fail where a translation of the documentation is not complete.

``check_translations.py TEMPLATES CATALOGS LANGUAGE`` compares each message template that Sphinx's
gettext builder wrote with its catalog: every message must be translated, none may be fuzzy or
obsolete, and names in code font must be the same on both sides. The README of the language must
have been stamped since the README last changed: ``check_translations.py --stamp LANGUAGE``.
``make docs-translated`` runs it.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.pofile import read_po

ROOT = Path(__file__).parents[1]
_CODE = re.compile(r"`+[^`]+`+")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^(#+) ", re.MULTILINE)
_STAMP = re.compile(r"<!-- follows README\.md ([0-9a-f]{12}) -->")


def _read(path: Path) -> Catalog:
    with path.open("rb") as file:
        return read_po(file)


def _names(text: str) -> Counter[str]:
    """Return what must survive translation: code, without the titles of roles."""
    found = (re.sub(r"`[^<`]*<([^>]+)>`", r"`\1`", code) for code in _CODE.findall(text))
    return Counter(found)


def check_catalog(template: Path, catalog: Path) -> Iterator[str]:
    """Yield what is wrong with one catalog."""
    if not catalog.is_file():
        yield f"{catalog}: missing. Run: make docs-gettext"
        return
    translated = _read(catalog)
    for message in _read(template):
        if not message.id:
            continue
        text = str(message.id)
        shown = text if len(text) <= 60 else f"{text[:57]}..."
        found = translated.get(message.id)
        if found is None:
            yield f"{catalog}: not in the catalog: {shown!r}. Run: make docs-gettext"
        elif not found.string:
            yield f"{catalog}: untranslated: {shown!r}"
        elif found.fuzzy:
            yield f"{catalog}: fuzzy: {shown!r}. Translate it and remove the mark"
        elif _names(text) != _names(str(found.string)):
            lost = _names(text) - _names(str(found.string))
            added = _names(str(found.string)) - _names(text)
            yield (
                f"{catalog}: code differs in {shown!r}: lost {sorted(lost)}, added {sorted(added)}"
            )
    for text in translated.obsolete:
        yield f"{catalog}: obsolete: {str(text)[:60]!r}. Remove it"


def stamp_of(readme: str) -> str:
    """Return what a translation writes down of the README that it follows."""
    return hashlib.sha256(readme.encode()).hexdigest()[:12]


def check_readme(english: Path, translation: Path) -> Iterator[str]:
    """Yield what is out of step between the README and its translation."""
    if not translation.is_file():
        yield f"{translation}: missing"
        return
    original, text = (path.read_text(encoding="utf-8") for path in (english, translation))
    if _HEADING.findall(_FENCE.sub("", original)) != _HEADING.findall(_FENCE.sub("", text)):
        yield f"{translation}: its headings are not those of {english.name}"
    if _FENCE.findall(original) != _FENCE.findall(text):
        yield f"{translation}: its code blocks are not those of {english.name}"
    stamp = _STAMP.search(text)
    if stamp is None or stamp[1] != stamp_of(original):
        yield (
            f"{translation}: follows another version of {english.name}. Bring it up to date, then "
            f"run: python tools/check_translations.py --stamp LANGUAGE"
        )


def stamp_readme(english: Path, translation: Path) -> None:
    """Write into the translation which README it follows, and take over the code blocks."""
    original = english.read_text(encoding="utf-8")
    line = f"<!-- follows README.md {stamp_of(original)} -->"
    text = _STAMP.sub("", translation.read_text(encoding="utf-8")).lstrip("\n")
    blocks = _FENCE.findall(original)
    if len(_FENCE.findall(text)) == len(blocks):
        text = _FENCE.sub(lambda _: blocks.pop(0), text)
    translation.write_text(f"{line}\n\n{text}", encoding="utf-8")


def problems(templates: Path, catalogs: Path, language: str) -> Iterator[str]:
    """Yield everything that keeps the translation from being complete."""
    folder = catalogs / language / "LC_MESSAGES"
    pages = {path.relative_to(templates).with_suffix("") for path in templates.rglob("*.pot")}
    for page in sorted(pages):
        yield from check_catalog(templates / f"{page}.pot", folder / f"{page}.po")
    for catalog in sorted(folder.rglob("*.po")):
        if catalog.relative_to(folder).with_suffix("") not in pages:
            yield f"{catalog}: has no page. Remove it"
    yield from check_readme(ROOT / "README.md", ROOT / f"README.{language}.md")


if __name__ == "__main__":
    if sys.argv[1] == "--stamp":
        stamp_readme(ROOT / "README.md", ROOT / f"README.{sys.argv[2]}.md")
        sys.exit()
    found = list(problems(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
    print("\n".join(found) if found else "the translation is complete", file=sys.stderr)
    sys.exit(bool(found))
