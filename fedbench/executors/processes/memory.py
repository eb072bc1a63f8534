"""Anonymous shared memory that two processes map: no names, so nothing can stay behind.

An :class:`Arena` is one memory file (``memfd``), shared by passing its descriptor to a worker at
start. It only ever grows: an :class:`Extent` is a range of it that either side maps when it needs
to, and freeing one gives its pages back to the system while its offsets stay unused. So one
descriptor serves any number of tensors, and a mapping lives as long as something looks at it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil

from fedbench.executors.guard import ALIGNMENT
from fedbench.executors.processes.system import above_standard_streams
from fedbench.executors.resources import memory_limit

__all__ = ["PAGE", "Arena", "Extent", "Mapping", "lay_out"]

PAGE = mmap.PAGESIZE

_PROT_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_MAP_POPULATE = 0x8000
_MADV_DONTNEED = 4
_FALLOC_FL_KEEP_SIZE_PUNCH_HOLE = 0x01 | 0x02
_RESERVE = 64 * 2**20
"""Bytes of memory left to the rest of the machine when a request is checked."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_longlong,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong]


@dataclass(frozen=True)
class Extent:
    """A range of an arena, in bytes, that starts and ends on page boundaries."""

    offset: int
    length: int


def lay_out(sizes: list[int]) -> tuple[list[int], int]:
    """Return aligned offsets for buffers of these sizes, and the length of them all."""
    offsets = []
    end = 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // ALIGNMENT) * ALIGNMENT
    return offsets, end


class Arena:
    """A growing anonymous memory file.

    Parameters
    ----------
    fd : int, optional
        The descriptor of an arena made by another process; by default a new one is made.
    """

    def __init__(self, fd: int | None = None) -> None:
        if fd is None:
            fd = above_standard_streams(os.memfd_create("fedbench", os.MFD_CLOEXEC))
        self.fd = fd
        self._end = os.fstat(self.fd).st_size

    def allocate(self, num_bytes: int) -> Extent:
        """Return a new extent of at least `num_bytes`, backed by real pages.

        Only one process allocates from an arena.

        Raises
        ------
        OSError
            If there is too little memory. Checked beforehand, because a page that cannot be
            provided later ends the process that touches it.
        """
        length = -(-num_bytes // PAGE) * PAGE
        available = min(psutil.virtual_memory().available, memory_limit())
        if length + _RESERVE > available:
            raise OSError(f"{length} bytes of shared memory are not available ({available} are)")
        extent = Extent(self._end, length)
        os.posix_fallocate(self.fd, extent.offset, length)
        self._end += length
        return extent

    def free(self, extent: Extent) -> None:
        """Give an extent's pages back to the system, whoever still maps them."""
        _libc.fallocate(self.fd, _FALLOC_FL_KEEP_SIZE_PUNCH_HOLE, extent.offset, extent.length)

    def map_shared(self, extent: Extent) -> Mapping:
        """Map an extent so that both sides see what either writes."""
        return Mapping(self.fd, extent, mmap.MAP_SHARED | _MAP_POPULATE)

    def map_private(self, extent: Extent) -> Mapping:
        """Map an extent so that writes stay in this process and never reach the arena."""
        return Mapping(self.fd, extent, mmap.MAP_PRIVATE)

    def close(self) -> None:
        """Close the descriptor; what is mapped stays."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Mapping:
    """A mapped extent, unmapped when neither this object nor any view of it is left.

    The standard library's ``mmap`` is no help here: it keeps a descriptor per mapping.
    """

    def __init__(self, fd: int, extent: Extent, flags: int) -> None:
        address = _libc.mmap(None, extent.length, _PROT_READ_WRITE, flags, fd, extent.offset)
        if address in (None, ctypes.c_void_p(-1).value):
            code = ctypes.get_errno()
            raise OSError(code, f"cannot map {extent.length} bytes: {os.strerror(code)}")
        self.extent = extent
        self._address: int = address
        self._kind = ctypes.c_ubyte * extent.length
        weakref.finalize(self, _libc.munmap, address, extent.length).atexit = False

    def view(self, on_release: Callable[..., Any] | None = None, *args: Any) -> memoryview:
        """Return the memory as writable bytes.

        Parameters
        ----------
        on_release : callable, optional
            Called with `args` when the last reference to the memory through this view is gone,
            on whatever thread that happens.
        """
        root = self._kind.from_address(self._address)
        weakref.finalize(root, _released, self, on_release, args).atexit = False
        return memoryview(root).cast("B")

    def drop_private_writes(self) -> None:
        """Forget what was written through a private mapping."""
        if self._has_private_pages():
            _libc.madvise(self._address, self.extent.length, _MADV_DONTNEED)

    def _has_private_pages(self) -> bool:
        # Looking costs a tenth of mapping clean pages anew.
        num_pages = self.extent.length // PAGE
        try:
            fd = os.open("/proc/self/pagemap", os.O_RDONLY)
        except OSError:  # a sandbox may hide it
            return True
        try:
            entries = os.pread(fd, num_pages * 8, self._address // PAGE * 8)
        finally:
            os.close(fd)
        flags = np.frombuffer(entries, np.uint64)
        # Bit 63: the page is present. Bit 61: it still is the file's own page.
        present, shared = flags >> np.uint64(63) & 1, flags >> np.uint64(61) & 1
        return bool((present > shared).any())


def _released(_mapping: Mapping, on_release: Callable[..., Any] | None, args: tuple[Any]) -> None:
    # The finalizer's reference is what keeps the mapping as long as the view.
    if on_release is not None:
        on_release(*args)
