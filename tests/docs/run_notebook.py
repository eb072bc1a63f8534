"""Run the code cells of a notebook, in order, in one namespace that stands for ``__main__``.

``python run_notebook.py NOTEBOOK``: the first cell that raises ends the process with status 1.
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path


def run(path: Path) -> None:
    """Execute the cells as a kernel does: each compiled by itself, under a name of its own."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        if cell["cell_type"] != "code":
            continue
        exec(compile("".join(cell["source"]), f"<cell {number}>", "exec"), main.__dict__)


if __name__ == "__main__":
    run(Path(sys.argv[1]).resolve())
