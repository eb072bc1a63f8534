"""Federated algorithms, one file per family: pure client updates and server aggregation."""

from fedbench.algorithms.base import (
    Algorithm,
    Client,
    RoundContext,
    RoundPlan,
    ServerState,
    Update,
    Updates,
)
from fedbench.registry import Entry, Registry

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Client",
    "RoundContext",
    "RoundPlan",
    "ServerState",
    "Update",
    "Updates",
    "make_algorithm",
]

ALGORITHMS: Registry[type[Algorithm]] = Registry(
    "algorithm",
    {
        "fedavg": Entry(
            "fedbench.algorithms.fedavg:FedAvg", "federated averaging (McMahan et al., 2017)"
        ),
        "fedprox": Entry(
            "fedbench.algorithms.fedprox:FedProx",
            "a pull towards the server model (Li et al., 2020)",
        ),
    },
)


def make_algorithm(name: str, **options: object) -> Algorithm:
    """Return the algorithm registered as `name` with the hyperparameters `options`.

    Raises
    ------
    UnknownNameError
        If no algorithm has this name.
    TypeError
        If the algorithm has no such hyperparameter; the message lists those it has.
    ValueError
        If a hyperparameter is out of its range.
    """
    algorithm = ALGORITHMS.load(name)
    known = [field.name for field in algorithm.options()]
    unknown = sorted(options.keys() - set(known))
    if unknown:
        raise TypeError(
            f"algorithm {name!r} has no hyperparameter {', '.join(map(repr, unknown))}. "
            f"It has {', '.join(map(repr, known)) or 'none'}."
        )
    return algorithm(**options)
