"""Numpydoc's numbered references as plain text.

``[1]_`` in a docstring is a footnote mark, and marks must be unique on a page, which holds many
docstrings. The number stays where it is; the entries of "References" become a list.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx


def flatten_references(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Rewrite the lines of one docstring in place."""
    for number, line in enumerate(lines):
        # The bullet and two spaces are as wide as the indent of an entry's further lines.
        entry = re.sub(r"^(\s*)\.\. \[(\d+)\]", r"\1-  [\2]", line)
        lines[number] = re.sub(r"\[(\d+)\]_", r"[\1]", entry)


def setup(app: Sphinx) -> dict[str, bool]:
    """Run before napoleon, which turns the sections into fields."""
    app.setup_extension("sphinx.ext.autodoc")  # has the event
    app.connect("autodoc-process-docstring", flatten_references, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
