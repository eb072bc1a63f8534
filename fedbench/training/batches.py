"""Batches by index, without a loader object."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedbench.data import ClientData
from fedbench.training.parameters import ALIGNMENT

__all__ = ["in_batches", "shuffled_batches"]


def shuffled_batches(
    data: ClientData,
    batch_size: int,
    generator: torch.Generator | None,
    *,
    drop_last: bool = False,
) -> list[tuple[Tensor, Tensor]]:
    """Return the batches of one epoch in an order drawn from `generator`.

    Every batch starts at a multiple of 64 bytes, whatever the size of a sample. With `drop_last`
    the samples behind the last whole batch are left out, but never all of them.
    """
    order = torch.randperm(len(data.inputs), generator=generator)
    if drop_last and len(order) > batch_size:
        order = order[: len(order) // batch_size * batch_size]
    return in_batches(data, order, batch_size)


def in_batches(data: ClientData, order: Tensor, batch_size: int) -> list[tuple[Tensor, Tensor]]:
    """Return the samples of one epoch in the given order, in batches."""
    order = order.to(data.inputs.device)
    inputs = _gather(data.inputs, order, batch_size)
    return list(zip(inputs, _gather(data.targets, order, batch_size), strict=True))


def _gather(samples: Tensor, order: Tensor, batch_size: int) -> Sequence[Tensor]:
    """Return the samples in the given order, in batches that start at multiples of 64 bytes.

    One gather for the whole epoch is cheapest. The batches are then slices of it, aligned only if
    a batch fills a multiple of 64 bytes; otherwise each batch is gathered by itself. Integers
    are exempt: no arithmetic rounds on them.
    """
    row_bytes = samples.element_size() * samples[:1].numel()
    if samples.is_floating_point() and batch_size * row_bytes % ALIGNMENT:
        return [samples.index_select(0, rows) for rows in torch.split(order, batch_size)]
    return torch.split(samples.index_select(0, order), batch_size)
