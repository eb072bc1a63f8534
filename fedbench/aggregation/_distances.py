"""Pair distances with proved bounds, and selections by them that no rounding can change.

A Gram matrix from BLAS gives all squared distances at once, but its rounding depends on the order
of the clients and on the machine. So it only filters: every distance is known to lie in an
interval, and what intervals cannot decide is decided by exact distances; exact ties by the content
of the updates. Selections are therefore functions of the set of updates.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedbench._native import core
from fedbench.aggregation._arrays import Buffer
from fedbench.aggregation._robust import Rows
from fedbench.aggregation._updates import Updates

Exact = int | float
"""A squared distance (or a sum of them) in units of 2^-2148; ``math.inf`` for infinitely far."""

_TILE = 1 << 15
_UNIT = 2.0**-53


class PairDistances:
    """Squared distances between clients: `low` and `high` bounds, and exact ones on demand.

    Clients whose update is not finite are infinitely far from every other client.
    """

    def __init__(self, collected: Updates) -> None:
        self._collected = collected
        self._rows = Rows.of(collected)
        self.clients = collected.clients
        self._finite = np.array(
            [collected.first_nonfinite(k) is None for k in range(self.clients)], dtype=bool
        )
        self._exact: dict[tuple[int, int], Exact] = {}
        self.low, self.high = self._bounds()

    def exact(self, i: int, j: int) -> Exact:
        """Return the squared distance of two clients without rounding."""
        if i == j:
            return 0
        if not (self._finite[i] and self._finite[j]):
            return math.inf
        i, j = sorted((self._twins[i], self._twins[j]))
        if i == j:
            return 0
        if (i, j) not in self._exact:
            rows = self._rows
            raw = core.exact_squared_distance(
                rows.handles[i], rows.handles[j], rows.sizes, rows.dtypes
            )
            self._exact[i, j] = int.from_bytes(raw, "little")
        return self._exact[i, j]

    @functools.cached_property
    def _twins(self) -> list[int]:
        """For each client the first one with equal values."""
        twins = list(range(self.clients))
        for j in range(self.clients):
            for i in range(j):
                may_be_equal = self._finite[i] and self._finite[j] and self.low[i, j] == 0.0
                if twins[i] == i and may_be_equal and self._same_values(i, j):
                    twins[j] = i
                    break
        return twins

    def _same_values(self, i: int, j: int) -> bool:
        return all(
            np.array_equal(as_float64(e.buffers[i], a, b), as_float64(e.buffers[j], a, b))
            for e in self._collected.floating
            for a, b in tiles(e.first.size)
        )

    def _bounds(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        gram = np.zeros((self.clients, self.clients))
        total = 0
        origin = int(np.argmax(self._finite))
        with np.errstate(all="ignore"):
            for entry in self._collected.floating:
                total += entry.first.size
                for start, stop in tiles(entry.first.size):
                    block = np.stack([as_float64(buffer, start, stop) for buffer in entry.buffers])
                    block -= block[origin].copy()
                    gram += block @ block.T
            return self._intervals(gram, total)

    def _intervals(
        self, gram: npt.NDArray[np.float64], total: int
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        # Whatever the order of summation, an entry of the Gram matrix of n terms errs by at most
        # about n u |y_i| |y_j|; the differences y from the origin err by u each, and combining
        # three entries by a few u more. (n + 32) u (|y_i| + |y_j|)^2 covers all of it, since the
        # norms are rounded up first. `flushed` covers values below the least normal number that a
        # processor set to flush them may have taken for zero.
        squares = np.diag(gram)
        norms = np.sqrt(squares) * (1 + (total + 8) * _UNIT) * (1 + 2.0**-40)
        reach = norms[:, None] + norms[None, :]
        flushed = math.sqrt(total) * 2.0**-125
        error = (total + 32) * _UNIT * reach**2 + 4 * flushed * reach + 8 * flushed**2
        error += (total + 1) * 1e-300
        middle = squares[:, None] + squares[None, :] - 2 * gram
        low = np.maximum(middle - error, 0.0)
        high = middle + error
        unknown = ~(np.isfinite(low) & np.isfinite(high))
        low[unknown], high[unknown] = 0.0, math.inf
        far = ~(self._finite[:, None] & self._finite[None, :])
        low[far], high[far] = math.inf, math.inf
        np.fill_diagonal(low, 0.0)
        np.fill_diagonal(high, 0.0)
        return low, high

    def nearest(self, client: int, count: int) -> list[int]:
        """Return the `count` clients nearest to `client`, itself included."""
        return smallest(
            self.low[client],
            self.high[client],
            lambda j: self.exact(client, j),
            functools.partial(content_order, self._collected),
            count,
        )

    def krum_winners(self, among: Sequence[int], neighbours: int, count: int) -> list[int]:
        """Return the `count` of `among` with the smallest Krum scores.

        The score of a client is the sum of its squared distances to its `neighbours` nearest
        others in `among`.
        """
        index = np.asarray(among)
        low = self._score_bound(self.low[np.ix_(index, index)], neighbours) * (1 - 2.0**-30)
        high = self._score_bound(self.high[np.ix_(index, index)], neighbours) * (1 + 2.0**-30)

        @functools.cache
        def exact_score(position: int) -> Exact:
            client = among[position]
            distances = sorted(self.exact(client, j) for j in among if j != client)
            nearest = distances[:neighbours]
            return math.inf if math.inf in nearest else sum(nearest)

        order = functools.partial(content_order, self._collected)
        chosen = smallest(low, high, exact_score, lambda i, j: order(among[i], among[j]), count)
        return [among[position] for position in chosen]

    @staticmethod
    def _score_bound(
        distances: npt.NDArray[np.float64], neighbours: int
    ) -> npt.NDArray[np.float64]:
        others = distances.copy()
        np.fill_diagonal(others, math.inf)
        others.sort(axis=1)
        scores: npt.NDArray[np.float64] = others[:, :neighbours].sum(axis=1)
        return scores


def smallest(
    low: npt.NDArray[np.float64],
    high: npt.NDArray[np.float64],
    exact: Callable[[int], Exact],
    order: Callable[[int, int], int],
    count: int,
) -> list[int]:
    """Return the positions of the `count` smallest values, in increasing position.

    Value i lies in [low[i], high[i]]; `exact` gives it; `order` compares equal ones like ``cmp``.
    """
    may_precede = (low[None, :] <= high[:, None]).sum(axis=1) - 1  # others, at most
    must_precede = (high[None, :] < low[:, None]).sum(axis=1)
    chosen = np.flatnonzero(may_precede < count).tolist()
    open_positions = np.flatnonzero((may_precede >= count) & (must_precede < count)).tolist()

    def compare(i: int, j: int) -> int:
        a, b = exact(i), exact(j)
        return (a > b) - (a < b) or order(i, j)

    open_positions.sort(key=functools.cmp_to_key(compare))
    return sorted(chosen + open_positions[: count - len(chosen)])


def content_order(collected: Updates, i: int, j: int) -> int:
    """Compare two updates by their bits: entry by entry in the order of names, then by index."""
    for entry in sorted(collected.floating, key=lambda e: e.name or ""):
        a, b = entry.buffers[i], entry.buffers[j]
        for start, stop in tiles(a.size):
            x, y = _bits(a, start, stop), _bits(b, start, stop)
            different = np.flatnonzero(x != y)
            if different.size:
                at = different[0]
                return -1 if x[at] < y[at] else 1
    return 0


def tiles(size: int) -> list[tuple[int, int]]:
    """Return the (start, stop) of the pieces in which Python code passes over a vector."""
    return [(start, min(start + _TILE, size)) for start in range(0, size, _TILE)]


def _native(buffer: Buffer, start: int, stop: int) -> npt.NDArray[Any]:
    """Return part of a buffer as a numpy array, bfloat16 as its bits."""
    if buffer.kind == "numpy":
        array: npt.NDArray[Any] = buffer.owner.reshape(-1)[start:stop]
        return array
    part = buffer.owner.reshape(-1)[start:stop]
    if buffer.dtype == "bfloat16":
        import torch

        part = part.view(torch.int16)
    tensor: npt.NDArray[Any] = part.numpy()
    return tensor


def as_float64(buffer: Buffer, start: int, stop: int) -> npt.NDArray[np.float64]:
    """Return part of a buffer as float64, exactly."""
    array = _native(buffer, start, stop)
    if buffer.dtype == "bfloat16":
        array = (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64)


def _bits(buffer: Buffer, start: int, stop: int) -> npt.NDArray[Any]:
    """Return part of a buffer as integers that sort like the values, -0 below +0."""
    array = _native(buffer, start, stop)
    bits = array.view(f"i{array.itemsize}")
    return np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits)
