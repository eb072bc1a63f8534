"""The correctly rounded weighted mean of clients' updates."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedbench._native import core
from fedbench.aggregation import _devices, _integers, _plain, _updates, _weights
from fedbench.aggregation._arrays import DTYPE_CODES, Buffer, bytes_remedy
from fedbench.errors import NonFiniteError

__all__ = ["mean"]


def mean(
    updates: Any,
    weights: Any = None,
    *,
    total_weight: float | None = None,
    out: Any = None,
    nonfinite: str = "raise",
    integers: str = "max",
    server: Mapping[str, Any] | None = None,
    partial: str = "raise",
) -> Any:
    r"""Weighted mean of updates, rounded once.

    Per coordinate this is the real number :math:`\sum_k w_k x_k / \sum_k w_k`, rounded once to the
    dtype of the updates (to nearest, ties to even). There is only one right answer, so the result
    depends on no order of the clients, thread count, instruction set or machine, and equals that
    of :class:`StreamingMean`. This is the aggregation of FedAvg [1]_.

    Parameters
    ----------
    updates : sequence of arrays, sequence of mappings, or array
        One update per client: numpy arrays or torch CPU tensors of equal shape and dtype
        (float32, float64, float16 or bfloat16); or state dicts, mappings of names to such arrays,
        matched by name whatever their order; or all updates stacked in one array ``[K, ...]``.
        Read in place, never modified; only strided arrays are copied.
    weights : sequence of K numbers, optional
        Non-negative, for example sample counts; taken as exact float64 values. Equal by default.
        A client of weight 0 is checked like the others and contributes nothing.
    total_weight : float, optional
        Replaces the sum of the weights as the divisor, as SCAFFOLD's and FedDyn's weighting by
        the whole population needs.
    out : array or mapping of arrays, optional
        Where to write; contiguous, like an update, not requiring gradients. Its entries share no
        memory with the updates, nor with each other unless the updates tie them. Its content is
        unspecified after a `NonFiniteError`.
    nonfinite : {"raise", "propagate", "drop"}, default "raise"
        For NaN and infinities: refuse them, naming client and entry; let them through (NaN, or
        the infinity if there is only one sign of it); or leave out such a client's whole update
        and its weight, with a `RuntimeWarning` that names the clients.
    integers : {"max", "sum", "server"}, default "max"
        For integer and bool entries of state dicts, for example ``num_batches_tracked``: the
        largest value over clients with positive weight, the sum over them (for bool: any), or
        the entry of `server`. Their dtype is kept; they are never averaged, and a sum must fit it.
    server : mapping, optional
        The server's state, for ``integers="server"``.
    partial : {"raise", "per_key"}, default "raise"
        For state dicts that do not all have the same entries, as when clients train different
        parts of a model: refuse them with the names that differ; or average each entry over the
        clients that sent it, by their weights. ``"per_key"`` takes neither `out` nor
        `total_weight`.

    Returns
    -------
    array or dict of arrays
        Of the kind, shapes and dtypes of one update; `out` if that was given. Infinite where the
        mean exceeds the dtype, as a small `total_weight` can make it. It shares no memory
        with the updates. Entries that are the same memory in every update share it here too.

    Raises
    ------
    ValueError
        If there is no client; if weights are not one finite, non-negative number per client with
        a positive sum (with ``partial="per_key"``: over the clients that sent an entry, for each);
        if `out` does not fit.
    TypeError
        For anything that is not an array of an accepted dtype, and for bare integer arrays.
    OverflowError
        If a sum of integer entries does not fit their dtype.
    LayoutError
        If updates differ in names, shapes or dtypes; the message names client and entry.
    NonFiniteError
        If an update is not finite and `nonfinite` is "raise", or if "drop" leaves no weight.

    Notes
    -----
    Breakdown point: 0, a single client can move the result anywhere; see the robust rules.
    Determinism: the result is a function of the set of (weight, update) pairs alone.
    Time: one pass over the updates. Memory: the result. Threads: coordinates are split over
    ``fedbench.aggregation.get_num_threads()`` threads if that pays; the GIL is released.

    References
    ----------
    .. [1] McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
       Data", AISTATS 2017.

    Examples
    --------
    >>> import numpy as np
    >>> from fedbench import aggregation
    >>> aggregation.mean([np.float32([1, 2]), np.float32([3, 6])], weights=[3, 1])
    array([1.5, 3. ], dtype=float32)
    """
    _updates.require_policy(nonfinite)
    _integers.require_policy(integers)
    if server is not None and integers != "server":
        raise ValueError(
            f"server must be None with integers={integers!r}, which does not use it. Leave it out, "
            "or pass integers='server'."
        )
    if partial != "raise":
        _require_per_key(partial, updates, total_weight, out)
        return _mean_per_key(list(updates), weights, nonfinite, integers, server)
    if type(updates) is list and updates and total_weight is None and nonfinite != "drop":
        result = _plain.mean_of_plain(updates, weights, out, nonfinite)
        if result is not None:
            return result
    collected = _updates.collect(updates)
    values = _weights.client_weights(weights, collected.clients)
    divisor = _weights.total(total_weight)
    if nonfinite == "drop":
        collected, values = without_nonfinite(collected, values)
    refuse_bare_integers(collected)
    buffers = _updates.outputs(collected, out)
    _average(collected, buffers, values, divisor, nonfinite)
    return assemble(collected, buffers, values, out, integers, server)


def _average(
    collected: _updates.Updates,
    buffers: dict[str | None, Buffer],
    values: npt.NDArray[np.float64],
    divisor: float | None,
    nonfinite: str,
) -> None:
    """Write the mean of the floating entries into `buffers`."""
    if nonfinite == "raise" and not np.logical_and.reduce(values):
        collected.require_finite(np.flatnonzero(values == 0).tolist())
    finite = _run(collected, buffers, values, divisor)
    if not finite and nonfinite == "raise":
        collected.require_finite(range(collected.clients))


def _require_per_key(partial: str, updates: Any, total_weight: Any, out: Any) -> None:
    if partial != "per_key":
        raise ValueError(f"partial must be 'raise' or 'per_key', got {partial!r}.")
    for name, value in (("out", out), ("total_weight", total_weight)):
        if value is not None:
            raise ValueError(
                f"{name} must be None with partial='per_key', which decides per entry, got "
                f"{type(value).__name__}. Leave it out."
            )
    if isinstance(updates, Mapping) or not isinstance(updates, Iterable):
        raise TypeError(
            "updates must be a sequence of state dicts with partial='per_key', got "
            f"{type(updates).__name__}."
        )


def _mean_per_key(
    rows: list[Any],
    weights: Any,
    nonfinite: str,
    integers: str,
    server: Mapping[str, Any] | None,
) -> dict[str, Any]:
    groups = _updates.collect_per_key(rows)
    values = _weights.client_weights(weights, len(rows))
    if nonfinite == "drop":
        bad = {group.position(k) for group in groups for k in group.nonfinite_clients()}
        values = _after_drop(sorted(bad), values, stacklevel=4)
        groups = [_without_clients(group, bad) for group in groups]
    result: dict[str, Any] = {}
    for group in groups:
        own = values[[group.position(k) for k in range(group.clients)]]
        if not own.any():
            raise ValueError(
                "weights must have a positive sum over the clients that sent "
                f"{', '.join(map(repr, group.names))}, got zero for each. Leave these entries out."
            )
        buffers = _updates.outputs(group, None)
        _average(group, buffers, own, None, nonfinite)
        result.update(assemble(group, buffers, own, None, integers, server))
    names = dict.fromkeys(name for row in rows for name in row if name in result)
    return {name: result[name] for name in names}


def _without_clients(group: _updates.Updates, bad: set[int]) -> _updates.Updates:
    left_out = [k for k in range(group.clients) if group.position(k) in bad]
    if len(left_out) == group.clients:
        raise NonFiniteError(
            f"every client that sent {', '.join(map(repr, group.names))} was left out for NaN or "
            "infinity in its update. Leave these entries out, or pass nonfinite='propagate'."
        )
    return group.without(left_out)


def without_nonfinite(
    collected: _updates.Updates, values: npt.NDArray[np.float64], stacklevel: int = 3
) -> tuple[_updates.Updates, npt.NDArray[np.float64]]:
    """Leave out clients whose update is not finite, with a warning that names them."""
    dropped = collected.nonfinite_clients()
    if not dropped:
        return collected, values
    values = _after_drop(dropped, values, stacklevel + 1)
    return collected.without(dropped), np.delete(values, dropped)


def _after_drop(
    dropped: list[int], values: npt.NDArray[np.float64], stacklevel: int
) -> npt.NDArray[np.float64]:
    """Return the weights without those of `dropped`, which a warning names."""
    if not dropped:
        return values
    kept = values.copy()
    kept[dropped] = 0
    if not kept.any():
        raise NonFiniteError(
            f"updates must leave some weight after nonfinite='drop', got NaN or infinity from "
            f"client(s) {', '.join(map(str, dropped))} and no other client with positive weight."
        )
    warnings.warn(
        f"left out client(s) {', '.join(map(str, dropped))} of {len(values)}: "
        "NaN or infinity in their updates",
        RuntimeWarning,
        stacklevel=stacklevel,
    )
    return kept


def refuse_bare_integers(collected: _updates.Updates) -> None:
    if collected.is_mapping or not collected.other:
        return
    dtype = collected.entries[0].first.dtype
    raise TypeError(
        f"updates must have a floating dtype, got {dtype}. Convert them first; integer entries are "
        f"combined only inside state dicts.{bytes_remedy(dtype)}"
    )


def _run(
    collected: _updates.Updates,
    buffers: dict[str | None, Buffer],
    values: npt.NDArray[np.float64],
    divisor: float | None,
) -> bool:
    floating = collected.floating
    codes = [DTYPE_CODES[entry.first.dtype] for entry in floating]
    return core.mean(
        [handle for entry in floating for handle in entry.handles],
        [entry.first.size for entry in floating],
        codes,
        [buffers[entry.name].handle for entry in floating],
        codes,
        values.tolist(),
        divisor,
    )


def assemble(
    collected: _updates.Updates,
    buffers: dict[str | None, Buffer],
    values: npt.NDArray[np.float64],
    out: Any,
    integers: str,
    server: Mapping[str, Any] | None,
) -> Any:
    if not collected.is_mapping:
        device = collected.entries[0].device
        if device is not None:
            return _devices.deliver(buffers[None].owner, device, out)
        return buffers[None].owner if out is None else out
    result = {name: buffer.owner for name, buffer in buffers.items()}
    counted = np.flatnonzero(values).tolist()
    for entry in collected.other:
        name = entry.name or ""
        if integers == "server":
            value = _integers.from_server(server, name, entry.first)
        else:
            value = _integers.combine([entry.buffers[k] for k in counted], integers, repr(name))
        if out is not None and entry.device is None:
            _integers.store(value, out[name])
        result[name] = value
    for entry in collected.entries:
        if entry.device is not None:
            name = entry.name or ""
            target = None if out is None else out[name]
            result[name] = _devices.deliver(result[name], entry.device, target)
    if out is not None:
        for name, original in collected.tied.items():
            if out[name] is not out[original]:
                out[name][...] = out[original]
        return out
    for name, original in collected.tied.items():
        result[name] = result[original]
    order: Sequence[str] = collected.names
    return {name: result[name] for name in order}
