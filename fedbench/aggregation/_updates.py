"""The clients' updates in every accepted form, as rows of buffers that agree with each other."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

from fedbench._native import core
from fedbench.aggregation import _devices
from fedbench.aggregation._arrays import (
    DTYPE_CODES,
    FLOATING,
    Buffer,
    address,
    address_of,
    check_tensor,
    describe,
    describe_alike,
    is_array,
    is_tensor,
    listed,
    require_named,
)
from fedbench.aggregation._outputs import (
    announce_writes,
    empty,
    nbytes,
    output_buffer,
    refuse_overlap,
    require_apart,
    require_no_gradient,
)
from fedbench.errors import LayoutError, NonFiniteError

NONFINITE_POLICIES = ("raise", "propagate", "drop")


@dataclass
class Entry:
    """One entry of the updates: the arrays of all clients, which agree with the first one's."""

    name: str | None
    first: Buffer
    handles: list[Any]
    """What the kernels take, one per client."""
    owners: Sequence[Any]
    """What keeps the handles alive."""
    device: Any = None
    """The accelerator that the arrays are copies from, and the result goes to."""

    @classmethod
    def of(cls, name: str | None, values: list[Any], where: Callable[[int], str]) -> Entry:
        """Describe the clients' arrays; `where` names that of a client in errors."""
        alike = describe_alike(values)
        if alike is not None:
            return cls(name, alike.first, alike.addresses, values)
        buffers = [describe(value, where(k), remote=True) for k, value in enumerate(values)]
        for k, buffer in enumerate(buffers):
            _require_like(buffer, buffers[0], where(k))
            if buffer.kind == "torch":
                _devices.require_device(values[k], values[0].device, where(k))
        remote = buffers[0].kind == "torch" and _devices.is_remote(values[0])
        device = values[0].device if remote else None
        handles, owners = [b.handle for b in buffers], [b.owner for b in buffers]
        return cls(name, buffers[0], handles, owners, device)

    @cached_property
    def buffers(self) -> list[Buffer]:
        """The clients' arrays one by one."""
        pairs = zip(self.handles, self.owners, strict=True)
        return [self.first._replace(handle=handle, owner=owner) for handle, owner in pairs]

    def of_clients(self, clients: Sequence[int]) -> Entry:
        """Return the entry of some clients only."""
        handles, owners = ([kept[k] for k in clients] for kept in (self.handles, self.owners))
        first = self.first._replace(handle=handles[0], owner=owners[0])
        return Entry(self.name, first, handles, owners, self.device)

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
    positions: Sequence[int] | None = None
    """Where the clients stand among the caller's updates, if these are not all of them."""

    def position(self, client: int) -> int:
        """Return the number by which the caller knows a client."""
        return client if self.positions is None else self.positions[client]

    def census(self) -> str:
        """Return how many clients there are, in words that say whether some were left out."""
        left = "" if self.positions is None else " left after nonfinite='drop'"
        return f"{self.clients}{left}"

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
        return self.of_clients(kept)

    def of_clients(self, clients: Sequence[int]) -> Updates:
        """Return the updates of some clients only."""
        entries = [entry.of_clients(clients) for entry in self.entries]
        positions = [self.position(k) for k in clients]
        return Updates(len(clients), entries, self.is_mapping, self.names, self.tied, positions)

    def first_nonfinite(self, client: int) -> tuple[str | None, int] | None:
        """Return (entry name, flat index) of the client's first NaN or infinity."""
        floating = self.floating
        found = core.first_nonfinite(
            [entry.handles[client] for entry in floating],
            [entry.first.size for entry in floating],
            [DTYPE_CODES[entry.first.dtype] for entry in floating],
        )
        return None if found is None else (floating[found[0]].name, found[1])

    def nonfinite_clients(self) -> list[int]:
        """Return the clients whose updates are not finite."""
        return [k for k in range(self.clients) if self.first_nonfinite(k) is not None]

    def require_finite(self, clients: Iterable[int]) -> None:
        """Raise :class:`NonFiniteError` naming the first of `clients` that is not finite."""
        for client in clients:
            found = self.first_nonfinite(client)
            if found is not None:
                name, index = found
                entry = "" if name is None else f" in entry {name!r}"
                raise NonFiniteError(
                    "updates must be finite, got NaN or infinity from client "
                    f"{self.position(client)}{entry} at flat index {index}. "
                    "Pass nonfinite='drop' to leave out such clients, or "
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
    rows = updates if type(updates) is list else list(updates)
    if len(rows) == 0:
        raise ValueError("updates must hold at least one client's update, got none.")
    if isinstance(rows[0], Mapping):
        return _collect_mappings(rows)
    entry = Entry.of(None, rows, lambda k: f"updates[{k}]")
    return Updates(len(rows), [entry], is_mapping=False)


def _collect_stack(stack: Any) -> Updates:
    if is_tensor(stack):
        check_tensor(stack, "updates", remote=True)
    if stack.ndim < 2:
        raise ValueError(
            "updates must be a stack of shape [clients, ...], got a single array of shape "
            f"{tuple(stack.shape)}. Pass [update_0, update_1, ...] or a stack."
        )
    if stack.shape[0] == 0:
        raise ValueError("updates must hold at least one client's update, got none.")
    entry = Entry.of(None, list(stack), lambda k: f"updates[{k}]")
    return Updates(len(stack), [entry], is_mapping=False)


def _collect_mappings(rows: Sequence[Any]) -> Updates:
    names = rows[0].keys()
    for k, row in enumerate(rows):
        _require_mapping(row, k)
        require_names(row, names, f"updates[{k}]", "updates[0]")
    return _of_mappings(rows, names, None)


def collect_per_key(updates: Iterable[Any]) -> list[Updates]:
    """Return state dicts that may lack entries, grouped by the clients that sent an entry."""
    rows = list(updates)
    if not rows:
        raise ValueError("updates must hold at least one client's update, got none.")
    senders: dict[str, list[int]] = {}
    for k, row in enumerate(rows):
        _require_mapping(row, k)
        for name in row:
            senders.setdefault(name, []).append(k)
    names_of: dict[tuple[int, ...], list[str]] = {}
    for name, clients in senders.items():
        names_of.setdefault(tuple(clients), []).append(name)
    return [
        _of_mappings([rows[k] for k in clients], names, clients)
        for clients, names in names_of.items()
    ]


def _require_mapping(row: Any, client: int) -> None:
    if not isinstance(row, Mapping) and client == 0:
        raise TypeError(
            "updates[0] must be a mapping of names to arrays with partial='per_key', got "
            f"{type(row).__name__}. Leave partial out."
        )
    if not isinstance(row, Mapping):
        raise TypeError(
            f"updates[{client}] must be a mapping of names to arrays like updates[0], got "
            f"{type(row).__name__}."
        )


def _of_mappings(
    rows: Sequence[Any], names: Iterable[str], positions: Sequence[int] | None
) -> Updates:
    require_named(names, f"updates[{positions[0] if positions else 0}]")
    entries = []
    for name in names:
        values = [row[name] for row in rows]
        entries.append(Entry.of(name, values, functools.partial(_where, name, positions)))
    tied = _tied_names(entries)
    entries = [entry for entry in entries if entry.name not in tied]
    return Updates(len(rows), entries, True, tuple(names), tied, positions)


def require_names(given: Iterable[str], expected: Iterable[str], where: str, of: str) -> None:
    """Raise :class:`LayoutError` that lists missing and unexpected names."""
    given_names, expected_names = set(given), set(expected)
    if given_names == expected_names:
        return
    missing = [name for name in expected if name not in given_names]
    unexpected = [name for name in given if name not in expected_names]
    parts = []
    if missing:
        parts.append(f"missing {listed(missing)}")
    if unexpected:
        parts.append(f"unexpected {listed(unexpected)}")
    raise LayoutError(f"{where} must have the entries of {of}, got {' and '.join(parts)}.")


def _where(name: str, positions: Sequence[int] | None, client: int) -> str:
    return f"updates[{client if positions is None else positions[client]}][{name!r}]"


_REMEDY = {
    "kind": " Convert one of them, for example with torch.from_numpy(...) or .numpy().",
    "dtype": " Convert one of them, for example with .astype(...) or .to(...).",
}


def _require_like(buffer: Buffer, first: Buffer, where: str) -> None:
    if buffer[2:5] == first[2:5]:
        return
    for attribute in ("kind", "dtype", "shape"):
        got, expected = getattr(buffer, attribute), getattr(first, attribute)
        if got != expected:
            raise LayoutError(
                f"{where} must have {attribute} {expected} like client 0's, got {got}."
                + _REMEDY.get(attribute, "")
            )


def _tied_names(entries: list[Entry]) -> dict[str, str]:
    """Names whose arrays are the very memory of an earlier entry, for every client."""
    tied: dict[str, str] = {}
    seen: dict[tuple[Any, ...], str] = {}
    for entry in entries:
        if entry.first.size == 0 or entry.name is None:
            continue
        key = (*entry.first[2:5], *map(address_of, entry.handles))
        if key in seen:
            tied[entry.name] = seen[key]
        else:
            seen[key] = entry.name
    return tied


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
        fresh = empty(spec.kind, spec.shape, spec.dtype)
        alike = describe_alike([fresh])
        return describe(fresh, where) if alike is None else alike.first
    require_no_gradient(array, where)
    return output_buffer(array, spec.kind, spec.shape, spec.dtype, where)


def outputs(updates: Updates, out: Any) -> dict[str | None, Buffer]:
    """Return a buffer per floating entry: views of `out`, checked, or fresh memory."""
    if out is not None and updates.is_mapping:
        if not isinstance(out, Mapping):
            raise TypeError(f"out must be a mapping like the updates, got {type(out).__name__}.")
        require_names(out, updates.names, "out", "updates[0]")
    result = {entry.name: _output(part_of(out, entry.name), entry) for entry in updates.floating}
    if out is not None:
        _check_memory(updates, out, result)
        announce_writes(result.values())
    return result


def part_of(out: Any, name: str | None) -> Any:
    """Return the array of `out` for an entry: ``None`` only if `out` is that itself."""
    if out is None or name is None:
        return out
    if out[name] is None:
        raise TypeError(
            f"out[{name!r}] must be an array like the updates', got None. Pass one for each entry, "
            "or leave out= away for new arrays."
        )
    return out[name]


def _output(array: Any, entry: Entry) -> Buffer:
    """Return the buffer of an entry's output; for one on an accelerator, memory on the host."""
    if array is None or entry.device is None:
        return output(array, entry)
    where = "out" if entry.name is None else f"out[{entry.name!r}]"
    require_no_gradient(array, where)
    _devices.require_target(array, entry.owners[0], entry.device, where)
    return output(None, entry)


def _check_memory(updates: Updates, out: Any, floating: dict[str | None, Buffer]) -> None:
    """Refuse an `out` that overlaps the updates, or itself where the updates do not."""
    targets = dict(floating)
    for entry in updates.other:
        targets[entry.name] = _output(part_of(out, entry.name), entry)
    entries = {entry.name: entry for entry in updates.entries}
    for name, original in updates.tied.items():
        spec = replace(entries[original], name=name)
        buffer, first = _output(out[name], spec), targets[original]
        if address(buffer) != address(first):  # else tied like the updates
            targets[name] = buffer
    named = [("out" if n is None else f"out[{n!r}]", b) for n, b in targets.items()]
    handles = [handle for entry in updates.entries for handle in entry.handles]
    refuse_overlap(
        named, handles, [nbytes(entry.first) for entry in updates.entries], "the updates"
    )
    if len(named) > 1:
        require_apart(named)
