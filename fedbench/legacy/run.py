"""The loop over rounds for a server and clients that were written for a sequential loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from fedbench.executors import Executor, make_executor
from fedbench.legacy.hooks import check_client, check_server, client_ids, data_parts, setting
from fedbench.legacy.rounds import Federation
from fedbench.reproducibility import Level, level_or_default, pinned, redirect_global_generators
from fedbench.reproducibility.scope import seed_global_generators
from fedbench.simulation import History, RoundRecord
from fedbench.simulation.arguments import resolve_executor
from fedbench.training import whole

__all__ = ["run"]

_SERVER_HOOKS = {
    "federated": ("sample_clients", "communicate", "update"),
    "local": (),
    "centralized": ("train_centralized",),
}
_CLIENT_HOOKS = {"federated": ("communicate", "update"), "local": ("train",), "centralized": ()}


def run(
    server: Any,
    rounds: int | None = None,
    *,
    mode: str = "federated",
    executor: str | Executor = "sequential",
    workers: int | None = None,
    seed: int | None = None,
    reproducibility: str | None = None,
    evaluate_every: int | None = None,
    parts: Sequence[str] | None = None,
    first_round: int = 0,
    check_enclosure: bool = False,
    on_round: Callable[[RoundRecord], None] | None = None,
) -> History:
    """Run rounds of a server and clients that were written for a sequential loop.

    The objects are used as they are and changed in place, as their own loop would. In each round
    ``server.n_iter`` is set, ``_sample_clients()`` chooses the cohort, and for each client
    ``server.communicate(client)`` leaves a message in the client's ``_received_messages``. Then,
    as a task of the executor, the client's ``evaluate(part)`` (in rounds that evaluate),
    ``update()`` and ``communicate(server)`` run, where the server is a stand-in that takes
    messages. Back on this thread the messages go to the server's ``_received_messages`` in the
    order of the cohort, and ``aggregate_client_metrics()`` (in rounds that evaluate, if there is
    one) and ``server.update()`` run. Where a class has the wrapper of a hook (``_communicate``,
    ``_update``), the wrapper is called.

    Parameters
    ----------
    server : object
        Has ``_clients``, ``_sample_clients()``, ``communicate(client)``, ``update()`` and
        ``_received_messages``.
    rounds : int, optional
        How many; ``server.config.num_iters`` by default.
    mode : {"federated", "local", "centralized"}
        ``"local"`` calls each client's ``train()`` in every round, and ``evaluate(part)`` after
        it, without a server. ``"centralized"`` calls ``server.train_centralized()`` once, which
        knows how long it trains; the history then has the metrics of
        ``server.evaluate_centralized(part)``, if there is one.
    executor : str or Executor
        Name of a backend, whose executor is closed at the end, or an open executor.
    workers : int, optional
        Worker count of an executor that is made here.
    seed : int, optional
        At L1, root of all random streams (default 0). At L0, seeds the global generators of
        torch, numpy and ``random`` first; by default they are left as they are.
    reproducibility : {"L0", "L1"}, optional
        By default the environment variable ``FEDBENCH_REPRODUCIBILITY``, or else ``"L0"``. With
        ``"L0"`` everybody draws from the global generators; on ``"sequential"`` the bits are those
        of the plain loop. With ``"L1"`` every client task, and every step of the server, draws
        from its own streams, and the bits are the same on every backend.
    evaluate_every : int, optional
        Evaluate in every round whose number is a multiple of it, the first round excepted;
        ``server.config.eval_every`` by default, or else never; 0 never evaluates.
    parts : sequence of str, optional
        Parts of the data to evaluate on; ``server.dataset.data_parts`` by default, or ``"train"``.
    first_round : int
        ``n_iter`` of the first round: give the number of rounds that were run before to go on.
    check_enclosure : bool
        Compare the states of the server and of all other clients before and after each client
        task; for tests, on ``"sequential"``.
    on_round : callable, optional
        Called with each :class:`~fedbench.simulation.RoundRecord`, on this thread.

    Returns
    -------
    History
        The rounds of this call. Metrics by part are means over the cohort weighted by
        ``num_samples``, which itself is summed; ``client_frame()`` has those of each client.

    Raises
    ------
    TypeError, ValueError
        If a hook is missing, an argument is not as described, or, on ``processes`` and ``ray``,
        a client has an attribute that cannot be sent.
    ClientTaskError
        If a client's hook raised. Its ``__cause__`` is an
        :class:`~fedbench.errors.EnclosureError` if a client touched what is not its own: read or
        wrote the server, touched another client, wrote to memory that it shares with others or to
        a message that is the server's own memory. The objects are as the failed round left them.
    EnclosureError
        If the server wrote to a message that is a client's own memory, or `check_enclosure`
        found a change.

    Examples
    --------
    A server whose clients hold one number each and move it towards their own target:

    >>> import fedbench.legacy
    >>> class Client:
    ...     def __init__(self, client_id):
    ...         self.client_id, self.target = client_id, float(client_id)
    ...     def update(self):
    ...         self.x = (self._received_messages["x"] + self.target) / 2
    ...     def communicate(self, server):
    ...         server._received_messages.append({"x": self.x})
    >>> class Server:
    ...     def __init__(self):
    ...         self.x, self._received_messages = 0.0, []
    ...         self._clients = [Client(number) for number in range(3)]
    ...     def _sample_clients(self):
    ...         return [0, 1, 2]
    ...     def communicate(self, client):
    ...         client._received_messages = {"x": self.x}
    ...     def update(self):
    ...         self.x = sum(m["x"] for m in self._received_messages) / 3
    >>> server = Server()
    >>> history = fedbench.legacy.run(server, rounds=2, executor="threads", workers=2)
    >>> server.x
    0.75
    """
    if mode not in _SERVER_HOOKS:
        raise ValueError(f"mode must be 'federated', 'local' or 'centralized', got {mode!r}.")
    level = level_or_default(reproducibility, default=Level.L0)
    clients = check_server(server, hooks=_SERVER_HOOKS[mode])
    for client in clients:
        check_client(client, hooks=_CLIENT_HOOKS[mode])
    every = _interval(server, evaluate_every)
    parts = data_parts(server) if parts is None else _checked_parts(parts)
    first_round = whole("first_round", first_round, least=0)
    if mode == "centralized" and rounds is not None:
        raise ValueError(
            f"rounds must be left out in mode 'centralized', got {rounds!r}: train_centralized() "
            f"reads the server's config."
        )
    count = 1 if mode == "centralized" else setting(server, rounds, "num_iters", "rounds")
    if level == Level.L1:
        redirect_global_generators()
    elif seed is not None:
        _check_seed(seed)
        seed_global_generators(seed)
    with _opened(executor, workers, level) as opened:
        federation = Federation(
            server,
            clients,
            client_ids(clients),
            opened,
            seed=seed or 0,
            level=level,
            check_enclosure=_checked(check_enclosure, opened),
        )
        history = History(pinned=pinned(opened.intraop_threads))
        for index in range(first_round, first_round + count):
            is_due = index > 0 and every > 0 and (index + 1) % every == 0
            if mode == "centralized":
                record = federation.run_centralized(parts)
            elif mode == "local":
                record = federation.run_local_round(index, parts if is_due else ())
            else:
                record = federation.run_round(index, parts if is_due else ())
            history.records.append(record)
            if on_round is not None:
                on_round(record)
    return history


def _interval(server: Any, given: int | None) -> int:
    """Return after how many rounds to evaluate, 0 for never."""
    value = getattr(getattr(server, "config", None), "eval_every", 0) if given is None else given
    return whole("evaluate_every", value, least=0)


def _checked_parts(parts: Sequence[str]) -> tuple[str, ...]:
    if isinstance(parts, str):
        raise TypeError(
            f"parts must be a sequence of names, got the text {parts!r}. Write [{parts!r}]."
        )
    return tuple(parts)


def _checked(check_enclosure: bool, executor: Executor) -> bool:
    if check_enclosure and executor.backend != "sequential":
        raise ValueError(
            f"check_enclosure must be used on the backend 'sequential', got "
            f"{executor.backend!r}. Where clients run side by side, who changed what is not known."
        )
    return check_enclosure


@contextmanager
def _opened(executor: str | Executor, workers: int | None, level: Level) -> Iterator[Executor]:
    """Yield an open executor, and close it if it was made here."""
    if executor == "sequential" and level == Level.L0 and workers in (None, 1):
        # As many threads as the plain loop has: torch's sums depend on their number.
        made: Executor = make_executor(executor, intraop_threads=torch.get_num_threads())
    else:
        made, is_owned = resolve_executor(executor, workers)
        if not is_owned:
            yield made
            return
    with made:
        yield made


def _check_seed(seed: int) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed must be an int, got {seed!r} of type {type(seed).__name__}.")
