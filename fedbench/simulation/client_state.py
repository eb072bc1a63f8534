"""What clients may keep between rounds: checked where it is made and where a task leaves it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedbench.algorithms import Algorithm
from fedbench.errors import EnclosureError
from fedbench.reproducibility.digest import check_state
from fedbench.training import ModelState

__all__ = ["kept_state", "new_state"]


def new_state(algorithm: Algorithm, model: ModelState, client_id: int | str) -> dict[str, Any]:
    """Return the state of a client that has not taken part; `model` is the initial model.

    Raises
    ------
    TypeError
        If ``init_client`` returns something that cannot be kept.
    """
    if not algorithm.stateful:
        return {}
    state = algorithm.init_client(model)
    what = f"{type(algorithm).__name__}.init_client must return a state that can be kept"
    return _checked(state, f"{what}, for client {client_id!r}")


def kept_state(
    algorithm: Algorithm, state: Any, client_id: int | str, round_index: int
) -> dict[str, Any]:
    """Return what a client keeps of the `state` that its task has left.

    Raises
    ------
    EnclosureError
        If the algorithm is not stateful and there is something to keep.
    TypeError
        If it cannot be kept.
    """
    where = f"client {client_id!r} in round {round_index + 1}"
    if algorithm.stateful:
        return _checked(state, f"{where} must leave a state that can be kept")
    if not isinstance(state, Mapping) or state:
        names = ", ".join(map(repr, state)) if isinstance(state, Mapping) else ""
        found = names or type(state).__name__
        raise EnclosureError(
            f"{where} must leave client.state empty, because {type(algorithm).__name__}.stateful "
            f"is False and it would be forgotten, got {found}. Set stateful = True in the class "
            f"to keep it between rounds; what train passes on to uplink belongs in client.outgoing."
        )
    return {}


def _checked(state: Any, must: str) -> dict[str, Any]:
    """Return `state` as a dict if every entry of it is of a kind that can be kept."""
    if not isinstance(state, Mapping):
        raise TypeError(f"{must}, got {type(state).__name__}. Use a dict of tensors and values.")
    try:
        check_state(state)
    except TypeError as error:
        raise TypeError(f"{must}: {error}") from None
    return dict(state)
