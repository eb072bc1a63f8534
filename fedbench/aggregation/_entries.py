"""The entries of an update by name, without its values."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedbench.aggregation._arrays import describe, require_named
from fedbench.aggregation.layout import FlatLayout

__all__ = ["Entry", "Spec", "entries_of", "first_difference"]


class Entry(NamedTuple):
    """Name, library, dtype, shape and number of elements of one entry."""

    name: str | None
    kind: str
    dtype: str
    shape: tuple[int, ...]
    size: int


class Spec(NamedTuple):
    """What two streaming means must share to be merged: entries and policies."""

    entries: tuple[Entry, ...]
    is_mapping: bool
    nonfinite: str
    integers: str


def entries_of(like: Any) -> tuple[list[Entry], bool]:
    """Return the entries of what an update looks like, and whether it is a mapping."""
    if isinstance(like, FlatLayout):
        rows = zip(like.names, like.dtypes, like.shapes, strict=True)
        return [
            Entry(name, like.kind, dtype, shape, int(np.prod(shape, dtype=np.int64)))
            for name, dtype, shape in rows
        ], True
    if isinstance(like, Mapping):
        require_named(like, "like")
        described = {
            name: describe(value, f"like[{name!r}]", remote=True) for name, value in like.items()
        }
        return [Entry(name, *buffer[2:6]) for name, buffer in described.items()], True
    return [Entry(None, *describe(like, "like", remote=True)[2:6])], False


def first_difference(expected: Spec, got: Spec) -> str:
    """Say where two unequal specifications differ first."""
    if expected.entries != got.entries:
        return _entries_difference(expected.entries, got.entries)
    pairs = zip(Spec._fields, expected, got, strict=True)
    label, own, other = next((label, a, b) for label, a, b in pairs if a != b)
    return f"{label} {other!r} instead of {own!r}"


def _entries_difference(expected: Sequence[Entry], got: Sequence[Entry]) -> str:
    names = [[entry.name for entry in entries] for entries in (expected, got)]
    if names[0] != names[1]:
        return f"entries {reprlib.repr(names[1])} instead of {reprlib.repr(names[0])}"
    own, other = next((a, b) for a, b in zip(expected, got, strict=True) if a != b)
    entry = "entries" if own.name is None else f"entry {own.name!r}"
    return f"{entry} of {_summary(other)} instead of {_summary(own)}"


def _summary(entry: Entry) -> str:
    return f"{entry.kind} {entry.dtype} {entry.shape}"
