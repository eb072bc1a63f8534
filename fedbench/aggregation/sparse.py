"""Sparse updates, for example the largest coordinates, and their mean as a dense vector."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedbench._native import core
from fedbench.aggregation import _weights
from fedbench.aggregation._arrays import DTYPE_CODES, Buffer, describe
from fedbench.aggregation._compressed import floats, result_buffer, rows_of
from fedbench.aggregation._outputs import require_disjoint
from fedbench.aggregation._robust import require_count
from fedbench.aggregation._updates import require_policy
from fedbench.errors import LayoutError, NonFiniteError

__all__ = ["SparseUpdate", "sparse_mean", "top_k"]

_LARGEST_SIZE = 2**60 - 1  # so that the bytes of a result can be counted in 64 bits


@dataclass(frozen=True, eq=False)
class SparseUpdate:
    """Some coordinates of a flat update; all others are zero.

    Parameters
    ----------
    indices : array of int32 or int64, shape ``(nnz,)``
        Positions in ``[0, size)``, in any order (sorted ones are aggregated fastest). A position
        may occur several times: its values add up.
    values : array of floats, shape ``(nnz,)``
        Of the same library as `indices`.
    size : int
        Length of the dense update.

    Notes
    -----
    Nothing is checked before :func:`sparse_mean` takes it; ``sparse_mean([update])`` is its dense
    form. Equal only to itself.
    """

    indices: Any
    values: Any
    size: int


def top_k(update: Any, k: int) -> SparseUpdate:
    """Keep the `k` coordinates of largest magnitude [1]_.

    Parameters
    ----------
    update : array of floats, any shape
        A numpy array or torch CPU tensor without NaN.
    k : int
        From 0 to the size of the update.

    Returns
    -------
    SparseUpdate
        With increasing int64 indices into the flattened update; its values are detached from any
        gradient history. Of equal magnitudes, those with the smaller index are kept.

    Raises
    ------
    ValueError
        If `k` is out of range.
    TypeError
        If `update` is not an array of floats.
    NonFiniteError
        If `update` holds NaN, whose magnitude has no place in the order.

    Notes
    -----
    Time: proportional to the size of the update, a partial sort with numpy. Memory: two copies of
    the magnitudes and the pairs.
    Determinism: a function of the update.

    References
    ----------
    .. [1] Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017.

    Examples
    --------
    >>> import numpy as np
    >>> from fedbench import aggregation
    >>> aggregation.top_k(np.float32([0.5, -3, 2, 0]), 2)
    SparseUpdate(indices=array([1, 2]), values=array([-3.,  2.], dtype=float32), size=4)
    """
    buffer = floats(update, "update")
    count = require_count("k", k, 0, buffer.size, f"The update has {buffer.size} coordinates.")
    flat = buffer.owner.reshape(-1)
    magnitude = _magnitudes(buffer)
    if np.isnan(magnitude).any():
        index = int(np.isnan(magnitude).argmax())
        raise NonFiniteError(
            f"update must not hold NaN, got one at flat index {index}. Leave out such a client."
        )
    if count == 0:
        kept = np.empty(0, dtype=np.int64)
    else:
        threshold = np.partition(magnitude, buffer.size - count)[buffer.size - count]
        above = np.flatnonzero(magnitude > threshold)
        equal = np.flatnonzero(magnitude == threshold)[: count - len(above)]
        kept = np.sort(np.concatenate([above, equal]))
    if buffer.kind == "numpy":
        return SparseUpdate(kept, flat[kept], buffer.size)
    import torch

    indices = torch.from_numpy(kept)
    return SparseUpdate(indices, flat[indices], buffer.size)


def sparse_mean(
    updates: Iterable[SparseUpdate],
    weights: Any = None,
    *,
    total_weight: float | None = None,
    out: Any = None,
    nonfinite: str = "raise",
) -> Any:
    r"""Weighted mean of sparse updates as a dense vector, rounded once.

    The bits are those of :func:`mean` of the dense updates: a coordinate that a client does not
    list counts as zero, one that it lists several times as the exact sum of its values.

    Parameters
    ----------
    updates : iterable of SparseUpdate
        One per client, of one size, library, value dtype (float32, float64, float16 or bfloat16)
        and index dtype. Never modified.
    weights : sequence of K numbers, optional
        As for :func:`mean`.
    total_weight : float, optional
        As for :func:`mean`.
    out : array, shape ``(size,)``, optional
        Where to write; its content is unspecified after a `NonFiniteError`.
    nonfinite : {"raise", "propagate", "drop"}, default "raise"
        For NaN and infinities among the values, as for :func:`mean`.

    Returns
    -------
    array, shape ``(size,)``
        Of the library and dtype of the values.

    Raises
    ------
    ValueError
        If an index is out of range (the message names client and index) or an option does not fit.
    TypeError
        If an update is not a SparseUpdate of accepted dtypes.
    LayoutError
        If updates differ in size, library or dtypes.
    NonFiniteError
        As for :func:`mean`.

    Notes
    -----
    Time: proportional to ``size`` plus the number of pairs. Memory: the result and 90 KiB per
    thread, and one copy of the pairs of clients whose indices jump back by more than 4096.
    float64 values are added in exact integers where several clients meet, more slowly.
    Determinism: as for :func:`mean`.

    Examples
    --------
    >>> import numpy as np
    >>> from fedbench import aggregation
    >>> a = aggregation.SparseUpdate(np.int32([0, 3]), np.float32([2, 4]), 4)
    >>> b = aggregation.SparseUpdate(np.int32([3]), np.float32([6]), 4)
    >>> aggregation.sparse_mean([a, b])
    array([1., 0., 0., 5.], dtype=float32)
    """
    require_policy(nonfinite)
    rows = rows_of(updates, SparseUpdate)
    pairs = _sparse_pairs(rows)
    values = _weights.client_weights(weights, len(pairs))
    divisor = _weights.total(total_weight)
    spoilt = [k for k, (_, v) in enumerate(pairs) if nonfinite != "propagate" and not _finite(v)]
    if spoilt and nonfinite == "raise":
        raise NonFiniteError(
            f"updates must be finite, got NaN or infinity from client {spoilt[0]}. Pass "
            "nonfinite='drop' to leave out such clients, or nonfinite='propagate' to let the "
            "values through."
        )
    if spoilt:
        pairs, values = _left(pairs, values, spoilt)
    first = pairs[0][1]
    size = int(rows[0].size)
    buffer = result_buffer(out, first.kind, (size,), first.dtype)
    require_disjoint([("out", buffer)], [part for pair in pairs for part in pair])
    _, bad_client, position = core.sparse_mean(
        [indices.handle for indices, _ in pairs],
        [value.handle for _, value in pairs],
        [value.size for _, value in pairs],
        pairs[0][0].dtype == "int64",
        size,
        DTYPE_CODES[first.dtype],
        buffer.handle,
        values,
        divisor,
    )
    if bad_client is not None:
        index = int(pairs[bad_client][0].owner.reshape(-1)[position])
        raise ValueError(
            f"indices must be from 0 to {size - 1}, got {index} at position {position} of "
            f"client {bad_client}."
        )
    return buffer.owner if out is None else out


def _sparse_pairs(rows: list[Any]) -> list[tuple[Buffer, Buffer]]:
    if not rows:
        raise ValueError("updates must hold at least one client's update, got none.")
    pairs = []
    for k, row in enumerate(rows):
        if not isinstance(row, SparseUpdate):
            raise TypeError(f"updates[{k}] must be a SparseUpdate, got {type(row).__name__}.")
        why = "It is the length of the dense update."
        require_count(f"updates[{k}].size", row.size, 0, _LARGEST_SIZE, why)
        indices = describe(row.indices, f"updates[{k}].indices")
        values = floats(row.values, f"updates[{k}].values")
        if indices.dtype not in ("int32", "int64"):
            raise TypeError(f"updates[{k}].indices must be int32 or int64, got {indices.dtype}.")
        if indices.kind != values.kind or indices.shape != values.shape or len(values.shape) != 1:
            raise LayoutError(
                f"updates[{k}] must have indices and values of one length and library, flat, got "
                f"{indices.kind} {indices.shape} and {values.kind} {values.shape}."
            )
        pairs.append((indices, values))
        for what, got, expected in (
            ("size", int(row.size), int(rows[0].size)),
            ("indices of", indices.dtype, pairs[0][0].dtype),
            ("values of", values.dtype, pairs[0][1].dtype),
            ("arrays of", values.kind, pairs[0][1].kind),
        ):
            if got != expected:
                raise LayoutError(
                    f"updates[{k}] must have {what} {expected} like client 0's, got {got}."
                )
    return pairs


def _finite(buffer: Buffer) -> bool:
    found = core.first_nonfinite([buffer.handle], [buffer.size], [DTYPE_CODES[buffer.dtype]])
    return found is None


def _left(
    pairs: list[tuple[Buffer, Buffer]], values: npt.NDArray[np.float64], spoilt: list[int]
) -> tuple[list[tuple[Buffer, Buffer]], npt.NDArray[np.float64]]:
    names = ", ".join(map(str, spoilt))
    kept = np.delete(values, spoilt)
    if not kept.any():
        raise NonFiniteError(
            f"updates must leave some weight after nonfinite='drop', got NaN or infinity from "
            f"client(s) {names} and no other client with positive weight."
        )
    warnings.warn(
        f"left out client(s) {names} of {len(pairs)}: NaN or infinity in their updates",
        RuntimeWarning,
        stacklevel=3,
    )
    return [pair for k, pair in enumerate(pairs) if k not in set(spoilt)], kept


def _magnitudes(buffer: Buffer) -> npt.NDArray[Any]:
    if buffer.kind == "numpy":
        magnitudes: npt.NDArray[Any] = np.abs(buffer.owner.reshape(-1))
        return magnitudes
    flat = buffer.owner.reshape(-1).abs()
    magnitudes = (flat.float() if buffer.dtype == "bfloat16" else flat).numpy()
    return magnitudes
