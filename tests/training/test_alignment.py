"""Batches start at multiples of 64 bytes, so their bits do not depend on where they come from."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbench.data import ClientData
from fedbench.models import logistic_regression, mlp
from fedbench.training import LOSSES, LocalWork, SGDStep, WorkerModel, local_sgd, shuffled_batches

CROSS_ENTROPY = LOSSES.load("cross_entropy")


@given(features=st.integers(1, 130), batch_size=st.integers(1, 40), count=st.integers(1, 90))
def test_every_batch_is_aligned(features, batch_size, count):
    data = ClientData(torch.zeros(count, features), torch.zeros(count, dtype=torch.int64))
    batches = shuffled_batches(data, batch_size, torch.Generator().manual_seed(0))
    assert [len(x) for x, _ in batches] == [len(x) for x in torch.zeros(count).split(batch_size)]
    assert all(x.data_ptr() % 64 == 0 for x, _ in batches)


@pytest.mark.parametrize("features", [1, 15, 64, 65, 127, 785])
@pytest.mark.parametrize("model", [logistic_regression, mlp])
@pytest.mark.parametrize("batch_size", [7, 10, 16])
def test_slices_and_fresh_tensors_give_the_same_bits(features, model, batch_size):
    generator = torch.Generator().manual_seed(3)
    data = ClientData(
        torch.randn(53, features, generator=generator),
        torch.randint(0, 10, (53,), generator=generator),
    )
    work = LocalWork(epochs=2, batch_size=batch_size, lr=0.1)
    order = lambda epoch: torch.Generator().manual_seed(epoch)  # noqa: E731
    ours = WorkerModel(model(features, 10))
    loss = local_sgd(ours, data, work, CROSS_ENTROPY, order)
    fresh = WorkerModel(model(features, 10))
    step, total = SGDStep(fresh, work, CROSS_ENTROPY), 0.0
    for epoch in range(work.epochs):
        for rows in torch.randperm(53, generator=order(epoch)).split(batch_size):
            # Tensors of their own, as a DataLoader makes them.
            x = torch.stack([data.inputs[row].clone() for row in rows])
            y = torch.stack([data.targets[row] for row in rows])
            total += step(x, y).item() * len(rows)
    assert torch.equal(ours.flat, fresh.flat)
    assert loss == pytest.approx(total / 106, rel=1e-12)
