"""The streaming mean: exact sums in O(model) memory, any order, any partition, the same bits."""

from __future__ import annotations

import pickle
import threading
import warnings
from collections.abc import Mapping
from typing import Any, SupportsIndex

import numpy as np

from fedbench._native import core
from fedbench.aggregation import _integers, _updates, _weights
from fedbench.aggregation._arrays import (
    DTYPE_CODES,
    FLOATING,
    Buffer,
    check_tensor,
    describe,
    is_tensor,
)
from fedbench.aggregation._entries import Entry, Spec, entries_of, require_alike, require_rows
from fedbench.aggregation._outputs import announce_writes, require_apart
from fedbench.errors import LayoutError, NonFiniteError

__all__ = ["StreamingMean"]


class StreamingMean:
    r"""Weighted mean of a stream of updates, with the same bits as :func:`mean`.

    The state is the exact real number :math:`\sum_k w_k x_k` of every coordinate, so results
    depend on the set of (weight, update) pairs alone: any order of :meth:`add`, any partition
    over several accumulators, any tree of :meth:`merge`, any number of threads and any machine
    give the same bits, those of the correctly rounded mean.

    Parameters
    ----------
    like : array, mapping of arrays, or FlatLayout
        What one update looks like: names, shapes, dtypes and library. Values are not read.
    nonfinite : {"raise", "propagate", "drop"}, default "raise"
        For updates with NaN or infinities: refuse the update, let the values through, or leave the
        update out with a `RuntimeWarning`. A refused update leaves the state as it was.
    integers : {"max", "sum"}, default "max"
        For integer and bool entries of state dicts, as in :func:`mean`; a sum must fit their dtype
        after each call, so whether it overflows on the way depends on the order.

    Attributes
    ----------
    order_independent : bool
        True: an executor's ``map_reduce`` may fold contributions wherever and whenever they come.

    Notes
    -----
    Limits: any finite float32, float64, float16 or bfloat16 values and any finite, non-negative
    weights (taken as exact float64 values); any number of updates.

    Memory: 16 bytes per coordinate for float32 data of ordinary range with integer weights; more
    in those blocks of 512 coordinates whose values or weights span a wider range (8 bytes per
    further factor of :math:`2^{44}`; :attr:`nbytes` tells). Time of :meth:`add`: one pass over
    update and state, twice the arithmetic for weights that need more than 29 bits, fourfold for
    float64. :meth:`add_many` passes over the state once for several updates.

    Threads: an object may be used from several threads at once, each call is atomic. An `add` may
    follow a `result`. The bins are those of reproducible summation [1]_, here all of them.

    References
    ----------
    .. [1] Ahrens, Demmel and Nguyen, "Algorithms for Efficient Reproducible Floating Point
       Summation", ACM Transactions on Mathematical Software 46 (3), 2020.

    Examples
    --------
    >>> import numpy as np
    >>> from fedbench.aggregation import StreamingMean
    >>> total = StreamingMean(np.zeros(2, np.float32))
    >>> total.add(np.float32([1, 2]), 3)
    >>> total.add(np.float32([3, 6]))
    >>> total.result()
    array([1.5, 3. ], dtype=float32)
    """

    order_independent = True

    def __init__(self, like: Any, *, nonfinite: str = "raise", integers: str = "max") -> None:
        _updates.require_policy(nonfinite)
        if integers not in ("max", "sum"):
            raise ValueError(f"integers must be 'max' or 'sum', got {integers!r}.")
        entries, is_mapping = entries_of(like)
        if not is_mapping and entries[0].dtype not in FLOATING:
            raise TypeError(
                f"like must have a floating dtype, got {entries[0].dtype}. "
                "Integer entries are combined only inside state dicts."
            )
        self._start(Spec(tuple(entries), is_mapping, nonfinite, integers))

    def _start(self, spec: Spec) -> None:
        self._spec = spec
        self._entries, self._is_mapping, self._nonfinite, self._integers = spec
        # By name, so that the order of the keys of `like` does not matter in a merge.
        self._floating_at = [i for i in spec.name_order() if spec.entries[i].dtype in FLOATING]
        floating = self._floating()
        self._sum = core.StreamingSum(
            [entry.size for entry in floating], [DTYPE_CODES[entry.dtype] for entry in floating]
        )
        self._other: dict[str, Any] = {}
        self._lock = threading.Lock()

    def _floating(self) -> list[Entry]:
        return [self._entries[i] for i in self._floating_at]

    def empty(self) -> StreamingMean:
        """Return a new mean of the same layout and policies, without any update."""
        fresh = object.__new__(StreamingMean)
        fresh._start(self._spec)
        return fresh

    @property
    def count(self) -> int:
        """Number of updates added, those of weight 0 included, dropped ones not."""
        return self._sum.count()

    @property
    def total_weight(self) -> float:
        """Sum of the weights; kept exactly and rounded once here."""
        return self._sum.total_weight()

    @property
    def nbytes(self) -> int:
        """Bytes that the exact sums occupy."""
        return self._sum.state_bytes()

    def add(self, update: Any, weight: float = 1) -> None:
        """Add one update.

        Parameters
        ----------
        update : array or mapping of arrays
            As `like` said; read in place (from a GPU: copied), never modified or kept.
        weight : float, default 1
            Finite and not negative. An update of weight 0 is checked and contributes nothing.

        Raises
        ------
        LayoutError
            If the update differs from the layout; the message names the entry.
        NonFiniteError
            If it is not finite and `nonfinite` is "raise"; the state is as before.
        ValueError, TypeError
            If the weight is not a finite, non-negative number.
        OverflowError
            If a sum of integer entries does not fit their dtype; the state is as before.
        """
        self._add([update], [_weights.one_weight(weight)])

    def add_many(self, updates: Any, weights: Any = None) -> None:
        """Add several updates in one pass over the state.

        Parameters
        ----------
        updates : iterable of updates
            As for :meth:`add`; or arrays stacked in one ``[K, ...]`` array.
        weights : sequence of K numbers, optional
            Equal weights of 1 by default. All zero is allowed here.

        Raises
        ------
        LayoutError, NonFiniteError, ValueError, TypeError
            As :meth:`add`, naming the update by its position; then nothing is added, not even
            the updates before it.
        """
        if isinstance(updates, Mapping):
            raise TypeError(
                f"updates must be a sequence of updates, got {type(updates).__name__}. "
                "Pass [update_0, update_1, ...], or a single update to add()."
            )
        if is_tensor(updates):
            check_tensor(updates, "updates", remote=True)
        require_rows(updates, self._spec)
        rows = list(updates)
        values = _weights.update_weights(weights, len(rows), "update").tolist()
        if rows:
            self._add(rows, values)

    def _add(self, updates: list[Any], weights: list[float]) -> None:
        many = len(updates) > 1
        described = [self._describe(row, k if many else None) for k, row in enumerate(updates)]
        chosen: range | list[int] = range(len(updates))
        if self._nonfinite != "propagate" and many:
            chosen = self._finite_positions(described)
        integers = [i for i, entry in enumerate(self._entries) if entry.dtype not in FLOATING]
        propagate = self._nonfinite == "propagate"
        with self._lock:
            combined = self._combined(described, weights, integers, chosen)
            refused = self._sum.add(
                [described[k][i].handle for i in self._floating_at for k in chosen],
                [weights[k] for k in chosen],
                propagate,
            )
            if propagate or not refused:
                self._other.update(combined)
        if refused and not propagate:
            self._report(described, [chosen[k] for k in refused])

    def _describe(self, update: Any, position: int | None) -> list[Buffer]:
        where = "update" if position is None else f"updates[{position}]"
        if self._is_mapping:
            if not isinstance(update, Mapping):
                raise TypeError(f"{where} must be a mapping, got {type(update).__name__}.")
            names = [entry.name for entry in self._entries if entry.name is not None]
            _updates.require_names(update, names, where, "the layout")
        buffers = []
        for entry in self._entries:
            label = where if entry.name is None else f"{where}[{entry.name!r}]"
            value = update if entry.name is None else update[entry.name]
            buffer = describe(value, label, remote=True)
            if buffer[2:6] != entry[1:]:
                raise LayoutError(
                    f"{label} must be a {entry.kind} array of {entry.dtype} with shape "
                    f"{entry.shape}, got {buffer.kind} {buffer.dtype} with shape {buffer.shape}."
                )
            buffers.append(buffer)
        return buffers

    def _finite_positions(self, described: list[list[Buffer]]) -> list[int]:
        """Positions to add; raises or warns about the others, so that adding is all or nothing."""
        bad = [k for k, buffers in enumerate(described) if self._first_nonfinite(buffers)]
        if bad:
            self._report(described, bad)
        return [k for k in range(len(described)) if k not in bad]

    def _first_nonfinite(self, buffers: list[Buffer]) -> tuple[str | None, int] | None:
        floating = self._floating_at
        found = core.first_nonfinite(
            [buffers[i].handle for i in floating],
            [buffers[i].size for i in floating],
            [DTYPE_CODES[buffers[i].dtype] for i in floating],
        )
        return None if found is None else (self._entries[floating[found[0]]].name, found[1])

    def _report(self, described: list[list[Buffer]], refused: list[int]) -> None:
        if self._nonfinite == "drop":
            warnings.warn(
                f"left out {len(refused)} of {len(described)} update(s): NaN or infinity at "
                f"position(s) {', '.join(map(str, refused))}",
                RuntimeWarning,
                stacklevel=4,
            )
            return
        name, index = self._first_nonfinite(described[refused[0]]) or (None, 0)
        which = "" if len(described) == 1 else f" {refused[0]}"
        entry = "" if name is None else f" in entry {name!r}"
        raise NonFiniteError(
            f"updates must be finite, got NaN or infinity from update{which}{entry} at flat index "
            f"{index}. Use StreamingMean(..., nonfinite='drop') to leave out such updates, or "
            "nonfinite='propagate' to let the values through."
        )

    def _combined(
        self,
        described: list[list[Buffer]],
        weights: list[float],
        integers: list[int],
        chosen: range | list[int],
    ) -> dict[str, Any]:
        """Integer entries after the chosen updates of positive weight; nothing is stored yet."""
        result = {}
        counted = [k for k in chosen if weights[k] > 0]
        for i in integers if counted else ():
            name = self._entries[i].name or ""
            buffers = [described[k][i] for k in counted]
            if name in self._other:
                buffers.insert(0, describe(self._other[name], name))
            result[name] = _integers.combine(buffers, self._integers, repr(name))
        return result

    def merge(self, other: StreamingMean) -> None:
        """Add everything that another mean holds; `other` stays as it is.

        Parameters
        ----------
        other : StreamingMean
            Of the same layout and policies, another object.

        Raises
        ------
        TypeError
            If it is not a `StreamingMean`.
        LayoutError
            If its layout or policies differ.
        ValueError
            If it is this very object.
        """
        if not isinstance(other, StreamingMean):
            raise TypeError(f"other must be a StreamingMean, got {type(other).__name__}.")
        if other is self:
            raise ValueError("other must be another streaming mean, got the same one.")
        require_alike(self._spec, other._spec)
        # Both at once, in one order everywhere: two means may be merged into each other.
        first, second = sorted((self, other), key=id)
        with first._lock, second._lock:
            combined = {}
            for name, value in other._other.items():
                buffers = [describe(value, name)]
                if name in self._other:
                    buffers.append(describe(self._other[name], name))
                combined[name] = _integers.combine(buffers, self._integers, repr(name))
            self._sum.merge(other._sum)
            self._other.update(combined)

    def result(self, *, total_weight: float | None = None, out: Any = None) -> Any:
        """Return the mean of what was added so far, rounded once.

        Parameters
        ----------
        total_weight : float, optional
            Replaces the sum of the weights as the divisor.
        out : array or mapping of arrays, optional
            Where to write; contiguous, like an update, not requiring gradients, and no two entries
            in the same memory.

        Returns
        -------
        array or dict of arrays
            `out`, or new arrays in host memory. The state is unchanged, more updates may follow.

        Raises
        ------
        ValueError
            If no update of positive weight was added, or `out` does not fit.
        """
        divisor = _weights.total(total_weight)
        with self._lock:
            return self._result(divisor, out)

    def _result(self, divisor: float | None, out: Any) -> Any:
        if self.total_weight == 0:
            raise ValueError(
                f"result needs an update of positive weight, got {self.count} update(s) of "
                "weight 0. Add one first."
            )
        buffers = self._outputs(out)
        floating = self._floating()
        self._sum.result(
            [buffers[entry.name].handle for entry in floating],
            [DTYPE_CODES[entry.dtype] for entry in floating],
            divisor,
        )
        if not self._is_mapping:
            return buffers[None].owner if out is None else out
        if out is not None:
            for name, value in self._other.items():
                _integers.store(value, out[name])
            return out
        values = {name: buffer.owner for name, buffer in buffers.items()}
        copies = {
            name: value.copy() if isinstance(value, np.ndarray) else value.clone()
            for name, value in self._other.items()
        }
        return {entry.name: (values | copies)[entry.name] for entry in self._entries}

    def _outputs(self, out: Any) -> dict[str | None, Buffer]:
        if out is not None and self._is_mapping:
            if not isinstance(out, Mapping):
                raise TypeError(f"out must be a mapping, got {type(out).__name__}.")
            names = [entry.name for entry in self._entries if entry.name is not None]
            _updates.require_names(out, names, "out", "the layout")
        entries = self._floating() if out is None else self._entries
        result = {}
        for entry in entries:
            result[entry.name] = _updates.output(_updates.part_of(out, entry.name), entry)
        if out is not None:
            require_apart((f"out[{name!r}]", buffer) for name, buffer in result.items())
            announce_writes(result.values())
        return result

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        state = self.__getstate__()
        if protocol.__index__() >= 5:  # the sums may travel beside the pickle, uncopied
            state["sums"] = pickle.PickleBuffer(state["sums"])
        return StreamingMean.__new__, (type(self),), state

    def __getstate__(self) -> dict[str, Any]:
        # Canonical: the same bytes for every history that leads to the same sums.
        with self._lock:
            return {"spec": self._spec, "sums": self._sum.serialize(), "other": dict(self._other)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._start(state["spec"])
        self._sum.deserialize(bytes(memoryview(state["sums"])))
        self._other = dict(state["other"])

    def __repr__(self) -> str:
        size = sum(entry.size for entry in self._entries)
        return (
            f"StreamingMean({size} coordinates, count={self.count}, "
            f"total_weight={self.total_weight:g})"
        )
