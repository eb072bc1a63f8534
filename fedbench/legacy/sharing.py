"""Who shares memory with whom, and what was handed over without a copy.

In a sequential loop, two objects that hold the same tensor see each other's writes. Where clients
run side by side, or elsewhere, they cannot. Sharing as such is harmless (a mask, a pattern that
everybody reads), so it is found here and then watched: who *writes* to shared memory is named.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from fedbench.errors import EnclosureError
from fedbench.executors.guard import GENERATORS
from fedbench.legacy.memory import Memory, Snapshot, arrays_in, memory_of, overlap, walk

__all__ = ["Lent", "Loans", "Parties", "copied", "lend"]


@dataclass(frozen=True)
class Lent:
    """An entry of a message that is not the receiver's alone.

    Parameters
    ----------
    owner : str
        Whose memory it was, for the message: ``"the server's model.weight"``.
    may_keep : bool
        Whether the receiver may hold on to it as long as it does not write.
    path : str
        Path of that memory among what its owner holds.
    """

    owner: str
    may_keep: bool
    path: str = ""


def copied(value: Any, is_shared: Callable[[Any], bool]) -> Any:
    """Return a message with new containers, and copies of the arrays that `is_shared`."""
    if isinstance(value, Tensor) and is_shared(value):
        clone = value.detach().clone().requires_grad_(value.requires_grad)
        is_parameter = isinstance(value, nn.Parameter)
        return nn.Parameter(clone.detach(), value.requires_grad) if is_parameter else clone
    if isinstance(value, np.ndarray) and is_shared(value):
        return value.copy()
    if isinstance(value, dict):
        made = copy.copy(value)  # keeps the subclass
        for key, entry in value.items():
            made[key] = copied(entry, is_shared)
        return made
    if isinstance(value, list):
        made_list = copy.copy(value)
        made_list[:] = [copied(entry, is_shared) for entry in value]
        return made_list
    if isinstance(value, tuple):
        entries = [copied(entry, is_shared) for entry in value]
        return type(value)(*entries) if hasattr(value, "_fields") else type(value)(entries)
    return copy.deepcopy(value) if isinstance(value, nn.Module) else value


def lend(message: Any, owners: Mapping[Memory, Lent]) -> tuple[Any, dict[str, Lent]]:
    """Return the message to deliver and which of its entries are another's memory, by path."""
    lent = {
        path: owners[memory] for path, _, memory in arrays_in(walk(message)) if memory in owners
    }
    return copied(message, lambda array: memory_of(array) in owners), lent


class Loans:
    """Watches the lent entries of a message in the hands of its receiver.

    Parameters
    ----------
    message : object
        As it was delivered.
    lent : mapping of str to Lent
        From :func:`lend`.
    """

    def __init__(self, message: Any, lent: Mapping[str, Lent]) -> None:
        self._watched = [
            (path, lent[path], Snapshot(value))
            for path, value in (walk(message) if lent else ())
            if path in lent
        ]

    def check(self, who: str, sender: str) -> None:
        """Raise if the receiver `who` has written to what it was lent by `sender`."""
        for path, lent, snapshot in self._watched:
            if snapshot.has_changed():
                raise EnclosureError(
                    f"{who} wrote to the entry {path} of the message from {sender}, which is the "
                    f"memory of {lent.owner}: in a plain loop it changes there as well. Send a "
                    f"copy (tensor.detach().clone()), or write to a copy."
                )

    def kept(self, places: Mapping[Memory, str]) -> Iterator[tuple[str, str, Lent, Any]]:
        """Yield ``(its path, path in the message, lent, value)`` of what a receiver still holds.

        `places` is where it holds which memory.
        """
        for path, lent, snapshot in self._watched:
            memory = memory_of(snapshot.value)
            if memory is not None and memory in places:
                yield places[memory], path, lent, snapshot.value


class Parties:
    """The server and its clients, and the memory that several of them hold.

    Parameters
    ----------
    server : object
    clients : sequence of object
    names : sequence of str
        How the server (first) and the clients are called in messages.
    """

    SERVER = 0

    def __init__(self, server: Any, clients: Sequence[Any], names: Sequence[str]) -> None:
        self.nodes = [server, *clients]
        self.names = names
        self.positions = {id(node): position for position, node in enumerate(self.nodes)}
        # Values are held, so an address stays that of the memory which was found there.
        self._shared: dict[Memory, dict[int, list[tuple[str, Any]]]] = {}
        self._seen: dict[int, list[tuple[str, Any]]] = {}
        self._kept: dict[Memory, tuple[Any, Any, str]] = {}
        self.server_memory: dict[Memory, str] = {}
        self.look_at(range(len(self.nodes)))

    def walk(self, party: int) -> Iterator[tuple[str, Any]]:
        """Yield what a party holds, by path."""
        found = walk(self.nodes[party], self.positions)
        next(found)  # the node itself
        return found

    def memory(self, party: int) -> dict[Memory, str]:
        """Return the path by memory of all that a party holds."""
        found: dict[Memory, str] = {}
        for path, value in self.walk(party):
            memory = memory_of(value)
            if memory is not None:
                found.setdefault(memory, path)
        return found

    def look_at(self, parties: Iterable[int]) -> None:
        """Find what these parties share now."""
        found: dict[Memory, dict[int, list[tuple[str, Any]]]] = {}
        self._seen = {}
        for party in parties:
            self._seen[party] = list(self.walk(party))
            for path, value in self._seen[party]:
                memory = memory_of(value)
                if memory is not None:
                    found.setdefault(memory, {}).setdefault(party, []).append((path, value))
        for memory, held in self._shared.items():
            self._shared[memory] = {p: e for p, e in held.items() if p not in self._seen}
        for memory, owners in found.items():
            if len(owners) > 1 or memory in self._shared:
                self._shared.setdefault(memory, {}).update(owners)
        self._shared = {memory: held for memory, held in self._shared.items() if len(held) > 1}
        self.server_memory = self.memory(self.SERVER)
        self._kept = {
            memory: kept
            for memory, kept in self._kept.items()
            if memory_of(kept[1]) in self.server_memory
        }

    def keeps(self, original: Any, copy_: Any, path: str) -> None:
        """Note that the server keeps at `path` a copy of what a plain loop would share."""
        memory = memory_of(original)
        if memory is not None:
            owner = f"{self.names[self.SERVER]}'s {path}"
            self._kept[memory] = (original, copy_, owner)

    def watched(self, party: int, *, generators: bool) -> dict[str, tuple[str, Any]]:
        """Return which paths of a client are shared, with whose what, and the value.

        As of the last :meth:`look_at`, which has to include the client.

        Parameters
        ----------
        party : int
            Position among the nodes.
        generators : bool
            Whether to watch shared random generators too.
        """
        watched = {}
        for path, value in self._seen[party]:
            memory = memory_of(value)
            is_left_out = path.startswith("_received_messages") or (
                isinstance(value, GENERATORS) and not generators
            )
            if memory is None or is_left_out:
                continue
            owner = self._other_owner(memory, value, party)
            if owner is not None:
                watched[path] = (owner, value)
        return watched

    def _other_owner(self, memory: Memory, value: Any, party: int) -> str | None:
        if memory in self._kept:
            return self._kept[memory][2]
        owners = self._shared.get(memory, {})
        for other in sorted(owners):  # the server is named first
            entries = owners[other]
            path = next((path for path, entry in entries if overlap(value, entry)), None)
            if other == party or path is None:
                continue
            if memory in (self.server_memory if other == self.SERVER else self.memory(other)):
                return f"{self.names[other]}'s {path}"
        return None
