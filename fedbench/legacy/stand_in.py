"""What a client sees of the server and of other clients while it works: stand-ins."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from fedbench.errors import EnclosureError

__all__ = ["ClientStandIn", "ServerStandIn", "replaced"]

_READABLE = ("_num_communications", "_received_messages", "config", "n_iter")


class ServerStandIn:
    """Stands for the server in a client task: takes messages, and refuses everything else.

    Parameters
    ----------
    who : str
        The client and the round, for messages.
    n_iter : int
        Index of the round.
    config : object
        The server's configuration, which is passed on to be read only.
    """

    def __init__(self, who: str, n_iter: int, config: Any) -> None:
        own = {
            "_who": who,
            "n_iter": n_iter,
            "config": _read_only(who, config),
            "_received_messages": [],
            "_num_communications": 0,
        }
        vars(self).update(own)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise EnclosureError(
            f"{self._who} read the attribute {name!r} of the server. A client task sees "
            f"{', '.join(_READABLE)} of the server: let the server's communicate() put what "
            f"the client needs into its message."
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_num_communications":
            vars(self)[name] = value
            return
        raise EnclosureError(
            f"{self._who} wrote the attribute {name!r} of the server. Only the server's own "
            f"update() may: send a message and change the server there."
        )

    def __delattr__(self, name: str) -> None:
        setattr(self, name, None)


class ClientStandIn:
    """Stands for another client in a client task and refuses everything.

    Parameters
    ----------
    who : str
        The client and the round, for messages.
    other : str
        Name of the other client.
    """

    def __init__(self, who: str, other: str) -> None:
        vars(self).update(_who=who, _other=other)

    def _refuse(self, verb: str, name: str) -> NoReturn:
        raise EnclosureError(
            f"{self._who} {verb} the attribute {name!r} of {self._other}. Clients see each other "
            f"through the server only: send what others need to it."
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse("read", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._refuse("wrote", name)

    def __delattr__(self, name: str) -> None:
        self._refuse("deleted", name)


def _read_only(who: str, config: Any) -> Any:
    if config is None or isinstance(config, dict):
        return None if config is None else types.MappingProxyType(config)
    return _ReadOnly(who, config)


class _ReadOnly:
    """Passes reads on and refuses writes."""

    def __init__(self, who: str, value: Any) -> None:
        vars(self).update(_who=who, _value=value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._value, name)

    def __getitem__(self, key: Any) -> Any:
        return self._value[key]

    def __setattr__(self, name: str, value: Any) -> None:
        raise EnclosureError(
            f"{self._who} wrote the entry {name!r} of the server's config. All clients read it: "
            f"keep what changes in an attribute of the client."
        )

    def __setitem__(self, key: Any, value: Any) -> None:
        setattr(self, str(key), value)

    def __delattr__(self, name: str) -> None:
        setattr(self, name, None)


@contextmanager
def replaced(node: Any, stand_in_for: Callable[[Any], Any]) -> Iterator[None]:
    """Replace what a client holds of the server and of others by stand-ins during the block.

    Parameters
    ----------
    node : object
        The client, whose attributes are looked at, and lists, tuples and dicts among them.
    stand_in_for : callable
        Returns the stand-in of the server or of a client, and anything else as it is.
    """
    before = {}
    for name, value in vars(node).items():
        made = _with_stand_ins(value, stand_in_for)
        if made is not value:
            before[name] = (value, made)
    for name, (_, made) in before.items():
        vars(node)[name] = made
    try:
        yield
    finally:
        for name, (value, made) in before.items():
            if vars(node).get(name) is made:  # the client may have set it anew
                vars(node)[name] = value


def _with_stand_ins(value: Any, stand_in_for: Callable[[Any], Any]) -> Any:
    if type(value) in (list, tuple):
        entries = [stand_in_for(entry) for entry in value]
        changed = any(a is not b for a, b in zip(entries, value, strict=True))
        return type(value)(entries) if changed else value
    if type(value) is dict:
        pairs = {key: stand_in_for(entry) for key, entry in value.items()}
        return pairs if any(pairs[key] is not value[key] for key in value) else value
    return stand_in_for(value)
