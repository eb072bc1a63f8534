"""``fedbench run``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedbench.cli.options import check_crowding, on_this_machine, usage_errors, write_files
from fedbench.configuration.schema import RunConfiguration

if TYPE_CHECKING:
    import pandas as pd

    from fedbench.configuration import Plan, RunResult
    from fedbench.configuration.running import Progress
    from fedbench.simulation import History

__all__ = ["run"]

EPILOG = """\b
Examples:
  fedbench run --workload digits-logreg
  fedbench run --workload digits-mlp --algorithm fedprox --out history.csv
  fedbench run --workload digits-mlp --algorithm "{name: fedprox, mu: 0.1}"
  fedbench run --workload mnist5k-cnn --backend processes --workers 2
  fedbench run --workload mnist5k-cnn --checkpoints saved --resume
  fedbench run experiment.yaml --seed 3 --plot curves.svg
  fedbench run experiment.yaml --matrix seed=0,1,2 --parallel 2
  fedbench run experiment.yaml --show-config

Every flag is also a key of CONFIG.yaml (--cohort-size: cohort_size) and an
environment variable (FEDBENCH_COHORT_SIZE). Flags win over the environment,
the environment over the file, the file over the defaults. Values are YAML.

The same seed gives the same metrics on every backend, to the last bit, and the
same final state: its digest is printed below the metrics and is in the files.
"""

_SHOWN_DIGITS = 12
"""Of a digest, in a table; the files have all of it."""
_ALIASES = {"cohort_size": ("--cohort",)}


def _options_of_the_schema(command: Callable[..., int]) -> Callable[..., int]:
    """Give `command` one option for every key of the schema, in its order."""
    for key, field in reversed(RunConfiguration.model_fields.items()):
        extra = field.json_schema_extra
        metavar = str(extra["metavar"]) if isinstance(extra, dict) else "VALUE"
        flag = f"--{key.replace('_', '-')}"
        if metavar == "true|false":
            decoration = click.option(
                f"{flag}/--no-{flag[2:]}", key, default=None, help=field.description
            )
        else:
            default = "" if field.default is None else f"  [default: {_shown(field.default)}]"
            decoration = click.option(
                flag,
                *_ALIASES.get(key, ()),
                key,
                metavar=metavar,
                help=f"{field.description}{default}",
            )
        command = decoration(command)
    return command


def _shown(default: Any) -> str:
    return str(getattr(default, "label", default))


@click.command(epilog=EPILOG)
@click.argument("config", required=False, metavar="[CONFIG.yaml]")
@_options_of_the_schema
@click.option(
    "--matrix",
    multiple=True,
    metavar="KEY=A,B,...",
    help="Run every combination of these values; may be repeated.",
)
@click.option("--show-config", is_flag=True, help="Print the resolved configuration; run nothing.")
def run(
    config: str | None, matrix: tuple[str, ...], show_config: bool, **flags: str | bool | None
) -> int:
    """Run one simulation, or those of a matrix, and print their metrics.

    CONFIG.yaml says what to run; --workload alone will do.
    """
    with usage_errors():
        from fedbench.configuration import load

        texts = {key: _text(value) for key, value in flags.items() if value is not None}
        plan = load(config, flags=texts, sweeps=dict(map(_sweep, matrix)))
    for note in plan.notes:
        click.echo(f"note: {note}", err=True)
    if show_config:
        click.echo(plan.to_yaml(), nl=False)
        return 0
    _check_targets(plan)
    check_crowding(_workers(plan))
    if not plan.matrix:
        results = [_run_single(plan)]
        table = _evaluations(results[0].history).to_string(index=False)
        table += f"\nfinal state: sha256 {results[0].digest}"
    else:
        results = _run_matrix(plan)
        table = _last_metrics(results).to_string(index=False, na_rep="-")
    try:
        click.echo(table)
    finally:  # also where the table cannot be shown
        _write(plan, results)
    return 1 if any(result.error for result in results) else 0


def _text(value: str | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else value


def _sweep(text: str) -> tuple[str, str]:
    key, equals, values = text.partition("=")
    if not equals:
        raise ValueError(f"--matrix must be KEY=A,B,..., got {text!r}. Try --matrix seed=0,1,2")
    return key.strip().replace("-", "_"), values


def _workers(plan: Plan) -> Iterator[int]:
    """Yield the worker counts that are asked of this machine; a Ray cluster has CPUs of its own."""
    for planned in plan.runs:
        configuration = planned.configuration
        if configuration.workers is not None and on_this_machine([configuration.backend.name]):
            yield configuration.workers


def _check_targets(plan: Plan) -> None:
    """Find out before the first round whether the files can be written."""
    with usage_errors():
        from fedbench.configuration import PLOT_FORMATS, require_matplotlib
        from fedbench.report import FRAME_FORMATS, check_writable, format_of

        targets = [(plan.settings.out, FRAME_FORMATS), (plan.settings.plot, PLOT_FORMATS)]
        for target, formats in targets:
            if target is not None:
                format_of(target, formats)
        if plan.settings.plot is not None:
            require_matplotlib()
    for target, _ in targets:
        if target is not None:
            check_writable(target)


def _run_single(plan: Plan) -> RunResult:
    from fedbench.configuration import RunResult, make_simulation, resume, run_one

    (planned,) = plan.runs
    configuration = planned.configuration
    with usage_errors():
        simulation = make_simulation(configuration)
    with simulation.executor:
        done = resume(simulation, configuration)
        if done:
            click.echo(f"resuming after round {done} of {configuration.rounds}", err=True)
        with _bar(configuration.rounds or 0, done) as bar:

            def listener(progress: Progress) -> None:
                text = _metrics_text(progress)
                bar.update()
                if text and bar.disable:
                    click.echo(f"round {progress.done} of {progress.total}: {text}", err=True)
                elif text:
                    bar.set_postfix_str(text)

            history = run_one(simulation, configuration, listener)
    return RunResult(planned, history, simulation.state_digest())


def _run_matrix(plan: Plan) -> list[RunResult]:
    from fedbench.configuration import process_count, run_all

    asked, processes = plan.settings.parallel, process_count(plan)
    if processes < min(asked, len(plan.runs)):
        click.echo(f"note: {processes} at once, not {asked}: one for each core.", err=True)
    ended = 0
    with _bar(sum(run.configuration.rounds or 0 for run in plan.runs), 0) as bar:

        def on_result(index: int, result: RunResult) -> None:
            nonlocal ended
            ended += 1
            what = f"failed: {result.error}" if result.error else "done"
            bar.clear()
            click.echo(f"{ended} of {len(plan.runs)}: {result.run.label}: {what}", err=True)

        return run_all(plan, on_progress=lambda _progress: bar.update(), on_result=on_result)


@contextmanager
def _bar(total: int, done: int) -> Iterator[Any]:
    from tqdm import tqdm

    hidden = not sys.stderr.isatty()
    with tqdm(total=total, initial=done, unit="round", leave=False, disable=hidden) as bar:
        yield bar


def _metrics_text(progress: Progress) -> str:
    """Return the metrics of an evaluation, empty where the round had none."""
    return ", ".join(
        f"{split} {metric} {value:.4g}"
        for split, metrics in progress.metrics.items()
        if split != "train"
        for metric, value in metrics.items()
    )


def _evaluations(history: History) -> pd.DataFrame:
    """Return one line for each evaluated round (the last one if none was), a column per metric."""
    tidy = history.to_frame()
    rounds = tidy.loc[tidy["split"] != "train", "round"]
    shown = tidy[tidy["round"].isin(rounds if len(rounds) else tidy["round"].tail(1))]
    wide = shown.pivot_table(index="round", columns=["split", "metric"], values="value")
    wide.columns = ["_".join(pair) for pair in wide.columns]
    return wide.reset_index()


def _last_metrics(results: list[RunResult]) -> pd.DataFrame:
    """Return one line for each run of a matrix, with the beginning of its digest."""
    import pandas as pd

    from fedbench.configuration import summary

    return pd.DataFrame(summary(results)).assign(
        digest=[(result.digest or "-")[:_SHOWN_DIGITS] for result in results]
    )


def _write(plan: Plan, results: list[RunResult]) -> None:
    from fedbench.configuration import draw, history_files, tidy_table
    from fedbench.report import FRAME_FORMATS

    history: dict[str, bytes] = {}
    curves: dict[str, bytes] = {}
    out, plot = plan.settings.out, plan.settings.plot
    if out is not None:
        history = history_files(out, plan, results, FRAME_FORMATS)
    if plot is not None:
        table = tidy_table(results)
        if table.empty:
            click.echo(f"note: {plot} is not written: no run has any metrics.", err=True)
        else:
            curves[plot] = draw(table, list(plan.matrix), Path(plot).suffix.lower())
    write_files(history, curves)
