"""Checks of samples and partitions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

__all__ = [
    "IndexArray",
    "check_partition",
    "check_samples",
    "checked_ids",
    "index_array",
]

IndexArray = npt.NDArray[np.int64]


def check_samples(
    inputs: torch.Tensor, targets: torch.Tensor, num_classes: int | None, *, prefix: str = ""
) -> None:
    """Refuse samples of the wrong type or length, NaN or infinity, and classes out of range."""
    for name, tensor, kinds in (
        (f"{prefix}inputs", inputs, (torch.float32, torch.int64)),
        (f"{prefix}targets", targets, (torch.float32 if num_classes is None else torch.int64,)),
    ):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"{name} must be a torch tensor, got {type(tensor).__name__}. "
                "Convert it with torch.as_tensor(...)."
            )
        if tensor.dtype not in kinds or tensor.dim() == 0:
            expected = " or ".join(str(kind) for kind in kinds)
            raise TypeError(
                f"{name} must be a {expected} tensor with one row per sample, got {tensor.dtype} "
                f"of shape {tuple(tensor.shape)}. Convert it with .to({kinds[0]})."
            )
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            bad = int(
                torch.isfinite(tensor).view(len(tensor), -1).all(1).logical_not().nonzero()[0]
            )
            raise ValueError(
                f"{name} must be finite, got NaN or infinity in sample {bad}. "
                "Mend or leave out that sample."
            )
    if len(inputs) != len(targets):
        raise ValueError(
            f"{prefix}inputs and {prefix}targets must have the same length, got {len(inputs)} and "
            f"{len(targets)}. Give one target per sample."
        )
    if num_classes is None:
        return
    if not isinstance(num_classes, int) or num_classes < 1:
        raise ValueError(
            f"num_classes must be an integer >= 1 or None (a regression), got {num_classes!r}. "
            "Count the classes of the targets."
        )
    outside = ((targets < 0) | (targets >= num_classes)).nonzero()
    if len(outside):
        sample = int(outside[0, 0])
        value = int(targets[tuple(outside[0].tolist())])
        raise ValueError(
            f"{prefix}targets must be classes in [0, {num_classes}), got {value} in sample "
            f"{sample}. Number the classes from 0, or raise num_classes."
        )


def index_array(part: npt.ArrayLike) -> IndexArray:
    """Return the sample indices of one client as int64."""
    array = np.asarray(part)
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise TypeError(
            "partition must hold one-dimensional integer arrays, got "
            f"{array.dtype} of shape {array.shape}. Give sample indices per client."
        )
    return array.astype(np.int64)


def checked_ids(client_ids: Sequence[int | str] | None, count: int) -> tuple[int | str, ...]:
    """Return the names of the clients: their positions unless names are given."""
    if count == 0:
        raise ValueError("partition must have at least one client, got none. Raise num_clients.")
    if client_ids is None:
        return tuple(range(count))
    ids = tuple(client_ids)
    if len(ids) != count:
        raise ValueError(
            f"client_ids must have one name per client ({count}), got {len(ids)}. "
            "Leave it out to number the clients."
        )
    if len(set(ids)) != count:
        double = next(name for position, name in enumerate(ids) if name in ids[:position])
        raise ValueError(f"client_ids must be unique, got {double!r} twice. Rename one of them.")
    return ids


def check_partition(
    parts: Sequence[IndexArray], num_samples: int, client_ids: tuple[int | str, ...]
) -> None:
    """Refuse empty clients, indices out of range, and a sample that is used twice."""
    sizes = np.array([len(part) for part in parts])
    if not sizes.all():
        raise ValueError(
            "partition must give every client at least one sample, got none for client "
            f"{client_ids[int(np.argmin(sizes))]!r}. Leave the client out, or lower num_clients."
        )
    flat = np.concatenate(parts)
    owner = np.repeat(np.arange(len(parts)), sizes)
    outside = np.flatnonzero((flat < 0) | (flat >= num_samples))
    if len(outside):
        raise ValueError(
            f"partition must hold indices in [0, {num_samples}), got {flat[outside[0]]} for "
            f"client {client_ids[owner[outside[0]]]!r}. Partition the training samples."
        )
    twice = np.flatnonzero(np.bincount(flat, minlength=num_samples) > 1)
    if len(twice):
        holders = [repr(client_ids[client]) for client in owner[flat == twice[0]]]
        raise ValueError(
            f"partition must give every sample to one client only, got sample {twice[0]} for "
            f"clients {', '.join(holders)}. Remove the repeated index."
        )
