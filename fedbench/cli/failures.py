"""Where a client task failed, for the one line that the command line prints."""

from __future__ import annotations

import re

from fedbench.errors import ClientTaskError
from fedbench.registry import own_frame

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
    file, line, function = own_frame([(name, int(number), of) for name, number, of in frames])
    return f" ({file}:{line}, in {function})"
