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
import weakref
from collections.abc import Mapping
from typing import Any

import psutil

from fedbench._native import core
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
    return int(min(_KEPT_BYTES, _memory() / (8 * available_cpus())))


def _memory() -> float:
    return min(psutil.virtual_memory().total, memory_limit())


def keep_freed_memory() -> None:
    """Have this process, a worker of an executor, keep freed memory until it ends.

    Blocks of every size then come from the heap, whose free parts are used again.
    """
    kept = kept_bytes()
    _set({_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: kept, _M_TOP_PAD: kept // 16})


class KeptMemory:
    """Has this process, the caller's own, keep freed memory as long as one of these is held.

    Blocks of more than 32 MiB still go back to the system at once. Afterwards what was kept is
    given back, and the allocator has the settings that it reaches by itself in a process that
    frees blocks of that size. One that is dropped lets go.
    """

    def __init__(self) -> None:
        self._let_go: weakref.finalize[..., KeptMemory] | None = None

    def hold(self) -> None:
        """Keep freed memory from now on; holding twice is holding once."""
        if self._let_go is None or not self._let_go.alive:
            _holders.add()
            self._let_go = weakref.finalize(self, _holders.remove)
            self._let_go.atexit = False

    def release(self) -> None:
        """Let go; the last holder to do so lets the allocator give memory back again."""
        if self._let_go is not None:
            self._let_go()


class _Holders:
    def __init__(self) -> None:
        self.count = 0
        self.after_fork()

    def after_fork(self) -> None:
        # Another thread may have had it, which does not exist in the child. Reentrant: what is
        # collected meanwhile may let go, too.
        self.lock = threading.RLock()

    def add(self) -> None:
        with self.lock:
            self.count += 1
            if self.count == 1:
                kept = kept_bytes()
                _set({**_LARGE_BLOCKS, _M_TRIM_THRESHOLD: kept, _M_TOP_PAD: kept // 16})
                # Room for the updates of a whole round, which are all alive at its end.
                core.keep_buffers(int(_memory() / 8))

    def remove(self) -> None:
        with self.lock:
            self.count -= 1
            if not self.count:
                _set(_BY_ITSELF, trim=True)
                core.keep_buffers()


_holders = _Holders()
os.register_at_fork(after_in_child=_holders.after_fork)


def _set(options: Mapping[int, int], *, trim: bool = False) -> None:
    chosen = "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if chosen or any(name in os.environ for name in _VARIABLES):
        return
    library: Any = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):  # musl and macOS have none
        for option, value in options.items():
            library.mallopt(option, value)
        if trim:
            library.malloc_trim(0)
