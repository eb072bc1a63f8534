"""Models of the built-in workloads.

Every entry of :data:`MODELS` is a function that returns a new ``torch.nn.Module``. Its
parameters are drawn from the given seed alone: torch's global generator is neither read nor
moved, so models can be built in any thread and at any time without changing other results.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fedbench.registry import Entry, Registry

if TYPE_CHECKING:
    from fedbench.models.dense import logistic_regression as logistic_regression
    from fedbench.models.dense import mlp as mlp
    from fedbench.models.initialization import initialized as initialized
    from fedbench.models.vision import fedavg_cnn as fedavg_cnn

MODELS: Registry[Callable[..., Any]] = Registry(
    "model",
    {
        "logistic_regression": Entry(
            "fedbench.models.dense:logistic_regression", "one linear layer"
        ),
        "mlp": Entry("fedbench.models.dense:mlp", "fully connected layers with ReLU (FedAvg 2NN)"),
        "fedavg_cnn": Entry(
            "fedbench.models.vision:fedavg_cnn",
            "two 5x5 convolutions, 32 and 64 channels, dense 512 (FedAvg)",
        ),
    },
)
"""Functions ``(..., *, seed=0) -> torch.nn.Module``."""

_EXPORTS = {
    "fedavg_cnn": "fedbench.models.vision",
    "initialized": "fedbench.models.initialization",
    "logistic_regression": "fedbench.models.dense",
    "mlp": "fedbench.models.dense",
}

__all__ = ["MODELS", "fedavg_cnn", "initialized", "logistic_regression", "mlp"]


def __getattr__(name: str) -> Any:
    # torch is imported with the first model, not with the table above.
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'fedbench.models' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
