"""``fedbench list``."""

from __future__ import annotations

import importlib

import click

from fedbench.registry import Registry, did_you_mean

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
}
"""Title to registry."""

EPILOG = """\b
Examples:
  fedbench list             everything
  fedbench list workloads   one table
"""


@click.command("list", epilog=EPILOG)
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
def list_names(tables: tuple[str, ...]) -> None:
    """List the names that the other commands take, each with one line.

    TABLE is one of workloads, algorithms, backends, datasets, partitioners, models, losses,
    rules (of robust aggregation), schedules, optimizers, participations, stragglers, compressions,
    peers, peer-workloads; all by default.
    """
    for title in tables:
        if title not in TABLES:
            raise click.UsageError(
                f"the table must be one of {', '.join(TABLES)}, got {title!r}."
                f"{did_you_mean(title, TABLES)}",
                click.get_current_context(),
            )
    chosen = {title: _registry(TABLES[title]) for title in tables or TABLES}
    width = max(len(name) for table in chosen.values() for name in table)
    blocks = [_block(title, table, width) for title, table in chosen.items()]
    click.echo("\n".join(blocks), nl=False)


def _registry(target: str) -> Registry[object]:
    module, _, attribute = target.partition(":")
    table: Registry[object] = getattr(importlib.import_module(module), attribute)
    return table


def _block(title: str, table: Registry[object], width: int) -> str:
    lines = [f"{title}\n"]
    for name in table:
        entry = table.entry(name)
        extra = f" [extra: {entry.extra}]" if entry.extra else ""
        lines.append(f"  {name:<{width}}  {entry.summary}{extra}\n")
    return "".join(lines)
