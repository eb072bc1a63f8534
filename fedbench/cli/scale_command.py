"""``fedbench scale``."""

from __future__ import annotations

import click

from fedbench.cli.options import (
    ListCommand,
    check_crowding,
    ended_by_signals,
    frame_formats,
    usage_errors,
    write_frame,
)

__all__ = ["scale"]

EPILOG = """\b
Examples:
  fedbench scale
  fedbench scale --clients 100 10000 100000 --out scaling.csv
  fedbench scale --workers 8

\b
How to read the tables:
  exponent    0: the time does not depend on it; 1: it is proportional
  fixed_s     of a round, what does not depend on it
  each_s      what one more client or parameter costs
  contention  how much slower a task is when all workers are busy
  error       of the prediction; above 0 it was too slow
"""


@click.command(cls=ListCommand, epilog=EPILOG)
@click.option(
    "--clients", multiple=True, type=int, metavar="N", help="Registered clients to vary over."
)
@click.option(
    "--cohort", "cohorts", multiple=True, type=int, metavar="N", help="Cohorts to vary over."
)
@click.option(
    "--width",
    "widths",
    multiple=True,
    type=int,
    metavar="N",
    help="Hidden units to vary over: they give the model its size.",
)
@click.option(
    "--workers",
    type=int,
    default=2,
    show_default=True,
    metavar="N",
    help="Workers to predict from one, and to measure.",
)
@click.option(
    "--rounds", type=int, default=6, show_default=True, metavar="N", help="Rounds of each point."
)
@click.option(
    "--repeats", type=int, default=3, show_default=True, metavar="N", help="Turns of all runs."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of all simulations.")
@click.option(
    "--out",
    "targets",
    multiple=True,
    metavar="FILE",
    help="Write the points: .csv .md .json .parquet. A file that exists is replaced.",
)
def scale(
    clients: tuple[int, ...],
    cohorts: tuple[int, ...],
    widths: tuple[int, ...],
    workers: int,
    rounds: int,
    repeats: int,
    seed: int,
    targets: tuple[str, ...],
) -> int:
    """Vary clients, cohort and model size; fit the growth; predict more workers from one.

    One thing is varied at a time, on the backend `processes`. The model predicts a round with
    several workers from rounds with one worker, and the table has what was measured beside it.
    """
    formats = frame_formats(targets)
    with usage_errors():
        from fedbench import scaling

        usual = scaling.ScalingSettings()
        settings = scaling.ScalingSettings(
            clients=clients or usual.clients,
            cohorts=cohorts or usual.cohorts,
            widths=widths or usual.widths,
            workers=workers,
            rounds=rounds,
            repeats=repeats,
            seed=seed,
        )
    check_crowding([workers])
    with ended_by_signals():
        study = scaling.measure_scaling(
            settings, on_progress=lambda line: click.echo(line, err=True)
        )
    try:
        click.echo(scaling.scaling_text(study), nl=False)
    finally:  # also where the table cannot be shown
        write_frame(scaling.scaling_to_frame(study), formats)
    return 0
