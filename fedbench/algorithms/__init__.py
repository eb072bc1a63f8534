"""Federated algorithms, one file per family: pure client updates and server aggregation."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fedbench.registry import Entry, Registry, own_code

if TYPE_CHECKING:
    from fedbench.algorithms.base import Algorithm as Algorithm
    from fedbench.algorithms.base import Client as Client
    from fedbench.algorithms.base import Reduction as Reduction
    from fedbench.algorithms.base import RoundContext as RoundContext
    from fedbench.algorithms.base import RoundPlan as RoundPlan
    from fedbench.algorithms.base import ServerSetup as ServerSetup
    from fedbench.algorithms.base import ServerState as ServerState
    from fedbench.algorithms.base import Update as Update
    from fedbench.algorithms.base import Updates as Updates
    from fedbench.algorithms.base import hyperparameter as hyperparameter

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Client",
    "Reduction",
    "RoundContext",
    "RoundPlan",
    "ServerSetup",
    "ServerState",
    "Update",
    "Updates",
    "find_algorithm",
    "hyperparameter",
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
        "fedavgm": Entry(
            "fedbench.algorithms.fedopt:FedAvgM", "server momentum (Hsu et al., 2019)"
        ),
        "fedadagrad": Entry(
            "fedbench.algorithms.fedopt:FedAdagrad", "Adagrad on the server (Reddi et al., 2021)"
        ),
        "fedyogi": Entry(
            "fedbench.algorithms.fedopt:FedYogi", "Yogi on the server (Reddi et al., 2021)"
        ),
        "fedadam": Entry(
            "fedbench.algorithms.fedopt:FedAdam", "Adam on the server (Reddi et al., 2021)"
        ),
        "scaffold": Entry(
            "fedbench.algorithms.scaffold:Scaffold", "control variates (Karimireddy et al., 2020)"
        ),
        "feddyn": Entry(
            "fedbench.algorithms.feddyn:FedDyn", "dynamic regularisation (Acar et al., 2021)"
        ),
        "proxskip": Entry(
            "fedbench.algorithms.proxskip:ProxSkip",
            "skipped communication (Mishchenko et al., 2022)",
        ),
        "fedpd": Entry("fedbench.algorithms.fedpd:FedPD", "primal-dual (Zhang et al., 2021)"),
        "fedsplit": Entry(
            "fedbench.algorithms.fedsplit:FedSplit",
            "operator splitting (Pathak and Wainwright, 2020)",
        ),
        "feddr": Entry(
            "fedbench.algorithms.feddr:FedDR", "Douglas-Rachford splitting (Tran-Dinh et al., 2021)"
        ),
        "feddc": Entry("fedbench.algorithms.feddc:FedDC", "drift correction (Gao et al., 2022)"),
        "ditto": Entry(
            "fedbench.algorithms.ditto:Ditto", "personal models beside FedAvg (Li et al., 2021)"
        ),
        "apfl": Entry(
            "fedbench.algorithms.apfl:APFL", "mixtures of personal and shared (Deng et al., 2020)"
        ),
        "pfedme": Entry(
            "fedbench.algorithms.pfedme:PFedMe", "Moreau envelopes (Dinh et al., 2020)"
        ),
        "pfedmac": Entry(
            "fedbench.algorithms.pfedme:PFedMac", "sparse personal models (Liu et al., 2021)"
        ),
        "ifca": Entry("fedbench.algorithms.ifca:IFCA", "clusters by loss (Ghosh et al., 2020)"),
        "fpfc": Entry("fedbench.algorithms.fpfc:FPFC", "pairwise fusion (Yu et al., 2022)"),
        "fedcr": Entry(
            "fedbench.algorithms.fedcr:FedCR",
            "a common representation, local heads (Zhang et al., 2023)",
        ),
    },
)


def find_algorithm(name: str) -> type[Algorithm]:
    """Return the class of an algorithm: an entry of the registry, or ``module:Class`` of your own.

    Raises
    ------
    UnknownNameError
        If no algorithm has this name.
    ValueError
        If there is no such module or class.
    TypeError
        If it is not a subclass of :class:`Algorithm`.
    """
    if not isinstance(name, str) or ":" not in name:
        return ALGORITHMS.load(name)
    from fedbench.algorithms.base import Algorithm

    found = own_code("algorithm", name)
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise TypeError(
            f"algorithm must be a subclass of fedbench.algorithms.Algorithm, got {name!r}."
        )
    return found


def make_algorithm(name: str, **options: object) -> Algorithm:
    """Return the algorithm `name` with the hyperparameters `options`.

    Parameters
    ----------
    name : str
        A name of `ALGORITHMS`, or ``"module:Class"`` of your own.
    **options : object
        Hyperparameters by name; what is left out has its default.

    Raises
    ------
    UnknownNameError
        If no algorithm has this name.
    TypeError
        If the algorithm has no such hyperparameter (the message lists those it has), or a value
        is of the wrong kind.
    ValueError
        If a hyperparameter is out of its range, or there is no such module or class.
    """
    algorithm = find_algorithm(name)
    known = [field.name for field in algorithm.options()]
    unknown = sorted(options.keys() - set(known))
    if unknown:
        raise TypeError(
            f"algorithm {name!r} has no hyperparameter {', '.join(map(repr, unknown))}. "
            f"It has {', '.join(map(repr, known)) or 'none'}."
        )
    return algorithm(**options)


def __getattr__(name: str) -> Any:
    # torch is imported with the first algorithm, not with the table above.
    if name in __all__:
        return getattr(importlib.import_module("fedbench.algorithms.base"), name)
    raise AttributeError(f"module 'fedbench.algorithms' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
