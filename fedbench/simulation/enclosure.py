"""The enclosure guard: what a client task may not do, found and named (invariants I1 and I2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fedbench.errors import EnclosureError
from fedbench.executors.guard import storage_of
from fedbench.reproducibility import digest
from fedbench.training import ModelState, WorkerModel

__all__ = ["EnclosureGuard", "named_tensors"]


def named_tensors(value: Any, path: str) -> list[tuple[str, Tensor]]:
    """Return every tensor of a nested state with the path that names it."""
    if isinstance(value, Tensor):
        return [(path, value)]
    if isinstance(value, ModelState):
        return [
            *named_tensors(value.parameters, f"{path}.parameters"),
            *named_tensors(value.buffers, f"{path}.buffers"),
        ]
    if isinstance(value, Mapping):
        pairs = [(f"{path}[{key!r}]", entry) for key, entry in value.items()]
    elif isinstance(value, list | tuple):
        pairs = [(f"{path}[{index}]", entry) for index, entry in enumerate(value)]
    else:
        return []
    return [named for inner, entry in pairs for named in named_tensors(entry, inner)]


class EnclosureGuard:
    """Watches one client task.

    Parameters
    ----------
    client_id, round_index
        Whose task it is, for the message.
    down : mapping
        The broadcast as the task sees it.
    model : WorkerModel
        The worker's model, which the next task of this worker will overwrite.
    """

    def __init__(
        self, client_id: int | str, round_index: int, down: Mapping[str, Any], model: WorkerModel
    ) -> None:
        self._who = f"client {client_id!r} in round {round_index + 1}"
        self._down = down
        self._digests = {name: digest(tensor) for name, tensor in named_tensors(down, "broadcast")}
        self._owners = {
            storage_of(tensor): f"the entry {name} of the broadcast"
            for name, tensor in named_tensors(down, "broadcast")
        }
        self._owners[storage_of(model.flat)] = "the parameters of the worker's model"
        for name, tensor in model.module.state_dict(keep_vars=True).items():
            self._owners.setdefault(storage_of(tensor), f"{name} of the worker's model")
        self._owners.pop(0, None)  # empty tensors have no memory

    def check(self, phase: str, sent: Any, state: Mapping[str, Any]) -> None:
        """Raise :class:`EnclosureError` if the task broke its enclosure.

        Parameters
        ----------
        phase : str
            What has just ended, for the message.
        sent : object
            The update that leaves the client.
        state : mapping
            The client's own state.
        """
        for name, tensor in named_tensors(self._down, "broadcast"):
            if digest(tensor) != self._digests.get(name):
                raise EnclosureError(
                    f"{self._who} changed the entry {name} during {phase}. The broadcast is "
                    f"read-only: work on a copy (tensor.clone())."
                )
        entries = [
            *((f"the entry {n} of its update", t) for n, t in named_tensors(sent, "update")),
            *((f"the entry {n} of its state", t) for n, t in named_tensors(state, "state")),
        ]
        for name, tensor in entries:
            owner = self._owners.get(storage_of(tensor))
            if owner is not None:
                raise EnclosureError(
                    f"{self._who} keeps {name} in the memory of {owner} after {phase}. "
                    f"It would change under the next client: store a copy (tensor.clone())."
                )
            if tensor.requires_grad:
                raise EnclosureError(
                    f"{self._who} keeps {name} with an autograd graph after {phase}. "
                    f"Store tensor.detach().clone()."
                )
