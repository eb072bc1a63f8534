"""Flat layouts of state dicts: which entry lies where in one contiguous buffer."""

from __future__ import annotations

import functools
import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedbench._native import core
from fedbench.aggregation._arrays import (
    Buffer,
    address,
    copy_into,
    copy_of,
    describe,
    describe_alike,
    is_array,
    item_size,
    raw_bytes,
    reinterpret,
    require_named,
)
from fedbench.aggregation._outputs import (
    announce_writes,
    empty,
    output_buffer,
    refuse_overlap,
    require_apart,
    require_disjoint,
    require_no_gradient,
)
from fedbench.aggregation._plain import plain_entries
from fedbench.aggregation._updates import require_names
from fedbench.errors import LayoutError

__all__ = ["FlatLayout"]

# Offsets of entries in a buffer of mixed dtypes are multiples of this, so that views are aligned.
_MIXED_ALIGNMENT = 8


@dataclass(frozen=True)
class FlatLayout:
    """Names, shapes, dtypes and offsets of the entries of a state dict in one flat buffer.

    Entries are exchanged *by name*: a missing, unexpected, wrongly shaped or wrongly typed entry
    is an error that names it, and the order of the keys of what is packed does not matter. Build
    one with :meth:`from_state`, once, and send it to the clients: another order of the names makes
    another layout. Instances are immutable, hashable, comparable and picklable.

    Attributes
    ----------
    names : tuple of str
        The entries, in the order of the state they were taken from.
    shapes : tuple of tuple of int
    dtypes : tuple of str
        For example ``"float32"`` or ``"bfloat16"``.
    offsets : tuple of int
        Where each entry starts, in bytes. A tied entry starts where its original does.
    kind : str
        ``"torch"`` or ``"numpy"``: what :meth:`pack` and :meth:`unpack` return.
    dtype : str
        The dtype of the flat buffer: that of the entries if all agree, so that the buffer can be
        averaged, clipped or compressed; otherwise ``"uint8"``, the raw bytes, in which every
        entry keeps its own dtype exactly.
    tied : tuple of (str, str)
        Entries that are the same memory as an earlier one, with that one's name.
    size : int
        Length of the flat buffer, in elements of `dtype`.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    offsets: tuple[int, ...]
    kind: str
    dtype: str
    size: int
    tied: tuple[tuple[str, str], ...] = ()
    _index: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        index = {name: i for i, name in enumerate(self.names)}
        object.__setattr__(self, "_index", index)

    @classmethod
    def from_state(
        cls,
        state: Mapping[str, Any],
        *,
        buffers: str = "average",
        buffer_names: Iterable[str] = (),
    ) -> FlatLayout:
        """Take the layout of a state dict.

        Parameters
        ----------
        state : mapping of str to array
            Numpy arrays or torch CPU tensors (one kind) of any floating, integer or bool dtype;
            0-dimensional, empty, strided and tied entries are fine.
        buffers : {"average", "local"}, default "average"
            Whether the entries in `buffer_names` are exchanged, or stay on the client as FedBN
            keeps the statistics of batch normalisation: leave them out of what is packed then.
        buffer_names : iterable of str, optional
            The names of the model's buffers, ``[name for name, _ in model.named_buffers()]``;
            needed with ``buffers="local"``.

        Returns
        -------
        FlatLayout

        Raises
        ------
        TypeError
            If an entry is not an array or has an unsupported dtype, for example a complex one; if
            a name is None.
        LayoutError
            If `state` mixes numpy and torch, or lacks an entry of `buffer_names`.
        """
        if not isinstance(state, Mapping):
            raise TypeError(
                f"state must be a mapping of names to arrays, got {type(state).__name__}."
            )
        require_named(state, "state")
        local = _local_names(state, buffers, buffer_names)
        described = {
            name: describe(value, f"state[{name!r}]")
            for name, value in state.items()
            if name not in local
        }
        kinds = {buffer.kind for buffer in described.values()}
        if len(kinds) > 1:
            raise LayoutError(
                "state must hold numpy arrays or torch tensors, got both. Convert one of them."
            )
        dtypes = sorted({buffer.dtype for buffer in described.values()}) or ["float32"]
        flat_dtype = dtypes[0] if len(dtypes) == 1 else "uint8"
        tied = _tied(described, state)
        offsets, end = _offsets(described, tied, mixed=len(dtypes) > 1)
        return cls(
            names=tuple(described),
            shapes=tuple(buffer.shape for buffer in described.values()),
            dtypes=tuple(buffer.dtype for buffer in described.values()),
            offsets=offsets,
            kind=kinds.pop() if kinds else "numpy",
            dtype=flat_dtype,
            size=end // item_size(flat_dtype),
            tied=tuple(tied.items()),
        )

    @property
    def nbytes(self) -> int:
        """Length of the flat buffer in bytes."""
        return self.size * item_size(self.dtype)

    @property
    def numel(self) -> int:
        """Number of coordinates over all entries, tied ones counted once."""
        tied = dict(self.tied)
        return sum(
            math.prod(shape)
            for name, shape in zip(self.names, self.shapes, strict=True)
            if name not in tied
        )

    def pack(self, state: Mapping[str, Any], out: Any = None) -> Any:
        """Copy a state into one flat buffer.

        Parameters
        ----------
        state : mapping of str to array
            With exactly the entries of this layout, in any order. Entries that the layout has
            tied must be tied here too, or hold equal bytes.
        out : array of shape [size], optional
            A contiguous buffer of `dtype` to write to; sharing no memory with `state`.

        Returns
        -------
        array of shape [size]
            `out`, or a new buffer.

        Raises
        ------
        LayoutError
            If an entry is missing, unexpected, or has another shape, dtype or kind; nothing is
            written then.
        """
        handles, _owners = self._pieces(state)
        if out is None:
            out = empty(self.kind, (self.size,), self.dtype)
        require_no_gradient(out, "out")
        target = output_buffer(out, self.kind, (self.size,), self.dtype, "out")
        refuse_overlap([("out", target)], handles, self._sizes, of="state")
        announce_writes([target])
        tied = dict(self.tied)
        kept = [i for i, name in enumerate(self.names) if name not in tied]
        core.gather(
            target.handle,
            self.nbytes,
            [handles[i] for i in kept],
            [self.offsets[i] for i in kept],
            [self._sizes[i] for i in kept],
        )
        return out

    def unpack(self, flat: Any, out: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Give the entries of a flat buffer their names and shapes back.

        Parameters
        ----------
        flat : array of shape [size]
            As :meth:`pack` returns it.
        out : mapping of str to array, optional
            A state with the entries of this layout to copy into, for example a model's
            ``state_dict()``.

        Returns
        -------
        dict of str to array
            Views of `flat` (no copy; tied entries are the same view) if `out` is not given, else
            the arrays of `out`. A `flat` that is not contiguous or aligned is copied first.

        Raises
        ------
        LayoutError
            If `flat` or `out` does not fit this layout; nothing is written then.
        ValueError
            If `out` shares memory with `flat`, or two of its entries do that are not tied.
        """
        buffer = self._flat_buffer(flat)
        if out is None:
            return self._views(buffer)
        described = self._described(out, "out", writable=True)
        require_disjoint([("flat", buffer)], described.values(), of="out")
        tied = dict(self.tied)
        require_apart(
            (f"out[{name!r}]", b)
            for name, b in described.items()
            if name not in tied or address(b) != address(described[tied[name]])
        )
        announce_writes(b for b in described.values() if not b.copied)
        core.scatter(
            buffer.handle,
            self.nbytes,
            [described[name].handle for name in self.names],
            list(self.offsets),
            self._sizes,
        )
        for name in self.names:
            if described[name].copied:
                copy_into(out[name], described[name].owner)
        return dict(out)

    @functools.cached_property
    def _sizes(self) -> list[int]:
        """The bytes of each entry."""
        pairs = zip(self.shapes, self.dtypes, strict=True)
        return [math.prod(shape) * item_size(dtype) for shape, dtype in pairs]

    def _pieces(self, state: Mapping[str, Any]) -> tuple[list[Any], Any]:
        """Return the handles of a state's entries, checked, and what keeps them alive."""
        if not self.tied and type(state) in (dict, OrderedDict):
            state = dict(state)  # its arrays stay alive even if another thread replaces them
            plain = plain_entries(state, self.kind, self.names)
            if plain is not None and plain[1:] == (self.dtypes, self.shapes):
                return plain.addresses, state
        described = self._described(state, "state")
        self._require_ties(described)
        return [buffer.handle for buffer in described.values()], described

    def _described(
        self, state: Mapping[str, Any], where: str, *, writable: bool = False
    ) -> dict[str, Buffer]:
        if not isinstance(state, Mapping):
            raise TypeError(
                f"{where} must be a mapping of names to arrays, got {type(state).__name__}."
            )
        require_names(state, self.names, where, "the layout")
        described = {}
        for name, shape, dtype in zip(self.names, self.shapes, self.dtypes, strict=True):
            label = f"{where}[{name!r}]"
            alike = describe_alike([state[name]])
            buffer = describe(state[name], label) if alike is None else alike.first
            expected = (self.kind, dtype, shape)
            if buffer[2:5] != expected:
                raise LayoutError(
                    f"{label} must be a {self.kind} array of {dtype} with shape {shape}, got "
                    f"{buffer.kind} {buffer.dtype} with shape {buffer.shape}."
                )
            if writable and buffer.kind == "numpy" and not state[name].flags.writeable:
                raise LayoutError(f"{label} must be writable, got a read-only array.")
            if writable:
                require_no_gradient(state[name], label)
            described[name] = buffer
        return described

    def _flat_buffer(self, flat: Any) -> Buffer:
        if not is_array(flat):
            raise TypeError(
                f"flat must be a {self.kind} array of {self.dtype}, got {type(flat).__name__}."
            )
        buffer = describe(flat, "flat")
        if buffer[2:5] != (self.kind, self.dtype, (self.size,)):
            raise LayoutError(
                f"flat must be a {self.kind} array of {self.dtype} with shape ({self.size},), got "
                f"{buffer.kind} {buffer.dtype} with shape {buffer.shape}."
            )
        return buffer

    def _views(self, flat: Buffer) -> dict[str, Any]:
        views: dict[str, Any] = {}
        tied = dict(self.tied)
        if self.size and address(flat) % _MIXED_ALIGNMENT and self.dtype == "uint8":
            flat = copy_of(flat)  # no view of wider elements could begin here
        for i, name in enumerate(self.names):
            if name in tied:
                views[name] = views[tied[name]]
                continue
            item = item_size(self.dtype)
            start = self.offsets[i] // item
            part = flat.owner[start : start + self._sizes[i] // item]
            if self.dtypes[i] != self.dtype:
                part = reinterpret(part, self.dtypes[i], self.kind)
            views[name] = part.reshape(self.shapes[i])
        return views

    def _require_ties(self, described: Mapping[str, Buffer]) -> None:
        for name, original in self.tied:
            a, b = described[name], described[original]
            if address(a) != address(b) and raw_bytes(a) != raw_bytes(b):
                raise LayoutError(
                    f"state[{name!r}] must equal state[{original!r}], to which the layout ties it, "
                    "got other values."
                )


def _local_names(
    state: Mapping[str, Any], buffers: str, buffer_names: Iterable[str]
) -> frozenset[str]:
    if buffers not in ("average", "local"):
        raise ValueError(f"buffers must be 'average' or 'local', got {buffers!r}.")
    if isinstance(buffer_names, str):
        raise TypeError(f"buffer_names must hold names, got a string. Pass [{buffer_names!r}].")
    names = frozenset(buffer_names)
    unknown = sorted(names.difference(state))
    if unknown:
        raise LayoutError(
            f"buffer_names must name entries of the state, got {', '.join(map(repr, unknown))}."
        )
    if buffers == "average":
        return frozenset()
    if not names:
        raise ValueError(
            "buffer_names must name the model's buffers when buffers='local', got none. "
            "Pass [name for name, _ in model.named_buffers()]."
        )
    return names


def _tied(described: Mapping[str, Buffer], state: Mapping[str, Any]) -> dict[str, str]:
    """Entries whose array is an earlier entry's very memory."""
    tied: dict[str, str] = {}
    seen: dict[tuple[Any, ...], str] = {}
    for name, buffer in described.items():
        if buffer.size == 0:
            continue
        array = state[name]
        if buffer.kind == "torch":
            where, strides = array.data_ptr(), tuple(array.stride())
        elif isinstance(array, np.ndarray):
            where, strides = array.__array_interface__["data"][0], array.strides
        else:  # a numpy scalar
            continue
        key = (where, strides, buffer.shape, buffer.dtype)
        if key in seen:
            tied[name] = seen[key]
        else:
            seen[key] = name
    return tied


def _offsets(
    described: Mapping[str, Buffer], tied: Mapping[str, str], *, mixed: bool
) -> tuple[tuple[int, ...], int]:
    starts: dict[str, int] = {}
    end = 0
    for name, buffer in described.items():
        if name in tied:
            starts[name] = starts[tied[name]]
            continue
        if mixed:
            end = -(-end // _MIXED_ALIGNMENT) * _MIXED_ALIGNMENT
        starts[name] = end
        end += buffer.size * item_size(buffer.dtype)
    return tuple(starts.values()), end
