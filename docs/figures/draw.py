"""Draw the pictures of the documentation.

``python docs/figures/draw.py [FOLDER]`` writes every picture, beside this file if no folder is
given: in English, and in each language that has a list of words (``words.<language>.json``).
``make docs-figures`` measures anew first. Sphinx takes ``<name>.<language>.svg`` if it exists.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from canvas import Words
from measured import speedup, timeline
from schemes import ownership, round_flow, transport

__all__ = ["pictures"]

HERE = Path(__file__).parent
_PICTURES = {
    "round": round_flow,
    "ownership": ownership,
    "transport": transport,
    "speedup": speedup,
    "timeline": timeline,
}

_NUMBER = re.compile(r"\b\d+\b")


def _words(language: str) -> Words:
    """Return the translation; a text without one is a KeyError that names it."""
    known = json.loads((HERE / f"words.{language}.json").read_text(encoding="utf-8"))

    def translate(text: str) -> str:
        if not any(character.isalpha() for character in text):
            return text
        # One entry serves all numbers: "client 8" is found as "client {}".
        pattern = _NUMBER.sub("{}", text)
        translated: str = known[pattern]
        return translated.format(*_NUMBER.findall(text))

    return translate


def pictures() -> Iterator[tuple[str, str]]:
    """Yield the name and the content of every file."""
    for name, draw in _PICTURES.items():
        yield f"{name}.svg", draw(str).svg()
    for words in sorted(HERE.glob("words.*.json")):
        language = words.name.split(".")[1]
        for name, draw in _PICTURES.items():
            yield f"{name}.{language}.svg", draw(_words(language)).svg()


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    for file, content in pictures():
        (folder / file).write_text(content, encoding="utf-8")
