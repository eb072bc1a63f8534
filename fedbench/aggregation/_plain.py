"""Plain arrays and state dicts of them, which one call of the extension inspects and works on.

Inspecting array after array in Python takes longer than the work itself with small updates, and a
good part of it with state dicts. What is not plain gets ``None`` here and is taken up anew by the
modules that can copy, combine integers, keep ties, and say what is wrong.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedbench._native import POOLED_BYTES, core
from fedbench.aggregation._arrays import FLOATING, exchange_api
from fedbench.aggregation._outputs import empty

_MAPPINGS = {dict, OrderedDict}  # not their subclasses, which may look entries up in their own way


class Library(NamedTuple):
    """A library of arrays: ``"numpy"`` or ``"torch"``, and the table by which torch is read."""

    kind: str
    exchange_api: Any


_NUMPY = Library("numpy", None)


def library_of(arrays: Iterable[Any]) -> Library | None:
    """Return the library of arrays that are plain by their types, if that is one and readable."""
    kinds = set(map(type, arrays))
    if kinds == {np.ndarray}:
        return _NUMPY
    if "torch" not in sys.modules or not kinds:
        return None
    plain, library = _torch()
    return library if kinds <= plain else None


@functools.cache
def _torch() -> tuple[frozenset[type], Library | None]:
    """Return torch's plain types of arrays, and the library if it is readable."""
    torch = sys.modules["torch"]
    api = exchange_api()
    library = None if api is None else Library("torch", api)
    return frozenset((torch.Tensor, torch.nn.Parameter)), library


def mean_of_plain(updates: list[Any], weights: Any, out: Any, nonfinite: str) -> Any:
    """Average plain updates that agree, into `out` if that is given; ``None`` for all others."""
    first, names = updates[0], None
    outs: Iterable[Any] = () if out is None else (out,)
    arrays: Iterable[Any] = (first,)
    if type(first) in _MAPPINGS:
        if not set(map(type, updates)) <= _MAPPINGS or None in first:
            return None
        if out is not None and type(out) not in _MAPPINGS:
            return None
        names, arrays = list(first), first.values()
        outs = () if out is None else out.values()
    library = library_of(itertools.chain(arrays, outs))
    if library is None:
        return None
    if library.kind == "torch" and any(tensor.requires_grad for tensor in outs):
        return None
    make = functools.partial(_empty_like, library.kind)
    averaged = core.mean_of_plain(updates, names, out, weights, library.exchange_api, make)
    if averaged is None:
        return None
    finite, results = averaged
    if nonfinite == "raise" and not finite:
        return None
    if out is not None:
        if library.kind == "torch":  # new enough to take many, and to let inference tensors be
            sys.modules["torch"].autograd.graph.increment_version(results)
        return out
    return results[0] if names is None else dict(zip(names, results, strict=True))


class PlainEntries(NamedTuple):
    """The entries of one state: an address, a dtype and a shape for each."""

    addresses: list[int]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]


def plain_entries(state: Any, kind: str, names: Sequence[str]) -> PlainEntries | None:
    """Return what is in a dict of just these names with plain arrays of `kind`, or ``None``."""
    if type(state) not in _MAPPINGS:
        return None
    library = library_of(state.values())
    if library is None or library.kind != kind:
        return None
    entries = core.plain_entries(state, list(names), library.exchange_api)
    if entries is None:
        return None
    addresses, codes, shapes = entries
    return PlainEntries(addresses, tuple(FLOATING[code] for code in codes), shapes)


def _empty_like(kind: str, array: Any) -> Any:
    if array.nbytes >= POOLED_BYTES:
        return empty(kind, tuple(array.shape), str(array.dtype).removeprefix("torch."))
    if kind == "numpy":
        return np.empty(array.shape, array.dtype)
    torch = sys.modules["torch"]
    return torch.empty_like(array, memory_format=torch.contiguous_format)
