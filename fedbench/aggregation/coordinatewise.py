"""Robust rules that look at one coordinate at a time."""

from __future__ import annotations

from typing import Any

from fedbench._native import core
from fedbench.aggregation import _updates
from fedbench.aggregation._robust import Rows, prepare, require_count, result
from fedbench.aggregation._updates import Updates

__all__ = ["mean_around_median", "median", "trimmed_mean"]


def median(updates: Any, *, out: Any = None, nonfinite: str = "raise") -> Any:
    r"""Coordinate-wise median.

    With an odd number of clients, the middle value at each coordinate; with an even number, the
    mean of the middle two, rounded once and without overflow [1]_.

    Parameters
    ----------
    updates : sequence of arrays, sequence of mappings, or array
        One update per client, as for :func:`mean`: numpy arrays or torch CPU tensors of equal
        shape and dtype (float32, float64, float16 or bfloat16), state dicts of them, or one stack
        ``[K, ...]``. Read in place, never modified.
    out : array or mapping of arrays, optional
        Where to write; contiguous, like an update, sharing no memory with the updates. Its
        content is unspecified after a `NonFiniteError`.
    nonfinite : {"raise", "propagate", "drop"}, default "raise"
        For NaN and infinities: refuse them, naming client and entry; let them through (a
        coordinate with NaN gives NaN, infinities are ordered like other values); or leave out
        such a client, with a `RuntimeWarning` that names it.

    Returns
    -------
    array or dict of arrays
        Of the kind, shapes and dtypes of one update. Integer and bool entries of state dicts get
        their lower median, which is a value that a client sent.

    Raises
    ------
    ValueError, TypeError, LayoutError
        As for :func:`mean`.
    NonFiniteError
        If an update is not finite and `nonfinite` is "raise".

    Notes
    -----
    Breakdown point: fewer than K/2 clients can be arbitrary, and the result stays between values
    of the others at every coordinate.
    Time: about K log\ :sup:`2` K comparisons per coordinate, in vectors of coordinates. Memory:
    the result and a tile per thread (K rows of 128 bytes up to 2048 clients, twice that beyond).
    Determinism: a function of the multiset of updates alone, -0 sorted below +0 (an even number
    of clients whose middle values are zeros of any sign gives +0); no order of clients, thread
    count or instruction set changes a bit.

    References
    ----------
    .. [1] Yin, Chen, Ramchandran and Bartlett, "Byzantine-Robust Distributed Learning: Towards
       Optimal Statistical Rates", ICML 2018.

    Examples
    --------
    >>> import numpy as np
    >>> from fedbench import aggregation
    >>> aggregation.median([np.float32([1, 2]), np.float32([3, 9]), np.float32([2, -50])])
    array([2., 2.], dtype=float32)
    """
    collected = prepare(updates, nonfinite)
    return _order_statistic("median", 0, collected, out, nonfinite)


def trimmed_mean(
    updates: Any, *, num_trimmed: int, out: Any = None, nonfinite: str = "raise"
) -> Any:
    r"""Coordinate-wise trimmed mean.

    Leaves out the `num_trimmed` smallest and the `num_trimmed` largest values at each coordinate
    and averages the others; the mean is the real number rounded once [1]_. ``num_trimmed=0`` gives
    the bits of :func:`mean`.

    Parameters
    ----------
    updates : sequence of arrays, sequence of mappings, or array
        One update per client, as for :func:`median`.
    num_trimmed : int
        Values left out on each side, at least 0 and less than K/2.
    out : array or mapping of arrays, optional
        As for :func:`median`.
    nonfinite : {"raise", "propagate", "drop"}, default "raise"
        As for :func:`median`; with "propagate", infinities are trimmed like other values, and a
        coordinate with NaN gives NaN.

    Returns
    -------
    array or dict of arrays
        As for :func:`median`.

    Raises
    ------
    ValueError
        If `num_trimmed` leaves no value. Otherwise as for :func:`median`.
    NonFiniteError
        If an update is not finite and `nonfinite` is "raise".

    Notes
    -----
    Breakdown point: `num_trimmed` arbitrary clients.
    Time, memory and determinism: as for :func:`median`; a few coordinates in ten thousand are
    averaged in exact integers because float64 cannot prove their rounding.

    References
    ----------
    .. [1] Yin, Chen, Ramchandran and Bartlett, "Byzantine-Robust Distributed Learning: Towards
       Optimal Statistical Rates", ICML 2018.

    Examples
    --------
    >>> import numpy as np
    >>> from fedbench import aggregation
    >>> stack = np.float32([[1, 5], [2, 6], [4, 7], [1000, -1000]])
    >>> aggregation.trimmed_mean(stack, num_trimmed=1)
    array([3. , 5.5], dtype=float32)
    """
    collected = prepare(updates, nonfinite)
    trimmed = require_count(
        "num_trimmed",
        num_trimmed,
        0,
        (collected.clients - 1) // 2,
        f"One client at least must be left, and there are {collected.census()}.",
    )
    return _order_statistic("trimmed_mean", trimmed, collected, out, nonfinite)


def mean_around_median(
    updates: Any, *, num_byzantine: int, out: Any = None, nonfinite: str = "raise"
) -> Any:
    r"""Coordinate-wise mean of the K - f values closest to the median.

    At each coordinate the `num_byzantine` values farthest from the median are left out, and the
    mean of the others is the real number rounded once [1]_. The median here is the exact one (of
    an even number of values: the real mean of the middle two), distances are compared without
    rounding, and of two equally far values on both sides the larger is left out.

    Parameters
    ----------
    updates : sequence of arrays, sequence of mappings, or array
        One update per client, as for :func:`median`.
    num_byzantine : int
        Values left out at each coordinate, f: at least 0 and less than K/2.
    out : array or mapping of arrays, optional
        As for :func:`median`.
    nonfinite : {"raise", "propagate", "drop"}, default "raise"
        As for :func:`median`; with "propagate", a coordinate whose median is infinite gives that
        infinity, and one with NaN gives NaN.

    Returns
    -------
    array or dict of arrays
        As for :func:`median`.

    Raises
    ------
    ValueError
        If `num_byzantine` is not less than K/2. Otherwise as for :func:`median`.
    NonFiniteError
        If an update is not finite and `nonfinite` is "raise".

    Notes
    -----
    Breakdown point: `num_byzantine` arbitrary clients, fewer than K/2.
    Time: a full sort of each coordinate and one pass over it. Memory, determinism: as for
    :func:`median`.

    References
    ----------
    .. [1] Xie, Koyejo and Gupta, "Generalized Byzantine-tolerant SGD", 2018 (arXiv:1802.10116).

    Examples
    --------
    >>> import numpy as np
    >>> from fedbench import aggregation
    >>> stack = np.float32([[1, 5], [2, 6], [3, 7], [1000, -1000]])
    >>> aggregation.mean_around_median(stack, num_byzantine=1)
    array([2., 6.], dtype=float32)
    """
    collected = prepare(updates, nonfinite)
    left_out = require_count(
        "num_byzantine",
        num_byzantine,
        0,
        (collected.clients - 1) // 2,
        f"It must be a minority of the {collected.clients} clients.",
    )
    kept = collected.clients - left_out
    return _order_statistic("mean_around_median", kept, collected, out, nonfinite)


def _order_statistic(
    statistic: str, parameter: int, collected: Updates, out: Any, nonfinite: str
) -> Any:
    buffers = _updates.outputs(collected, out)
    rows = Rows.of(collected)
    finite = core.order_statistic(
        statistic,
        parameter,
        collected.clients,
        [handle for entry in collected.floating for handle in entry.handles],
        rows.sizes,
        rows.dtypes,
        rows.of_buffers(buffers),
    )
    if not finite and nonfinite == "raise":
        collected.require_finite(range(collected.clients))
    return result(collected, buffers, out)


def mean_of_closest(collected: Updates, num_kept: int, out: Any) -> Any:
    """Return the mean of the values closest to the median, for rules that end with it."""
    return _order_statistic("mean_around_median", num_kept, collected, out, "propagate")
