"""What glibc's allocator does with freed memory while client tasks run.

By default it gives large blocks back to the system on every free, so each training step has its
activations and gradients zeroed and mapped anew: a quarter of the time of a small CNN, and a
third of a step of ResNet-18. Where tasks run it keeps that memory for the next step instead.

Nothing is changed on a system whose C library has no ``mallopt``, or where the environment sets
the allocator already (``MALLOC_TRIM_THRESHOLD_`` and its like, or ``GLIBC_TUNABLES``).
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Mapping
from typing import Any

import psutil

from fedbench.executors.resources import available_cpus, memory_limit

__all__ = ["KeptMemory", "keep_freed_memory", "kept_bytes"]

_KEPT_BYTES = 2**30
"""Free memory that an arena of the allocator keeps at most."""

# From malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -2, -3, -4
_LARGEST_MMAP_THRESHOLD = 32 * 2**20
"""More is refused. The allocator itself ends here once blocks of this size were freed."""
_LARGE_BLOCKS = {_M_MMAP_THRESHOLD: _LARGEST_MMAP_THRESHOLD}
_BY_ITSELF = {
    **_LARGE_BLOCKS,
    _M_TRIM_THRESHOLD: 2 * _LARGEST_MMAP_THRESHOLD,
    _M_TOP_PAD: 128 * 2**10,
}

_VARIABLES = (
    "MALLOC_MMAP_MAX_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
)
"""What a user may have set instead."""


def kept_bytes() -> int:
    """Return how many free bytes are kept where tasks run, at most."""
    total = min(psutil.virtual_memory().total, memory_limit())
    return int(min(_KEPT_BYTES, total / (8 * available_cpus())))


def keep_freed_memory() -> None:
    """Have this process, a worker of an executor, keep freed memory until it ends.

    Blocks of every size then come from the heap, whose free parts are used again.
    """
    kept = kept_bytes()
    _set({_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: kept, _M_TOP_PAD: kept // 16})


class KeptMemory:
    """Has this process, the caller's own, keep freed memory as long as one of these is held.

    Blocks of more than 32 MiB still go back to the system at once. Afterwards the allocator has
    the settings that it reaches by itself in a process that frees blocks of that size.
    """

    _lock = threading.Lock()
    _holders = 0

    def __init__(self) -> None:
        self._held = False

    def hold(self) -> None:
        """Keep freed memory from now on; holding twice is holding once."""
        with self._lock:
            if not self._held:
                self._held = True
                KeptMemory._holders += 1
                if KeptMemory._holders == 1:
                    kept = kept_bytes()
                    _set({**_LARGE_BLOCKS, _M_TRIM_THRESHOLD: kept, _M_TOP_PAD: kept // 16})

    def release(self) -> None:
        """Let go; the last holder to do so lets the allocator give memory back again."""
        with self._lock:
            if self._held:
                self._held = False
                KeptMemory._holders -= 1
                if not KeptMemory._holders:
                    _set(_BY_ITSELF)


def _set(options: Mapping[int, int]) -> None:
    chosen = "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if chosen or any(name in os.environ for name in _VARIABLES):
        return
    mallopt: Any = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # musl and macOS have none
        for option, value in options.items():
            mallopt(option, value)
