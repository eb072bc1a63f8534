"""``fedbench list``."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from fedbench.registry import Registry, did_you_mean

if TYPE_CHECKING:
    from fedbench.report import Column

__all__ = ["list_names"]

TABLES = {
    "workloads": "fedbench.workloads:WORKLOADS",
    "algorithms": "fedbench.algorithms:ALGORITHMS",
    "backends": "fedbench.executors:EXECUTORS",
    "datasets": "fedbench.data:DATASETS",
    "partitioners": "fedbench.data:PARTITIONERS",
    "models": "fedbench.models:MODELS",
    "losses": "fedbench.training:LOSSES",
    "rules": "fedbench.aggregation.rules:RULES",
    "schedules": "fedbench.training:SCHEDULES",
    "optimizers": "fedbench.training:OPTIMIZERS",
    "participations": "fedbench.simulation:PARTICIPATIONS",
    "stragglers": "fedbench.simulation:STRAGGLERS",
    "compressions": "fedbench.simulation:COMPRESSIONS",
    "peers": "fedbench.peers:PEERS",
    "peer-workloads": "fedbench.peers:PEER_WORKLOADS",
    "columns": "fedbench.report:COLUMNS",
}
"""Title to registry, or to the columns of the report."""

EPILOG = """\b
Examples:
  fedbench list             everything
  fedbench list workloads   one table
"""


@click.command("list", epilog=EPILOG)
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
def list_names(tables: tuple[str, ...]) -> None:
    """List the names that the other commands take and give, each with one line.

    TABLE is one of workloads, algorithms, backends, datasets, partitioners, models, losses,
    rules (of robust aggregation), schedules, optimizers, participations, stragglers, compressions,
    peers, peer-workloads, columns (of the files of `fedbench report`); all by default.
    """
    for title in tables:
        if title not in TABLES:
            raise click.UsageError(
                f"the table must be one of {', '.join(TABLES)}, got {title!r}."
                f"{did_you_mean(title, TABLES)}",
                click.get_current_context(),
            )
    chosen = {title: _entries(TABLES[title]) for title in tables or TABLES}
    width = max(len(name) for table in chosen.values() for name in table)
    blocks = [_block(title, table, width) for title, table in chosen.items()]
    click.echo("\n".join(blocks), nl=False)


def _entries(target: str) -> dict[str, str]:
    """Return name to summary, in the order of the table."""
    module, _, attribute = target.partition(":")
    table: Registry[object] | Sequence[Column] = getattr(importlib.import_module(module), attribute)
    if not isinstance(table, Registry):
        return {
            column.name: column.description + (f" [{column.unit}]" if column.unit else "")
            for column in table
        }
    entries = {name: table.entry(name) for name in table}
    return {
        name: entry.summary + (f" [extra: {entry.extra}]" if entry.extra else "")
        for name, entry in entries.items()
    }


def _block(title: str, table: dict[str, str], width: int) -> str:
    return f"{title}\n" + "".join(f"  {name:<{width}}  {text}\n" for name, text in table.items())
