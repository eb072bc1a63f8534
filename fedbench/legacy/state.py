"""The whole state of a server and its clients as named values, to be compared or digested."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor

from fedbench.executors.guard import GENERATORS
from fedbench.legacy.hooks import check_server, client_ids
from fedbench.legacy.memory import PLAIN, is_array, random_state_of, walk

__all__ = ["named_state", "state_of"]


def state_of(server: Any) -> dict[str, Any]:
    """Return copies of everything that a server and its clients hold, by path.

    Parameters
    ----------
    server : object
        A server with ``_clients``.

    Returns
    -------
    dict
        ``{"server": {path: value}, "clients": {client id: {path: value}}}``. The values are
        tensors, arrays, numbers, texts and the states of random generators: parameters, buffers
        and gradients of modules, the state of optimizers and schedulers, and all other
        attributes. Left out are data sets and loggers.
        :func:`fedbench.reproducibility.digest` makes one number of it, and
        :func:`fedbench.verification.first_difference` compares two.

    Raises
    ------
    TypeError, ValueError
        If `server` has no clients, or clients whose ids are not numbers or texts.
    """
    clients = check_server(server, hooks=())
    ids = client_ids(clients)
    others = {id(node) for node in (server, *clients)}
    return {
        "server": dict(named_state(walk(server, others))),
        "clients": {
            client_id: dict(named_state(walk(client, others)))
            for client_id, client in zip(ids, clients, strict=True)
        },
    }


def named_state(held: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield copies of the values among what a node holds."""
    for path, value in held:
        if isinstance(value, PLAIN):
            yield path, value
        elif isinstance(value, GENERATORS):
            yield path, random_state_of(value)
        elif is_array(value):
            copied: Tensor | np.ndarray[Any, Any] = (
                value.detach().clone() if isinstance(value, Tensor) else value.copy()
            )
            yield path, copied
