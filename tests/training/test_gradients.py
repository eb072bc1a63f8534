"""The gradients of a local step against ``torch.autograd.grad``."""

import pytest
import torch

from fedbench.training import gradients as module
from fedbench.training.gradients import gradients


def loss_and_parameters():
    generator = torch.Generator().manual_seed(0)
    parameters = [
        torch.randn(shape, generator=generator).requires_grad_() for shape in ((5, 3), (3,), (2,))
    ]
    weight, bias, _unused = parameters
    inputs = torch.randn(4, 5, generator=generator)
    return (inputs @ weight + bias).square().mean(), parameters


@pytest.mark.parametrize("engine", [True, False], ids=["engine", "autograd.grad"])
def test_bits_are_those_of_autograd_and_unused_parameters_have_zeros(monkeypatch, engine):
    if not engine:
        monkeypatch.setattr(module, "_engine", None)
    expected = torch.autograd.grad(*loss_and_parameters(), materialize_grads=True)
    found = gradients(*loss_and_parameters())
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert not found[2].any()


def test_parameters_get_no_grad_and_the_graph_is_freed():
    value, parameters = loss_and_parameters()
    gradients(value, parameters)
    assert all(parameter.grad is None for parameter in parameters)
    with pytest.raises(RuntimeError, match="second time"):
        gradients(value, parameters)


def test_torch_says_what_is_wrong_with_the_value():
    parameter = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="scalar"):
        gradients(parameter * 2, [parameter])
    with pytest.raises(RuntimeError, match="does not require grad"):
        gradients(torch.ones(()), [parameter])
