"""Gradients written out for dense models: the bits of autograd, and what is left to it."""

import functools
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.nn.utils.prune import random_unstructured

from fedbench.models import logistic_regression, mlp
from fedbench.training import LOSSES, WorkerModel
from fedbench.training.dense_gradients import DenseGradients

CROSS_ENTROPY = LOSSES.load("cross_entropy")
ACTIVATIONS = (nn.ReLU, nn.Tanh, nn.Sigmoid)


def both(model, parameters, x, y):
    """Return what is found without a graph, and what autograd finds."""
    found = DenseGradients.of(model, parameters, CROSS_ENTROPY)(x, y)
    value = functional.cross_entropy(model(x), y)
    return found, (value.detach(), torch.autograd.grad(value, parameters))


def bits(result):
    value, gradients = result
    return [tensor.numpy().tobytes() for tensor in (value, *gradients)]


def assert_the_same(found, expected):
    assert bits(found) == bits(expected)
    assert all(g.shape == e.shape for g, e in zip(found[1], expected[1], strict=True))
    assert not any(tensor.requires_grad for tensor in (found[0], *found[1]))


@st.composite
def networks(draw):
    """Return a chain of layers on inputs of a drawn shape, some of them frozen."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    shape = draw(st.sampled_from([(3,), (17,), (2, 3, 4), (1, 8, 8)]))
    widths = [
        torch.Size(shape).numel(),
        *draw(st.lists(st.integers(1, 40), min_size=1, max_size=4)),
    ]
    layers = [nn.Flatten()] if len(shape) > 1 or draw(st.booleans()) else []
    for before, after in itertools.pairwise(widths):
        layers.append(nn.Linear(before, after, bias=draw(st.booleans()), dtype=dtype))
        layers += [draw(st.sampled_from(ACTIVATIONS))()] if draw(st.booleans()) else []
    model = nn.Sequential(nn.Sequential(*layers)) if draw(st.booleans()) else nn.Sequential(*layers)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(generator=generator)
    for parameter in list(model.parameters())[1:]:
        parameter.requires_grad_(draw(st.integers(0, 4)) > 0)
    samples = draw(st.integers(1, 35))
    x = torch.randn(samples, *shape, dtype=dtype, generator=generator)
    y = torch.randint(0, widths[-1], (samples,), generator=generator)
    y[draw(st.integers(0, samples - 1))] = draw(st.sampled_from([0, -100]))
    return model, x, y


@given(networks())
def test_bits_are_those_of_autograd(drawn):
    model, x, y = drawn
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert_the_same(*both(model, trained, x, y))
    frozen_first = trained[1:]
    if frozen_first:
        trained[0].requires_grad_(False)
        assert_the_same(*both(model, frozen_first, x, y))


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (functools.partial(logistic_regression, 784, 10), (784,)),
        (functools.partial(logistic_regression, 64, 10), (1, 8, 8)),
        (functools.partial(mlp, 784, 10), (1, 28, 28)),
        (functools.partial(mlp, 30, 1, hidden=(1, 1)), (30,)),
    ],
    ids=["logreg", "digits", "2nn", "width one"],
)
@pytest.mark.parametrize("samples", [1, 3, 10, 64])
def test_built_in_models_have_it_with_their_bits(make, shape, samples):
    model = WorkerModel(make())
    generator = torch.Generator().manual_seed(samples)
    x = torch.randn(samples, *shape, generator=generator)
    outputs = model.module(x).shape[1]
    y = torch.randint(0, outputs, (samples,), generator=generator)
    assert_the_same(*both(model.module, model.trainable, x, y))


def test_infinite_and_missing_values_go_the_same_way():
    model = logistic_regression(5, 3)
    x = torch.randn(4, 5)
    x[0, 0], x[1, 2] = float("inf"), float("nan")
    found, expected = both(model, list(model.parameters()), x, torch.tensor([0, 1, 2, 0]))
    assert torch.isnan(found[0])
    for own, other in zip(found[1], expected[1], strict=True):
        assert torch.equal(own.isnan(), other.isnan())


class Derived(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def tied():
    layer = nn.Linear(5, 5)
    return nn.Sequential(layer, nn.ReLU(), layer)


def hooked(name):
    model = nn.Sequential(nn.Linear(5, 3))
    getattr(model[0], name)(lambda *_: None)
    return model


def replaced():
    model = nn.Sequential(nn.Linear(5, 3))
    forward = model[0].forward
    model[0].forward = lambda x: 2 * forward(x)
    return model


def with_tensor_hook():
    model = nn.Sequential(nn.Linear(5, 3))
    model[0].weight.register_hook(lambda gradient: 2 * gradient)
    return model


LEFT_TO_AUTOGRAD = {
    "derived class": lambda: nn.Sequential(Derived(5, 3)),
    "derived container": lambda: type("Net", (nn.Sequential,), {})(nn.Linear(5, 3)),
    "layer of its own": lambda: type("Net", (nn.Module,), {"forward": lambda _, x: x})(),
    "tied layers": tied,
    "draws": lambda: nn.Sequential(nn.Linear(5, 3), nn.Dropout(0.5)),
    "buffers": lambda: nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)),
    "two activations": lambda: nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.Tanh()),
    "activation first": lambda: nn.Sequential(nn.ReLU(), nn.Linear(5, 3)),
    "other flattening": lambda: nn.Sequential(nn.Flatten(0), nn.Linear(5, 3)),
    "half precision": lambda: nn.Sequential(nn.Linear(5, 3, dtype=torch.bfloat16)),
    "weight norm": lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(5, 3))),
    "pruned": lambda: nn.Sequential(random_unstructured(nn.Linear(5, 3), "weight", 1)),
    "forward hook": lambda: hooked("register_forward_hook"),
    "forward pre-hook": lambda: hooked("register_forward_pre_hook"),
    "backward hook": lambda: hooked("register_full_backward_hook"),
    "backward pre-hook": lambda: hooked("register_full_backward_pre_hook"),
    "forward replaced": replaced,
    "hook on a parameter": with_tensor_hook,
    "nothing to train": lambda: nn.Sequential(nn.Linear(5, 3)).requires_grad_(False),
    "no layers": nn.Sequential,
}


@pytest.mark.parametrize("name", LEFT_TO_AUTOGRAD)
def test_models_that_may_do_more_are_left_to_autograd(name):
    model = LEFT_TO_AUTOGRAD[name]()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert DenseGradients.of(model, trained, CROSS_ENTROPY) is None


def test_ambient_changes_and_other_losses_are_left_to_autograd():
    model = nn.Sequential(nn.Linear(5, 3))
    parameters = list(model.parameters())
    assert DenseGradients.of(model, parameters, CROSS_ENTROPY) is not None
    assert DenseGradients.of(model, parameters, LOSSES.load("mse")) is None
    assert DenseGradients.of(model, parameters[:1], CROSS_ENTROPY) is not None
    assert DenseGradients.of(model, [*parameters, torch.ones(1)], CROSS_ENTROPY) is None
    with torch.autocast("cpu"):
        assert DenseGradients.of(model, parameters, CROSS_ENTROPY) is None
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert DenseGradients.of(model, parameters, CROSS_ENTROPY) is None
    finally:
        handle.remove()


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (torch.zeros(2, 4, 5), torch.zeros(2, 3).long()),
        (torch.zeros(5), torch.tensor(1)),
        (torch.zeros(2, 5), torch.zeros(2, 3)),
        (torch.zeros(2, 5).requires_grad_(), torch.zeros(2).long()),
    ],
    ids=["sequences", "one sample", "shares of classes", "inputs with a graph"],
)
def test_batches_of_other_kinds_are_left_to_autograd(x, y):
    model = nn.Sequential(nn.Linear(5, 3))
    assert DenseGradients.of(model, list(model.parameters()), CROSS_ENTROPY)(x, y) is None


def test_wrong_targets_raise_what_autograd_would():
    model = nn.Sequential(nn.Linear(5, 3))
    dense = DenseGradients.of(model, list(model.parameters()), CROSS_ENTROPY)
    with pytest.raises(IndexError, match="Target 7 is out of bounds"):
        dense(torch.zeros(2, 5), torch.tensor([7, 0]))
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        dense(torch.zeros(2, 6), torch.tensor([1, 0]))
