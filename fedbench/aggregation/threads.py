"""How many threads one aggregation call may use."""

from __future__ import annotations

from fedbench._native import core
from fedbench.aggregation._robust import require_count

__all__ = ["get_num_threads", "set_num_threads"]

_LARGEST = 1024  # that of the kernels' thread pool


def get_num_threads() -> int:
    """Return how many threads one call may use, the caller's included.

    At first that is the number of processors this process may run on, or the environment
    variable ``FEDBENCH_NUM_THREADS``. Small inputs use one thread whatever the number. In a worker
    of an executor it is at most the worker's share of the processors.

    Returns
    -------
    int
    """
    return core.num_threads()


def set_num_threads(threads: int) -> None:
    """Set how many threads one call may use, for all threads of this process.

    Results do not depend on it: threads split coordinates, never clients. Worker threads of an
    executor keep to their share of the processors.

    Parameters
    ----------
    threads : int
        From 1 to 1024, the calling thread included.

    Raises
    ------
    TypeError
        If it is not an integer.
    ValueError
        If it is out of range.
    """
    why = "Small inputs use one thread whatever the number."
    core.set_num_threads(require_count("threads", threads, 1, _LARGEST, why))
