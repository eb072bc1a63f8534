"""How clients get into their tasks: as they are in this process, as replicas in another one.

A client is wrapped in a :class:`ClientParcel`. An executor that shares memory hands the parcel to
the task untouched, and the task works on the client itself. A transport that pickles it sends the
client's whole state: attributes, gradients, optimizers with what wraps their ``step``. What all
clients read (data sets) travels once, with the :class:`Host`; references to the
server and to other clients arrive as stand-ins.
"""

from __future__ import annotations

import copyreg
import functools
import io
import os
import pickle
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer, lr_scheduler
from torch.utils.data import Dataset

from fedbench.executors.guard import aligned_bytes
from fedbench.executors.packing import Packer
from fedbench.legacy.memory import PLAIN, Memory, arrays_in, overlap, walk
from fedbench.legacy.sharing import Parties

__all__ = ["ClientParcel", "Host", "ReturnedClient"]

Name = tuple[Any, ...]
"""What an object that is not the client's own is called in a pickle."""


class Host:
    """What all client tasks of a run read; the server and the clients themselves stay behind.

    Parameters
    ----------
    parties : Parties
    ids : sequence of int or str
        Ids of the clients, in the order of the server's list.
    """

    def __init__(self, parties: Parties, ids: Sequence[int | str]) -> None:
        server, *clients = parties.nodes
        self.parties: Parties | None = parties
        self.ids = list(ids)
        self.kinds = [type(client) for client in clients]
        self.config = getattr(server, "config", None)
        self.pid = os.getpid()
        found: dict[int, Any] = {}
        for party, node in enumerate(clients, 1):
            constants = [v for _, v in parties.walk(party) if isinstance(v, Dataset)]
            for value in (vars(node).get("dataset"), *constants):
                if not isinstance(value, PLAIN):
                    found[id(value)] = value
        self.constants = list(found.values())
        self.names: dict[int, Name] = {
            id(value): ("constant", index) for index, value in enumerate(self.constants)
        }
        self.names[id(server)] = ("server",)
        self.names |= {id(client): ("client", index) for index, client in enumerate(clients)}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "parties": None, "names": {}}

    def client(self, position: int) -> Any:
        """Return the client itself, where it lives."""
        if self.parties is None:
            raise RuntimeError("clients live in the process that runs the server")
        return self.parties.nodes[position + 1]


class ClientParcel:
    """A client on its way to its task.

    Parameters
    ----------
    host : Host
    position : int
        Position of the client in the server's list.
    shared : mapping of str to object
        What the client shares with others, by path: each task gets a copy of it.
    """

    def __init__(self, host: Host, position: int, shared: Mapping[str, Any]) -> None:
        self._host, self._position, self.shared = host, position, shared

    def open(self, host: Host, stand_in_for: Callable[[Name], Any]) -> _Opened:
        """Return the client, what it shares by path, and the parcel in which it goes back."""
        client = host.client(self._position)
        return client, self.shared, ReturnedClient(client, {}, "")

    def __deepcopy__(self, memo: dict[int, Any]) -> ClientParcel:
        return self  # how it stays untouched in executors that share memory

    def __reduce__(self) -> tuple[Any, ...]:
        client, known = self._host.client(self._position), self._host.names
        sent = {path: v for path, v in self.shared.items() if id(v) not in known}
        constant = {path: known[id(v)] for path, v in self.shared.items() if id(v) in known}
        names = {**known, **{id(value): ("shared", path) for path, value in sent.items()}}
        who = f"client {self._host.ids[self._position]!r}"
        _refuse_views(who, client, names)
        return _ClosedParcel, (self._position, _pack(client, names, who), sent, constant)


class _ClosedParcel:
    """The same in another process."""

    def __init__(
        self,
        position: int,
        packed: _Packed,
        shared: Mapping[str, Any],
        constant: Mapping[str, Name],
    ) -> None:
        self._position, self._packed = position, packed
        self._shared, self._constant = shared, constant

    def open(self, host: Host, stand_in_for: Callable[[Name], Any]) -> _Opened:
        client: Any = object.__new__(host.kinds[self._position])
        known: dict[Name, Any] = {("client", self._position): client}

        def find(name: Name) -> Any:
            if name[0] == "constant":
                known.setdefault(name, host.constants[name[1]])
            elif name[0] == "shared":
                known.setdefault(name, self._shared[name[1]])
            elif name not in known:
                known[name] = stand_in_for(name)
            return known[name]

        state = _unpack(self._packed, find)
        if hasattr(client, "__setstate__"):
            client.__setstate__(state)
        else:
            vars(client).update(state)
        shared = {
            **self._shared,
            **{path: host.constants[name[1]] for path, name in self._constant.items()},
        }
        who = f"client {host.ids[self._position]!r}"
        return client, shared, ReturnedClient(client, known, who)


class ReturnedClient:
    """A client on its way back from its task.

    Parameters
    ----------
    client : object
    known : mapping
        What the client holds of others, by name; empty where it is the client itself.
    who : str
        The client, for messages.
    """

    def __init__(self, client: Any, known: dict[Name, Any], who: str) -> None:
        self._client, self._known, self._who = client, known, who

    def settle(self, host: Host, position: int, shared: Mapping[str, Any]) -> None:
        """Bring the client where it lives up to date: it is, since the task worked on it."""

    def __reduce__(self) -> tuple[Any, ...]:
        names = {id(value): name for name, value in self._known.items()}
        return _ClosedReturn, (_pack(self._client, names, self._who),)


class _ClosedReturn:
    """The same, having come from another process."""

    def __init__(self, packed: _Packed) -> None:
        self._packed = packed

    def settle(self, host: Host, position: int, shared: Mapping[str, Any]) -> None:
        client = host.client(position)

        def find(name: Name) -> Any:
            if name[0] == "constant":
                return host.constants[name[1]]
            if name[0] == "shared":
                return shared[name[1]]
            if name[0] == "server":
                return host.parties.nodes[0] if host.parties else None
            return host.client(name[1])

        sent = set(_state_of(client))
        state = _unpack(self._packed, find)
        for name in sent - set(state):
            vars(client).pop(name, None)
        vars(client).update(state)


_Packed = tuple[bytes, list[Any]]
"""A payload and the memory of its arrays."""
_Opened = tuple[Any, Mapping[str, Any], ReturnedClient]


def _state_of(client: Any) -> dict[str, Any]:
    state = client.__getstate__() or {}
    if not isinstance(state, dict):
        raise TypeError(
            f"the state of a client must be a dict of its attributes, got "
            f"{type(state).__name__} from {type(client).__name__}.__getstate__(). Use a class "
            f"without __slots__, or the backend 'threads'."
        )
    return state


def _pack(client: Any, names: Mapping[int, Name], who: str) -> _Packed:
    state = _state_of(client)
    # Pickling a parameter drops its gradient.
    grads = [
        (value, value.grad)
        for _, value in walk(types.SimpleNamespace(**state), names)
        if isinstance(value, Tensor) and value.is_leaf and value.grad is not None
    ]
    try:
        return _packed((state, grads), names)
    except Exception as error:
        for attribute, value in state.items():
            try:
                _packed(value, names)
            except Exception as cause:  # noqa: BLE001 - whatever pickling raises is the reason
                raise TypeError(
                    f"the attribute {attribute!r} of {who} must be picklable to run in another "
                    f"process, got {type(value).__name__}: {cause}. Use the backend 'threads' or "
                    f"'sequential', or leave the attribute out in {type(client).__name__}."
                    f"__getstate__()."
                ) from error
        raise


def _packed(value: Any, names: Mapping[int, Name]) -> _Packed:
    buffers: list[memoryview] = []
    with io.BytesIO() as stream:
        _ClientPacker(stream, buffers, names).dump(value)
        return stream.getvalue(), [np.asarray(buffer) for buffer in buffers]


def _unpack(packed: _Packed, find: Callable[[Name], Any]) -> dict[str, Any]:
    payload, arrays = packed
    buffers = []
    for array in arrays:  # the memory of the transport is lent for a moment only
        memory = aligned_bytes(array.nbytes)
        memory[:] = memoryview(array)
        buffers.append(memory)
    with torch.inference_mode(False):
        state, grads = _ClientUnpacker(io.BytesIO(payload), buffers, find).load()
        for tensor, grad in grads:
            tensor.grad = grad
    unpacked: dict[str, Any] = state
    return unpacked


class _ClientPacker(Packer):
    """Leaves out what has a name, and keeps what torch's optimizers lose."""

    def __init__(
        self, stream: io.BytesIO, buffers: list[memoryview], names: Mapping[int, Name]
    ) -> None:
        super().__init__(stream, buffers, None)
        self._names = names

    def persistent_id(self, obj: Any) -> Name | None:
        return self._names.get(id(obj))

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Optimizer) and type(obj).__getstate__ is Optimizer.__getstate__:
            make: Any = copyreg.__newobj__  # type: ignore[attr-defined]
            return make, (type(obj),), dict(vars(obj)), None, None, type(obj).__setstate__
        if isinstance(obj, types.FunctionType) and _counts_steps(obj):
            cells = [cell.cell_contents for cell in obj.__closure__ or ()]
            [optimizer] = [cell() for cell in cells if isinstance(cell, weakref.ref)]
            [step] = [
                cell for cell in cells if callable(cell) and not isinstance(cell, weakref.ref)
            ]
            return _counting_step, (optimizer, step)
        return super().reducer_override(obj)


class _ClientUnpacker(pickle.Unpickler):
    def __init__(
        self, stream: io.BytesIO, buffers: list[memoryview], find: Callable[[Name], Any]
    ) -> None:
        super().__init__(stream, buffers=buffers)
        self._find = find

    def persistent_load(self, pid: Name) -> Any:
        return self._find(pid)


def _counts_steps(function: types.FunctionType) -> bool:
    """Return whether torch's schedulers, or :func:`_counting_step`, made this ``step``."""
    return function.__code__.co_filename in (lr_scheduler.__file__, __file__) and hasattr(
        function, "_wrapped_by_lr_sched"
    )


def _counting_step(optimizer: Optimizer, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a ``step`` as torch's schedulers do, to notice that they are stepped before it."""
    reference = weakref.ref(optimizer)

    @functools.wraps(function)
    def step(*args: Any, **kwargs: Any) -> Any:
        itself: Any = reference()
        itself._opt_called = True
        method: Any = types.MethodType(function, itself)
        return method(*args, **kwargs)

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    return step


def _refuse_views(who: str, client: Any, names: Mapping[int, Name]) -> None:
    """Raise if two arrays of the client overlap without being the same: replicas would not."""
    seen: dict[Memory, list[tuple[str, Any]]] = {}
    for path, value, memory in arrays_in(walk(client, names)):
        for other_path, other in seen.setdefault(memory, []):
            if overlap(value, other) and not _is_same_view(value, other):
                raise TypeError(
                    f"{path} of {who} must have its own memory to run in another process, got a "
                    f"part of the memory of {other_path}. Use the backend 'threads' or "
                    f"'sequential', or store a copy."
                )
        seen[memory].append((path, value))


def _is_same_view(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        place = (a.data_ptr(), a.dtype, a.shape, a.stride())
        return place == (b.data_ptr(), b.dtype, b.shape, b.stride())
    return a is b
