"""Workloads of the round benchmarks: random data in the shapes of the field's usual jobs."""

import functools

import torch

from fedbench import models
from fedbench.data import FederatedDataset
from fedbench.workloads import Workload


def random_dataset(seed=0, *, shape, classes, clients, samples, tokens=False):
    """Return random samples in equal shares; the values do not matter for the time."""
    generator = torch.Generator().manual_seed(seed)
    total = clients * samples
    if tokens:
        inputs = torch.randint(0, classes, (total, *shape), generator=generator)
    else:
        inputs = torch.randn(total, *shape, generator=generator)
    targets = torch.randint(0, classes, (total,), generator=generator)
    partition = [torch.arange(i * samples, (i + 1) * samples) for i in range(clients)]
    return FederatedDataset(
        inputs,
        targets,
        partition,
        test_inputs=inputs[:16],
        test_targets=targets[:16],
        num_classes=classes,
    )


def _workload(name, model, *, batch_size, lr, clients, **data):
    return Workload(
        name=name,
        description="random data for timing",
        dataset=functools.partial(random_dataset, clients=clients, **data),
        model=model,
        cohort_size=clients,
        rounds=1,
        lr=lr,
        batch_size=batch_size,
    )


def logistic_regression():
    """Return logistic regression 784 -> 10, 100 clients of 100 samples, batch 10."""
    return _workload(
        "logreg",
        functools.partial(models.logistic_regression, 784, 10),
        batch_size=10,
        lr=0.01,
        shape=(784,),
        classes=10,
        clients=100,
        samples=100,
    )


def fedavg_cnn():
    """Return the FedAvg CNN, 20 clients of 100 samples, batch 20."""
    return _workload(
        "fedavg-cnn",
        models.fedavg_cnn,
        batch_size=20,
        lr=0.01,
        shape=(1, 28, 28),
        classes=10,
        clients=20,
        samples=100,
    )


def cifar_cnn():
    """Return a CNN on 32x32 colour images, 100 clients of 100 samples, batch 50."""
    return _workload(
        "cifar-cnn",
        models.cifar_cnn,
        batch_size=50,
        lr=0.01,
        shape=(3, 32, 32),
        classes=10,
        clients=100,
        samples=100,
    )


def resnet18_step():
    """Return ResNet-18 (GroupNorm, ImageNet stem), 10 clients with one step of batch 8."""
    return _workload(
        "resnet18-step",
        functools.partial(models.resnet18, stem="imagenet"),
        batch_size=8,
        lr=0.01,
        shape=(3, 32, 32),
        classes=10,
        clients=10,
        samples=8,
    )


def char_lstm():
    """Return the 2x256 character LSTM, 10 clients of 20 sequences of 80, batch 10."""
    return _workload(
        "char-lstm",
        functools.partial(models.char_lstm, 80),
        batch_size=10,
        lr=0.1,
        shape=(80,),
        classes=80,
        clients=10,
        samples=20,
        tokens=True,
    )


ROUND_WORKLOADS = {
    "logreg": logistic_regression,
    "fedavg-cnn": fedavg_cnn,
    "cifar-cnn": cifar_cnn,
    "resnet18-step": resnet18_step,
    "char-lstm": char_lstm,
}
