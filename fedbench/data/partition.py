"""Division of samples over clients.

Every partitioner is a function ``(targets, num_clients, seed, **options)`` that returns one
int64 array of sample indices per client, in increasing order. Every sample is in exactly one
array. The result depends on the arguments alone: no global generator is read or moved.
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
import numpy.typing as npt

from fedbench.reproducibility import numpy_generator

__all__ = ["dirichlet", "iid", "partition"]

IndexArray = npt.NDArray[np.int64]


def partition(
    name: str, targets: npt.ArrayLike, num_clients: int, seed: int = 0, **options: Any
) -> list[IndexArray]:
    """Divide samples with the registered partitioner `name`.

    Parameters
    ----------
    name : str
        A name of ``fedbench.data.PARTITIONERS``.
    targets : array_like
        Classes of the samples, integers of shape ``[n]``.
    num_clients : int
        Number of clients.
    seed : int
        Seed of the partition.
    **options
        Options of the partitioner.

    Returns
    -------
    list of numpy.ndarray
        int64 sample indices of every client, in increasing order.
    """
    from fedbench.data import PARTITIONERS

    parts: list[IndexArray] = PARTITIONERS.load(name)(targets, num_clients, seed, **options)
    return parts


def iid(
    targets: npt.ArrayLike, num_clients: int, seed: int = 0, *, min_size: int = 1
) -> list[IndexArray]:
    """Give every client an equal share of the shuffled samples; sizes differ by one at most.

    Parameters
    ----------
    targets : array_like
        Classes of the samples, ``[n]``; only their number matters.
    num_clients : int
        Number of clients.
    seed : int
        Seed of the shuffle.
    min_size : int
        Least number of samples per client.

    Returns
    -------
    list of numpy.ndarray
        int64 sample indices of every client, in increasing order.

    Raises
    ------
    ValueError
        If there are fewer than ``num_clients * min_size`` samples.
    """
    num_samples = len(_check(targets, num_clients, min_size))
    order = numpy_generator(seed, "partition", "iid").permutation(num_samples)
    return [np.sort(part) for part in np.array_split(order, num_clients)]


def dirichlet(
    targets: npt.ArrayLike,
    num_clients: int,
    seed: int = 0,
    *,
    alpha: float = 0.5,
    min_size: int = 1,
) -> list[IndexArray]:
    """Divide every class over the clients by proportions drawn from a Dirichlet distribution.

    The scheme of Yurochkin et al. (2019) and of the NIID-Bench study (Li et al., 2022): for
    each class ``k``, ``p_k ~ Dirichlet(alpha, ..., alpha)`` over the clients, and client ``i``
    gets the share ``p_ki`` of the class's samples. Small `alpha` means strong label skew and
    unequal sizes. Where these papers draw again until every client has enough samples, which
    may never end, clients below `min_size` here get samples from the client that is largest
    at that moment, of its most frequent class.

    Parameters
    ----------
    targets : array_like
        Classes of the samples, integers of shape ``[n]``.
    num_clients : int
        Number of clients.
    seed : int
        Seed of the proportions and of the shuffle within each class.
    alpha : float
        Concentration, > 0.
    min_size : int
        Least number of samples per client.

    Returns
    -------
    list of numpy.ndarray
        int64 sample indices of every client, in increasing order.

    Raises
    ------
    ValueError
        If `alpha` is not positive and finite, or there are fewer than
        ``num_clients * min_size`` samples.
    """
    labels = _check(targets, num_clients, min_size)
    if not (np.isfinite(alpha) and alpha > 0):
        raise ValueError(
            f"alpha must be a positive number, got {alpha!r}. "
            "Use 0.1 for strong and 100 for almost no label skew."
        )
    rng = numpy_generator(seed, "partition", "dirichlet")
    owner = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        shares = _dirichlet_shares(rng, alpha, num_clients)
        cuts = np.round(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
        for client, part in enumerate(np.split(members, cuts)):
            owner[part] = client
    return _raise_to_minimum(_by_owner(owner, num_clients), labels, min_size)


def _dirichlet_shares(
    rng: np.random.Generator, alpha: float, num_clients: int
) -> npt.NDArray[np.float64]:
    shares = rng.dirichlet(np.full(num_clients, alpha))
    if not np.isclose(shares.sum(), 1.0):
        # All gamma draws underflowed: the limit of a tiny alpha is one client with everything.
        shares = np.zeros(num_clients)
        shares[rng.integers(num_clients)] = 1.0
    return shares


def _check(targets: npt.ArrayLike, num_clients: int, min_size: int) -> npt.NDArray[np.int64]:
    """Return the classes as int64 after checking what all partitioners have in common."""
    labels = np.asarray(targets)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise TypeError(
            "targets must be a one-dimensional array of integers, got "
            f"{labels.dtype} of shape {labels.shape}. Pass the class of every sample."
        )
    for name, value in (("num_clients", num_clients), ("min_size", min_size)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} must be an integer >= 1, got {value!r}. Pass at least 1.")
    if len(labels) < num_clients * min_size:
        raise ValueError(
            f"num_clients * min_size must be at most the number of samples ({len(labels)}), got "
            f"{num_clients} * {min_size}. Lower num_clients to "
            f"{len(labels) // min_size} or less, or lower min_size."
        )
    return labels.astype(np.int64)


def _by_owner(owner: npt.NDArray[np.int64], num_clients: int) -> list[IndexArray]:
    """Turn the owner of every sample into increasing indices per client."""
    order = np.argsort(owner, kind="stable")
    cuts = np.cumsum(np.bincount(owner, minlength=num_clients))[:-1]
    return np.split(order.astype(np.int64), cuts)


def _raise_to_minimum(
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
