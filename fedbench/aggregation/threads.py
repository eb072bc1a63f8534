"""How many threads one aggregation call may use."""

from __future__ import annotations

import operator

from fedbench._native import core

__all__ = ["get_num_threads", "set_num_threads"]


def get_num_threads() -> int:
    """Return how many threads one call may use, the caller's included.

    At first that is the number of processors this process may run on, or the environment
    variable ``FEDBENCH_NUM_THREADS``. Small inputs use one thread whatever the number.

    Returns
    -------
    int
    """
    return core.num_threads()


def set_num_threads(threads: int) -> None:
    """Set how many threads one call may use, for all threads of this process.

    Results do not depend on it: threads split coordinates, never clients.

    Parameters
    ----------
    threads : int
        From 1 to 1024, the calling thread included.

    Raises
    ------
    ValueError
        If it is out of range.
    """
    core.set_num_threads(operator.index(threads))
