"""Directives that print tables of the package, so that the documentation cannot lag behind it.

``registry-table`` takes ``module:REGISTRY`` and lists the entries; ``report-columns`` lists the
columns of the report; ``configuration-keys`` lists the keys of ``fedbench run``.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from fedbench.registry import Registry


def table(directive: SphinxDirective, head: Sequence[str], rows: Iterable[Sequence[str]]) -> Any:
    """Return the nodes of a Markdown table."""
    lines = [f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *rows]]
    return directive.parse_text_to_nodes("\n".join(lines))


class RegistryTable(SphinxDirective):
    """``{registry-table} fedbench.executors:EXECUTORS``."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        module, _, attribute = self.arguments[0].partition(":")
        registry: Registry[object] = getattr(importlib.import_module(module), attribute)
        entries = [(name, registry.entry(name)) for name in registry]
        if not any(entry.extra for _, entry in entries):
            rows = [(f"`{name}`", entry.summary) for name, entry in entries]
            found: list[nodes.Node] = table(self, (registry.kind, "what it is"), rows)
            return found
        extras = [
            (f"`{name}`", entry.summary, f"`{entry.extra}`" if entry.extra else "")
            for name, entry in entries
        ]
        found = table(self, (registry.kind, "what it is", "extra"), extras)
        return found


class ReportColumns(SphinxDirective):
    """``{report-columns}``: name, unit and meaning of each column of ``fedbench report``."""

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        from fedbench.report import COLUMNS

        rows = [(f"`{column.name}`", column.unit, column.description) for column in COLUMNS]
        found: list[nodes.Node] = table(self, ("column", "unit", "meaning"), rows)
        return found


class ConfigurationKeys(SphinxDirective):
    """``{configuration-keys}``: key, default and meaning of each setting of ``fedbench run``."""

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        from fedbench.configuration import RunConfiguration

        rows = []
        for name, field in RunConfiguration.model_fields.items():
            default = getattr(field.default, "label", field.default)
            text = str(default).lower() if isinstance(default, bool) else str(default)
            shown = "" if default is None else f"`{text}`"
            rows.append((f"`{name}`", shown, str(field.description)))
        found: list[nodes.Node] = table(self, ("key", "default", "meaning"), rows)
        return found


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("registry-table", RegistryTable)
    app.add_directive("report-columns", ReportColumns)
    app.add_directive("configuration-keys", ConfigurationKeys)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
