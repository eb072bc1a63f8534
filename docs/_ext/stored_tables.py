"""``stored-table`` shows columns of a file in ``docs/data``, which a command of the package wrote.

The directive's argument is the file; ``:columns:`` are its columns in order; ``:where:`` keeps the
lines whose column has a value (``workload=logreg``). The date and the processor of the measurement
follow the table.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from fedbench_tables import table
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from fedbench.report.columns import significant

DATA = Path(__file__).parents[1] / "data"


def cell(text: str) -> str:
    """Return a value of the file as people read it."""
    if text in ("", "True", "False"):
        return {"": "-", "True": "yes", "False": "no"}[text]
    try:
        number = float(text)
    except ValueError:
        return text
    return text if text.lstrip("-").isdigit() else significant(number)


class StoredTable(SphinxDirective):
    """``{stored-table} peers.csv``."""

    required_arguments = 1
    option_spec: ClassVar = {
        "columns": directives.unchanged_required,
        "where": directives.unchanged,
    }

    def run(self) -> list[nodes.Node]:
        """Return the table and the line about the measurement."""
        path = DATA / self.arguments[0]
        self.env.note_dependency(str(path))
        with path.open(encoding="utf-8", newline="") as stream:
            lines = list(csv.DictReader(stream))
        column, _, value = self.options.get("where", "").partition("=")
        chosen = [line for line in lines if not column or line[column] == value]
        names = [name.strip() for name in self.options["columns"].split(",")]
        rows = [[cell(line[name]) for name in names] for line in chosen]
        found: list[nodes.Node] = table(self, names, rows)
        first = chosen[0]
        # A table without times does not depend on the machine.
        if "date" in first:
            # In code font, so that a new measurement leaves the translations as they are.
            machine = [("processor", f"`{first['cpu']}`"), ("date", f"`{first['date'][:10]}`")]
            found += table(self, ("measured on", ""), machine)
        return found


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("stored-table", StoredTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
