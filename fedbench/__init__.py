"""Federated-learning simulation that is fast and bitwise the same on every backend.

The public names and subpackages are imported when they are first used, so ``import fedbench``
loads neither torch nor pandas nor ray.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedbench import aggregation as aggregation
    from fedbench import algorithms as algorithms
    from fedbench import configuration as configuration
    from fedbench import data as data
    from fedbench import errors as errors
    from fedbench import executors as executors
    from fedbench import legacy as legacy
    from fedbench import models as models
    from fedbench import peers as peers
    from fedbench import registry as registry
    from fedbench import report as report
    from fedbench import reproducibility as reproducibility
    from fedbench import scaling as scaling
    from fedbench import simulation as simulation
    from fedbench import training as training
    from fedbench import verification as verification
    from fedbench import workloads as workloads
    from fedbench.aggregation import FlatLayout as FlatLayout
    from fedbench.executors import Executor as Executor
    from fedbench.executors import make_executor as make_executor
    from fedbench.simulation import History as History
    from fedbench.simulation import Simulation as Simulation
    from fedbench.verification import verify as verify

_EXPORTS = {
    "Executor": "fedbench.executors",
    "FlatLayout": "fedbench.aggregation",
    "History": "fedbench.simulation",
    "Simulation": "fedbench.simulation",
    "make_executor": "fedbench.executors",
    "verify": "fedbench.verification",
}
_SUBMODULES = (
    "aggregation",
    "algorithms",
    "configuration",
    "data",
    "errors",
    "executors",
    "legacy",
    "models",
    "peers",
    "registry",
    "report",
    "reproducibility",
    "scaling",
    "simulation",
    "training",
    "verification",
    "workloads",
)
"""Those that the API reference describes."""

__all__ = [
    "Executor",
    "FlatLayout",
    "History",
    "Simulation",
    "__version__",
    "aggregation",
    "errors",
    "make_executor",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        from fedbench.registry import DISTRIBUTION

        return version(DISTRIBUTION)
    if name in _SUBMODULES:
        return importlib.import_module(f"fedbench.{name}")
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'fedbench' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_SUBMODULES})
