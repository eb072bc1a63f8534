"""What runs inside the workers: one client's part in a round, on the client's own hooks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader

from fedbench.errors import EnclosureError
from fedbench.executors import Resident
from fedbench.executors.guard import GENERATORS
from fedbench.legacy.hooks import call, evaluated
from fedbench.legacy.memory import (
    Snapshot,
    arrays_in,
    is_array,
    restore_random_state,
    walk,
    without_messages,
)
from fedbench.legacy.sharing import Lent, Loans, lend
from fedbench.legacy.stand_in import ClientStandIn, ServerStandIn, replaced
from fedbench.legacy.transport import ClientParcel, Host, ReturnedClient
from fedbench.reproducibility import Level, generator_scope, torch_generator

__all__ = ["ClientItem", "ClientResult", "ClientTask"]


@dataclass(frozen=True)
class ClientItem:
    """One client's part in a round.

    Parameters
    ----------
    client_id, position, round_index
        Whose task it is: id, position in the server's list, round counted from 0.
    parcel : ClientParcel
        The client.
    parts : tuple of str
        Parts of the data to evaluate on; empty in rounds without evaluation.
    lent : mapping of str to Lent
        Entries of the message from the server that are not the client's alone.
    watched : mapping of str to str
        Entries of the client that others hold too, and who.
    """

    client_id: int | str
    position: int
    round_index: int
    parcel: ClientParcel
    parts: tuple[str, ...] = ()
    lent: Mapping[str, Lent] = field(default_factory=dict)
    watched: Mapping[str, str] = field(default_factory=dict)

    @property
    def shared(self) -> Mapping[str, Any]:
        """What others hold too, by path."""
        return self.parcel.shared

    @property
    def who(self) -> str:
        """Client and round, for messages."""
        return f"client {self.client_id!r} in round {self.round_index + 1}"


@dataclass(frozen=True)
class ClientResult:
    """What a client task returns: the client, its messages and metrics, and its timings."""

    client: ReturnedClient
    messages: list[Any]
    lent: Mapping[str, Lent]
    communications: int
    metrics: Mapping[str, Mapping[str, Any]]
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class ClientTask:
    """Runs a client's hooks: ``task(item) -> result``.

    Parameters
    ----------
    host : Resident of Host
        What all tasks read.
    seed : int
        Root of the clients' streams at L1, and at L0 in other processes.
    level : Level
        Rung of the reproducibility ladder.
    federated : bool
        Evaluate, update and communicate; otherwise train and evaluate, as in local training.
    check : bool
        Whether to look for draws from global generators at L1.
    """

    host: Resident[Host]
    seed: int
    level: Level
    federated: bool = True
    check: bool = False

    def __call__(self, item: ClientItem) -> ClientResult:
        """Run the client; it reads its own data and state and the message that it was sent."""
        host = self.host.value
        stand_in = ServerStandIn(item.who, item.round_index, host.config)

        def named(name: tuple[Any, ...]) -> Any:
            if name[0] == "server":
                return stand_in
            return ClientStandIn(item.who, f"client {host.ids[name[1]]!r}")

        def seen(value: Any) -> Any:
            parties = host.parties
            party = None if parties is None else parties.positions.get(id(value))
            if party is None or party == item.position + 1:
                return value
            return named(("client", party - 1) if party else ("server",))

        client, shared, returned = item.parcel.open(host, named)
        loans = Loans(getattr(client, "_received_messages", None), item.lent)
        watches = [(path, Snapshot(shared[path])) for path in item.watched]
        of_the_class = [*_class_attributes(type(client))]
        with replaced(client, seen):
            work = self._federated if self.federated else self._local
            metrics, seconds = work(client, stand_in, item)
        for path, snapshot in watches:
            if snapshot.has_changed():
                raise EnclosureError(
                    f"{item.who} wrote to its {path}, which is the memory of "
                    f"{item.watched[path]} too. Give each its own copy (copy.deepcopy)."
                )
        for name, snapshot in of_the_class:
            if snapshot.has_changed():
                raise EnclosureError(
                    f"{item.who} wrote to {name}, which all clients share. Keep what changes in "
                    f"an attribute of the client (self.name = ...)."
                )
        self._settle(loans, host, client, item)
        messages, lent = _sent(host, client, stand_in, item)
        return ClientResult(
            returned, messages, lent, stand_in._num_communications, metrics, seconds
        )

    def _federated(
        self, client: Any, server: ServerStandIn, item: ClientItem
    ) -> tuple[dict[str, Any], dict[str, float]]:
        begin = time.perf_counter()
        metrics = self._evaluate(client, item)
        start = time.perf_counter()
        with self._own_randomness(client, item):
            call(client, "update")
            trained = time.perf_counter()
            call(client, "communicate", server)
        end = time.perf_counter()
        seconds = {"evaluate": start - begin, "train": trained - start, "uplink": end - trained}
        return metrics, seconds

    def _local(
        self, client: Any, server: ServerStandIn, item: ClientItem
    ) -> tuple[dict[str, Any], dict[str, float]]:
        begin = time.perf_counter()
        with self._own_randomness(client, item):
            client.train()
        trained = time.perf_counter()
        metrics = self._evaluate(client, item)
        seconds = {"train": trained - begin, "evaluate": time.perf_counter() - trained}
        return metrics, {**seconds, "uplink": 0.0}

    def _evaluate(self, client: Any, item: ClientItem) -> dict[str, Any]:
        found = {}
        for part in item.parts:
            # At L1, evaluating more or less often must not change what is trained.
            undisturbed = _undisturbed(client) if self.level == Level.L1 else nullcontext()
            with undisturbed, self._own_randomness(client, item, "evaluate", part):
                found[part] = evaluated(client, "evaluate", part)
        return found

    def _own_randomness(
        self, client: Any, item: ClientItem, *purpose: str
    ) -> AbstractContextManager[Any]:
        """Return the scope in which a client draws from its own streams, if it has to."""
        key = (item.client_id, item.round_index, *purpose)
        stack = ExitStack()
        if self.level == Level.L1:
            stack.enter_context(generator_scope(self.seed, *key, check=self.check))
            stack.enter_context(_keyed_loaders(client, self.seed, key))
        elif os.getpid() != self.host.value.pid:
            # The global generators of worker processes all start in the same state.
            stack.enter_context(generator_scope(self.seed, *key))
        return stack

    def _settle(self, loans: Loans, host: Host, client: Any, item: ClientItem) -> None:
        loans.check(item.who, "the server")
        if not item.lent:
            return
        held = arrays_in(without_messages(_walk(host, client)))
        for path, entry, lent, _ in loans.kept({memory: path for path, _, memory in held}):
            if not lent.may_keep:
                raise EnclosureError(
                    f"{item.who} keeps the entry {entry} of the message from the server as its "
                    f"{path}, which is the memory of {lent.owner}: in a plain loop it changes "
                    f"when the server does. Send or store a copy (tensor.detach().clone())."
                )


def _walk(host: Host, client: Any) -> Iterator[tuple[str, Any]]:
    return walk(client, host.parties.positions if host.parties is not None else ())


def _sent(
    host: Host, client: Any, server: ServerStandIn, item: ClientItem
) -> tuple[list[Any], dict[str, Lent]]:
    """Return the messages with copies of what is the client's own memory, and what that was."""
    messages = server._received_messages
    if not messages:
        return [], {}
    owners = {
        memory: Lent(f"client {item.client_id!r}'s {path}", may_keep=True, path=path)
        for path, _, memory in arrays_in(without_messages(_walk(host, client)))
    }
    delivered, lent = lend(messages, owners)
    return list(delivered), lent


@contextmanager
def _keyed_loaders(client: Any, seed: int, key: tuple[int | str, ...]) -> Iterator[None]:
    """Give loaders that have a generator of their own one of this task's during the block.

    Theirs may be shared with other clients, and would remember how often they were used.
    """
    before: list[tuple[Any, Any]] = []
    for path, value in _held(client, DataLoader):
        holders: tuple[Any, ...] = (value, value.sampler)
        for holder in holders:
            generator = getattr(holder, "generator", None)
            if generator is not None:
                before.append((holder, generator))
                holder.generator = torch_generator(seed, "loader", *key, path)
    try:
        yield
    finally:
        for holder, generator in before:
            holder.generator = generator


def _class_attributes(kind: type) -> Iterator[tuple[str, Snapshot]]:
    """Yield what could be written to in a class and its bases."""
    for base in kind.__mro__[:-1]:
        yield f"the class {base.__name__}", Snapshot(base)
        for name, value in vars(base).items():
            if is_array(value) or isinstance(value, list | dict | set):
                yield f"the class attribute {base.__name__}.{name}", Snapshot(value)


def _held(client: Any, kind: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a kind, and the entries of lists, tuples and dicts among them."""
    for name, value in vars(client).items():
        if isinstance(value, kind):
            yield name, value
        elif type(value) in (list, tuple, dict):
            entries = value.items() if type(value) is dict else enumerate(value)
            for key, entry in entries:
                if isinstance(entry, kind):
                    yield f"{name}[{key!r}]", entry


@contextmanager
def _undisturbed(client: Any) -> Iterator[None]:
    """Restore modes, buffers and generators of a client after it was evaluated."""
    modules = [module for _, module in _held(client, nn.Module)]
    modes = [(part, part.training) for module in modules for part in module.modules()]
    buffers: list[tuple[Tensor, Tensor]] = [
        (buffer, buffer.detach().clone()) for module in modules for buffer in module.buffers()
    ]
    generators = [(generator, Snapshot(generator)) for _, generator in _held(client, GENERATORS)]
    yield
    for part, training in modes:
        part.training = training
    for buffer, value in buffers:
        buffer.detach().copy_(value)
    for generator, snapshot in generators:
        restore_random_state(generator, snapshot.held)
