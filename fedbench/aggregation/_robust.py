"""What the robust rules share: preparing updates, reading rows, assembling results."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedbench._native import core
from fedbench.aggregation import _updates
from fedbench.aggregation._arrays import DTYPE_CODES, Buffer
from fedbench.aggregation._updates import Updates
from fedbench.aggregation._weights import client_weights
from fedbench.aggregation.mean import assemble, refuse_bare_integers, without_nonfinite

_CALLER = 4  # frames from the warning to the caller of a public rule

# Below this, squares that underflow may be a noticeable part of a sum of squares.
_LEAST_SQUARE = 2.0**-900


def prepare(updates: Any, nonfinite: str) -> Updates:
    """Collect the updates; leave out clients that are not finite if `nonfinite` is "drop"."""
    return prepare_weighted(updates, None, nonfinite, _CALLER + 1)[0]


def prepare_weighted(
    updates: Any, weights: Any, nonfinite: str, stacklevel: int = _CALLER
) -> tuple[Updates, npt.NDArray[np.float64]]:
    """Collect the updates and their weights like :func:`prepare`."""
    _updates.require_policy(nonfinite)
    collected = _updates.collect(updates)
    refuse_bare_integers(collected)
    values = client_weights(weights, collected.clients)
    if nonfinite == "drop":
        return without_nonfinite(collected, values, stacklevel)
    return collected, values


def refuse_nonfinite(collected: Updates, nonfinite: str) -> None:
    """Raise for the first client that is not finite if `nonfinite` is "raise"."""
    if nonfinite == "raise":
        collected.require_finite(range(collected.clients))


def result(collected: Updates, buffers: dict[str | None, Buffer], out: Any) -> Any:
    """Return the update made of `buffers`; integer entries get their lower median."""
    return assemble(collected, buffers, np.ones(collected.clients), out, "median", None)


def copy_of(collected: Updates, client: int, out: Any) -> Any:
    """Return a copy of one client's update, bit for bit."""
    buffers = _updates.outputs(collected, out)
    for entry in collected.floating:
        target, source = buffers[entry.name].owner, entry.owners[client]
        if entry.first.kind == "numpy":
            target[...] = source
        else:
            target.copy_(source)
    return result(collected.of_clients([client]), buffers, out)


def fill(buffers: dict[str | None, Buffer], value: float) -> None:
    """Set every element of an output."""
    for buffer in buffers.values():
        buffer.owner[...] = value


def mean_of(collected: Updates, out: Any) -> Any:
    """Return the correctly rounded, unweighted mean; NaN and infinities pass."""
    buffers = _updates.outputs(collected, out)
    Rows.of(collected).mean(np.ones(collected.clients), None, buffers)
    return result(collected, buffers, out)


def require_count(name: str, value: Any, low: int, high: int | None, why: str) -> int:
    """Return `value` as an int in [low, high]; `why` explains the limits."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an integer, got {value!r}.")
    if value < low or (high is not None and value > high):
        limits = f"at least {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{name} must be {limits}, got {value}. {why}")
    return int(value)


def require_positive(name: str, value: Any) -> float:
    """Return `value` as a positive, finite float."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} must be a real number, got {value!r}.")
    number = float(value)
    if not 0.0 < number < float("inf"):
        raise ValueError(f"{name} must be positive and finite, got {value!r}.")
    return number


@dataclass(frozen=True)
class Rows:
    """The floating entries of the updates as the kernels take them."""

    clients: int
    sizes: list[int]
    dtypes: list[int]
    handles: list[list[Any]]  # per client, per entry
    names: list[str | None]

    @classmethod
    def of(cls, collected: Updates) -> Rows:
        """Read the buffers of `collected`."""
        floating = collected.floating
        return cls(
            collected.clients,
            [entry.first.size for entry in floating],
            [DTYPE_CODES[entry.first.dtype] for entry in floating],
            [[e.handles[k] for e in floating] for k in range(collected.clients)],
            [entry.name for entry in floating],
        )

    def of_buffers(self, buffers: dict[str | None, Buffer]) -> list[Any]:
        """Return the handles of an output in the order of the entries."""
        return [buffers[name].handle for name in self.names]

    def distance(self, client: int, other: list[Any], exponent: int = 0) -> float:
        """Return the Euclidean distance of a client to `other` times ``2**exponent``.

        Of ``[]``, the norm. All values are finite. What float64 cannot hold is returned as
        infinity, which an `exponent` of -64 rules out.
        """
        return self.distance_between(self.handles[client], other, exponent)

    def distance_between(self, one: list[Any], other: list[Any], exponent: int = 0) -> float:
        """Return the distance of two rows like :meth:`distance`."""
        squared = core.squared_distance(one, other, self.sizes, self.dtypes)
        if _LEAST_SQUARE < squared < math.inf or DTYPE_CODES["float64"] not in self.dtypes:
            return math.ldexp(math.sqrt(squared), exponent)
        # Squares have left the range of float64, or may have: the kernel that cannot overflow.
        zeros = np.zeros(max(self.sizes, default=0))
        raw = core.exact_squared_distance(
            one, other or [zeros] * len(self.sizes), self.sizes, self.dtypes
        )
        # The sum is in units of 2^-2148; 128 more bits keep the root of the smallest ones precise.
        root = math.isqrt(int.from_bytes(raw, "little") << 128)
        try:
            return root / (1 << 1138 - exponent)
        except OverflowError:
            return math.inf

    def shrinkage(self, client: int, other: list[Any], limit: float) -> float:
        """Return what to multiply the difference to `other` by to clip its length to `limit`."""
        length = self.distance(client, other)
        if length <= limit:
            return 1.0
        if length == math.inf:
            length = self.distance(client, other, -64)
            limit = math.ldexp(limit, -64)
        return limit / length

    def mean(
        self,
        weights: npt.NDArray[np.float64],
        total_weight: float | None,
        buffers: dict[str | None, Buffer],
        extra: list[Any] | None = None,
    ) -> None:
        """Write the weighted mean of the clients (and of one more row) into `buffers`."""
        rows = [*self.handles, extra] if extra is not None else self.handles
        core.mean(
            [row[s] for s in range(len(self.sizes)) for row in rows],
            self.sizes,
            self.dtypes,
            self.of_buffers(buffers),
            self.dtypes,
            weights,
            total_weight,
        )
