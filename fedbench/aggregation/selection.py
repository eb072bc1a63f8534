"""Robust rules that select clients by their distances to each other."""

from __future__ import annotations

from typing import Any

from fedbench.aggregation._distances import PairDistances
from fedbench.aggregation._robust import (
    copy_of,
    mean_of,
    prepare,
    refuse_nonfinite,
    require_count,
)
from fedbench.aggregation._updates import Updates
from fedbench.aggregation.coordinatewise import mean_of_closest

__all__ = ["bulyan", "krum", "multi_krum"]


def krum(updates: Any, *, num_byzantine: int, out: Any = None, nonfinite: str = "raise") -> Any:
    r"""Krum: the update that is closest to its neighbours.

    The score of a client is the sum of its squared Euclidean distances to its K - f - 2 nearest
    other clients; the update of the client with the smallest score is returned, as it is [1]_.

    Parameters
    ----------
    updates : sequence of arrays, sequence of mappings, or array
        One update per client, as for :func:`median`. Distances run over all floating entries.
    num_byzantine : int
        f, the number of clients that may be arbitrary: at least 0, with K >= 2 f + 3.
    out : array or mapping of arrays, optional
        As for :func:`median`.
    nonfinite : {"raise", "propagate", "drop"}, default "raise"
        For NaN and infinities: refuse them, naming client and entry; let them through (such a
        client is infinitely far from all others, so it is only selected if there is no other
        choice); or leave out such a client, with a `RuntimeWarning` that names it.

    Returns
    -------
    array or dict of arrays
        A copy of the selected update, its integer entries included.

    Raises
    ------
    ValueError
        If `num_byzantine` is too large. Otherwise as for :func:`median`.
    NonFiniteError
        If an update is not finite and `nonfinite` is "raise".

    Notes
    -----
    Breakdown point: f of K clients with 2 f + 2 < K.
    Time: O(K\ :sup:`2` N), a product of matrices. Memory: the result, K rows of 32768 float64 and
    K x K numbers.
    Determinism: the matrix product only filters. Scores that its error bound cannot tell apart are
    compared exactly. Of equal scores the update that comes first in the order of its values (entry
    by entry in the order of names) is selected, where the paper takes the client with the smaller
    identifier; so the result is a function of the multiset of updates alone.

    References
    ----------
    .. [1] Blanchard, El Mhamdi, Guerraoui and Stainer, "Machine Learning with Adversaries:
       Byzantine Tolerant Gradient Descent", NeurIPS 2017.

    Examples
    --------
    >>> import numpy as np
    >>> from fedbench import aggregation
    >>> stack = np.float32([[1, 1], [1, 2], [2, 1], [2, 2], [99, 99]])
    >>> aggregation.krum(stack, num_byzantine=1)
    array([1., 1.], dtype=float32)
    """
    collected = _prepare(updates, nonfinite)
    byzantine = _num_byzantine(num_byzantine, collected, 2, 3, "Krum")
    return copy_of(collected, _winners(collected, byzantine, 1)[0], out)


def multi_krum(
    updates: Any,
    *,
    num_byzantine: int,
    num_selected: int | None = None,
    out: Any = None,
    nonfinite: str = "raise",
) -> Any:
    r"""Multi-Krum: the mean of the updates with the smallest Krum scores.

    Parameters
    ----------
    updates : sequence of arrays, sequence of mappings, or array
        One update per client, as for :func:`median`.
    num_byzantine : int
        f, as for :func:`krum`.
    num_selected : int, optional
        How many updates to average, 1 (then this is Krum) to K; K - f - 2 by default [2]_.
    out, nonfinite
        As for :func:`krum`.

    Returns
    -------
    array or dict of arrays
        The mean of the selected updates, the real number rounded once per coordinate. Integer and
        bool entries of state dicts get their lower median over the selected.

    Raises
    ------
    ValueError
        If `num_byzantine` or `num_selected` is out of range. Otherwise as for :func:`median`.
    NonFiniteError
        If an update is not finite and `nonfinite` is "raise".

    Notes
    -----
    Breakdown point: f of K clients with 2 f + 2 < K, for up to K - f - 2 selected.
    Time, memory and determinism: as for :func:`krum`, and one mean.

    References
    ----------
    .. [1] Blanchard, El Mhamdi, Guerraoui and Stainer, "Machine Learning with Adversaries:
       Byzantine Tolerant Gradient Descent", NeurIPS 2017.
    .. [2] Damaskinos, El Mhamdi, Guerraoui, Guirguis and Rouault, "AggregaThor: Byzantine Machine
       Learning via Robust Gradient Aggregation", MLSys 2019.

    Examples
    --------
    >>> import numpy as np
    >>> from fedbench import aggregation
    >>> stack = np.float32([[1, 1], [1, 2], [2, 1], [2, 2], [99, 99]])
    >>> aggregation.multi_krum(stack, num_byzantine=1, num_selected=4)
    array([1.5, 1.5], dtype=float32)
    """
    collected = _prepare(updates, nonfinite)
    byzantine = _num_byzantine(num_byzantine, collected, 2, 3, "Multi-Krum")
    if num_selected is None:
        num_selected = collected.clients - byzantine - 2
    selected = require_count(
        "num_selected",
        num_selected,
        1,
        collected.clients,
        f"There are {collected.clients} clients.",
    )
    winners = _winners(collected, byzantine, selected)
    return mean_of(collected.of_clients(winners), out)


def bulyan(updates: Any, *, num_byzantine: int, out: Any = None, nonfinite: str = "raise") -> Any:
    r"""Bulyan of Krum.

    Selects K - 2 f updates by repeating Krum on the clients that are left (with r of them left, a
    score sums the r - f - 2 nearest, at least one), then takes at each coordinate the mean of the
    K - 4 f selected values closest to their median [1]_.

    Parameters
    ----------
    updates : sequence of arrays, sequence of mappings, or array
        One update per client, as for :func:`median`.
    num_byzantine : int
        f, the number of clients that may be arbitrary: at least 0, with K >= 4 f + 3.
    out, nonfinite
        As for :func:`krum`.

    Returns
    -------
    array or dict of arrays
        Of the kind, shapes and dtypes of one update; each coordinate is rounded once. Integer and
        bool entries of state dicts get their lower median over the selected.

    Raises
    ------
    ValueError
        If `num_byzantine` is too large. Otherwise as for :func:`median`.
    NonFiniteError
        If an update is not finite and `nonfinite` is "raise".

    Notes
    -----
    Breakdown point: f of K clients with K >= 4 f + 3.
    Time: O(K\ :sup:`2` N) for the distances, O(K\ :sup:`3` log K) for the repeated selection, and
    the sort of :func:`mean_around_median`. Memory and determinism: as for :func:`krum`.

    References
    ----------
    .. [1] El Mhamdi, Guerraoui and Rouault, "The Hidden Vulnerability of Distributed Learning in
       Byzantium", ICML 2018.

    Examples
    --------
    >>> import numpy as np
    >>> from fedbench import aggregation
    >>> stack = np.float32([[1], [2], [3], [4], [5], [6], [99]])
    >>> aggregation.bulyan(stack, num_byzantine=1)
    array([3.], dtype=float32)
    """
    collected = _prepare(updates, nonfinite)
    byzantine = _num_byzantine(num_byzantine, collected, 4, 3, "Bulyan")
    distances = PairDistances(collected)
    left = list(range(collected.clients))
    selected: list[int] = []
    while len(selected) < collected.clients - 2 * byzantine:
        neighbours = max(1, len(left) - byzantine - 2)
        winner = distances.krum_winners(left, neighbours, 1)[0]
        selected.append(winner)
        left.remove(winner)
    return mean_of_closest(collected.of_clients(selected), collected.clients - 4 * byzantine, out)


def _prepare(updates: Any, nonfinite: str) -> Updates:
    collected = prepare(updates, nonfinite)
    refuse_nonfinite(collected, nonfinite)
    return collected


def _num_byzantine(value: Any, collected: Updates, factor: int, more: int, rule: str) -> int:
    clients = collected.clients
    if clients < more:
        raise ValueError(
            f"updates must come from at least {more} clients for {rule}, got {collected.census()}."
        )
    return require_count(
        "num_byzantine",
        value,
        0,
        (clients - more) // factor,
        f"{rule} needs at least {factor} f + {more} clients, and there are {collected.census()}.",
    )


def _winners(collected: Updates, byzantine: int, count: int) -> list[int]:
    distances = PairDistances(collected)
    everyone = list(range(collected.clients))
    return distances.krum_winners(everyone, collected.clients - byzantine - 2, count)
