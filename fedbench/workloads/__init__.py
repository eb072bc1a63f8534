"""Complete, named jobs: data, partition, model, algorithm, cohort and local work."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fedbench.registry import Entry, Registry

if TYPE_CHECKING:
    from fedbench.workloads.base import Workload as Workload

WORKLOADS: Registry[Callable[[], Workload]] = Registry(
    "workload",
    {
        "digits-logreg": Entry(
            "fedbench.workloads.digits:digits_logreg",
            "logistic regression on real 8x8 digits, 100 clients with Dirichlet label skew",
        ),
        "digits-mlp": Entry(
            "fedbench.workloads.digits:digits_mlp",
            "perceptron 64-200-200-10 on real 8x8 digits, 100 clients with Dirichlet label skew",
        ),
        "mnist5k-cnn": Entry(
            "fedbench.workloads.mnist:mnist5k_cnn",
            "the FedAvg CNN on 5,000 real MNIST images, 50 clients with Dirichlet label skew",
            extra="data",
        ),
        "synthetic-logreg": Entry(
            "fedbench.workloads.synthetic:synthetic_logreg",
            "logistic regression on FedProx's Synthetic(1, 1), 30 unequal clients",
        ),
        "quadratic": Entry(
            "fedbench.workloads.synthetic:quadratic",
            "quadratics of 20 clients with a known optimum, full gradients",
        ),
        "text-lstm": Entry(
            "fedbench.workloads.text:text_lstm",
            "two-layer character LSTM on Python's language reference, 50 topics as clients",
        ),
        "synthetic-cnn": Entry(
            "fedbench.workloads.synthetic:synthetic_cnn",
            "small CNN on synthetic images of CIFAR's shape, 100 clients",
        ),
        "synthetic-resnet18": Entry(
            "fedbench.workloads.synthetic:synthetic_resnet18",
            "ResNet-18 with GroupNorm on synthetic images of CIFAR's shape, 20 clients",
        ),
    },
)
"""Functions ``() -> Workload``."""

__all__ = ["WORKLOADS", "Workload", "load"]


def load(name: str) -> Workload:
    """Return the built-in workload `name`.

    Parameters
    ----------
    name : str
        A name of :data:`WORKLOADS`.

    Returns
    -------
    Workload
        The workload; its data are loaded when its ``dataset`` is called.

    Raises
    ------
    UnknownNameError
        If no workload has this name; the message lists the names.
    """
    return WORKLOADS.load(name)()


def __getattr__(name: str) -> Any:
    # torch is imported with the first workload, not with the table above.
    if name == "Workload":
        return importlib.import_module("fedbench.workloads.base").Workload
    raise AttributeError(f"module 'fedbench.workloads' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
