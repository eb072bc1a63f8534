"""What the command ``fedbench`` does: names of commands, errors and exit codes.

Exit codes: 0 done, 1 failed, 2 used wrongly (a wrong option, a file or a standard output that
cannot be written), 130 interrupted. An error is one line on stderr. Results go to stdout,
everything else to stderr.

Every command is a module of its own, ``<name>_command.py`` (a module called ``list`` would hide the
builtin here), imported when it is used, so that ``--help`` and ``--version`` are quick.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from fedbench.errors import ClientTaskError, FedbenchError, OutputError
from fedbench.registry import did_you_mean

__all__ = ["COMMANDS", "cli", "run"]

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


@dataclass(frozen=True)
class Command:
    """Where a command lives, its line in the help text, and the page that explains it."""

    target: str
    summary: str
    page: str = ""


COMMANDS = {
    "report": Command(
        "fedbench.cli.report_command:report",
        "Measure workloads over backends; print the speedup table.",
        "docs/guide/how_we_measure.md",
    ),
    "compare": Command(
        "fedbench.cli.compare_command:compare",
        "Show what changed between two reports.",
        "docs/guide/how_we_measure.md#before-and-after",
    ),
    "peers": Command(
        "fedbench.cli.peers_command:peers",
        "Run the same job in other frameworks, and compare.",
        "docs/guide/peers.md",
    ),
    "scale": Command(
        "fedbench.cli.scale_command:scale",
        "Fit how a round's cost grows; predict more workers.",
        "docs/guide/scaling.md",
    ),
    "run": Command(
        "fedbench.cli.run_command:run",
        "Run one simulation and print its metrics.",
        "docs/guide/configuration.md",
    ),
    "verify": Command(
        "fedbench.cli.verify_command:verify",
        "Compare backends bit for bit and name the first difference.",
        "docs/guide/verification.md",
    ),
    "list": Command(
        "fedbench.cli.list_command:list_names", "List workloads, algorithms, backends, models, ..."
    ),
    "doctor": Command(
        "fedbench.cli.doctor_command:doctor",
        "Check this machine: cores, memory, optional packages.",
        "docs/guide/install.md",
    ),
}
"""Name to command, in the order of the help text."""


_PAGES = "docs/guide"
"""Folder of the pages, in the checkout."""

_WITH_PARTS = ("run", "verify")
"""Commands whose options name parts of a simulation that have options of their own."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in table order."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command, None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or say which one may have been meant."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(
                f"the command must be one of {', '.join(COMMANDS)}, got {args[0]!r}."
                f"{did_you_mean(args[0], COMMANDS)}"
            )
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; an error of its options says whose they are."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            name = ctx.invoked_subcommand
            command = self.get_command(ctx, name) if name else None
            if error.ctx is None and command is not None:  # raised by click's parser
                error.ctx = click.Context(command, parent=ctx, info_name=name)
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command list from the table, without importing the commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in COMMANDS.items()])


def _print_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from fedbench import __version__

        click.echo(f"fedbench {__version__}")
        ctx.exit()


EPILOG = """\b
Examples:
  fedbench report --preset smoke     a first look, in seconds
  fedbench report --out table.csv    the speedup table, also as a file
  fedbench run --workload digits-mlp --backend processes
  fedbench verify --workload digits-mlp
  fedbench list                      what there is to choose from
  fedbench doctor                    is this machine set up well?

`fedbench COMMAND --help` explains a command.
"""


@click.group(
    cls=LazyGroup,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=False,
    invoke_without_command=True,
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit.",
)
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Federated-learning simulation with the same bits on every backend, measured.

    A simulation trains one model on the data of many clients: in every round the server
    broadcasts its parameters to a cohort, the clients train locally, and the server aggregates
    what they send back. fedbench runs the clients on threads, processes or Ray and checks that
    the result is bitwise that of the sequential loop.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Parameters
    ----------
    arguments : sequence of str, optional
        Words after ``fedbench``; those of the process by default.
    """
    _survive_narrow_encodings()
    code = _run(arguments)
    if code == EXIT_INTERRUPTED:
        _leave_running_tasks(code)
    return code


def _leave_running_tasks(code: int) -> None:
    """End the process at once if threads are still inside client tasks, which cannot be stopped."""
    threads = sys.modules.get("fedbench.executors.threads")
    if threads is not None and threads.running_tasks():
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        code = cli.main(
            None if arguments is None else list(arguments),
            prog_name="fedbench",
            standalone_mode=False,
        )
    except click.ClickException as error:
        return _complain_of_use(error)
    except (click.Abort, KeyboardInterrupt):
        return _complain("fedbench", "interrupted.", EXIT_INTERRUPTED)
    except OutputError as error:
        return _complain("fedbench", str(error), EXIT_USAGE)
    except ClientTaskError as error:
        from fedbench.cli.failures import where

        cause = error.__cause__
        told = cause if isinstance(cause, FedbenchError) else error
        return _complain("fedbench", f"{error}{where(error)} {told.help}", EXIT_FAILURE)
    except FedbenchError as error:
        return _complain("fedbench", f"{error} {error.help}", EXIT_FAILURE)
    except OSError as error:
        if not _was_shown(error):
            raise
        _drop_output()
        reason = f"cannot write to the standard output: {error.strerror}."
        return _complain("fedbench", f"{reason} Free some space or send it elsewhere.", EXIT_USAGE)
    return code if isinstance(code, int) else 0


def _complain_of_use(error: click.ClickException) -> int:
    """Say what is wrong with the command line, and where to read on."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "fedbench"
    message = error.format_message()
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        message = _no_such_option(error.option_name, error.ctx.command)
    message = f"{_sentence(message)} Try '{path} --help'."
    command = COMMANDS.get(path.rpartition(" ")[2])
    if isinstance(error.__cause__, FedbenchError):
        message += f" {error.__cause__.help}"
    elif command is not None and command.page:
        message += f" Help: {command.page}"
    return _complain(path, message, EXIT_USAGE)


def _no_such_option(word: str, command: click.Command) -> str:
    """Return the message about a flag that does not exist: what was meant, or where it belongs."""
    known = [flag for parameter in command.params for flag in parameter.opts]
    hint = did_you_mean(word, known, cutoff=0.7)
    if not hint and command.name in _WITH_PARTS:
        hint = (
            " Options of an algorithm or another part stand beside its name: "
            '--algorithm "{name: fedprox, mu: 0.1}".'
        )
    return f"No such option {word!r}.{hint}"


def _sentence(text: str) -> str:
    text = text.rstrip()
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _complain(command: str, message: str, code: int) -> int:
    click.echo(f"{command}: error: {' '.join(_from_here(message).split())}", err=True)
    return code


def _from_here(message: str) -> str:
    """Return `message` with a page that is found from the working folder, if this is a checkout."""
    here, there = Path(_PAGES), Path(__file__).parents[2] / _PAGES
    if not there.is_dir() or (here.is_dir() and here.samefile(there)):
        return message
    return message.replace(f"Help: {_PAGES}/", f"Help: {there}/")


def _was_shown(error: OSError) -> bool:
    """Return whether the error is about writing to the standard output, and not about a file."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code is click.echo.__code__ for frame, _ in frames)


def _drop_output() -> None:
    """Send what is left in the buffers nowhere: Python would fail again when it flushes them."""
    with contextlib.suppress(ValueError, OSError):  # a standard output that is no file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _survive_narrow_encodings() -> None:
    # A table must not be lost because a name in it has no character in the terminal's encoding.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(ValueError, OSError):
                stream.reconfigure(errors="backslashreplace")
