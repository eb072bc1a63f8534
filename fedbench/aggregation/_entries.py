"""The entries of an update by name, without its values."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedbench.aggregation._arrays import describe, is_array, require_named
from fedbench.aggregation.layout import FlatLayout
from fedbench.errors import LayoutError

__all__ = ["Entry", "Spec", "entries_of", "require_alike", "require_rows"]


class Entry(NamedTuple):
    """Name, library, dtype, shape and number of elements of one entry."""

    name: str | None
    kind: str
    dtype: str
    shape: tuple[int, ...]
    size: int

    def summary(self) -> str:
        """Return library, dtype and shape in words."""
        return f"{self.kind} {self.dtype} {self.shape}"


class Spec(NamedTuple):
    """What two streaming means must share to be merged: entries and policies."""

    entries: tuple[Entry, ...]
    is_mapping: bool
    nonfinite: str
    integers: str

    def name_order(self) -> list[int]:
        """Return where the entries stand, in the order of their names."""
        return sorted(range(len(self.entries)), key=lambda i: repr(self.entries[i].name))

    def by_name(self) -> Spec:
        """Return the specification with its entries in the order of their names."""
        return self._replace(entries=tuple(self.entries[i] for i in self.name_order()))


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


def require_rows(updates: Any, spec: Spec) -> None:
    """Refuse a single array where a sequence or a stack of them is expected."""
    if spec.is_mapping or not is_array(updates):
        return
    if updates.ndim != len(spec.entries[0].shape) + 1:
        raise ValueError(
            "updates must be a sequence of updates or a stack [K, ...] of them, got one array of "
            f"shape {tuple(updates.shape)}. Pass a single update to add()."
        )


def require_alike(own: Spec, other: Spec) -> None:
    """Refuse to merge means of other entries or policies; the order of names does not matter."""
    own, other = own.by_name(), other.by_name()
    if other != own:
        raise LayoutError(
            f"other must have the same layout and policies, got {_first_difference(own, other)}."
        )


def _first_difference(expected: Spec, got: Spec) -> str:
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
    return f"{entry} of {other.summary()} instead of {own.summary()}"
