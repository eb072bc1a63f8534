"""Division of samples over clients.

Every partitioner is a function ``(targets, num_clients, seed, **options)`` that returns one
int64 array of sample indices per client, in increasing order. Every sample is in exactly one
array. The result depends on the arguments alone: no global generator is read or moved.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedbench.data._checks import IndexArray
from fedbench.data._partition_tools import (
    by_owner,
    check_alpha,
    check_class_arguments,
    check_count,
    check_options,
    check_partition_arguments,
    dirichlet_shares,
    raise_to_minimum,
    refuse_small,
)
from fedbench.reproducibility import numpy_generator

__all__ = [
    "classes",
    "dirichlet",
    "iid",
    "natural",
    "partition",
    "quantity",
    "shards",
]


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

    divide = PARTITIONERS.load(name)
    check_options(name, divide, options)
    parts: list[IndexArray] = divide(targets, num_clients, seed, **options)
    return parts


def iid(
    targets: npt.ArrayLike, num_clients: int, seed: int = 0, *, min_size: int = 1
) -> list[IndexArray]:
    """Give every client an equal share of the shuffled samples; sizes differ by one at most.

    Parameters
    ----------
    targets : array_like
        Targets of the samples, ``[n, ...]``; only their number matters.
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
    num_samples = len(check_partition_arguments(targets, num_clients, min_size))
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
    labels = check_class_arguments(targets, num_clients, min_size)
    check_alpha(alpha)
    rng = numpy_generator(seed, "partition", "dirichlet")
    owner = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        shares = dirichlet_shares(rng, alpha, num_clients)
        cuts = np.round(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
        for client, part in enumerate(np.split(members, cuts)):
            owner[part] = client
    return raise_to_minimum(by_owner(owner, num_clients), labels, min_size)


def shards(
    targets: npt.ArrayLike,
    num_clients: int,
    seed: int = 0,
    *,
    shards_per_client: int = 2,
    min_size: int = 1,
) -> list[IndexArray]:
    """Sort the samples by class, cut them into equal shards and deal these out.

    The pathological partition of McMahan et al. (2017): with 2 shards per client most clients
    have samples of two classes only.

    Parameters
    ----------
    targets : array_like
        Classes of the samples, integers of shape ``[n]``.
    num_clients : int
        Number of clients.
    seed : int
        Seed of the order within each class and of the dealing.
    shards_per_client : int
        Shards that each client gets. Shard sizes differ by one sample at most.
    min_size : int
        Least number of samples per client.

    Returns
    -------
    list of numpy.ndarray
        int64 sample indices of every client, in increasing order.

    Raises
    ------
    ValueError
        If there are fewer samples than shards or than ``num_clients * min_size``, or if a
        client would get fewer than `min_size`.
    """
    labels = check_class_arguments(targets, num_clients, min_size)
    check_count("shards_per_client", shards_per_client)
    count = num_clients * shards_per_client
    if len(labels) < count:
        raise ValueError(
            f"num_clients * shards_per_client must be at most the number of samples "
            f"({len(labels)}), got {num_clients} * {shards_per_client}. Lower one of them."
        )
    rng = numpy_generator(seed, "partition", "shards")
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    pieces = np.array_split(by_class, count)
    hands = rng.permutation(count).reshape(num_clients, shards_per_client)
    parts = [np.sort(np.concatenate([pieces[shard] for shard in hand])) for hand in hands]
    return refuse_small(parts, min_size)


def classes(
    targets: npt.ArrayLike,
    num_clients: int,
    seed: int = 0,
    *,
    classes_per_client: int = 2,
    min_size: int = 1,
) -> list[IndexArray]:
    """Give every client samples of exactly `classes_per_client` classes.

    The label skew ``#C = k`` of the NIID-Bench study (Li et al., 2022): classes are dealt to
    the clients, here so that the numbers of clients per class differ as little as possible,
    and the samples of a class are divided equally over the clients that hold it.

    Parameters
    ----------
    targets : array_like
        Classes of the samples, integers of shape ``[n]``.
    num_clients : int
        Number of clients.
    seed : int
        Seed of the choice of classes and of the shuffle within each class.
    classes_per_client : int
        Number of classes per client, at most the number of classes in `targets`.
    min_size : int
        Least number of samples per client.

    Returns
    -------
    list of numpy.ndarray
        int64 sample indices of every client, in increasing order.

    Raises
    ------
    ValueError
        If some class would have no client or fewer samples than clients, or some client fewer
        than `min_size` samples.
    """
    labels = check_class_arguments(targets, num_clients, min_size)
    check_count("classes_per_client", classes_per_client)
    present = np.unique(labels)
    if classes_per_client > len(present):
        raise ValueError(
            f"classes_per_client must be at most the number of classes ({len(present)}), got "
            f"{classes_per_client}. Lower it."
        )
    if num_clients * classes_per_client < len(present):
        raise ValueError(
            f"num_clients * classes_per_client must be at least the number of classes "
            f"({len(present)}), got {num_clients} * {classes_per_client}: some samples would "
            "belong to no client. Raise one of them."
        )
    rng = numpy_generator(seed, "partition", "classes")
    holders = _deal_classes(rng, num_clients, len(present), classes_per_client)
    owner = np.empty(len(labels), np.int64)
    for position, label in enumerate(present):
        members = rng.permutation(np.flatnonzero(labels == label))
        clients = rng.permutation(np.flatnonzero((holders == position).any(axis=1)))
        if len(members) < len(clients):
            raise ValueError(
                f"targets must have a sample of class {label} for each of the {len(clients)} "
                f"clients that hold it, got {len(members)}. Lower num_clients or "
                "classes_per_client."
            )
        for client, part in zip(clients, np.array_split(members, len(clients)), strict=True):
            owner[part] = client
    return refuse_small(by_owner(owner, num_clients), min_size)


def quantity(
    targets: npt.ArrayLike,
    num_clients: int,
    seed: int = 0,
    *,
    alpha: float = 0.5,
    min_size: int = 1,
) -> list[IndexArray]:
    """Give the clients different numbers of samples, all of the same class distribution.

    The quantity skew of the NIID-Bench study (Li et al., 2022): the shares of the clients are
    drawn from ``Dirichlet(alpha, ..., alpha)``. Every client first gets `min_size` samples; the
    shares divide what is left.

    Parameters
    ----------
    targets : array_like
        Targets of the samples, ``[n, ...]``; only their number matters.
    num_clients : int
        Number of clients.
    seed : int
        Seed of the shares and of the shuffle.
    alpha : float
        Concentration, > 0; small values give very unequal sizes.
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
    num_samples = len(check_partition_arguments(targets, num_clients, min_size))
    check_alpha(alpha)
    rng = numpy_generator(seed, "partition", "quantity")
    shares = np.cumsum(dirichlet_shares(rng, alpha, num_clients))[:-1]
    spare = num_samples - num_clients * min_size
    cuts = np.round(shares * spare).astype(np.int64) + min_size * np.arange(1, num_clients)
    return [np.sort(part) for part in np.split(rng.permutation(num_samples), cuts)]


def natural(
    targets: npt.ArrayLike,
    num_clients: int,
    seed: int = 0,
    *,
    keys: Sequence[Hashable],
    min_size: int = 1,
) -> list[IndexArray]:
    """Make one client of the samples of each key: their writer, speaker or device.

    Parameters
    ----------
    targets : array_like
        Targets of the samples, ``[n, ...]``; only their number matters.
    num_clients : int
        Number of clients, which must be the number of different keys.
    seed : int
        Ignored: nothing is drawn.
    keys : sequence of hashable
        The key of every sample. Clients are in the order in which their keys appear.
    min_size : int
        Least number of samples per client.

    Returns
    -------
    list of numpy.ndarray
        int64 sample indices of every client, in increasing order.

    Raises
    ------
    ValueError
        If there is not one key per sample, if `num_clients` is not the number of keys, or if a
        key has fewer than `min_size` samples.
    """
    labels = check_partition_arguments(targets, num_clients, min_size)
    if len(keys) != len(labels):
        raise ValueError(
            f"keys must have one key per sample ({len(labels)}), got {len(keys)}. "
            "Give every sample the name of its client."
        )
    positions: dict[Hashable, int] = {}
    owner = np.array([positions.setdefault(key, len(positions)) for key in keys], np.int64)
    if num_clients != len(positions):
        raise ValueError(
            f"num_clients must be the number of different keys ({len(positions)}), got "
            f"{num_clients}. Pass that number."
        )
    return refuse_small(by_owner(owner, num_clients), min_size, list(positions))


def _deal_classes(
    rng: np.random.Generator, num_clients: int, num_classes: int, per_client: int
) -> npt.NDArray[np.int64]:
    """Return ``[num_clients, per_client]`` different classes per client, evenly used."""
    used = np.zeros(num_classes, np.int64)
    hands = np.empty((num_clients, per_client), np.int64)
    for client in range(num_clients):
        # Least used classes first, ties at random: counts never differ by more than one.
        order = np.lexsort((rng.random(num_classes), used))
        hands[client] = order[:per_client]
        used[hands[client]] += 1
    return hands
