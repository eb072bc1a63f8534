"""The first difference between two nested states, in elements and in ulps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import torch

__all__ = ["Difference", "first_difference"]

_SHOWN_ULPS = 2**20
"""Above this many ulps, a difference is told as a plain number too (16 bits have fewer)."""

_BITS = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}


@dataclass(frozen=True)
class Difference:
    """Where two runs part.

    Attributes
    ----------
    round : int
        Number of the round, counted from 1; 0 before the first one.
    phase : str
        ``"broadcast"``, ``"train"``, ``"uplink"``, ``"aggregate"`` or ``"evaluate"``.
    client : int, str or None
        Id of the client, None for the server.
    entry : str
        Path of the entry, for example ``"['delta']"``.
    what : str
        What differs, in words.
    num_elements, num_different : int
        Size of the entry and how many of its elements differ.
    max_ulps : int or None
        Largest distance in units in the last place, None where there are none (integers, text,
        NaN against a number).
    """

    round: int
    phase: str
    client: int | str | None
    entry: str
    what: str
    num_elements: int
    num_different: int
    max_ulps: int | None

    def __str__(self) -> str:
        who = "the server" if self.client is None else f"client {self.client!r}"
        return f"round {self.round}, {self.phase}, {who}, entry {self.entry}: {self.what}"


def first_difference(
    left: Any, right: Any, *, round_index: int, phase: str, client: int | str | None = None
) -> Difference | None:
    """Return the first difference between two nested states, None if they are bitwise equal.

    Parameters
    ----------
    left, right : object
        Mappings (compared by name, in the order of `left`), sequences, dataclasses, tensors,
        arrays and plain values.
    round_index, phase, client
        Where the states come from, for the report.
    """
    found = _walk(left, right, "")
    if found is None:
        return None
    entry, what, num_elements, num_different, max_ulps = found
    return Difference(
        round_index, phase, client, entry or "(all)", what, num_elements, num_different, max_ulps
    )


_Found = tuple[str, str, int, int, int | None]


def _walk(left: Any, right: Any, path: str) -> _Found | None:
    if _is_array(left) and _is_array(right):
        return _arrays(_array(left), _array(right), path)
    if is_dataclass(left) and is_dataclass(right) and type(left) is type(right):
        left = {field.name: getattr(left, field.name) for field in fields(left)}
        right = {field.name: getattr(right, field.name) for field in fields(right)}
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        if left.keys() != right.keys():
            odd = sorted(map(repr, left.keys() ^ right.keys()))
            return path, f"only one side has {', '.join(odd)}", len(left), len(odd), None
        pairs = [(f"{path}[{key!r}]", left[key], right[key]) for key in left]
    elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
        if len(left) != len(right):
            return path, f"{len(left)} against {len(right)} entries", len(left), 0, None
        pairs = [(f"{path}[{i}]", a, b) for i, (a, b) in enumerate(zip(left, right, strict=True))]
    elif isinstance(left, float) and isinstance(right, float):
        return _arrays(np.array([left]), np.array([right]), path)
    elif type(left) is type(right) and left == right:
        return None
    else:
        return path, f"{_plain(left)!r} against {_plain(right)!r}", 1, 1, None
    for inner, a, b in pairs:
        found = _walk(a, b, inner)
        if found is not None:
            return found
    return None


def _plain(value: Any) -> Any:
    """Return a numpy scalar as the Python number that people expect to read."""
    return value.item() if isinstance(value, np.generic) else value


def _is_array(value: Any) -> bool:
    return isinstance(value, torch.Tensor | np.ndarray)


def _array(value: Any) -> np.ndarray[Any, Any]:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().contiguous()
        if value.dtype == torch.bfloat16:
            return np.asarray(value.view(torch.int16).numpy()).view(np.dtype("V2"))
        return np.asarray(value.numpy())
    return np.ascontiguousarray(value)


def _arrays(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any], path: str) -> _Found | None:
    if left.shape != right.shape or left.dtype != right.dtype:
        what = f"{left.dtype}{list(left.shape)} against {right.dtype}{list(right.shape)}"
        return path, what, left.size, left.size, None
    kind = _BITS.get(left.dtype.itemsize)
    if kind is None:
        equal = left == right
        return (
            None if equal.all() else (path, "values differ", left.size, int((~equal).sum()), None)
        )
    a, b = left.reshape(-1).view(kind), right.reshape(-1).view(kind)
    different = np.flatnonzero(a != b)
    if not len(different):
        return None
    ulps = None
    what = f"{len(different)} of {left.size} elements differ"
    if left.dtype.kind in "fV":
        ulps = int(_ulps(a[different], b[different]))
        what += f", by at most {ulps} ulp{'s' if ulps != 1 else ''}"
        if ulps > _SHOWN_ULPS:
            what += _largest_distance(*(side.reshape(-1)[different] for side in (left, right)))
    if left.dtype.kind != "V":
        first = int(different[0])
        x, y = left.reshape(-1)[first], right.reshape(-1)[first]
        what += f" (element {first}: {x!s} against {y!s})"
    return path, what, left.size, len(different), ulps


def _largest_distance(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> str:
    """Return the words for the largest absolute difference; empty if no pair is finite."""
    left, right = left.astype(np.float64), right.astype(np.float64)
    finite = np.isfinite(left) & np.isfinite(right)
    if not finite.any():
        return ""
    with np.errstate(over="ignore"):
        return f" and {np.abs(left[finite] - right[finite]).max():.6g} in value"


def _ulps(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> int:
    """Return the largest number of representable values between two sets of float bits."""
    low = np.iinfo(a.dtype).min

    def ordered(bits: np.ndarray[Any, Any]) -> list[int]:
        return [int(v) if v >= 0 else int(low) - int(v) for v in bits]

    return max(abs(x - y) for x, y in zip(ordered(a), ordered(b), strict=True))
