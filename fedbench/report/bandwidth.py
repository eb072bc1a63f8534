"""The machine's memory bandwidth: what the aggregation is held against."""

from __future__ import annotations

import threading
import time

import numpy as np

from fedbench.executors.resources import available_cpus

__all__ = ["memory_bandwidth"]

_BYTES = 64 << 20  # for each thread: far more than its share of the caches
_TURNS = 5


def memory_bandwidth(threads: int | None = None) -> float:
    """Measure how fast all cores together copy memory.

    Parameters
    ----------
    threads : int, optional
        Threads that copy at once; the usable cores by default.

    Returns
    -------
    float
        Bytes read and written in a second, the best of a few turns: other programs can only make
        it slower.
    """
    count = available_cpus() if threads is None else threads
    blocks = [np.ones((2, _BYTES // 8)) for _ in range(count)]
    best = 0.0
    for _ in range(_TURNS):
        copies = [threading.Thread(target=np.copyto, args=(to, source)) for source, to in blocks]
        begin = time.perf_counter()
        for copy in copies:
            copy.start()
        for copy in copies:
            copy.join()
        best = max(best, 2 * _BYTES * count / (time.perf_counter() - begin))
    return best
