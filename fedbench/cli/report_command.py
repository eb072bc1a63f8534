"""``fedbench report``."""

from __future__ import annotations

from typing import Literal

import click

from fedbench.cli.options import (
    ListCommand,
    check_crowding,
    ended_by_signals,
    on_this_machine,
    progress_bar,
    terminal_width,
    usage_errors,
    write_files,
)

__all__ = ["report"]

ALL = "all"
"""Stands for every algorithm."""

EPILOG = """\b
Examples:
  fedbench report --out table.csv
  fedbench report --workload digits-mlp --workers 1 2 4
  fedbench report --backend sequential processes --rounds auto
  fedbench report --preset full --out table.csv page.html raw.json
  fedbench report --workload digits-logreg --algorithm fedavg scaffold
  fedbench report --preset smoke --algorithm all

\b
How to read the table:
  round_s     median seconds of a round
  speedup     baseline time / own time, paired by round; low and high bound it
  efficiency  of the workers' time, the part that an ideal backend would need
  identical   whether the final state is bitwise that of the baseline
The baseline is `sequential` with one torch thread. The files have more
columns than fit on the screen, at full precision; .json has the raw samples
and the machine.

\b
Exit codes:
  0  every row that promises the baseline's bits has them
  1  one does not, or nothing could run (one backend that cannot is a note)
  2  wrong option, or a file that cannot be written
"""


class RoundCount(click.ParamType[int | Literal["auto"]]):
    """A whole number or the word ``auto``."""

    name = "rounds"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | Literal["auto"]:
        """Return the number, or ``"auto"``."""
        if value == "auto":
            return "auto"
        try:
            return int(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a valid integer, and not 'auto'.", param, ctx)


@click.command(cls=ListCommand, epilog=EPILOG)
@click.option(
    "--workload",
    "workloads",
    multiple=True,
    metavar="NAME",
    help="What to run; see `fedbench list`.",
)
@click.option(
    "--algorithm",
    "algorithms",
    multiple=True,
    metavar="NAME",
    help="Algorithms instead of each workload's own: names, MODULE:CLASS of yours, or `all`.",
)
@click.option(
    "--backend",
    "backends",
    multiple=True,
    metavar="NAME",
    help="Backends to compare; all by default. Keep `sequential`, the baseline, among them. "
    "NAME+vectorized trains the clients of small models stacked.",
)
@click.option(
    "--workers",
    multiple=True,
    type=int,
    metavar="N",
    help="Worker counts of the parallel backends; the number of cores by default.",
)
@click.option(
    "--rounds",
    type=RoundCount(),
    metavar="N|auto",
    help="Timed rounds per row; auto goes on until all speedups are known to 5 %.",
)
@click.option(
    "--budget",
    type=float,
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="With --rounds auto, the time for the rounds of one workload.",
)
@click.option(
    "--preset",
    default="default",
    show_default=True,
    metavar="NAME",
    help="smoke (seconds), default (minutes) or full (narrow intervals); other options override.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of all simulations.")
@click.option(
    "--reproducibility",
    envvar="FEDBENCH_REPRODUCIBILITY",
    default="L1",
    show_default=True,
    metavar="LEVEL",
    help="L1 promises equal bits on all backends, L0 does not.",
)
@click.option(
    "--timeout",
    type=float,
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Longest time for one step of one row; a row that takes longer is stopped.",
)
@click.option(
    "--out",
    "targets",
    multiple=True,
    metavar="FILE",
    help="Write the table: .csv .md .html .json .parquet. A file that exists is replaced, and a "
    "missing folder is made.",
)
@click.option(
    "--trace",
    metavar="FILE.json",
    help="Write a timeline of clients and workers for chrome://tracing or Perfetto.",
)
def report(
    workloads: tuple[str, ...],
    algorithms: tuple[str, ...],
    backends: tuple[str, ...],
    workers: tuple[int, ...],
    rounds: int | Literal["auto"] | None,
    budget: float,
    preset: str,
    seed: int,
    reproducibility: str,
    timeout: float,
    targets: tuple[str, ...],
    trace: str | None,
) -> int:
    """Measure workloads over backends and print the speedup table.

    Each row runs in a process of its own; rounds of all rows take turns, so that a change of the
    machine's speed hits all alike. Progress is shown on stderr, the table on stdout.
    """
    with usage_errors():
        from fedbench.report import FORMATS, check_writable, format_of

        formats = {target: format_of(target) for target in targets}
        if trace is not None:
            format_of(trace, [".json"])
            if trace in targets:
                raise ValueError(f"--trace and --out must be different files, got {trace!r} twice.")
    for target in (*targets, *([trace] if trace else [])):
        check_writable(target)
    with usage_errors():
        from fedbench.algorithms import ALGORITHMS
        from fedbench.executors import EXECUTORS
        from fedbench.report import (
            Settings,
            default_worker_counts,
            find_preset,
            measure,
            render_text,
            succeeded,
            to_chrome_trace,
        )

        chosen = find_preset(preset)
        settings = Settings(
            workloads=workloads or chosen.workloads,
            algorithms=ALGORITHMS.names() if ALL in algorithms else algorithms,
            rounds=None if rounds == "auto" else chosen.rounds if rounds is None else rounds,
            budget_s=budget,
            seed=seed,
            reproducibility=reproducibility,
            timeout_s=timeout,
            intraop_row=chosen.intraop_row,
            vectorized_rows=chosen.intraop_row and not backends,
            trace=trace is not None,
            backends=backends or EXECUTORS.names(),
            workers=workers or default_worker_counts(),
        )
    check_crowding(workers if on_this_machine(settings.backends) else ())
    with progress_bar() as listener, ended_by_signals():
        result = measure(settings, on_progress=listener)
    try:
        click.echo(render_text(result, terminal_width()), nl=False)
    finally:  # also where the table cannot be shown
        contents = [{target: FORMATS[suffix](result)} for target, suffix in formats.items()]
        if trace is not None:
            contents.append({trace: to_chrome_trace(result).encode("utf-8")})
        write_files(*contents)
    return 0 if succeeded(result) else 1
