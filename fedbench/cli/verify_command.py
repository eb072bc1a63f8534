"""``fedbench verify``."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from fedbench.cli.options import (
    Count,
    ListCommand,
    check_crowding,
    missing_files,
    on_this_machine,
    usage_errors,
    write_files,
)
from fedbench.registry import own_code

if TYPE_CHECKING:
    from fedbench.algorithms import Algorithm
    from fedbench.configuration import RunConfiguration
    from fedbench.verification import Candidate, Trace, Verification
    from fedbench.verification.harness import Loop
    from fedbench.workloads import Workload

__all__ = ["verify"]

_FIXED = {"device": "cpu", "intraop_threads": 1, "reproducibility": "L1"}
"""Keys of a configuration that decide about bits, with the only value that is verified."""

EPILOG = """\b
Examples:
  fedbench verify --workload digits-logreg
  fedbench verify --workload digits-mlp --algorithm scaffold --rounds 5
  fedbench verify --workload mnist5k-cnn --backend processes --workers 1 2 4
  fedbench verify --workload digits-mlp --algorithm "{name: fedprox, mu: 0.1}"
  fedbench verify --workload digits-mlp --algorithm my_module:MyAlgorithm
  fedbench verify --config experiment.yaml
  fedbench verify --workload digits-mlp --reference my_module:my_loop
  fedbench verify --workload digits-mlp --save-trace here.json
  fedbench verify --workload digits-mlp --reference here.json   (elsewhere)

my_loop is a generator function that yields the server's state dict after each
round; only the server's model is then compared. It is called with seed=SEED if
it takes a seed, without arguments otherwise (then only seed 0 can be verified).

Of a file for `fedbench run`, verify takes workload, data, model, algorithm,
training, options and seed. The rest (rounds, backend, workers, ...) is its own.

The exit code is 0 if every candidate has the bits of the reference, else 1;
the first difference is named: round, phase, client and entry.
"""


@click.command(cls=ListCommand, epilog=EPILOG)
@click.option("--workload", metavar="NAME", help="What to run; see `fedbench list`.")
@click.option(
    "--algorithm",
    metavar="NAME",
    help="A name, MODULE:CLASS for your own, or {name: NAME, OPTION: VALUE}.",
)
@click.option("--config", metavar="FILE", help="What to run, as a file for `fedbench run`.")
@click.option(
    "--reference",
    default="sequential",
    show_default=True,
    metavar="NAME",
    help="A backend, MODULE:FUNCTION for a hand-written loop, or the file of a trace.",
)
@click.option(
    "--save-trace",
    metavar="FILE",
    help="Write the digests of the first candidate, to verify against on another machine.",
)
@click.option(
    "--backend",
    "backends",
    multiple=True,
    metavar="NAME",
    help="Candidates; by default every parallel backend that is installed.",
)
@click.option(
    "--workers",
    multiple=True,
    type=Count(),
    metavar="N",
    help="Worker counts of the candidates; 1 and 2 by default.",
)
@click.option(
    "--rounds",
    default=3,
    show_default=True,
    type=Count(),
    metavar="N",
    help="Rounds to compare.",
)
@click.option(
    "--seed", type=int, metavar="N", help="Seed of all randomness; by default the file's, or 0."
)
@click.option(
    "--delays/--no-delays",
    default=True,
    show_default=True,
    help="Let clients sleep for random moments, so that they finish out of order.",
)
@click.option("--out", metavar="FILE", help="Write the table: .csv .md .json .parquet.")
def verify(
    workload: str | None,
    algorithm: str | None,
    config: str | None,
    reference: str,
    save_trace: str | None,
    backends: tuple[str, ...],
    workers: tuple[int, ...],
    rounds: int,
    seed: int | None,
    delays: bool,
    out: str | None,
) -> int:
    """Run a workload on several backends and compare all states bit for bit.

    The server's state, every client's state, every update and every metric are compared with
    those of the reference after every phase of every round.
    """
    if workload is None and config is None:
        raise click.UsageError(
            "Missing option '--workload': name what to run, or give a file with --config.",
            click.get_current_context(),
        )
    with usage_errors():
        from fedbench.report import FRAME_FORMATS, check_writable, format_of

        suffix = None if out is None else format_of(out, FRAME_FORMATS)
    for target in (out, save_trace):
        if target is not None:
            check_writable(target)
    with usage_errors():
        flags = {"workload": workload, "algorithm": algorithm, "seed": seed}
        configuration = _configuration(config, flags)
        job, own_algorithm = _job(configuration)
        options = {
            "algorithm": own_algorithm,
            "reference": _reference(reference, configuration.seed),
            "candidates": _candidates(backends, workers or (1, 2), delays=delays),
            "rounds": rounds,
            "seed": configuration.seed,
        }
    check_crowding(workers if on_this_machine(backends or ("processes",)) else ())
    with missing_files():
        result = _verify_with_progress(job, options)
    if result.incomparable:
        raise click.UsageError(
            f"{reference} cannot be compared with runs on this machine: "
            f"{'; '.join(result.incomparable)}.",
            click.get_current_context(),
        )
    contents: list[dict[str, bytes]] = []
    if out is not None and suffix is not None:
        contents.append({out: FRAME_FORMATS[suffix](result.to_frame())})
    if save_trace is not None and result.trace is not None:
        contents.append({save_trace: result.trace.to_json().encode()})
    try:
        click.echo(_table(result))
        for candidate, difference in result.differences.items():
            click.echo(f"{candidate}: {difference}")
        if result.hint:
            click.echo(result.hint)
    finally:  # also where the table cannot be shown
        write_files(*contents)
    return 0 if result.identical else 1


def _configuration(config: str | None, flags: dict[str, Any]) -> RunConfiguration:
    """Return the one run that the file and the flags describe."""
    from fedbench.configuration import load

    # The variables of `fedbench run` are left out: a verification is what its command line says.
    texts = {key: str(value) for key, value in flags.items() if value is not None}
    plan = load(config, environ={}, flags=texts)
    for note in plan.notes:
        click.echo(f"note: {note}", err=True)
    if plan.matrix:
        raise ValueError(
            f"config must be the file of a single run, got {config!r} with a matrix over "
            f"{', '.join(plan.matrix)}. Verify its runs one by one."
        )
    configuration = plan.runs[0].configuration
    for key, verified in _FIXED.items():
        value = getattr(configuration, key)
        if value != verified:
            raise ValueError(
                f"{key} must be {verified} for a verification, got {value!r} in {config!r}. "
                f"Leave it out: only so are equal bits promised."
            )
    return configuration


def _job(configuration: RunConfiguration) -> tuple[Workload, Algorithm]:
    from fedbench.configuration.building import make_algorithm, make_workload
    from fedbench.configuration.options import simulation_options

    workload = make_workload(configuration)
    options = {**workload.options, **simulation_options(configuration)}
    return replace(workload, options=options), make_algorithm(configuration)


def _reference(name: str, seed: int) -> Candidate | Loop | Trace:
    from fedbench.executors import EXECUTORS
    from fedbench.verification import Candidate, read_trace
    from fedbench.verification.harness import seeded_loop

    if name.endswith(".json"):
        try:
            return read_trace(name)
        except OSError as error:
            raise ValueError(f"reference {name} cannot be read: {error.strerror}.") from error
    if ":" not in name:
        EXECUTORS.load(name)
        return Candidate(name)
    loop = own_code("reference", name)
    if not callable(loop):
        raise TypeError(f"reference must be a generator function, got {name!r}.")
    seeded_loop(loop, seed)  # refuses one that cannot be called
    found: Loop = loop
    return found


def _candidates(
    backends: tuple[str, ...], workers: tuple[int, ...], *, delays: bool
) -> list[Candidate]:
    from fedbench.errors import MissingExtraError
    from fedbench.executors import EXECUTORS
    from fedbench.verification import Candidate

    found = []
    for backend in backends or EXECUTORS.names():
        try:
            EXECUTORS.load(backend)
        except MissingExtraError as error:
            if backends:
                raise
            click.echo(f"note: left out: {error}", err=True)
            continue
        if backend != "sequential":
            found += [Candidate(backend, count, delays) for count in workers]
        elif backends:
            found.append(Candidate(backend, None, delays))
    return found


def _verify_with_progress(workload: Workload, options: dict[str, Any]) -> Verification:
    from tqdm import tqdm

    from fedbench import verification

    rounds = options["rounds"]
    with tqdm(total=rounds, unit="round", leave=False, disable=not sys.stderr.isatty()) as bar:

        def on_round(_number: int) -> None:
            bar.update()

        return verification.verify(workload, **options, on_round=on_round)


def _table(result: Verification) -> str:
    frame = result.to_frame()[["backend", "workers", "delays", "compared", "identical"]]
    frame["identical"] = ["yes" if same else "NO" for same in frame["identical"]]
    counts = frame["workers"]
    frame["workers"] = counts.astype(object).mask(counts.isna(), "-")
    plural = "s" if result.rounds != 1 else ""
    head = f"reference {result.reference}, {result.rounds} round{plural}"
    return f"{head}\n{frame.to_string(index=False)}"
