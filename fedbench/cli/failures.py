"""Where a client task failed, for the one line that the command line prints."""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

from fedbench.errors import ClientTaskError

__all__ = ["where"]

_FRAME = re.compile(r'^\s*File "(.+)", line (\d+), in (.+)$', re.MULTILINE)


def where(error: ClientTaskError) -> str:
    """Return ``" (FILE:LINE, in FUNCTION)"``, empty if the traceback is not known.

    Named is the innermost line of the user's own code: not of this package, of Python's library or
    of installed packages. Where there is none it is the line that raised.
    """
    frames = _FRAME.findall(error.worker_traceback)
    if not frames:
        return ""
    paths = sysconfig.get_paths()
    foreign = [str(Path(__file__).parents[1]), *(paths[name] for name in ("stdlib", "purelib"))]
    own = [frame for frame in frames if not any(_within(frame[0], folder) for folder in foreign)]
    file, line, function = (own or frames)[-1]
    return f" ({file}:{line}, in {function})"


def _within(file: str, folder: str) -> bool:
    return file.startswith(("<frozen", f"{folder}/"))
