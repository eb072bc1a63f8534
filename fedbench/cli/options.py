"""What several commands share: options that take many values, errors, files, progress."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    import pandas as pd

    from fedbench.report.progress import Progress

__all__ = [
    "Count",
    "ListCommand",
    "check_crowding",
    "ended_by_signals",
    "frame_formats",
    "missing_files",
    "on_this_machine",
    "progress_bar",
    "terminal_width",
    "usage_errors",
    "write_files",
    "write_frame",
]


_MOST_PER_CPU = 64
"""Workers per CPU beyond which the number can only be a slip."""


class Count(click.IntRange):
    """A whole number from 1 on."""

    name = "integer"  # click's own name for it is no word of a message

    def __init__(self) -> None:
        super().__init__(min=1)


class ListCommand(click.Command):
    """A command whose repeatable options also take several values at once.

    ``--workers 1 2 4`` stands for ``--workers 1 --workers 2 --workers 4``. That is clear without
    ambiguity only in a command without positional arguments.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat the option before every value but the first, then parse as usual."""
        if args and not args[0].startswith("-"):
            usual = next(name for option in self.params for name in option.opts)
            ctx.fail(f"{args[0]!r} must follow the option that it is for, as in {usual} {args[0]}.")
        many = {
            name
            for parameter in self.params
            if isinstance(parameter, click.Option) and parameter.multiple
            for name in parameter.opts
        }
        expanded: list[str] = []
        option, needs_value = "", False
        for word in args:
            if needs_value:
                needs_value = False
            elif word.startswith("-") and len(word) > 1:
                name, equals, _ = word.partition("=")
                option = name if name in many else ""
                needs_value = bool(option) and not equals
            elif option:
                expanded.append(option)
            expanded.append(word)
        return super().parse_args(ctx, expanded)


@contextlib.contextmanager
def usage_errors() -> Iterator[None]:
    """Turn refused arguments into usage errors: one line, exit code 2."""
    try:
        yield
    except OSError as error:  # a file to read
        # Errors of this package say it in words, those of the system have a name and a reason.
        in_words = error.filename is None
        sentence = f"{error.filename!r} must be a readable file: {error.strerror}."
        raise click.UsageError(
            str(error) if in_words else sentence, click.get_current_context()
        ) from error
    except (ValueError, TypeError, ImportError) as error:
        raise click.UsageError(str(error), click.get_current_context()) from error


@contextlib.contextmanager
def missing_files() -> Iterator[None]:
    """Turn a data file or folder that does not exist, as a loader says it, into a usage error."""
    try:
        yield
    except FileNotFoundError as error:
        if error.filename is not None:  # not a loader's
            raise
        raise click.UsageError(str(error), click.get_current_context()) from error


def on_this_machine(backends: Iterable[str]) -> bool:
    """Return whether one of `backends` has its workers here; a Ray cluster has CPUs of its own."""
    return any(name.partition("+")[0] in ("threads", "processes") for name in backends)


def check_crowding(workers: Iterable[int]) -> None:
    """Say on stderr that there are more workers than CPUs for them; refuse absurdly many.

    Every worker is a thread or a process: a zero too many would take the machine's memory.
    """
    from fedbench.executors.resources import available_cpus

    most, cpus = max(workers, default=0), available_cpus()
    plural = "s" if cpus > 1 else ""
    if most > _MOST_PER_CPU * cpus:
        raise click.UsageError(
            f"--workers must be at most {_MOST_PER_CPU * cpus} on {cpus} usable CPU{plural} "
            f"({_MOST_PER_CPU} each), got {most}. Try --workers {cpus}.",
            click.get_current_context(),
        )
    if most > cpus:
        click.echo(
            f"note: {most} workers share {cpus} usable CPU{plural} and slow each other down: "
            f"--workers {cpus} keeps {'them all' if cpus > 1 else 'it'} busy.",
            err=True,
        )


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind the stack, as Ctrl-C does, so that nothing started stays.

    Rows of a measurement are processes with sessions of their own, which the signal does not reach.
    """

    def leave(number: int, _frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    # One that is ignored (nohup) stays so. Threads cannot set handlers.
    in_main_thread = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGTERM, signal.SIGHUP) if in_main_thread else ()
    caught = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    for number in caught:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, signal.SIG_DFL)


def terminal_width() -> int:
    """Return the columns of the terminal, 80 where there is none; ``COLUMNS`` overrides."""
    return shutil.get_terminal_size(fallback=(80, 24)).columns


@contextlib.contextmanager
def progress_bar() -> Iterator[Callable[[Progress], None]]:
    """Give a listener that draws a bar on stderr, or prints lines where that is no terminal."""
    if not sys.stderr.isatty():
        yield _ProgressLines()
        return
    from tqdm import tqdm

    with tqdm(leave=False, file=sys.stderr, dynamic_ncols=True, bar_format=_BAR) as bar:
        yield lambda progress: _draw(bar, progress)


_BAR = "{percentage:3.0f}%|{bar:10}| {elapsed}<{remaining} {desc}"


class _ProgressLines:
    """A line for every row that starts and every round of all rows, for logs."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._block = ""

    def __call__(self, progress: Progress) -> None:
        if progress.block == self._block:
            return
        self._block = progress.block
        share = progress.done / max(progress.total, 1)
        click.echo(f"{time.monotonic() - self._begin:5.0f} s {share:4.0%}  {self._block}", err=True)


def _draw(bar: Any, progress: Progress) -> None:
    bar.total, bar.n = progress.total, progress.done
    bar.set_description_str(progress.message)


def write_files(*groups: dict[str, bytes]) -> None:
    """Write every file and say so; the failures are raised when all groups have been tried.

    The files of a group belong together, the main one first: after a failure the rest of its
    group is left out.
    """
    from fedbench.errors import OutputError
    from fedbench.report import write_atomically

    failures: list[OutputError] = []
    for contents in groups:
        try:
            for target, content in contents.items():
                write_atomically(target, content)
                click.echo(f"wrote {target}", err=True)
        except OutputError as error:
            failures.append(error)
    if failures:
        raise OutputError(" ".join(map(str, failures)))


def frame_formats(targets: Iterable[str]) -> dict[str, str]:
    """Return the format of each file that a table goes to.

    Called before the long work, so that a wrong suffix or an unwritable place costs none of it.
    """
    with usage_errors():
        from fedbench.report import FRAME_FORMATS, check_writable, format_of

        formats = {target: format_of(target, FRAME_FORMATS) for target in targets}
    for target in formats:
        check_writable(target)
    return formats


def write_frame(frame: pd.DataFrame, formats: Mapping[str, str]) -> None:
    """Write a table to each file of :func:`frame_formats`."""
    from fedbench.report import FRAME_FORMATS

    write_files(*({target: FRAME_FORMATS[suffix](frame)} for target, suffix in formats.items()))
