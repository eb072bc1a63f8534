"""Fused optimiser steps have the bits of the operations that their docstrings list."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbench import aggregation

DTYPES = ("float32", "float64")
coefficient = st.sampled_from((0.0, 0.1, 0.9, 1e-3, 1.0))


def vectors(count: int, size: int, dtype: str, seed: int) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    scale = 10.0 ** rng.uniform(-6, 6, size)
    return [(rng.standard_normal(size) * scale).astype(dtype) for _ in range(count)]


def same(a: Any, b: Any) -> bool:
    return np.asarray(a).tobytes() == np.asarray(b).tobytes()


@given(
    st.sampled_from(DTYPES),
    st.integers(0, 3000),
    st.tuples(coefficient, coefficient, coefficient, coefficient),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_sgd_step(
    dtype: str,
    size: int,
    coefficients: tuple[float, float, float, float],
    nesterov: bool,
    corrected: bool,
    first: bool,
    seed: int,
) -> None:
    lr, momentum, decay, proximal = coefficients
    x, gradient, anchor, correction, velocity = vectors(5, size, dtype, seed)
    parameters, speed = x.copy(), velocity.copy()
    aggregation.sgd_step(
        parameters,
        gradient,
        lr=lr,
        momentum=momentum,
        nesterov=nesterov and momentum > 0,
        velocity=speed if momentum else None,
        first_step=first,
        weight_decay=decay,
        proximal=proximal,
        anchor=anchor if proximal else None,
        correction=correction if corrected else None,
    )
    d = gradient
    if decay:
        d = d + decay * x
    if proximal:
        d = d + proximal * (x - anchor)
    if corrected:
        d = d + correction
    if momentum:
        velocity = d if first else momentum * velocity + d
        d = d + momentum * velocity if nesterov else velocity
    assert same(parameters, x - lr * d)
    assert same(speed, velocity)


@given(
    st.sampled_from(DTYPES),
    st.integers(0, 3000),
    coefficient,
    coefficient,
    st.booleans(),
    st.integers(0, 2**32),
)
def test_fedavgm_step(
    dtype: str, size: int, lr: float, momentum: float, nesterov: bool, seed: int
) -> None:
    x, update, velocity = vectors(3, size, dtype, seed)
    parameters, speed = x.copy(), velocity.copy()
    aggregation.fedavgm_step(
        parameters, update, speed, server_lr=lr, momentum=momentum, nesterov=nesterov
    )
    velocity = momentum * velocity + update
    step = momentum * velocity + update if nesterov else velocity
    assert same(parameters, x + (step if lr == 1 else lr * step))
    assert same(speed, velocity)


@given(
    st.sampled_from(("fedadagrad_step", "fedyogi_step", "fedadam_step")),
    st.sampled_from(DTYPES),
    st.integers(0, 3000),
    coefficient,
    coefficient,
    st.integers(0, 2**32),
)
def test_adaptive_steps(
    name: str, dtype: str, size: int, beta1: float, beta2: float, seed: int
) -> None:
    x, update, m, v = vectors(4, size, dtype, seed)
    v = np.abs(v)
    v[::3] = (m * m)[::3]
    options = {"server_lr": 0.3, "beta1": beta1, "tau": 1e-3}
    if name != "fedadagrad_step":
        options["beta2"] = beta2
    parameters, first, second = x.copy(), m.copy(), v.copy()
    getattr(aggregation, name)(parameters, update, first, second, **options)
    m = beta1 * m + (1 - beta1) * update if beta1 else update
    square = m * m
    if name == "fedadagrad_step":
        v = v + square
    elif name == "fedyogi_step":
        v = v - (1 - beta2) * square * np.sign(v - square)
    else:
        v = beta2 * v + (1 - beta2) * square
    assert same(first, m)
    assert same(second, v)
    with np.errstate(invalid="ignore"):
        expected = x + 0.3 * m / (np.sqrt(v) + np.asarray(1e-3, dtype))
    nan = np.isnan(expected)
    assert np.array_equal(nan, np.isnan(parameters))
    assert same(parameters[~nan], expected[~nan])


@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_operations_give_the_same_bits(dtype: str) -> None:
    x, update, m, v = (torch.from_numpy(a) for a in vectors(4, 100_003, dtype, 1))
    v = v.abs()
    parameters, first, second = x.clone(), m.clone(), v.clone()
    aggregation.fedadam_step(parameters, update, first, second, server_lr=0.1)
    m = 0.9 * m + (1.0 - 0.9) * update
    v = 0.99 * v + (1.0 - 0.99) * (m * m)
    assert torch.equal(first, m)
    assert torch.equal(second, v)
    # torch.sqrt is the one operation that torch does not round correctly on every machine.
    root = torch.from_numpy(np.sqrt(v.numpy()))
    assert torch.equal(parameters, x + 0.1 * m / (root + 1e-3))


def test_flush_denormal_does_not_reach_the_kernels() -> None:
    tiny = np.float32([1e-40, -1e-40])
    try:
        torch.set_flush_denormal(True)
        parameters = np.zeros(2, np.float32)
        aggregation.sgd_step(parameters, tiny, lr=1.0)
    finally:
        torch.set_flush_denormal(False)
    assert same(parameters, -tiny)


def test_torch_sees_the_writes() -> None:
    parameters, gradient = torch.ones(4, requires_grad=True), torch.ones(4)
    version = parameters._version
    aggregation.sgd_step(parameters, gradient, lr=0.5)
    assert parameters._version > version
    assert gradient._version == 0
    assert torch.equal(parameters.detach(), torch.full((4,), 0.5))
    loss = (parameters * parameters).sum()
    aggregation.sgd_step(parameters, gradient, lr=0.5)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"velocity": None}, ValueError, r"velocity must be given with momentum=0\.9, got None"),
        ({"momentum": 0.0}, ValueError, "momentum must not be 0 when velocity is given"),
        (
            {"momentum": 0.0, "velocity": None, "nesterov": True},
            ValueError,
            "momentum must be greater than 0 with nesterov",
        ),
        ({"proximal": 0.1}, ValueError, "anchor must be given with proximal"),
        ({"gradient": np.ones(3, np.float32)}, ValueError, r"gradient must have shape \(4,\)"),
        ({"gradient": np.ones(4)}, TypeError, "gradient must have dtype float32"),
        ({"gradient": torch.ones(4)}, TypeError, "gradient must have kind numpy"),
        (
            {"gradient": [1.0] * 4},
            TypeError,
            "gradient must be a numpy array like parameters, got l",
        ),
        ({"velocity": np.ones(5, np.float32)}, ValueError, "velocity must have shape"),
        (
            {"parameters": np.ones(4, np.float16)},
            TypeError,
            "parameters must be float32 or float64",
        ),
        ({"parameters": np.ones(8, np.float32)[::2]}, ValueError, "parameters must be a writable"),
    ],
)
def test_wrong_arguments(change: dict[str, Any], error: type[Exception], message: str) -> None:
    given_arguments = {
        "parameters": np.ones(4, np.float32),
        "gradient": np.ones(4, np.float32),
        "velocity": np.ones(4, np.float32),
        "momentum": 0.9,
        "lr": 0.1,
    } | change
    with pytest.raises(error, match=message):
        aggregation.sgd_step(
            given_arguments.pop("parameters"), given_arguments.pop("gradient"), **given_arguments
        )


def test_vectors_may_not_overlap() -> None:
    x = np.ones(8, np.float32)
    with pytest.raises(ValueError, match="parameters must not share memory"):
        aggregation.sgd_step(x[:4], x[2:6], lr=0.1)
    with pytest.raises(ValueError, match="second_moment must not share memory"):
        aggregation.fedadam_step(x[:4], np.ones(4, np.float32), x[4:], x[4:])
    read_only = np.ones(4, np.float32)
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="writable"):
        aggregation.fedavgm_step(read_only, x[:4], x[4:])
