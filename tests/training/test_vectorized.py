"""Stacked local SGD: which models it can read, and that it computes what one client would."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from fedbench.data import ClientData
from fedbench.errors import VectorizationError
from fedbench.models import cifar_cnn, linear_regression, logistic_regression, mlp
from fedbench.training import (
    LOSSES,
    DenseLayer,
    LocalWork,
    Loss,
    WorkerModel,
    local_sgd,
    refuse_work,
    stacked_sgd,
    vectorized_model,
)

CROSS_ENTROPY, MSE = LOSSES.load("cross_entropy"), LOSSES.load("mse")
SHAPE, CLASSES = (3, 4), 5


def samples(total=200, shape=SHAPE, seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(total, *shape, generator=generator)
    return inputs, torch.randint(0, CLASSES, (total,), generator=generator)


def generators(client, epoch):
    return torch.Generator().manual_seed(1000 * client + epoch)


def one_by_one(model, work, clients, inputs, targets, loss=CROSS_ENTROPY, **terms):
    start = model.flat.clone()
    ends, losses = [], []
    for client, indices in enumerate(clients):
        model.flat.copy_(start)
        data = ClientData(inputs[indices], targets[indices])
        order = lambda epoch, client=client: generators(client, epoch)  # noqa: E731
        losses.append(local_sgd(model, data, work, loss, order, **terms))
        ends.append(model.flat.clone())
    model.flat.copy_(start)
    return torch.stack(ends), losses


class FunctionalMLP(nn.Module):
    """As users write it: layers as attributes, everything else by functions."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(12, 7), nn.Linear(7, CLASSES, bias=False)

    def forward(self, x):
        return self.second(torch.relu(self.first(x.view(x.size(0), -1))))


class Inplace(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(12, 7), nn.Linear(7, 6), nn.Linear(6, CLASSES)])

    def forward(self, x):
        x = functional.relu_(self.layers[0](torch.flatten(x, 1)))
        return self.layers[2](self.layers[1](x).tanh())


def build(name, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return WorkerModel(MODELS[name]())


MODELS = {
    "logistic": lambda: logistic_regression(12, CLASSES),
    "mlp": lambda: mlp(12, CLASSES, hidden=(9, 8)),
    "functional": FunctionalMLP,
    "inplace": Inplace,
    "sigmoid": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(12, 7), nn.Sigmoid(), nn.Identity(), nn.Linear(7, CLASSES)
    ),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("work", "proximal"),
    [
        (LocalWork(epochs=2, batch_size=7, lr=0.1), 0.0),
        (LocalWork(epochs=3, batch_size=10, lr=0.05, momentum=0.9), 0.0),
        (LocalWork(epochs=2, batch_size=10, lr=0.05, momentum=0.8, nesterov=True), 0.2),
        (LocalWork(epochs=1, batch_size=64, lr=0.1, weight_decay=0.1), 0.5),
    ],
)
def test_every_client_ends_where_it_would_alone(name, work, proximal):
    inputs, targets = samples()
    # Unequal sizes: one sample, less than a batch, a whole number of batches, many batches.
    sizes = (20, 1, 70, 3, 64)
    clients = list(torch.randperm(200)[: sum(sizes)].split(sizes))
    model = build(name)
    terms = {"proximal": proximal, "anchor": model.flat.clone()} if proximal else {}
    expected, losses = one_by_one(model, work, clients, inputs, targets, **terms)
    stacked = vectorized_model(model, inputs, targets, CROSS_ENTROPY)
    found = stacked_sgd(stacked, work, model.flat, clients, inputs, targets, generators, **terms)
    assert torch.allclose(found.parameters, expected, rtol=1e-4, atol=1e-6)
    assert found.losses == pytest.approx(losses, rel=1e-5)


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    batch_size=st.integers(1, 40),
    epochs=st.integers(1, 3),
)
@settings(max_examples=60)
def test_any_sizes_and_batches(sizes, batch_size, epochs):
    inputs, targets = samples(sum(sizes))
    clients = list(torch.arange(sum(sizes)).split(sizes))
    work = LocalWork(epochs=epochs, batch_size=batch_size, lr=0.05)
    model = WorkerModel(logistic_regression(12, CLASSES))
    expected, losses = one_by_one(model, work, clients, inputs, targets)
    stacked = vectorized_model(model, inputs, targets, CROSS_ENTROPY)
    found = stacked_sgd(stacked, work, model.flat, clients, inputs, targets, generators)
    assert torch.allclose(found.parameters, expected, rtol=1e-4, atol=1e-6)
    assert found.losses == pytest.approx(losses, rel=1e-5)


@pytest.mark.parametrize("shape", [(), (2,)])
def test_regressions(shape):
    inputs, _ = samples(60)
    inputs = inputs.flatten(1)
    targets = torch.randn(60, *shape, generator=torch.Generator().manual_seed(1))
    model = WorkerModel(linear_regression(12) if shape == () else mlp(12, 2, hidden=(4,)))
    clients = list(torch.arange(60).split([40, 15, 5]))
    work = LocalWork(epochs=2, batch_size=10, lr=0.02)
    expected, losses = one_by_one(model, work, clients, inputs, targets, MSE)
    stacked = vectorized_model(model, inputs, targets, MSE)
    assert stacked.network.scalar == (shape == ())
    found = stacked_sgd(stacked, work, model.flat, clients, inputs, targets, generators)
    assert torch.allclose(found.parameters, expected, rtol=1e-4, atol=1e-6)
    assert found.losses == pytest.approx(losses, rel=1e-5)


def test_reading_changes_nothing():
    inputs, targets = samples()
    model = build("inplace")
    model.module.eval()
    before, state = model.flat.clone(), torch.get_rng_state()
    network = vectorized_model(model, inputs, targets, CROSS_ENTROPY).network
    assert network.layers == (
        DenseLayer("layers.0.weight", "layers.0.bias", "relu"),
        DenseLayer("layers.1.weight", "layers.1.bias", "tanh"),
        DenseLayer("layers.2.weight", "layers.2.bias"),
    )
    assert torch.equal(model.flat, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert not model.module.training


class Hidden(nn.Module):
    """Does more than its operations show: a gradient that autograd does not follow."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(12, 7), nn.Linear(7, CLASSES)

    def forward(self, x):
        with torch.no_grad():
            hidden = self.first(x.flatten(1)).relu()
        return self.second(hidden)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(12, 12), nn.Linear(12, CLASSES)

    def forward(self, x):
        x = x.flatten(1)
        return self.second(x + self.first(x))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(12, 12), nn.Linear(12, CLASSES)

    def forward(self, x):
        return self.second(self.first(self.first(x.flatten(1))))


class Unused(FunctionalMLP):
    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(2, 2)


def frozen():
    model = mlp(12, CLASSES, hidden=(4,))
    model.linear1.weight.requires_grad_(False)
    return model


def flat(*layers):
    return lambda: nn.Sequential(nn.Flatten(), *layers)


REFUSED = {
    "convolution": (lambda: cifar_cnn(), "the model uses convolution"),
    "dropout": (flat(nn.Linear(12, 5), nn.Dropout(), nn.Linear(5, 5)), "the model uses "),
    "batch norm": (flat(nn.Linear(12, 5), nn.BatchNorm1d(5)), "the model has buffers or frozen"),
    "layer norm": (flat(nn.LayerNorm(12), nn.Linear(12, 5)), "the model uses native_layer_norm"),
    "softmax": (flat(nn.Linear(12, 5), nn.LogSoftmax(1)), "the model uses _log_softmax"),
    "leaky": (flat(nn.Linear(12, 5), nn.LeakyReLU(), nn.Linear(5, 5)), "leaky_relu"),
    "two activations": (flat(nn.Linear(12, 5), nn.Tanh(), nn.ReLU()), "the model uses relu"),
    "activation first": (flat(nn.ReLU(), nn.Linear(12, 5)), "the model uses relu"),
    "no layer": (lambda: nn.Sequential(nn.Flatten(), nn.PReLU()), "the model uses view"),
    "frozen": (frozen, "buffers or frozen parameters .linear1.weight"),
    "residual": (Residual, "the model uses add"),
    "tied": (Tied, "belong to exactly one linear layer"),
    "unused": (Unused, "belong to exactly one linear layer"),
    "hidden": (Hidden, "differs from autograd"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_models_are_refused_with_a_reason(case):
    build_model, reason = REFUSED[case]
    inputs, targets = samples(shape=(3, 32, 32) if case == "convolution" else SHAPE)
    with pytest.raises(VectorizationError, match=reason):
        vectorized_model(WorkerModel(build_model()), inputs, targets, CROSS_ENTROPY)


def test_other_losses_targets_and_inputs_are_refused():
    inputs, targets = samples()
    model = build("mlp")
    custom = Loss(lambda outputs, targets: outputs.mean(), "none", lambda o, t: o.sum())
    with pytest.raises(VectorizationError, match="only the losses cross_entropy and mse"):
        vectorized_model(model, inputs, targets, custom)
    with pytest.raises(VectorizationError, match="as many values as the model has outputs"):
        vectorized_model(model, inputs, targets.float(), MSE)
    with pytest.raises(VectorizationError, match=r"the inputs are torch\.int64"):
        vectorized_model(model, targets, targets, CROSS_ENTROPY)


def test_other_local_work_is_refused():
    refuse_work(LocalWork(epochs=2, momentum=0.5, nesterov=True, weight_decay=0.1))
    with pytest.raises(VectorizationError, match="sets clip_norm"):
        refuse_work(LocalWork(clip_norm=1.0))
    with pytest.raises(VectorizationError, match="sets optimizer"):
        refuse_work(LocalWork(optimizer=torch.optim.Adam))


def test_classes_out_of_range_are_an_error():
    inputs, targets = samples()
    stacked = vectorized_model(build("mlp"), inputs, targets, CROSS_ENTROPY)
    targets[150] = CLASSES
    start = build("mlp").flat
    with pytest.raises((IndexError, RuntimeError), match=r"out of bounds"):
        stacked_sgd(stacked, LocalWork(), start, [torch.arange(200)], inputs, targets, generators)
