"""Medians by weight: where the geometric median starts, and how far half of the clients are."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedbench._native import core
from fedbench.aggregation._arrays import Buffer
from fedbench.aggregation._distances import as_float64, tiles
from fedbench.aggregation._robust import Rows
from fedbench.aggregation._updates import Updates


def weighted_median(
    collected: Updates, weights: npt.NDArray[np.float64], buffers: dict[str | None, Buffer]
) -> None:
    """Write the coordinate-wise median into `buffers`: by `weights` (at most 1) if they differ.

    A function of the multiset of (weight, update) pairs, but for the signs of zeros.
    """
    if (weights == weights[0]).all():
        rows = Rows.of(collected)
        flat = [handle for entry in collected.floating for handle in entry.handles]
        target = rows.of_buffers(buffers)
        core.order_statistic("median", 0, rows.clients, flat, rows.sizes, rows.dtypes, target)
        return
    order = np.argsort(weights, kind="stable")  # so that ties of values are ordered by weight
    for entry in collected.floating:
        for start, stop in tiles(entry.first.size):
            block = np.stack([as_float64(entry.buffers[k], start, stop) for k in order], axis=1)
            _store(buffers[entry.name], start, stop, _lower_medians(block, weights[order]))


def half_radius(distances: npt.NDArray[np.float64], weights: npt.NDArray[np.float64]) -> float:
    """Return the least of `distances` within which at least half of the weight lies."""
    order = np.argsort(weights, kind="stable")
    return float(_lower_medians(distances[order][None, :], weights[order])[0])


def _lower_medians(
    block: npt.NDArray[np.float64], weights: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return the lower weighted median of each line, whose columns have increasing weights."""
    order = np.argsort(block, axis=1, kind="stable")
    reached = np.cumsum(weights[order], axis=1)
    middle = np.argmax(2 * reached >= reached[:, -1:], axis=1)[:, None]
    chosen = np.take_along_axis(order, middle, axis=1)
    medians: npt.NDArray[np.float64] = np.take_along_axis(block, chosen, axis=1)[:, 0]
    return medians


def _store(buffer: Buffer, start: int, stop: int, medians: npt.NDArray[Any]) -> None:
    if buffer.kind == "numpy":
        buffer.owner.reshape(-1)[start:stop] = medians
        return
    import torch

    buffer.owner.reshape(-1)[start:stop] = torch.from_numpy(medians)
