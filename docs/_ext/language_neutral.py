"""Keep text without words out of the translation catalogs.

A table cell that holds a name in code font, or a number, reads the same in every language. Such
paragraphs are marked before Sphinx collects what is to be translated, so that catalogs hold prose
only and a new measurement changes none of them.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

_NUMBER = re.compile(r"\d[\d.]*e[-+]?\d+")  # its exponent is no word


def has_words(element: nodes.Element) -> bool:
    """Return whether `element` has letters outside of code and formulas."""
    for child in element.children:
        if isinstance(child, nodes.literal | nodes.math):
            continue
        if isinstance(child, nodes.Text):
            if any(letter.isalpha() for letter in _NUMBER.sub("", child.astext())):
                return True
        elif has_words(child):
            return True
    return False


class LanguageNeutral(SphinxTransform):
    """Mark the elements; runs before the transforms that Sphinx translates with."""

    default_priority = 5

    def apply(self, **_: Any) -> None:
        """Mark every text element that has no words."""
        for element in self.document.findall(nodes.TextElement):
            if isinstance(element, nodes.paragraph | nodes.term) and not has_words(element):
                element["translatable"] = False


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the transform."""
    app.add_transform(LanguageNeutral)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
