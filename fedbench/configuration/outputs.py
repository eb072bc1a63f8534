"""What is written of runs: the history, and the configuration that made it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.configuration.plan import Plan
from fedbench.configuration.running import RunResult, tidy_table

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["history_files"]


def history_files(
    target: str,
    plan: Plan,
    results: Sequence[RunResult],
    formats: Mapping[str, Callable[[pd.DataFrame], bytes]],
) -> dict[str, bytes]:
    """Return the files of a history by name: the table and the resolved configuration.

    Parameters
    ----------
    target : str
        Where the table goes. ``.json`` holds the configuration, what became of each run, and the
        table, in one file; beside a file of another format goes ``<target>.config.yaml``. Both
        say on what versions and flags the bits depend.
    plan : Plan
        What was run.
    results : sequence of RunResult
        What became of it.
    formats : mapping of str to callable
        Suffix to the function that renders a data frame.
    """
    table = tidy_table(results)
    suffix = Path(target).suffix.lower()
    if suffix == ".json":
        return {target: _document(plan, results, table)}
    heading = [f"The resolved configuration of {_as_utf8(target)}. The bits also depend on:"]
    pinned = next((r.history.pinned for r in results if r.history.pinned), {})
    heading += [f"  {name}: {value}" for name, value in pinned.items()]
    heading += ["and this is the SHA-256 of the final state:"]
    heading += [f"  {r.run.label or 'all rounds'}: {r.digest or 'failed'}" for r in results]
    comment = "".join(f"# {' '.join(line.splitlines())}\n" for line in heading)
    return {
        target: formats[suffix](table),
        f"{target}.config.yaml": comment.encode("utf-8", "backslashreplace")
        + plan.to_yaml().encode(),
    }


def _document(plan: Plan, results: Sequence[RunResult], table: pd.DataFrame) -> bytes:
    document = {
        "configuration": plan.to_plain(),
        "runs": [
            {
                "keys": result.run.keys,
                "status": "failed" if result.error else "ok",
                "error": result.error,
                "digest": result.digest,
                "configuration": result.run.configuration.to_plain(),
                "pinned": dict(result.history.pinned),
            }
            for result in results
        ],
        "history": [
            {str(key): _finite(value) for key, value in row.items()}
            for row in table.to_dict(orient="records")
        ],
    }
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    # Half characters of a file name in an ASCII locale become JSON's own escapes.
    return text.encode("utf-8", "backslashreplace")


def _as_utf8(target: str) -> str:
    """Return the name of a file as UTF-8 text, also if the locale could not decode it."""
    raw = Path(target).name.encode("utf-8", "surrogateescape")
    return raw.decode("utf-8", "backslashreplace")


def _finite(value: Any) -> Any:
    """Return `value`, None for what JSON has no number for."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
