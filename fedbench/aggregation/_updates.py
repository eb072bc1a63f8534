"""The clients' updates in every accepted form, as rows of buffers that agree with each other."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedbench._native import core
from fedbench.aggregation._arrays import (
    DTYPE_CODES,
    FLOATING,
    Buffer,
    announce_writes,
    check_tensor,
    describe,
    describe_alike,
    empty,
    is_array,
    is_tensor,
    output_buffer,
    require_apart,
    require_disjoint,
    require_no_gradient,
)
from fedbench.errors import LayoutError, NonFiniteError

NONFINITE_POLICIES = ("raise", "propagate", "drop")


@dataclass
class Entry:
    """One entry of the updates: `buffers` holds that of each client."""

    name: str | None
    buffers: list[Buffer]

    @property
    def first(self) -> Buffer:
        """The first client's buffer, with which all others agree."""
        return self.buffers[0]

    @property
    def kind(self) -> str:
        """``"numpy"`` or ``"torch"``."""
        return self.first.kind

    @property
    def dtype(self) -> str:
        """The element type's name."""
        return self.first.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of each client's array."""
        return self.first.shape

    @property
    def is_floating(self) -> bool:
        """Whether the entry is averaged by the kernels."""
        return self.first.dtype in FLOATING


@dataclass
class Updates:
    """Updates of `clients` clients; a flat update has a single entry without a name."""

    clients: int
    entries: list[Entry]
    is_mapping: bool
    names: tuple[str, ...] = ()
    tied: dict[str, str] = field(default_factory=dict)

    @property
    def floating(self) -> list[Entry]:
        """The floating-point entries, in order."""
        return [entry for entry in self.entries if entry.is_floating]

    @property
    def other(self) -> list[Entry]:
        """The integer and bool entries, in order."""
        return [entry for entry in self.entries if not entry.is_floating]

    def without(self, clients: Iterable[int]) -> Updates:
        """Return the updates of all other clients."""
        left_out = set(clients)
        kept = [k for k in range(self.clients) if k not in left_out]
        entries = [Entry(entry.name, [entry.buffers[k] for k in kept]) for entry in self.entries]
        return Updates(len(kept), entries, self.is_mapping, self.names, self.tied)

    def first_nonfinite(self, client: int) -> tuple[str | None, int] | None:
        """Return (entry name, flat index) of the client's first NaN or infinity."""
        floating = self.floating
        found = core.first_nonfinite(
            [entry.buffers[client].handle for entry in floating],
            [entry.first.size for entry in floating],
            [DTYPE_CODES[entry.first.dtype] for entry in floating],
        )
        return None if found is None else (floating[found[0]].name, found[1])

    def require_finite(self, clients: Iterable[int]) -> None:
        """Raise :class:`NonFiniteError` naming the first of `clients` that is not finite."""
        for client in clients:
            found = self.first_nonfinite(client)
            if found is not None:
                name, index = found
                entry = "" if name is None else f" in entry {name!r}"
                raise NonFiniteError(
                    f"updates must be finite, got NaN or infinity from client {client}{entry} at "
                    f"flat index {index}. Pass nonfinite='drop' to leave out such clients, or "
                    "nonfinite='propagate' to let the values through."
                )


def require_policy(nonfinite: object) -> None:
    """Check the name of a policy for non-finite values."""
    if nonfinite not in NONFINITE_POLICIES:
        raise ValueError(
            f"nonfinite must be one of {', '.join(map(repr, NONFINITE_POLICIES))}, "
            f"got {nonfinite!r}."
        )


def collect(updates: Any) -> Updates:
    """Return `updates` (arrays, state dicts, or one ``[K, ...]`` stack) as checked rows."""
    if is_array(updates):
        return _collect_stack(updates)
    if isinstance(updates, (Mapping, str, bytes)) or not isinstance(updates, Iterable):
        raise TypeError(
            "updates must be a sequence with one update per client or one stacked array, got "
            f"{type(updates).__name__}. Pass [update_0, update_1, ...]."
        )
    rows = updates if isinstance(updates, Sequence) else list(updates)
    if len(rows) == 0:
        raise ValueError("updates must hold at least one client's update, got none.")
    if isinstance(rows[0], Mapping):
        return _collect_mappings(rows)
    buffers = describe_alike(rows)
    if buffers is None:
        buffers = [describe(row, f"updates[{k}]") for k, row in enumerate(rows)]
        _require_alike(buffers, None)
    return Updates(len(rows), [Entry(None, buffers)], is_mapping=False)


def _collect_stack(stack: Any) -> Updates:
    if is_tensor(stack):
        check_tensor(stack, "updates")
    if stack.ndim < 2:
        raise ValueError(
            "updates must be a stack of shape [clients, ...], got a single array of shape "
            f"{tuple(stack.shape)}. Pass [update_0, update_1, ...] or a stack."
        )
    if stack.shape[0] == 0:
        raise ValueError("updates must hold at least one client's update, got none.")
    buffers = [describe(row, f"updates[{k}]") for k, row in enumerate(stack)]
    return Updates(len(buffers), [Entry(None, buffers)], is_mapping=False)


def _collect_mappings(rows: Sequence[Any]) -> Updates:
    names = rows[0].keys()
    for k, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise TypeError(
                f"updates[{k}] must be a mapping of names to arrays like updates[0], got "
                f"{type(row).__name__}."
            )
        require_names(row, names, f"updates[{k}]", "updates[0]")
    entries = []
    for name in names:
        values = [row[name] for row in rows]
        buffers = describe_alike(values)
        if buffers is None:
            buffers = [describe(x, f"updates[{k}][{name!r}]") for k, x in enumerate(values)]
            _require_alike(buffers, name)
        entries.append(Entry(name, buffers))
    tied = _tied_names(entries)
    entries = [entry for entry in entries if entry.name not in tied]
    return Updates(len(rows), entries, is_mapping=True, names=tuple(names), tied=tied)


def require_names(given: Iterable[str], expected: Iterable[str], where: str, of: str) -> None:
    """Raise :class:`LayoutError` that lists missing and unexpected names."""
    given_names, expected_names = set(given), set(expected)
    if given_names == expected_names:
        return
    missing = [name for name in expected if name not in given_names]
    unexpected = [name for name in given if name not in expected_names]
    parts = []
    if missing:
        parts.append(f"missing {', '.join(map(repr, missing))}")
    if unexpected:
        parts.append(f"unexpected {', '.join(map(repr, unexpected))}")
    raise LayoutError(f"{where} must have the entries of {of}, got {' and '.join(parts)}.")


def _require_alike(buffers: list[Buffer], name: str | None) -> None:
    first = buffers[0]
    for k, buffer in enumerate(buffers):
        if buffer[2:5] == first[2:5]:
            continue
        where = f"updates[{k}]" if name is None else f"updates[{k}][{name!r}]"
        for attribute in ("kind", "dtype", "shape"):
            got, expected = getattr(buffer, attribute), getattr(first, attribute)
            if got != expected:
                raise LayoutError(
                    f"{where} must have {attribute} {expected} like client 0's, got {got}."
                )


def _tied_names(entries: list[Entry]) -> dict[str, str]:
    """Names whose arrays are the very memory of an earlier entry, for every client."""
    tied: dict[str, str] = {}
    seen: dict[tuple[Any, ...], str] = {}
    for entry in entries:
        if entry.first.size == 0 or entry.name is None:
            continue
        key = tuple((*buffer[2:5], address(buffer)) for buffer in entry.buffers)
        if key in seen:
            tied[entry.name] = seen[key]
        else:
            seen[key] = entry.name
    return tied


def address(buffer: Buffer) -> int:
    """Return the address of a buffer's first element."""
    if buffer.kind == "numpy":
        start: int = buffer.handle.__array_interface__["data"][0]
        return start
    return int(buffer.handle)


class ArraySpec(Protocol):
    """What an output has to look like."""

    @property
    def name(self) -> str | None: ...
    @property
    def kind(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


def output(array: Any, spec: ArraySpec) -> Buffer:
    """Return the buffer of `array`, checked, or of fresh memory if that is ``None``."""
    where = "out" if spec.name is None else f"out[{spec.name!r}]"
    if array is None:
        return describe(empty(spec.kind, spec.shape, spec.dtype), where)
    require_no_gradient(array, where)
    return output_buffer(array, spec.kind, spec.shape, spec.dtype, where)


def outputs(updates: Updates, out: Any) -> dict[str | None, Buffer]:
    """Return a buffer per floating entry: views of `out`, checked, or fresh memory."""
    if out is not None and updates.is_mapping:
        if not isinstance(out, Mapping):
            raise TypeError(f"out must be a mapping like the updates, got {type(out).__name__}.")
        require_names(out, updates.names, "out", "updates[0]")
    result = {entry.name: output(_part(out, entry.name), entry) for entry in updates.floating}
    if out is not None:
        _check_memory(updates, out, result)
        announce_writes(result.values())
    return result


def _part(out: Any, name: str | None) -> Any:
    return out if out is None or name is None else out[name]


def _check_memory(updates: Updates, out: Any, floating: dict[str | None, Buffer]) -> None:
    """Refuse an `out` that overlaps the updates, or itself where the updates do not."""
    targets = dict(floating)
    for entry in updates.other:
        targets[entry.name] = output(_part(out, entry.name), entry)
    entries = {entry.name: entry for entry in updates.entries}
    for name, original in updates.tied.items():
        spec = Entry(name, entries[original].buffers)
        buffer, first = output(out[name], spec), targets[original]
        if address(buffer) != address(first):  # else tied like the updates
            targets[name] = buffer
    named = [("out" if n is None else f"out[{n!r}]", b) for n, b in targets.items()]
    require_disjoint(
        named, itertools.chain.from_iterable(entry.buffers for entry in updates.entries)
    )
    require_apart(named)
