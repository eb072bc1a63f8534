"""``fedbench peers``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fedbench.cli.options import (
    ListCommand,
    check_crowding,
    ended_by_signals,
    frame_formats,
    terminal_width,
    usage_errors,
    write_frame,
)

if TYPE_CHECKING:
    from fedbench.peers import PeerSettings

__all__ = ["peers"]

EPILOG = """\b
Examples:
  fedbench peers
  fedbench peers --workload logreg --out peers.csv
  fedbench peers --peer fedbench-processes plain flower --rounds 5

\b
How to read the table:
  first_s   from the command to the end of the first round
  round_s   median seconds of the later rounds
  mem_mb    peak memory of all processes, shared pages counted once
  ratio     the figure before it, divided by that of fedbench's fastest
            bitwise row
  repeats   whether all runs with one seed gave the same bits
  max_diff  largest difference of the final model from fedbench's
A peer whose package is missing is a row, and a note says how to install it.
"""


@click.command(cls=ListCommand, epilog=EPILOG)
@click.option(
    "--workload",
    "workloads",
    multiple=True,
    metavar="NAME",
    help="logreg, resnet18-step; both by default.",
)
@click.option(
    "--peer",
    "names",
    multiple=True,
    metavar="NAME",
    help="What to compare; see `fedbench list peers`. All by default.",
)
@click.option(
    "--workers",
    type=int,
    default=2,
    show_default=True,
    metavar="N",
    help="Processes, threads or actors of the parallel peers.",
)
@click.option("--rounds", type=int, metavar="N", help="Rounds of each run, at least 2.")
@click.option(
    "--repeats", type=int, default=2, show_default=True, metavar="N", help="Timed runs of each."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of all runs.")
@click.option(
    "--timeout",
    type=float,
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Longest time for one run; a peer that takes longer is stopped.",
)
@click.option(
    "--out",
    "targets",
    multiple=True,
    metavar="FILE",
    help="Write the table: .csv .md .json .parquet. A file that exists is replaced.",
)
def peers(
    workloads: tuple[str, ...],
    names: tuple[str, ...],
    workers: int,
    rounds: int | None,
    repeats: int,
    seed: int,
    timeout: float,
    targets: tuple[str, ...],
) -> int:
    """Run the same job in other frameworks and compare time, memory and results.

    Every run has a process of its own. The peers have the same data, model, local steps, batches
    and intra-op threads, and all clients take part in each round.
    """
    formats = frame_formats(targets)
    with usage_errors():
        from fedbench.peers import PEER_WORKLOADS, PEERS, PeerSettings

        for name in names:
            PEERS.entry(name)
        settings = PeerSettings(
            workloads=workloads or PEER_WORKLOADS.names(),
            peers=names or PEERS.names(),
            workers=workers,
            rounds=rounds,
            repeats=repeats,
            seed=seed,
            timeout_s=timeout,
        )
    check_crowding([workers])
    return _measure(settings, formats)


def _measure(settings: PeerSettings, formats: dict[str, str]) -> int:
    from fedbench import peers as peers_package

    with ended_by_signals():
        rows = peers_package.measure_peers(
            settings, on_progress=lambda line: click.echo(line, err=True)
        )
    try:
        click.echo(peers_package.peers_text(rows, terminal_width()), nl=False)
    finally:  # also where the table cannot be shown
        write_frame(peers_package.peers_to_frame(rows), formats)
    return 0 if any(row.ok for row in rows) and not any(row.broken_promise for row in rows) else 1
