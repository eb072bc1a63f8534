"""Digests of a whole run in a file, so that runs on two machines can be compared."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from fedbench.errors import TraceError
from fedbench.reproducibility import digest

__all__ = ["SCHEMA_VERSION", "EntryDigests", "Trace", "entry_digests", "read_trace"]

SCHEMA_VERSION = 1


class EntryDigests(dict[str, str]):
    """Digest of every entry of a state by its path; stands for the state in comparisons."""


def entry_digests(state: Any) -> EntryDigests:
    """Return the digest of every tensor and value of a nested state by its path."""
    found = EntryDigests()
    _collect(state, "", found)
    return found


def _collect(value: Any, path: str, found: EntryDigests) -> None:
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping) and value:
        for key, entry in value.items():
            _collect(entry, f"{path}[{key!r}]", found)
    elif isinstance(value, list | tuple) and value:
        for index, entry in enumerate(value):
            _collect(entry, f"{path}[{index}]", found)
    else:
        found[path or "(all)"] = digest(value)


@dataclass(frozen=True)
class Trace:
    """Every digest of a run, with what its bits depend on.

    Attributes
    ----------
    job : mapping of str to object
        Workload, algorithm, seed, how clients train, and options of the simulation.
    pinned : mapping of str to object
        From :func:`fedbench.reproducibility.pinned`, where the run was made.
    rounds : list
        For each round a list of ``[phase, client, {path: digest}]``.
    """

    job: Mapping[str, Any]
    pinned: Mapping[str, Any]
    rounds: list[list[list[Any]]]

    def to_json(self) -> str:
        """Return the trace as the text of a file."""
        return json.dumps(
            {
                "schema_version": SCHEMA_VERSION,
                "job": dict(self.job),
                "pinned": dict(self.pinned),
                "rounds": self.rounds,
            }
        )

    def observed_rounds(self) -> Generator[dict[tuple[str, int | str | None], Any], None, None]:
        """Yield what each round left, as digests."""
        for entries in self.rounds:
            yield {(phase, client): EntryDigests(found) for phase, client, found in entries}


def read_trace(path: str | Path) -> Trace:
    """Read a trace from a file.

    Raises
    ------
    OSError
        If it cannot be read.
    TraceError
        If it is no trace or one of another schema.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        version = content["schema_version"]
        if version == SCHEMA_VERSION:
            return Trace(content["job"], content["pinned"], content["rounds"])
    except (ValueError, KeyError, TypeError) as error:
        raise TraceError(
            f"{path} is not a trace. Make one with: fedbench verify --save-trace FILE"
        ) from error
    raise TraceError(
        f"{path} has trace schema {version!r}, this version reads {SCHEMA_VERSION}. "
        f"Make it anew with: fedbench verify --save-trace FILE"
    )
