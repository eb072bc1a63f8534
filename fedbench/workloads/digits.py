"""Workloads on scikit-learn's digits: real, small, and quick on any machine."""

from __future__ import annotations

from functools import partial

from fedbench.data import FederatedDataset, load_digits
from fedbench.models import logistic_regression, mlp
from fedbench.workloads.base import Workload

__all__ = ["digits_clients", "digits_logreg", "digits_mlp"]


def digits_clients(
    seed: int = 0, *, num_clients: int = 100, alpha: float = 0.3, min_size: int = 4
) -> FederatedDataset:
    """Return the digits, divided over clients with Dirichlet(`alpha`) label skew."""
    return load_digits(seed=seed).federate(
        "dirichlet", num_clients, seed=seed, alpha=alpha, min_size=min_size
    )


def digits_logreg() -> Workload:
    """Return logistic regression, 650 parameters: dominated by per-client overhead."""
    return Workload(
        name="digits-logreg",
        description="logistic regression on scikit-learn's digits",
        dataset=digits_clients,
        model=partial(logistic_regression, 64, 10),
        cohort_size=20,
        rounds=40,
        lr=0.5,
        batch_size=10,
        local_epochs=5,
    )


def digits_mlp() -> Workload:
    """Return a perceptron with two hidden layers of 200 units, 55,210 parameters."""
    return Workload(
        name="digits-mlp",
        description="perceptron 64-200-200-10 on scikit-learn's digits",
        dataset=digits_clients,
        model=partial(mlp, 64, 10),
        cohort_size=20,
        rounds=40,
        lr=0.3,
        batch_size=10,
        local_epochs=5,
    )
