"""One round of legacy objects: broadcasts, client tasks, and what comes back."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any

import torch

from fedbench.errors import EnclosureError
from fedbench.executors import Executor, Resident
from fedbench.executors.guard import named_arrays
from fedbench.legacy.hooks import call, evaluated, sampled
from fedbench.legacy.memory import Memory, arrays_in, overlap, walk, without_messages
from fedbench.legacy.sharing import Lent, Loans, Parties, lend
from fedbench.legacy.state import named_state
from fedbench.legacy.task import ClientItem, ClientResult, ClientTask
from fedbench.legacy.transport import ClientParcel, Host
from fedbench.reproducibility import Level, digest, generator_scope
from fedbench.simulation import RoundRecord

__all__ = ["Federation"]


class Federation:
    """A server and its clients on an executor.

    Parameters
    ----------
    server, clients, ids
        The objects, and the clients' ids.
    executor : Executor
        Open.
    seed : int
        Root of all streams at L1.
    level : Level
        Rung of the reproducibility ladder.
    check_enclosure : bool
        Whether to compare all others' states before and after each task.
    """

    def __init__(
        self,
        server: Any,
        clients: Sequence[Any],
        ids: Sequence[int | str],
        executor: Executor,
        *,
        seed: int,
        level: Level,
        check_enclosure: bool,
    ) -> None:
        self.server, self.clients, self.ids = server, clients, ids
        self._executor, self._seed, self._level = executor, seed, level
        self._is_sequential = executor.backend == "sequential"
        # With global generators, what the server draws for a client comes between the clients.
        self._interleaves = self._is_sequential and level == Level.L0
        if level == Level.L0 and not self._interleaves:
            self._seed = int(torch.empty((), dtype=torch.int64).random_())
        self._checks = check_enclosure
        self._parties = Parties(server, clients, ["the server", *(f"client {i!r}" for i in ids)])
        self._host = Host(self._parties, ids)
        self._resident = Resident(self._host)

    def scope(self, *key: int | str) -> AbstractContextManager[Any]:
        """Return the scope of the server's own draws, named by what they are for and the round."""
        if self._level == Level.L0:
            return nullcontext()
        return generator_scope(self._seed, "server", *key)

    def run_round(self, index: int, parts: tuple[str, ...]) -> RoundRecord:
        """Run round `index` (from 0), evaluating the clients on `parts`."""
        begin = time.perf_counter()
        server = self.server
        server.n_iter = index
        with self.scope("sample", index):
            chosen = sampled(server, self.clients)
        self._downlink_s = 0.0
        results = []
        items = self._items(chosen, index, parts)
        with closing(self._results(items, federated=True)) as ready:
            for item, result in ready:
                result.client.settle(self._host, item.position, item.shared)
                server._received_messages.extend(result.messages)
                if hasattr(server, "_num_communications"):
                    server._num_communications += result.communications
                results.append((item, result))
        start = time.perf_counter()
        self._aggregate(results, index, evaluating=bool(parts))
        end = time.perf_counter()
        spent = {"broadcast": self._downlink_s, "aggregate": end - start, "total": end - begin}
        return self._record(index, results, spent)

    def run_local_round(self, index: int, parts: tuple[str, ...]) -> RoundRecord:
        """Train every client for one round by itself."""
        begin = time.perf_counter()
        self.server.n_iter = index
        positions = range(len(self.clients))
        self._parties.look_at(range(len(self._parties.nodes)))
        items = (self._item(position, index, parts, {}) for position in positions)
        results = []
        with closing(self._results(items, federated=False)) as ready:
            for item, result in ready:
                result.client.settle(self._host, item.position, item.shared)
                results.append((item, result))
        spent = {"broadcast": 0.0, "aggregate": 0.0, "total": time.perf_counter() - begin}
        return self._record(index, results, spent)

    def run_centralized(self, parts: tuple[str, ...]) -> RoundRecord:
        """Train the server's model on all data, by the server's own method."""
        begin = time.perf_counter()
        with self.scope("centralized"):
            self.server.train_centralized()
            end = time.perf_counter()
            metrics = {}
            if hasattr(self.server, "evaluate_centralized"):
                hook = "evaluate_centralized"
                metrics = {part: evaluated(self.server, hook, part) for part in parts}
        spent = {"broadcast": 0.0, "uplink": 0.0, "aggregate": 0.0}
        spent |= {"train": end - begin, "total": end - begin}
        spent["evaluate"] = time.perf_counter() - end
        return RoundRecord(1, (), metrics, spent, task_s=end - begin, uplink_bytes=0)

    # -- the clients' part ------------------------------------------------------------------------

    def _items(
        self, chosen: Sequence[int], index: int, parts: tuple[str, ...]
    ) -> Iterator[ClientItem]:
        """Yield every client's part when it is due: at once, or after the clients before it."""
        sent: dict[Memory, list[tuple[int, Any]]] = {}
        messages: list[Any] = []  # held, so that no address is used twice
        groups = [[position] for position in chosen] if self._interleaves else [chosen]
        for group in groups:
            begin = time.perf_counter()
            owners: dict[Memory, Lent] = {}
            for position in group:
                with self.scope("communicate", index, self.ids[position]):
                    call(self.server, "communicate", self.clients[position])
                message = getattr(self.clients[position], "_received_messages", None)
                messages.append(message)
                for _, value, memory in arrays_in(walk(message)):
                    for other, before in sent.setdefault(memory, []):
                        if other != position and overlap(value, before):
                            name = f"the message to client {self.ids[other]!r}"
                            owners[memory] = Lent(name, may_keep=True)
                    sent[memory].append((position, value))
            self._parties.look_at([Parties.SERVER, *(position + 1 for position in group)])
            for memory, path in self._parties.server_memory.items():
                owners[memory] = Lent(f"the server's {path}", may_keep=False, path=path)
            self._downlink_s += time.perf_counter() - begin
            for position in group:
                yield self._item(position, index, parts, owners)

    def _item(
        self,
        position: int,
        index: int,
        parts: tuple[str, ...],
        owners: Mapping[Memory, Lent],
    ) -> ClientItem:
        client = self.clients[position]
        lent: dict[str, Lent] = {}
        if owners and hasattr(client, "_received_messages"):
            client._received_messages, lent = lend(client._received_messages, owners)
        watched = self._parties.watched(position + 1, generators=not self._interleaves)
        shared = {path: value for path, (_, value) in watched.items()}
        return ClientItem(
            client_id=self.ids[position],
            position=position,
            round_index=index,
            parcel=ClientParcel(self._host, position, shared),
            parts=parts,
            lent=lent,
            watched={path: owner for path, (owner, _) in watched.items()},
        )

    def _results(
        self, items: Iterable[ClientItem], *, federated: bool
    ) -> Generator[tuple[ClientItem, ClientResult], None, None]:
        """Run the client tasks; yield each item with its result, in order."""
        task = ClientTask(self._resident, self._seed, self._level, federated, self._checks)
        if not self._is_sequential:
            due = list(items)
            yield from zip(due, self._executor.map(task, due), strict=True)
            return
        started: list[ClientItem] = []

        def each() -> Iterator[ClientItem]:
            for item in items:
                started.append(item)
                if self._checks:
                    self._before = self._digests_but(item.position)
                yield item

        # A window of one: the next client is not prepared before this one's result was taken.
        ready: Any = self._executor.imap(task, each(), window=1)
        with closing(ready):
            for result in ready:
                item = started.pop()
                if self._checks:
                    self._compare_others(item)
                yield item, result

    # -- the server's part ------------------------------------------------------------------------

    def _aggregate(
        self, results: Sequence[tuple[ClientItem, ClientResult]], index: int, *, evaluating: bool
    ) -> None:
        server = self.server
        loans = [
            (item, Loans(result.messages, result.lent)) for item, result in results if result.lent
        ]
        with self.scope("update", index):
            if evaluating and hasattr(server, "aggregate_client_metrics"):
                server.aggregate_client_metrics()
            call(server, "update")
        if not hasattr(server, "_update"):
            server._received_messages = []
        if not loans:
            return
        held = arrays_in(without_messages(self._parties.walk(Parties.SERVER)))
        places = {memory: path for path, _, memory in held}
        who = f"the server in round {index + 1}"
        for item, lent in loans:
            lent.check(who, f"client {item.client_id!r}")
            kept = list(lent.kept(places))
            own = dict(self._parties.walk(item.position + 1)) if kept else {}
            for path, _, loan, value in kept:
                if loan.path in own:
                    self._parties.keeps(own[loan.path], value, path)

    def _record(
        self,
        index: int,
        results: Sequence[tuple[ClientItem, ClientResult]],
        spent: Mapping[str, float],
    ) -> RoundRecord:
        seconds = {
            phase: sum(result.seconds[phase] for _, result in results)
            for phase in ("train", "uplink", "evaluate")
        }
        sizes = (
            array.numel() * array.element_size()
            if isinstance(array, torch.Tensor)
            else array.nbytes
            for _, result in results
            for _, array in named_arrays(result.messages)
        )
        return RoundRecord(
            round=index + 1,
            cohort=tuple(item.client_id for item, _ in results),
            metrics=_mean_metrics([result.metrics for _, result in results]),
            clients=_by_client([(item.client_id, result.metrics) for item, result in results]),
            seconds={**spent, **seconds},
            task_s=seconds["train"] + seconds["uplink"],
            uplink_bytes=sum(sizes),
        )

    # -- who changed what -------------------------------------------------------------------------

    def _digests_but(self, position: int) -> dict[int, dict[str, str]]:
        """Return the digest of every entry of everybody but one client."""
        return {
            party: {path: digest(v) for path, v in named_state(self._parties.walk(party))}
            for party in range(len(self._parties.nodes))
            if party != position + 1
        }

    def _compare_others(self, item: ClientItem) -> None:
        for party, now in self._digests_but(item.position).items():
            before = self._before[party]
            for path in (*now, *before):
                if now.get(path) != before.get(path):
                    raise EnclosureError(
                        f"{item.who} changed {self._parties.names[party]}'s {path}. A client task "
                        f"may change its own client only: send a message and change it there."
                    )


def _mean_metrics(found: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, float]]:
    """Return the mean of every metric by part, weighted by ``num_samples``, which is summed."""
    means: dict[str, dict[str, float]] = {}
    for part in dict.fromkeys(part for metrics in found for part in metrics):
        values = [metrics[part] for metrics in found if part in metrics]
        total = float(sum(one.get("num_samples", 1) for one in values))
        names = dict.fromkeys(name for one in values for name in one if name != "num_samples")
        means[part] = {
            name: sum(one[name] * one.get("num_samples", 1) for one in values) / total
            for name in names
            if total and all(name in one for one in values)
        }
        means[part]["num_samples"] = total
    return means


def _by_client(
    found: Sequence[tuple[int | str, Mapping[str, Mapping[str, Any]]]],
) -> dict[str, dict[str, list[Any]]]:
    """Return the metrics of each client by part, as columns; NaN where a client lacks one."""
    tables: dict[str, dict[str, list[Any]]] = {}
    for part in dict.fromkeys(part for _, metrics in found for part in metrics):
        rows = [(client, metrics[part]) for client, metrics in found if part in metrics]
        names = dict.fromkeys(name for _, row in rows for name in row if name != "num_samples")
        tables[part] = {
            "client": [client for client, _ in rows],
            "samples": [row.get("num_samples", math.nan) for _, row in rows],
            **{name: [row.get(name, math.nan) for _, row in rows] for name in names},
        }
    return tables
