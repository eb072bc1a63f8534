"""What the partitioners share: checks, random shares, and the minimum per client."""

from __future__ import annotations

import heapq
import inspect
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt

from fedbench.data._checks import IndexArray
from fedbench.registry import did_you_mean

__all__ = [
    "by_owner",
    "check_alpha",
    "check_class_arguments",
    "check_count",
    "check_options",
    "check_partition_arguments",
    "dirichlet_shares",
    "raise_to_minimum",
    "refuse_small",
]


def check_options(
    partitioner: str | Callable[..., object],
    divide: Callable[..., object],
    options: Mapping[str, Any],
) -> None:
    """Refuse options that `divide`, which `partitioner` stands for, does not have."""
    parameters = inspect.signature(divide).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    known = names[3:]  # after targets, num_clients and seed
    for option in options:
        if option not in known:
            there = f" There are {', '.join(known)}." if known else " It has none."
            raise TypeError(
                f"the options of partitioner must be its own, got {option!r} for {partitioner!r}."
                f"{did_you_mean(option, known) or there}"
            )


def dirichlet_shares(
    rng: np.random.Generator, alpha: float, num_clients: int
) -> npt.NDArray[np.float64]:
    """Draw the clients' shares; they sum to 1."""
    shares = rng.dirichlet(np.full(num_clients, alpha))
    if not np.isclose(shares.sum(), 1.0):
        # All gamma draws underflowed: the limit of a tiny alpha is one client with everything.
        shares = np.zeros(num_clients)
        shares[rng.integers(num_clients)] = 1.0
    return shares


def check_partition_arguments(
    targets: npt.ArrayLike, num_clients: int, min_size: int
) -> npt.NDArray[np.generic]:
    """Return the targets as an array after checking what all partitioners have in common."""
    labels = np.asarray(targets)
    if labels.ndim == 0:
        raise TypeError("targets must have one entry per sample, got a scalar. Pass an array.")
    check_count("num_clients", num_clients)
    check_count("min_size", min_size)
    if len(labels) < num_clients * min_size:
        raise ValueError(
            f"num_clients * min_size must be at most the number of samples ({len(labels)}), got "
            f"{num_clients} * {min_size}. Lower num_clients to "
            f"{len(labels) // min_size} or less, or lower min_size."
        )
    return labels


def check_class_arguments(
    targets: npt.ArrayLike, num_clients: int, min_size: int
) -> npt.NDArray[np.int64]:
    """Return the classes as int64 after the checks of the partitioners that look at them."""
    labels = check_partition_arguments(targets, num_clients, min_size)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise TypeError(
            "targets must be a one-dimensional array of integers, got "
            f"{labels.dtype} of shape {labels.shape}. Pass the class of every sample."
        )
    return labels.astype(np.int64)


def check_count(name: str, value: object) -> None:
    """Refuse anything but an integer >= 1."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 1:
        raise ValueError(f"{name} must be an integer >= 1, got {value!r}. Pass at least 1.")


def check_alpha(alpha: object) -> None:
    """Refuse anything but a positive, finite number."""
    if not (isinstance(alpha, Real) and 0 < float(alpha) < math.inf):
        raise ValueError(
            f"alpha must be a positive number, got {alpha!r}. "
            "Use 0.1 for strong and 100 for almost no skew."
        )


def refuse_small(
    parts: list[IndexArray], min_size: int, names: Sequence[Hashable] | None = None
) -> list[IndexArray]:
    """Return `parts`, or refuse them where moving samples would break the partition's promise."""
    for client, part in enumerate(parts):
        if len(part) < min_size:
            raise ValueError(
                f"min_size must be at most the size of the smallest client, got {min_size}, but "
                f"client {names[client] if names else client!r} has {len(part)} samples. "
                "Lower min_size or num_clients, or leave that client's samples out."
            )
    return parts


def by_owner(owner: npt.NDArray[np.int64], num_clients: int) -> list[IndexArray]:
    """Turn the owner of every sample into increasing indices per client."""
    order = np.argsort(owner, kind="stable")
    cuts = np.cumsum(np.bincount(owner, minlength=num_clients))[:-1]
    return np.split(order.astype(np.int64), cuts)


def raise_to_minimum(
    parts: list[IndexArray], labels: npt.NDArray[np.int64], min_size: int
) -> list[IndexArray]:
    """Move samples from the largest clients until every client has `min_size`."""
    needy = {client for client, part in enumerate(parts) if len(part) < min_size}
    if not needy:
        return parts
    result = [part.tolist() for part in parts]
    largest = [(-len(part), client) for client, part in enumerate(result)]
    heapq.heapify(largest)
    for client in sorted(needy):
        while len(result[client]) < min_size:
            size, giver = heapq.heappop(largest)
            if giver in needy or len(result[giver]) != -size:
                continue
            classes = labels[result[giver]]
            frequent = int(np.bincount(classes).argmax())
            moved = int(np.flatnonzero(classes == frequent)[-1])
            result[client].append(result[giver].pop(moved))
            heapq.heappush(largest, (size + 1, giver))
    return [np.array(sorted(part), dtype=np.int64) for part in result]
