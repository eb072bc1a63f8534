"""Run the Python blocks of one documentation page, in order, in one namespace.

``python run_page.py PAGE`` executes every ```` ```python ```` fence as a script and every
```` ```pycon ```` fence as a doctest, whose printed output must match. A fence that cannot run
(it needs a cluster, say) is marked ``text`` or ``console`` in the page instead.
"""

from __future__ import annotations

import doctest
import re
import sys
import types
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^```(python|pycon)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DOCTEST_OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL


@dataclass(frozen=True)
class Block:
    """One fence of a page."""

    kind: str
    source: str
    line: int


def blocks_of(page: Path) -> list[Block]:
    """Return the Python fences of `page`; `line` is that of the first line of code."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(match[1], match[2], text.count("\n", 0, match.start(2)) + 1)
        for match in FENCE.finditer(text)
    ]


def run(page: Path) -> None:
    """Execute the blocks of `page`; the first failure ends the process with status 1."""
    # The page stands for the user's own script: what it defines lives in ``__main__``.
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    for block in blocks_of(page):
        if block.kind == "python":
            # Blank lines in front give tracebacks the line numbers of the page.
            code = compile("\n" * (block.line - 1) + block.source, str(page), "exec")
            exec(code, main.__dict__)
        else:
            test = doctest.DocTestParser().get_doctest(
                block.source, main.__dict__, page.name, str(page), block.line - 1
            )
            runner = doctest.DocTestRunner(optionflags=DOCTEST_OPTIONS)
            if runner.run(test, clear_globs=False).failed:
                sys.exit(1)
            main.__dict__.update(test.globs)


if __name__ == "__main__":
    run(Path(sys.argv[1]).resolve())
