"""The connection to a Ray cluster, shared by all ``ray`` executors of this process.

Ray allows one connection per process. Whoever made it owns it: a cluster that was started here is
stopped when its last executor closes, a connection that was made here ends then, and one that the
program had made itself (``ray.init``) is used and left alone. A cluster that was not started here
is never stopped.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import random
import signal
import socket
import threading
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from fedbench.errors import ExecutorError, ResourceError

__all__ = ["PLACEMENT_S", "Cluster", "Placement", "check_resources", "join"]

PLACEMENT_S = 10.0
"""How long a cluster may take to find room for the workers."""
_PROBE_S = 5.0

_OWN_CLUSTER = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray lowers the priority of its workers, which would slow them against all other backends.
    "RAY_worker_niceness": "0",
    # The devices of this machine are as visible to tasks as on the other backends.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # When the caller is killed, Ray's agents go on looking for its head node for this long.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
}

_FOUND_BY_RAY = frozenset({"CPU", "GPU", "memory", "object_store_memory"})
"""Resources that are not just names: a cluster has of them what its machine has, except for CPUs,
of which it has as many as it is told."""
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1", "[::1]"})

_lock = threading.Lock()
_current: Cluster | None = None


class Cluster:
    """A connection, and how many executors use it.

    Parameters
    ----------
    started : bool
        Whether the cluster was started here.
    connected : bool
        Whether the connection was made here.
    """

    def __init__(self, *, started: bool, connected: bool) -> None:
        self.started = started
        self.users = 0
        self._connected = connected
        self.node_id: str = ray.get_runtime_context().get_node_id()
        self.store_bytes = _store_bytes(self.node_id)
        """Size of the object store of this process's node."""

    def leave(self) -> None:
        """Note that an executor is done; the last one stops what was started here."""
        global _current
        with _lock:
            self.users -= 1
            if self.users or _current is not self:
                return
            _current = None
            if self._connected and ray.is_initialized():
                with _undisturbed():
                    ray.shutdown()


def join(
    address: str | None,
    workers: int,
    object_store_memory: int | None,
    resources_per_worker: Mapping[str, float] | None = None,
) -> Cluster:
    """Return the connection for one more executor, starting or joining a cluster if need be.

    Parameters
    ----------
    address : str or None
        ``"host:port"`` of a running cluster, ``"auto"`` for the one on this machine, ``"local"``
        to start one; by default that of ``RAY_ADDRESS``, else this process's own.
    workers : int
        How many workers a cluster that is started has room for.
    object_store_memory : int or None
        Bytes of its object store.
    resources_per_worker : mapping of str to float, optional
        What each worker needs there; by default one CPU.

    Raises
    ------
    ExecutorError
        If no cluster answers at `address`, or this process is connected to another.
    ResourceError
        If a cluster cannot be started.
    """
    global _current
    with _lock:
        if _current is not None and not ray.is_initialized():
            _current = None  # the program has shut Ray down behind our back
        if _current is None:
            room = _room_for(workers, resources_per_worker or {})
            _current = _connect(address, room, object_store_memory)
        else:
            _check_same(address, _current)
        _current.users += 1
        return _current


def _room_for(workers: int, resources: Mapping[str, float]) -> dict[str, float]:
    """Return the CPUs and custom resources of a cluster that is started for these workers."""
    custom = {name: workers * resources[name] for name in resources.keys() - _FOUND_BY_RAY}
    return {**custom, "CPU": math.ceil(workers * max(1.0, resources.get("CPU", 1.0)))}


def _connect(
    address: str | None, room: dict[str, float], object_store_memory: int | None
) -> Cluster:
    if ray.is_initialized():
        cluster = Cluster(started=False, connected=False)
        _check_same(address, cluster)
        return cluster
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    if address == "local":
        _start(room, object_store_memory)
        return Cluster(started=True, connected=True)
    _check_answers(address)
    with _undisturbed():
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ExecutorError(
                f"address must be that of a running Ray cluster, got {address!r}: {error}"
            ) from error
    return Cluster(started=False, connected=True)


def _start(room: dict[str, float], object_store_memory: int | None) -> None:
    """Start a cluster on this machine."""
    custom = {name: amount for name, amount in room.items() if name != "CPU"}
    with _undisturbed(_OWN_CLUSTER):
        try:
            ray.init(
                address="local",
                num_cpus=int(room["CPU"]),
                resources=custom or None,
                object_store_memory=object_store_memory,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except Exception as error:
            ray.shutdown()  # what has started by then
            store = "" if object_store_memory is None else f", {object_store_memory=}"
            raise ResourceError(
                f"a local Ray cluster must start, tried with {_amounts(room)}{store}, got "
                f"{type(error).__name__}: {str(error).rstrip('.')}. Ray's logs are in "
                "ray/session_latest/logs of /tmp or RAY_TMPDIR. Free memory and space there, "
                "choose another object_store_memory, or take the backend 'processes', which "
                "needs no cluster."
            ) from error


def _check_same(address: str | None, cluster: Cluster) -> None:
    """Raise if `address` is not the cluster that this process is connected to."""
    here = ray.get_runtime_context().gcs_address
    if address in (None, "auto", here) or (address == "local" and cluster.started):
        return
    host, _, port = str(address).rpartition(":")
    # Ray calls the loopback address by the machine's own.
    own = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    if host in _LOOPBACK and here == f"{own}:{port}":
        return
    raise ExecutorError(
        f"address must be that of the Ray cluster that this process is connected to ({here}), got "
        f"{address!r}. Close the other executors first, or call ray.shutdown()."
    )


def _check_answers(address: str) -> None:
    """Raise unless something listens at `address`: Ray itself would wait without end."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise ValueError(
            f"address must be 'host:port', 'auto', 'local' or None, got {address!r}. "
            "The port is that of the head node (6379 unless `ray start --port` says otherwise)."
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PROBE_S).close()
    except OSError as error:
        raise ExecutorError(
            f"address must be that of a running Ray cluster, got {address!r} where nothing "
            f"answers: {error}. Start one with `ray start --head`, or leave the address out."
        ) from error


@contextlib.contextmanager
def _undisturbed(environment: Mapping[str, str] | None = None) -> Iterator[None]:
    """Keep what Ray does to this process while it starts or stops from the rest of the program.

    It sets environment variables, takes over SIGTERM, draws from `random`, and leaves files and
    processes to the garbage collector, which warns.
    """
    before = dict(os.environ)
    random_state = random.getstate()
    in_main_thread = threading.current_thread() is threading.main_thread()
    on_sigterm = signal.getsignal(signal.SIGTERM) if in_main_thread else None
    for name, value in (environment or {}).items():
        os.environ.setdefault(name, value)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
        random.setstate(random_state)
        if on_sigterm is not None:
            signal.signal(signal.SIGTERM, on_sigterm)


def _nodes() -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return nodes


def _store_bytes(node_id: str) -> int:
    for node in _nodes():
        if node["NodeID"] == node_id:
            return int(node["Resources"].get("object_store_memory", 0))
    return 0


def check_resources(resources: Mapping[str, float] | None) -> dict[str, float] | None:
    """Return a copy of what each worker is to reserve, checked."""
    if resources is None:
        return None
    if not isinstance(resources, Mapping):
        raise TypeError(
            "resources_per_worker must be a mapping of Ray's resource names to amounts, such as "
            f"{{'CPU': 1}}, got {resources!r}."
        )
    for name, amount in resources.items():
        if not (isinstance(name, str) and isinstance(amount, (int, float)) and amount >= 0):
            raise ValueError(
                "resources_per_worker must map names to numbers that are not negative, got "
                f"{name!r}: {amount!r}."
            )
    return dict(resources)


class Placement:
    """Where the workers go: what is reserved for them on the cluster.

    Parameters
    ----------
    workers : int
        How many workers.
    resources : mapping of str to float
        What each needs, by Ray's names; nothing is reserved if it is empty.
    own_cluster : bool
        Whether an executor of this process started the cluster.
    """

    def __init__(
        self, workers: int, resources: Mapping[str, float], *, own_cluster: bool = False
    ) -> None:
        self._workers = workers
        self._own_cluster = own_cluster
        self._resources = {name: amount for name, amount in resources.items() if amount}
        self._group = (
            placement_group([dict(self._resources)] * workers) if self._resources else None
        )

    def options(self, position: int) -> dict[str, Any]:
        """Return Ray's options for the actor of one worker."""
        own = dict(self._resources)
        options: dict[str, Any] = {
            "num_cpus": own.pop("CPU", 0),
            "num_gpus": own.pop("GPU", 0),
        }
        if "memory" in own:
            options["memory"] = own.pop("memory")
        if own:
            options["resources"] = own
        if self._group is not None:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=position
            )
        return options

    @property
    def is_complete(self) -> bool:
        """Whether every worker has its place."""
        return self._group is None or placement_group_table(self._group).get("state") == "CREATED"

    def wait(self) -> None:
        """Wait until the cluster has made room.

        Raises
        ------
        ResourceError
            If it has none within :data:`PLACEMENT_S`; says what was needed and what there is.
        """
        if self._group is not None and not self._group.wait(PLACEMENT_S):
            raise self.refusal()

    def refusal(self) -> ResourceError:
        """Return the error that tells need and have."""
        names = list(self._resources)
        need = {name: self._resources[name] * self._workers for name in names}
        have: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
        nodes = sum(node["Alive"] for node in _nodes())
        advice = "wait for other jobs to end."
        if self._own_cluster:
            advice = (
                "close the other 'ray' executors of this process first: whichever starts the "
                "cluster gets the CPUs that it needs, but no more GPUs and memory than there are."
            )
        return ResourceError(
            f"the Ray cluster must have room for {self._workers} workers with "
            f"{_amounts(self._resources)} each, together {_amounts(need)}, got "
            f"{_amounts({name: have.get(name, 0) for name in names})} on {nodes} node(s), of "
            f"which {_amounts({name: free.get(name, 0) for name in names})} free, for "
            f"{PLACEMENT_S:.0f} s. Ask for fewer workers or smaller resources_per_worker, or "
            f"{advice}"
        )

    def release(self) -> None:
        """Give everything back."""
        group, self._group = self._group, None
        if group is not None and ray.is_initialized():
            remove_placement_group(group)


def _amounts(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items()) or "nothing"
