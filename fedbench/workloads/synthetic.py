"""Workloads on data drawn from a seed."""

from __future__ import annotations

from functools import partial
from typing import Any

from fedbench.data import (
    FederatedDataset,
    load_quadratics,
    load_synthetic,
    load_synthetic_images,
)
from fedbench.models import cifar_cnn, linear_regression, logistic_regression, resnet18
from fedbench.workloads.base import Workload

__all__ = [
    "image_clients",
    "quadratic",
    "quadratic_clients",
    "synthetic_clients",
    "synthetic_cnn",
    "synthetic_logreg",
    "synthetic_resnet18",
]


def synthetic_clients(seed: int = 0, **options: Any) -> FederatedDataset:
    """Return Synthetic(alpha, beta), one client per model drawn; see ``load_synthetic``."""
    return load_synthetic(seed=seed, **options).federate_by_key()


def synthetic_logreg() -> Workload:
    """Return logistic regression on Synthetic(1, 1): 610 parameters, very unequal clients."""
    return Workload(
        name="synthetic-logreg",
        description="logistic regression on FedProx's Synthetic(1, 1)",
        dataset=partial(synthetic_clients, alpha=1.0, beta=1.0),
        model=partial(logistic_regression, 60, 10),
        cohort_size=10,
        rounds=50,
        lr=0.01,
        batch_size=10,
        local_epochs=5,
    )


def quadratic_clients(seed: int = 0, **options: Any) -> FederatedDataset:
    """Return quadratics with a known optimum; see ``fedbench.data.quadratics``."""
    return load_quadratics(seed=seed, **options).federate_by_key()


def quadratic() -> Workload:
    """Return heterogeneous quadratics in 10 variables, 20 clients, full gradients.

    ``fedbench.data.quadratics(seed=seed)`` gives the optimum and the least loss.
    """
    return Workload(
        name="quadratic",
        description="quadratics of 20 clients in 10 variables, known optimum",
        dataset=quadratic_clients,
        model=partial(linear_regression, 10, bias=False),
        cohort_size=20,
        rounds=100,
        lr=0.1,
        batch_size=10,
        local_epochs=1,
        loss="mse",
    )


def image_clients(
    seed: int = 0,
    *,
    num_clients: int = 100,
    samples_per_client: int = 20,
    alpha: float = 0.5,
    min_size: int = 5,
) -> FederatedDataset:
    """Return CIFAR-shaped noise images, divided with Dirichlet(`alpha`) label skew."""
    samples = load_synthetic_images(num_samples=num_clients * samples_per_client, seed=seed)
    return samples.federate("dirichlet", num_clients, seed=seed, alpha=alpha, min_size=min_size)


def synthetic_cnn() -> Workload:
    """Return the small CIFAR CNN, 62,006 parameters, on images of CIFAR's shape."""
    return Workload(
        name="synthetic-cnn",
        description="small CNN on synthetic images of CIFAR's shape",
        dataset=image_clients,
        model=cifar_cnn,
        cohort_size=20,
        rounds=20,
        lr=0.05,
        batch_size=10,
        local_epochs=2,
        eval_every=5,
    )


def synthetic_resnet18() -> Workload:
    """Return ResNet-18 with GroupNorm, 11,173,962 parameters: dominated by the model's size.

    The default rounds measure speed. They are far too few to learn the classes.
    """
    return Workload(
        name="synthetic-resnet18",
        description="ResNet-18 (GroupNorm) on synthetic images of CIFAR's shape",
        dataset=partial(image_clients, num_clients=20, samples_per_client=16),
        model=resnet18,
        cohort_size=4,
        rounds=3,
        lr=0.01,
        batch_size=8,
        local_epochs=1,
        eval_every=3,
    )
