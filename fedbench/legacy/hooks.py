"""The hooks of classes that were written for a sequential loop, found and called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = [
    "call",
    "check_client",
    "check_server",
    "client_ids",
    "data_parts",
    "evaluated",
    "sampled",
    "setting",
]


def call(node: Any, hook: str, *arguments: Any) -> Any:
    """Call a hook by way of its wrapper (``_update`` for ``update``) if the class has one."""
    wrapper = getattr(node, f"_{hook}", None)
    return (wrapper if callable(wrapper) else getattr(node, hook))(*arguments)


def check_server(server: Any, *, hooks: Sequence[str]) -> list[Any]:
    """Return the clients of a server that has what the loop needs.

    Raises
    ------
    TypeError
        If a hook or attribute is missing.
    ValueError
        If there are no clients.
    """
    for hook in hooks:
        _check_hook(server, "server", hook)
    if "update" in hooks and not isinstance(getattr(server, "_received_messages", None), list):
        raise TypeError(
            f"the server must have a list _received_messages, got {type(server).__name__} "
            f"without it. Clients' messages are put there before update()."
        )
    clients: Any = getattr(server, "_clients", None)
    if isinstance(clients, Mapping):
        clients = list(clients.values())
    if not isinstance(clients, Sequence) or not clients:
        raise ValueError(
            f"the server's _clients must be a list of its clients, got {clients!r} from "
            f"{type(server).__name__}. Set the clients up first (lazy=False, or _setup_clients())."
        )
    return list(clients)


def check_client(client: Any, *, hooks: Sequence[str]) -> None:
    """Raise ``TypeError`` if a client lacks a hook, or attributes that can be looked through."""
    if not hasattr(client, "__dict__"):
        raise TypeError(
            f"the client must keep its state in attributes, got {type(client).__name__} without "
            f"a __dict__. Leave out __slots__."
        )
    for hook in hooks:
        _check_hook(client, "client", hook)


def _check_hook(node: Any, role: str, hook: str) -> None:
    if not any(callable(getattr(node, name, None)) for name in (f"_{hook}", hook)):
        # Loops know this one by the name of its wrapper.
        shown = f"_{hook}" if hook == "sample_clients" else hook
        raise TypeError(
            f"the {role} must have the hook {shown}(), got {type(node).__name__} without it. "
            f"fedbench.legacy runs objects with communicate, update, train and evaluate."
        )


def client_ids(clients: Sequence[Any]) -> list[int | str]:
    """Return the clients' ``client_id``, or their positions where they have none."""
    ids = [getattr(client, "client_id", position) for position, client in enumerate(clients)]
    for client_id in ids:
        if isinstance(client_id, bool) or not isinstance(client_id, int | str):
            raise TypeError(
                f"client_id must be an int or a str, got {client_id!r} of type "
                f"{type(client_id).__name__}. Random streams are named by it."
            )
    if len(set(ids)) < len(ids):
        twice = next(one for one in ids if ids.count(one) > 1)
        raise ValueError(f"client_id must be different for every client, got {twice!r} twice.")
    return ids


def sampled(server: Any, clients: Sequence[Any]) -> list[int]:
    """Return the positions of the clients that ``_sample_clients()`` chose, in its order.

    Raises
    ------
    ValueError
        If it names what is no client, or a client twice.
    """
    places = {id(client): position for position, client in enumerate(clients)}
    chosen = []
    for one in call(server, "sample_clients"):
        position = places.get(id(one), one)
        is_index = isinstance(position, int) or hasattr(position, "__index__")
        if not is_index or not 0 <= int(position) < len(clients):
            raise ValueError(
                f"_sample_clients() must return clients or their positions in _clients, below "
                f"{len(clients)}, got {one!r} from {type(server).__name__}."
            )
        chosen.append(int(position))
    if len(set(chosen)) < len(chosen):
        twice = next(one for one in chosen if chosen.count(one) > 1)
        raise ValueError(
            f"_sample_clients() must choose a client once per round, got {twice} twice from "
            f"{type(server).__name__}. Sample without replacement."
        )
    return chosen


def evaluated(node: Any, hook: str, part: str) -> dict[str, float]:
    """Return what ``node.<hook>(part)`` returns, if these are metrics."""
    metrics: Any = getattr(node, hook)(part)
    try:
        return {str(name): float(value) for name, value in metrics.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise TypeError(
            f"{type(node).__name__}.{hook}({part!r}) must return a dict of metrics that are "
            f"numbers, got {metrics!r}."
        ) from error


def setting(server: Any, given: int | None, name: str, argument: str) -> int:
    """Return an argument, or else the entry of the server's config that stands for it."""
    value = getattr(getattr(server, "config", None), name, None) if given is None else given
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(
            f"{argument} must be an integer of at least 1, got {value!r}. Give it, or set "
            f"config.{name} of the server."
        )
    return value


def data_parts(node: Any) -> tuple[str, ...]:
    """Return the names of the parts of the data set, for example ``("train", "val")``."""
    return tuple(getattr(getattr(node, "dataset", None), "data_parts", ("train",)))
