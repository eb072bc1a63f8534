"""Data drawn from a seed: FedProx's recipe, images, quadratics with a known optimum."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbench.data import load_synthetic, load_synthetic_images, quadratics


def clients_of(dataset):
    keys = np.array(dataset.client_keys)
    by_client = dataset.inputs.numpy()[np.argsort(keys, kind="stable")]
    return np.split(by_client, np.cumsum(np.bincount(keys))[:-1])


def test_synthetic_has_the_shapes_and_sizes_of_the_paper():
    dataset = load_synthetic()
    assert dataset.inputs.shape[1] == 60
    assert dataset.num_classes == 10
    clients = clients_of(dataset)
    assert len(clients) == 30
    # At least 50 samples, 90 % of them for training.
    assert min(len(inputs) for inputs in clients) >= 45
    ratio = len(dataset) / (len(dataset) + len(dataset.test_targets))
    assert 0.88 < ratio < 0.9


def test_synthetic_sizes_are_lognormal():
    dataset = load_synthetic(num_clients=3000, alpha=0, beta=0)
    sizes = np.bincount(dataset.client_keys) / 0.9 - 50
    logs = np.log(sizes[sizes > 20])
    # The median of LogNormal(4, 2) is exp(4); the upper quartile exp(4 + 0.674 * 2).
    assert abs(np.median(sizes) - np.exp(4)) < 8
    assert abs(np.quantile(sizes, 0.75) / np.exp(4 + 0.6745 * 2) - 1) < 0.15
    assert logs.max() > 8


def test_synthetic_inputs_have_the_covariance_of_the_paper():
    dataset = load_synthetic(num_clients=200, alpha=0, beta=0, seed=1)
    centred = np.concatenate([inputs - inputs.mean(0) for inputs in clients_of(dataset)])
    expected = np.arange(1, 61) ** -1.2
    assert np.allclose(centred.var(0) / expected, 1, atol=0.05)


@pytest.mark.parametrize("beta", [0.0, 2.0])
def test_beta_is_the_spread_of_the_input_means(beta):
    dataset = load_synthetic(num_clients=400, alpha=0, beta=beta, seed=2)
    means = np.array([inputs.mean(0) for inputs in clients_of(dataset)])
    # Entries of v_k ~ N(B_k, 1), B_k ~ N(0, beta): averages over the 60 entries show B_k.
    assert abs(means.mean(1).std() - np.hypot(beta, 1 / np.sqrt(60))) < 0.15 * (1 + beta)
    assert abs(np.mean(means.std(1)) - 1) < 0.1


def test_clients_have_the_same_classes_only_when_iid():
    def mean_distance(dataset):
        """Mean total variation distance of the clients' class distributions from the whole."""
        table = dataset.federate_by_key().summary().drop(columns="samples").to_numpy()
        shares = table / table.sum(1, keepdims=True)
        return np.mean(np.abs(shares - table.sum(0) / table.sum()).sum(1) / 2)

    assert mean_distance(load_synthetic(iid=True, seed=3)) < 0.2
    assert mean_distance(load_synthetic(alpha=0, beta=0, seed=3)) > 0.4


def test_synthetic_iid_has_centred_inputs():
    means = np.array([inputs.mean(0) for inputs in clients_of(load_synthetic(iid=True))])
    assert np.abs(means).max() < 0.6


def test_images_are_balanced_and_learnable():
    dataset = load_synthetic_images(num_samples=300, num_test_samples=100, noise=1.0)
    assert dataset.inputs.shape == (300, 3, 32, 32)
    assert torch.bincount(dataset.targets).tolist() == [30] * 10
    patterns = torch.stack([dataset.inputs[dataset.targets == k].mean(0) for k in range(10)])
    nearest = torch.cdist(dataset.test_inputs.flatten(1), patterns.flatten(1)).argmin(1)
    assert (nearest == dataset.test_targets).float().mean() > 0.95


@settings(max_examples=25)
@given(
    num_clients=st.integers(1, 12),
    dimension=st.integers(1, 8),
    condition=st.floats(1, 1000),
    seed=st.integers(0, 1000),
)
def test_the_optimum_of_the_quadratics_is_one(num_clients, dimension, condition, seed):
    problem = quadratics(
        num_clients=num_clients, dimension=dimension, condition=condition, seed=seed
    )
    samples = problem.samples
    point = torch.tensor(problem.optimum, requires_grad=True)
    residual = samples.inputs.double() @ point - samples.targets.double()
    (gradient,) = torch.autograd.grad(residual.square().mean(), point)
    assert gradient.abs().max() < 1e-12 * condition
    direction = np.random.default_rng(seed).normal(size=dimension)
    assert problem.objective(problem.optimum + 0.1 * direction) > problem.minimum
    eigenvalues = np.linalg.eigvalsh(problem.hessians)
    assert np.allclose(eigenvalues.max(1), 3.0, rtol=1e-4)
    if dimension > 1:
        assert np.allclose(eigenvalues.min(1), 3.0 / condition, rtol=1e-2)


def test_client_losses_are_the_quadratics():
    problem = quadratics(num_clients=3, dimension=4, seed=5)
    data = problem.samples.federate_by_key()
    x = np.array([0.5, -1.0, 2.0, 0.0])
    for client in range(3):
        inputs, targets = (part.double().numpy() for part in data.client(client))
        center = np.linalg.solve(inputs, targets)
        value = (x - center) @ problem.hessians[client] @ (x - center) / 2
        assert np.isclose(np.mean((inputs @ x - targets) ** 2), value)
    assert np.isclose(
        problem.objective(x),
        np.mean(((data.inputs.double().numpy() @ x) - data.targets.double().numpy()) ** 2),
    )


def test_without_spread_the_clients_agree_at_zero():
    problem = quadratics(spread=0.0)
    assert problem.minimum == 0
    assert not problem.optimum.any()


@pytest.mark.parametrize("load", [load_synthetic, load_synthetic_images, quadratics])
def test_everything_depends_on_the_seed_alone(load):
    small = {} if load is quadratics else {"num_clients": 3}
    if load is load_synthetic_images:
        small = {"num_samples": 20, "num_test_samples": 10}

    def draw(seed):
        result = load(seed=seed, **small)
        return (result.samples if load is quadratics else result).inputs

    state = torch.get_rng_state()
    first = draw(1)
    np.random.seed(3)
    assert torch.equal(first, draw(1))
    assert first.shape != draw(2).shape or not torch.equal(first, draw(2))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    ("load", "arguments", "message"),
    [
        (load_synthetic, {"alpha": -1}, "alpha must be a number >= 0, got -1"),
        (load_synthetic, {"beta": float("nan")}, "beta must be a number >= 0, got nan"),
        (load_synthetic, {"num_clients": 0}, "num_clients must be an integer >= 1"),
        (load_synthetic_images, {"image_size": 0}, "image_size must be an integer >= 1"),
        (quadratics, {"dimension": 0}, "dimension must be an integer >= 1"),
        (quadratics, {"condition": 0.5}, "condition must be a number >= 1, got 0.5"),
        (quadratics, {"smoothness": 0.0}, "smoothness must be a number > 0, got 0.0"),
        (quadratics, {"spread": -0.1}, "spread must be a number >= 0, got -0.1"),
    ],
)
def test_wrong_arguments_are_refused_by_name(load, arguments, message):
    with pytest.raises(ValueError, match=message):
        load(**arguments)
