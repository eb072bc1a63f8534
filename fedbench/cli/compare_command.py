"""``fedbench compare``."""

from __future__ import annotations

import math
import os

import click

from fedbench.cli.options import terminal_width, usage_errors, write_files

__all__ = ["compare"]

EPILOG = """\b
Examples:
  fedbench report --out before.json
  (change something, or wait a week)
  fedbench report --out after.json
  fedbench compare before.json after.json
  fedbench compare before.json after.json --fail-on-regression 10%

A row is slower or faster when the 95 % bootstrap interval of the ratio of its
median rounds is all on one side of 1.
"""


class Percentage(click.ParamType[float]):
    """A share such as ``10%`` or ``0.1``."""

    name = "percentage"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the share as a fraction."""
        text = str(value).strip()
        try:
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            share = math.nan
        # A bare 10 is 10 % meant, and would be 1000 %.
        if not 0 <= share < (math.inf if text.endswith("%") else 1):
            self.fail(f"must be a share such as 10%, got {text!r}.", param, ctx)
        return share


@click.command(epilog=EPILOG)
@click.argument("before", metavar="BEFORE.json")
@click.argument("after", metavar="AFTER.json")
@click.option(
    "--fail-on-regression",
    "tolerance",
    type=Percentage(),
    metavar="SHARE",
    help="Exit with 1 if a row is slower by more than this, noise allowed for.",
)
@click.option("--out", metavar="FILE", help="Write the table: .csv .md .json .parquet.")
def compare(before: str, after: str, tolerance: float | None, out: str | None) -> int:
    """Show what became faster or slower between two runs.

    The files are those of `fedbench report --out FILE.json`, or of `pytest benchmarks
    --benchmark-json FILE --benchmark-save-data`.

    Times of different machines do not compare: the difference is shown on stderr, and
    --fail-on-regression is refused.
    """
    with usage_errors():
        from fedbench.report import (
            FRAME_FORMATS,
            check_writable,
            differences_of_environment,
            format_of,
            load_timings,
            render_comparison,
            to_comparison_frame,
        )
        from fedbench.report import compare as compare_timings

        suffix = None if out is None else format_of(out, FRAME_FORMATS)
        if os.path.realpath(before) == os.path.realpath(after):
            raise ValueError(
                f"BEFORE and AFTER must be two files, got {before!r} twice. A report replaces the "
                "file of the run before: give each run a name of its own."
            )
        runs = [load_timings(path) for path in (before, after)]
    if out is not None:
        check_writable(out)
    differences = differences_of_environment(*runs)
    for difference in differences:
        click.echo(f"note: another machine: {difference}", err=True)
    if differences and tolerance is not None:
        raise click.UsageError(
            "--fail-on-regression needs two runs of the same machine; see the notes above.",
            click.get_current_context(),
        )
    changes = compare_timings(*runs)
    click.echo(render_comparison(changes, terminal_width()), nl=False)
    if out is not None and suffix is not None:
        write_files({out: FRAME_FORMATS[suffix](to_comparison_frame(changes))})
    if tolerance is None:
        return 0
    regressed = [change for change in changes if change.regressed(tolerance)]
    for change in regressed:
        click.echo(f"regression: {change.name}: {change.ratio:.2f} x", err=True)
    return 1 if regressed else 0
