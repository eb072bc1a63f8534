"""The command ``fedbench``; what it does is in :mod:`fedbench.cli.app`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code.

    Parameters
    ----------
    arguments : sequence of str, optional
        Words after ``fedbench``; those of the process by default.
    """
    try:
        # Here, so that an interrupt of the imports ends like one of the work.
        from fedbench.cli.app import run

        code = run(arguments)
    except KeyboardInterrupt:
        sys.stderr.write("fedbench: error: interrupted.\n")
        code = 130
    sys.exit(code)
