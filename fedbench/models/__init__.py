"""Models of the built-in workloads.

Every entry of :data:`MODELS` is a function that returns a new ``torch.nn.Module``. Its
parameters are drawn from the given seed alone: torch's global generator is neither read nor
moved, so models can be built in any thread and at any time without changing other results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fedbench.registry import Entry, Registry, lazy_exports

if TYPE_CHECKING:
    from fedbench.models.dense import linear_regression as linear_regression
    from fedbench.models.dense import logistic_regression as logistic_regression
    from fedbench.models.dense import mlp as mlp
    from fedbench.models.initialization import initialized as initialized
    from fedbench.models.resnet import resnet18 as resnet18
    from fedbench.models.text import char_lstm as char_lstm
    from fedbench.models.text import char_transformer as char_transformer
    from fedbench.models.vision import cifar_cnn as cifar_cnn
    from fedbench.models.vision import fedavg_cnn as fedavg_cnn

MODELS: Registry[Callable[..., Any]] = Registry(
    "model",
    {
        "linear_regression": Entry(
            "fedbench.models.dense:linear_regression",
            "one linear layer to one value; vectorized pays",
        ),
        "logistic_regression": Entry(
            "fedbench.models.dense:logistic_regression", "one linear layer; vectorized pays"
        ),
        "mlp": Entry(
            "fedbench.models.dense:mlp",
            "fully connected layers with ReLU (FedAvg 2NN); vectorized pays",
        ),
        "fedavg_cnn": Entry(
            "fedbench.models.vision:fedavg_cnn",
            "two 5x5 convolutions, 32 and 64 channels, dense 512 (FedAvg); not vectorized",
        ),
        "cifar_cnn": Entry(
            "fedbench.models.vision:cifar_cnn", "LeNet-5 for 32x32 colour images; not vectorized"
        ),
        "resnet18": Entry(
            "fedbench.models.resnet:resnet18",
            "ResNet-18 with GroupNorm or BatchNorm, CIFAR or ImageNet stem; not vectorized",
        ),
        "char_lstm": Entry(
            "fedbench.models.text:char_lstm",
            "next character: embedding 8, two LSTM layers of 256 (FedAvg); not vectorized",
        ),
        "char_transformer": Entry(
            "fedbench.models.text:char_transformer", "next character: a small GPT-2; not vectorized"
        ),
    },
)
"""Functions ``(..., *, seed=0) -> torch.nn.Module``."""

_EXPORTS = {
    "char_lstm": "text",
    "char_transformer": "text",
    "cifar_cnn": "vision",
    "fedavg_cnn": "vision",
    "initialized": "initialization",
    "linear_regression": "dense",
    "logistic_regression": "dense",
    "mlp": "dense",
    "resnet18": "resnet",
}

__all__ = [
    "MODELS",
    "char_lstm",
    "char_transformer",
    "cifar_cnn",
    "fedavg_cnn",
    "initialized",
    "linear_regression",
    "logistic_regression",
    "mlp",
    "resnet18",
]


# torch is imported with the first model, not with the table above.
__getattr__ = lazy_exports(__name__, _EXPORTS)


def __dir__() -> list[str]:
    return sorted(__all__)
