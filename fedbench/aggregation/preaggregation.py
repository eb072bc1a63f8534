"""What is done to the updates before a robust rule: clipping, mixing, bucketing."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedbench.aggregation import _updates
from fedbench.aggregation._distances import PairDistances
from fedbench.aggregation._random import require_generator
from fedbench.aggregation._robust import (
    Rows,
    copy_of,
    fill,
    mean_of,
    prepare,
    refuse_nonfinite,
    require_count,
    require_positive,
    result,
)

__all__ = ["bucketing", "clip_norms", "nearest_neighbor_mixing"]


def clip_norms(updates: Any, *, max_norm: float, nonfinite: str = "raise") -> list[Any]:
    r"""Scale each update down to a Euclidean norm of at most `max_norm`.

    An update whose norm over all floating entries exceeds `max_norm` is multiplied by
    ``max_norm / norm`` (a float64), each product rounded once; others are copied. Bounds what one
    client can do to a mean [1]_.

    Parameters
    ----------
    updates : sequence of arrays, sequence of mappings, or array
        One update per client, as for :func:`median`.
    max_norm : float
        Positive, in the units of the updates.
    nonfinite : {"raise", "propagate", "drop"}, default "raise"
        For NaN and infinities: refuse them, naming client and entry; make such a client's update
        NaN everywhere; or leave it out, with a `RuntimeWarning` that names it.

    Returns
    -------
    list of arrays or of dicts of arrays
        New updates in the order of the clients, with integer entries as they were. Rounding may
        leave a norm above `max_norm` by a few units in the last place.

    Raises
    ------
    ValueError
        If `max_norm` is not positive. Otherwise as for :func:`median`.
    NonFiniteError
        If an update is not finite and `nonfinite` is "raise".

    Notes
    -----
    Breakdown point: that of the rule that follows; one client moves a plain mean of K by at most
    ``2 * max_norm / K``.
    Time: two passes. Memory: the new updates, K vectors.
    Determinism: each result is a function of that client's update and its layout.

    References
    ----------
    .. [1] Sun, Kairouz, Suresh and McMahan, "Can You Really Backdoor Federated Learning?", 2019
       (arXiv:1911.07963).

    Examples
    --------
    >>> import numpy as np
    >>> from fedbench import aggregation
    >>> aggregation.clip_norms([np.float32([3, 4]), np.float32([0.3, 0.4])], max_norm=1.0)
    [array([0.6, 0.8], dtype=float32), array([0.3, 0.4], dtype=float32)]
    """
    limit = require_positive("max_norm", max_norm)
    collected = prepare(updates, nonfinite)
    refuse_nonfinite(collected, nonfinite)
    rows = Rows.of(collected)
    clipped = []
    for client in range(collected.clients):
        finite = collected.first_nonfinite(client) is None
        factor = rows.shrinkage(client, [], limit) if finite else float("nan")
        if factor == 1.0:
            clipped.append(copy_of(collected, client, None))
            continue
        alone = collected.of_clients([client])
        buffers = _updates.outputs(alone, None)
        if finite:
            Rows.of(alone).mean(np.array([factor]), 1.0, buffers)
        else:
            fill(buffers, factor)
        clipped.append(result(alone, buffers, None))
    return clipped


def nearest_neighbor_mixing(
    updates: Any, *, num_byzantine: int, nonfinite: str = "raise"
) -> list[Any]:
    r"""Replace each update by the mean of its K - f nearest ones, itself included (NNM).

    Makes any robust rule that follows optimal under heterogeneous clients [1]_.

    Parameters
    ----------
    updates : sequence of arrays, sequence of mappings, or array
        One update per client, as for :func:`median`. Distances run over all floating entries.
    num_byzantine : int
        f, the number of clients that may be arbitrary: at least 0 and less than K/2.
    nonfinite : {"raise", "propagate", "drop"}, default "raise"
        As for :func:`krum`.

    Returns
    -------
    list of arrays or of dicts of arrays
        New updates in the order of the clients; each coordinate is rounded once. Integer and bool
        entries of state dicts get their lower median over the neighbours.

    Raises
    ------
    ValueError
        If `num_byzantine` is not less than K/2. Otherwise as for :func:`median`.
    NonFiniteError
        If an update is not finite and `nonfinite` is "raise".

    Notes
    -----
    Breakdown point: that of the rule that follows, with f < K/2.
    Time: O(K\ :sup:`2` N) for the distances and for the K means. Memory: the new updates, K
    vectors, and what :func:`krum` needs.
    Determinism: as for :func:`krum`; of equally near neighbours those that come first in the order
    of their values are taken. Permuting the clients permutes the results.

    References
    ----------
    .. [1] Allouah, Farhadkhani, Guerraoui, Gupta, Pinot and Stephan, "Fixing by Mixing: A Recipe
       for Optimal Byzantine ML under Heterogeneity", AISTATS 2023.

    Examples
    --------
    >>> import numpy as np
    >>> from fedbench import aggregation
    >>> stack = np.float32([[1], [2], [3], [99]])
    >>> aggregation.nearest_neighbor_mixing(stack, num_byzantine=1)[3]
    array([34.666668], dtype=float32)
    """
    collected = prepare(updates, nonfinite)
    refuse_nonfinite(collected, nonfinite)
    byzantine = require_count(
        "num_byzantine",
        num_byzantine,
        0,
        (collected.clients - 1) // 2,
        f"It must be a minority of the {collected.clients} clients.",
    )
    distances = PairDistances(collected)
    kept = collected.clients - byzantine
    return [
        mean_of(collected.of_clients(distances.nearest(client, kept)), None)
        for client in range(collected.clients)
    ]


def bucketing(
    updates: Any, *, bucket_size: int, rng: np.random.Generator, nonfinite: str = "raise"
) -> list[Any]:
    r"""Average the updates in random buckets.

    Draws a permutation of the clients and returns the means of every `bucket_size` of them in a
    row; the last bucket takes what is left. Reduces the clients' variance by the bucket size before
    a robust rule, at the price of as many more suspicious inputs [1]_.

    Parameters
    ----------
    updates : sequence of arrays, sequence of mappings, or array
        One update per client, as for :func:`median`.
    bucket_size : int
        s, from 1 to K.
    rng : numpy.random.Generator
        Draws the permutation.
    nonfinite : {"raise", "propagate", "drop"}, default "raise"
        For NaN and infinities: refuse them, naming client and entry; let them through into the
        mean of their bucket; or leave out such a client, with a `RuntimeWarning` that names it.

    Returns
    -------
    list of arrays or of dicts of arrays
        One new update per bucket, K / s rounded up; each coordinate is rounded once. Integer and
        bool entries of state dicts get their lower median over the bucket.

    Raises
    ------
    ValueError
        If `bucket_size` is out of range. Otherwise as for :func:`median`.
    TypeError
        If `rng` is not a numpy Generator.
    NonFiniteError
        If an update is not finite and `nonfinite` is "raise".

    Notes
    -----
    Breakdown point: f arbitrary clients spoil at most f of the K/s buckets.
    Time: one pass. Memory: the new updates.
    Determinism: a function of the order of the clients and the state of `rng`; give the clients in
    a fixed order.

    References
    ----------
    .. [1] Karimireddy, He and Jaggi, "Byzantine-Robust Learning on Heterogeneous Datasets via
       Bucketing", ICLR 2022.

    Examples
    --------
    >>> import numpy as np
    >>> from fedbench import aggregation
    >>> stack = np.float32([[1], [2], [3], [4], [5]])
    >>> rng = np.random.default_rng(0)
    >>> aggregation.bucketing(stack, bucket_size=2, rng=rng)
    [array([4.], dtype=float32), array([2.5], dtype=float32), array([2.], dtype=float32)]
    """
    require_generator(rng)
    collected = prepare(updates, nonfinite)
    refuse_nonfinite(collected, nonfinite)
    size = require_count(
        "bucket_size", bucket_size, 1, collected.clients, f"There are {collected.clients} clients."
    )
    order = rng.permutation(collected.clients).tolist()
    return [
        mean_of(collected.of_clients(order[start : start + size]), None)
        for start in range(0, len(order), size)
    ]
