"""The caller's side of the down arena: the broadcast of a map, and resident constants."""

from __future__ import annotations

import warnings
import weakref
from typing import Any

from fedbench._native import core
from fedbench.executors.packing import pack
from fedbench.executors.processes.memory import Arena, Extent, Mapping, lay_out
from fedbench.executors.processes.protocol import Parcel, Slot, split
from fedbench.executors.processes.worker import load_resident
from fedbench.executors.resident import Resident

__all__ = ["Downlink"]


class Downlink:
    """Places what workers read in shared memory.

    Parameters
    ----------
    arena : Arena
        Shared with all workers; only this object allocates from it.
    """

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.forgotten: list[int] = []
        """Keys of resident constants that are gone; workers have not heard of it."""
        self._broadcast: Mapping | None = None
        self._residents: dict[int, tuple[Extent | None, bytes, list[int]]] = {}
        self._warned = False

    def pack(self, value: Any) -> tuple[bytes, list[memoryview]]:
        """Pack a value for the workers, with residents by reference."""
        return pack(value, self._reduce_resident)

    def place_broadcast(self, value: Any) -> tuple[Parcel, list[memoryview]]:
        """Put a broadcast where workers read it; return its parcel and what must go in messages.

        The memory of the last broadcast is used again: no task of an earlier map is running.
        """
        payload, buffers = self.pack(value)
        sizes = [buffer.nbytes for buffer in buffers]
        if not any(sizes):
            return Parcel(None, payload, sizes), buffers
        try:
            mapping = self._room_for(lay_out(sizes)[1])
        except OSError as error:
            self.warn(str(error))
            # The messages are sent after this map's first results may have changed the tensors.
            return Parcel(None, payload, sizes), [memoryview(bytes(buffer)) for buffer in buffers]
        _fill(mapping, buffers)
        extent = mapping.extent
        return Parcel(None, payload, sizes, Slot(0, extent.offset, extent.length)), []

    def warn(self, reason: str) -> None:
        """Warn, once per executor, that tensors travel through sockets."""
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"shared memory is short: {reason}. Tensors go through sockets instead, which is "
                "slower; results are the same.",
                RuntimeWarning,
                stacklevel=2,
            )

    def _room_for(self, length: int) -> Mapping:
        mapping = self._broadcast
        if mapping is not None and length <= mapping.extent.length <= 4 * length + 2**20:
            return mapping
        self._broadcast = None
        if mapping is not None:
            self.arena.free(mapping.extent)
        self._broadcast = self.arena.map_shared(self.arena.allocate(length))
        return self._broadcast

    def _reduce_resident(self, resident: Resident[Any]) -> tuple[Any, ...]:
        if resident.key not in self._residents:
            payload, buffers = pack(resident.value)
            sizes = [buffer.nbytes for buffer in buffers]
            extent = None
            if any(sizes):
                try:
                    extent = self.arena.allocate(lay_out(sizes)[1])
                    _fill(self.arena.map_shared(extent), buffers)
                except OSError as error:
                    self.warn(str(error))
                    return Resident, (resident.value,)
            self._residents[resident.key] = extent, payload, sizes
            weakref.finalize(resident, _forget, weakref.ref(self), resident.key).atexit = False
        return load_resident, (resident.key, *self._residents[resident.key])


def _fill(mapping: Mapping, buffers: list[memoryview]) -> None:
    targets = split(mapping.view(), [buffer.nbytes for buffer in buffers])
    for target, buffer in zip(targets, buffers, strict=True):
        core.copy(target, buffer)


def _forget(reference: weakref.ref[Downlink], key: int) -> None:
    downlink = reference()
    if downlink is not None:
        extent, _, _ = downlink._residents.pop(key)
        if extent is not None:
            downlink.arena.free(extent)
        downlink.forgotten.append(key)
