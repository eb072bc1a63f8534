"""Jobs that every peer can do: all clients in each round, random data in the usual shapes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fedbench.registry import Entry, Registry

if TYPE_CHECKING:
    from torch import nn

    from fedbench.data import FederatedDataset
    from fedbench.workloads import Workload

__all__ = ["PEER_WORKLOADS", "logreg", "random_dataset", "random_workload", "resnet18_step"]

PEER_WORKLOADS: Registry[Callable[[], Workload]] = Registry(
    "workload",
    {
        "logreg": Entry(
            f"{__name__}:logreg", "logistic regression 784-10, 100 clients, 10 steps of batch 10"
        ),
        "resnet18-step": Entry(
            f"{__name__}:resnet18_step", "ResNet-18, 10 clients, one step of batch 8"
        ),
    },
)
"""Functions ``() -> Workload``; the default number of rounds is that of the comparison."""


def random_dataset(
    seed: int = 0,
    *,
    shape: tuple[int, ...],
    classes: int,
    clients: int,
    samples: int,
    tokens: bool = False,
) -> FederatedDataset:
    """Return random samples in equal shares; the values do not matter for the time.

    Parameters
    ----------
    seed : int
        Seed of the values.
    shape : tuple of int
        Shape of a sample.
    classes : int
        Classes of the targets, and of the tokens.
    clients, samples : int
        Clients, and samples of each.
    tokens : bool
        Whole numbers below `classes` instead of normally distributed inputs.
    """
    import torch

    from fedbench.data import FederatedDataset

    generator = torch.Generator().manual_seed(seed)
    total = clients * samples
    if tokens:
        inputs = torch.randint(0, classes, (total, *shape), generator=generator)
    else:
        inputs = torch.randn(total, *shape, generator=generator)
    targets = torch.randint(0, classes, (total,), generator=generator)
    return FederatedDataset(
        inputs,
        targets,
        [torch.arange(i * samples, (i + 1) * samples) for i in range(clients)],
        test_inputs=inputs[:16],
        test_targets=targets[:16],
        num_classes=classes,
    )


def random_workload(
    name: str,
    model: Callable[..., nn.Module],
    *,
    batch_size: int,
    clients: int,
    cohort_size: int | None = None,
    rounds: int = 1,
    lr: float = 0.01,
    **data: Any,
) -> Workload:
    """Return one local epoch of FedAvg on random data, for timing.

    Parameters
    ----------
    name : str
        Name of the workload.
    model : callable
        Returns a model; takes `seed`.
    batch_size : int
        Samples of a local step.
    clients : int
        Registered clients.
    cohort_size : int, optional
        Clients in a round; all by default.
    rounds : int
        Default number of rounds.
    lr : float
        Local learning rate.
    **data
        Further arguments of :func:`random_dataset`.
    """
    from fedbench.workloads import Workload

    return Workload(
        name=name,
        description="random data for timing",
        dataset=functools.partial(random_dataset, clients=clients, **data),
        model=model,
        cohort_size=clients if cohort_size is None else cohort_size,
        rounds=rounds,
        lr=lr,
        batch_size=batch_size,
    )


def logreg() -> Workload:
    """Return logistic regression 784 -> 10, 100 clients of 100 samples, batch 10."""
    from fedbench import models

    return random_workload(
        "logreg",
        functools.partial(models.logistic_regression, 784, 10),
        batch_size=10,
        rounds=10,
        shape=(784,),
        classes=10,
        clients=100,
        samples=100,
    )


def resnet18_step() -> Workload:
    """Return ResNet-18 (GroupNorm, ImageNet stem), 10 clients with one step of batch 8."""
    from fedbench import models

    return random_workload(
        "resnet18-step",
        functools.partial(models.resnet18, stem="imagenet"),
        batch_size=8,
        rounds=6,
        shape=(3, 32, 32),
        classes=10,
        clients=10,
        samples=8,
    )
