"""Workloads of the round benchmarks: random data in the shapes of the field's usual jobs."""

import functools

from fedbench import models
from fedbench.peers.workloads import logreg, random_workload, resnet18_step


def fedavg_cnn():
    """Return the FedAvg CNN, 20 clients of 100 samples, batch 20."""
    return random_workload(
        "fedavg-cnn",
        models.fedavg_cnn,
        batch_size=20,
        shape=(1, 28, 28),
        classes=10,
        clients=20,
        samples=100,
    )


def cifar_cnn():
    """Return a CNN on 32x32 colour images, 100 clients of 100 samples, batch 50."""
    return random_workload(
        "cifar-cnn",
        models.cifar_cnn,
        batch_size=50,
        shape=(3, 32, 32),
        classes=10,
        clients=100,
        samples=100,
    )


def char_lstm():
    """Return the 2x256 character LSTM, 10 clients of 20 sequences of 80, batch 10."""
    return random_workload(
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
    "logreg": logreg,
    "fedavg-cnn": fedavg_cnn,
    "cifar-cnn": cifar_cnn,
    "resnet18-step": resnet18_step,
    "char-lstm": char_lstm,
}
