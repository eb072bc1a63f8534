"""Directives that print tables of the package, so that the documentation cannot lag behind it.

``registry-table`` takes ``module:REGISTRY`` and lists the entries; ``report-columns`` lists the
columns of the report; ``configuration-keys`` lists the keys of ``fedbench run``;
``stored-speedups`` shows the speedups of the report in ``docs/data`` and the machine it ran on.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from pathlib import Path
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


class StoredSpeedups(SphinxDirective):
    """``{stored-speedups}``: speedup and interval of each backend, from the stored report."""

    def run(self) -> list[nodes.Node]:
        """Return two tables: the speedups, and the machine they were measured on."""
        from fedbench.report import Report

        file = Path(self.env.srcdir) / "data" / "report.json"
        self.env.note_dependency(str(file))
        report = Report.load(file)
        return [*self.speedups(report), *self.machine(report)]

    def speedups(self, report: Any) -> list[nodes.Node]:
        """Return one row per workload and backend, narrow enough for a phone."""
        from fedbench.report.columns import COLUMNS, rows

        show = {column.name: column.show for column in COLUMNS}
        lines = []
        for row in rows(report):
            configuration = row.measurement.configuration
            if configuration.is_baseline:
                continue
            figures = [row.measurement.status, ""]
            if row.measurement.ok:
                low, high = show["speedup_low"](row), show["speedup_high"](row)
                figures = [f"**{show['speedup'](row)}**", f"{low} - {high}"]
            names = [f"`{configuration.workload}`", f"`{configuration.backend}`"]
            counts = [str(configuration.workers), str(configuration.intraop_threads)]
            lines.append([*names, *figures, *counts])
        head = ("workload", "backend", "speedup", "95 %", "`workers`", "`intraop`")
        found: list[nodes.Node] = table(self, head, lines)
        return found

    def machine(self, report: Any) -> list[nodes.Node]:
        """Return what the report says of its machine."""
        environment = report.environment
        load = max((entry.foreign_load or 0.0) for entry in report.measurements)
        lines = [
            ("processor", environment["cpu"]),
            ("cores", environment["cores_available"]),
            ("memory, GiB", round(environment["memory_bytes"] / 2**30)),
            ("system", f"{environment['system']} {environment['machine']}"),
            ("Python", environment["python"]),
            ("PyTorch", environment["packages"]["torch"]),
            ("timed rounds per row", max(len(entry.rounds) for entry in report.measurements)),
            ("used by other programs meanwhile, at most", f"{load:.0%}"),
            ("date", report.created[:10]),
        ]
        cells = [(what, f"`{value}`") for what, value in lines]
        found: list[nodes.Node] = table(self, ("measured on", ""), cells)
        return found


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("registry-table", RegistryTable)
    app.add_directive("report-columns", ReportColumns)
    app.add_directive("configuration-keys", ConfigurationKeys)
    app.add_directive("stored-speedups", StoredSpeedups)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
