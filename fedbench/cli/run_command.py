"""``fedbench run``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from fedbench.cli.options import usage_errors, write_files

if TYPE_CHECKING:
    import pandas as pd

    from fedbench import Simulation
    from fedbench.simulation import History, RoundRecord

__all__ = ["run"]

EPILOG = """\b
Examples:
  fedbench run --workload digits-logreg
  fedbench run --workload digits-mlp --algorithm fedprox --out history.csv
  fedbench run --workload mnist5k-cnn --backend processes --workers 2
  fedbench run --workload mnist5k-cnn --checkpoints saved --resume

The same seed gives the same metrics on every backend, to the last bit.
"""


@click.command(epilog=EPILOG)
@click.option("--workload", required=True, metavar="NAME", help="What to run; see `fedbench list`.")
@click.option("--algorithm", metavar="NAME", help="Instead of the workload's own.")
@click.option(
    "--backend", default="sequential", show_default=True, metavar="NAME", help="Where clients run."
)
@click.option("--workers", type=click.IntRange(min=1), metavar="N", help="Workers of the backend.")
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    metavar="N",
    help="Instead of the workload's own number.",
)
@click.option("--cohort", type=click.IntRange(min=1), metavar="N", help="Clients per round.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of all randomness.")
@click.option(
    "--reproducibility",
    default="L1",
    show_default=True,
    metavar="LEVEL",
    help="L1: the same bits on every backend; L0: the process's global generators.",
)
@click.option(
    "--checkpoints", metavar="FOLDER", help="Save checkpoints here; the newest two are kept."
)
@click.option(
    "--checkpoint-every",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="Rounds between two checkpoints.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Go on from the newest checkpoint in --checkpoints, if there is one.",
)
@click.option(
    "--out", metavar="FILE", help="Write all metrics, one per line: .csv .md .json .parquet."
)
def run(
    workload: str,
    algorithm: str | None,
    backend: str,
    workers: int | None,
    rounds: int | None,
    cohort: int | None,
    seed: int,
    reproducibility: str,
    checkpoints: str | None,
    checkpoint_every: int,
    resume: bool,
    out: str | None,
) -> int:
    """Run one simulation and print the metrics of the rounds that were evaluated."""
    with usage_errors():
        from fedbench.report import FRAME_FORMATS, check_writable, format_of

        suffix = None if out is None else format_of(out, FRAME_FORMATS)
    if out is not None:
        check_writable(out)
    with usage_errors():
        import fedbench
        from fedbench.simulation import has_checkpoint

        simulation = fedbench.Simulation(
            workload,
            algorithm=algorithm,
            executor=backend,
            workers=workers,
            seed=seed,
            reproducibility=reproducibility,
            cohort_size=cohort,
        )
        count = simulation.workload.rounds if rounds is None else rounds
        if resume and checkpoints is None:
            raise ValueError("--resume needs --checkpoints: name the folder to resume from.")
    if resume and checkpoints is not None and has_checkpoint(checkpoints):
        done = simulation.load_checkpoint(checkpoints)
        click.echo(f"resuming after round {done} of {count}", err=True)
    with simulation:
        history = _run_with_progress(simulation, count, checkpoints, checkpoint_every)
    click.echo(_summary(history).to_string(index=False))
    if out is not None and suffix is not None:
        write_files({out: FRAME_FORMATS[suffix](history.to_frame())})
    return 0


def _run_with_progress(
    simulation: Simulation, rounds: int, checkpoints: str | None, checkpoint_every: int
) -> History:
    from tqdm import tqdm

    left = rounds - simulation.rounds_done
    if left <= 0:
        return simulation.history
    with tqdm(total=left, unit="round", leave=False, disable=not sys.stderr.isatty()) as bar:

        def on_round(_record: RoundRecord) -> None:
            bar.update()

        return simulation.run(
            left,
            on_round=on_round,
            checkpoint_dir=checkpoints,
            checkpoint_every=checkpoint_every,
        )


def _summary(history: History) -> pd.DataFrame:
    """Return one line for each evaluated round, one column for each metric."""
    tidy = history.to_frame()
    evaluated = tidy[tidy["round"].isin(tidy.loc[tidy["split"] == "test", "round"])]
    wide = evaluated.pivot_table(index="round", columns=["split", "metric"], values="value")
    wide.columns = ["_".join(pair) for pair in wide.columns]
    return wide.reset_index()
