"""Samples with targets, and their division over clients."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ArrayDataset", "ClientData", "FederatedDataset"]

IndexArray = npt.NDArray[np.int64]


class ClientData(NamedTuple):
    """The training samples of one client.

    Attributes
    ----------
    inputs : torch.Tensor
        ``[n, ...]``, in memory of its own that starts at a multiple of 64 bytes.
    targets : torch.Tensor
        ``[n]`` (int64 classes) or ``[n, ...]`` (float32 values), likewise.
    """

    inputs: torch.Tensor
    targets: torch.Tensor


@dataclass(frozen=True, eq=False)
class ArrayDataset:
    """Training and test samples that are not divided over clients yet.

    Parameters
    ----------
    inputs, test_inputs : torch.Tensor
        ``[n, ...]``: float32 features or int64 tokens, finite.
    targets, test_targets : torch.Tensor
        int64 classes in ``[0, num_classes)``, or float32 values for a regression.
    num_classes : int or None
        Number of classes; None for a regression.
    client_keys : sequence of hashable, optional
        For every training sample the client it belongs to by nature (its writer, speaker,
        device), which :meth:`by_client` uses.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described; the message names the sample.
    """

    inputs: torch.Tensor
    targets: torch.Tensor
    test_inputs: torch.Tensor
    test_targets: torch.Tensor
    num_classes: int | None
    client_keys: Sequence[Hashable] | None = None

    def __post_init__(self) -> None:
        check_samples(self.inputs, self.targets, self.num_classes)
        check_samples(self.test_inputs, self.test_targets, self.num_classes, prefix="test_")
        keys = self.client_keys
        if keys is not None and len(keys) != len(self.targets):
            raise ValueError(
                f"client_keys must have one key per training sample ({len(self.targets)}), "
                f"got {len(keys)}. Give every sample the name of its client."
            )

    def __len__(self) -> int:
        """Return the number of training samples."""
        return len(self.targets)

    def federate(
        self,
        partitioner: str | Callable[..., list[IndexArray]],
        num_clients: int,
        *,
        seed: int = 0,
        **options: Any,
    ) -> FederatedDataset:
        """Divide the training samples over clients ``0 .. num_clients - 1``.

        Parameters
        ----------
        partitioner : str or callable
            A name of ``fedbench.data.PARTITIONERS`` or a function with their signature.
        num_clients : int
            Number of clients.
        seed : int
            Seed of the partition; the same seed gives the same partition on every machine.
        **options
            Options of the partitioner.
        """
        from fedbench.data import PARTITIONERS

        divide = PARTITIONERS.load(partitioner) if isinstance(partitioner, str) else partitioner
        return FederatedDataset(
            self.inputs,
            self.targets,
            divide(self.targets, num_clients, seed, **options),
            test_inputs=self.test_inputs,
            test_targets=self.test_targets,
            num_classes=self.num_classes,
        )


class FederatedDataset:
    """Samples divided over clients; what a simulation trains on.

    The object is cheap to pickle and to share: four data tensors and two index tensors,
    whatever the number of clients.

    Parameters
    ----------
    inputs : torch.Tensor
        ``[n, ...]``: float32 features or int64 tokens of all clients, finite.
    targets : torch.Tensor
        int64 classes in ``[0, num_classes)``, or float32 values for a regression.
    partition : sequence of integer arrays
        For every client the indices of its samples in `inputs`. Every client has at least one
        sample, and no sample belongs to two clients; samples of no client are allowed.
    test_inputs, test_targets : torch.Tensor
        Samples of the server's evaluation, in the same form.
    num_classes : int or None
        Number of classes; None for a regression.
    client_ids : sequence of int or str, optional
        Names of the clients, unique; ``0 .. num_clients - 1`` by default.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described; the message names the client or sample.
    """

    def __init__(
        self,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        partition: Sequence[npt.ArrayLike],
        *,
        test_inputs: torch.Tensor,
        test_targets: torch.Tensor,
        num_classes: int | None,
        client_ids: Sequence[int | str] | None = None,
    ) -> None:
        check_samples(inputs, targets, num_classes)
        check_samples(test_inputs, test_targets, num_classes, prefix="test_")
        self.inputs = inputs
        self.targets = targets
        self.test_inputs = test_inputs
        self.test_targets = test_targets
        self.num_classes = num_classes
        self.client_ids = _checked_ids(client_ids, len(partition))
        parts = [_index_array(part) for part in partition]
        _check_partition(parts, len(targets), self.client_ids)
        # One flat index and its offsets: a list of a million tensors would be slow to ship.
        self._indices = torch.from_numpy(np.concatenate(parts))
        self._offsets = torch.from_numpy(
            np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
        )

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return len(self.client_ids)

    @property
    def partition(self) -> list[torch.Tensor]:
        """For every client the int64 indices of its samples, as views."""
        return list(torch.tensor_split(self._indices, self._offsets[1:-1]))

    def indices(self, client: int) -> torch.Tensor:
        """Return the int64 indices of the samples of the client at position `client`."""
        if not 0 <= client < self.num_clients:
            raise IndexError(
                f"client must be a position in [0, {self.num_clients}), got {client!r}. "
                "Clients are numbered in the order of client_ids."
            )
        return self._indices[int(self._offsets[client]) : int(self._offsets[client + 1])]

    def client_size(self, client: int) -> int:
        """Return the number of training samples of the client at position `client`."""
        return len(self.indices(client))

    def client_sizes(self) -> torch.Tensor:
        """Return the number of training samples of every client, int64 ``[num_clients]``."""
        return self._offsets.diff()

    def client(self, client: int) -> ClientData:
        """Return copies of the samples of the client at position `client`.

        The tensors are fresh, so that they start at a multiple of 64 bytes on every backend;
        torch's vectorised loops round differently on memory aligned otherwise.
        """
        indices = self.indices(client)
        return ClientData(
            self.inputs.index_select(0, indices), self.targets.index_select(0, indices)
        )

    def summary(self) -> pd.DataFrame:
        """Return the class distribution: one row per client.

        Returns
        -------
        pandas.DataFrame
            Index ``client_id``; column ``samples`` and, for a classification, one column
            per class (its number) with the count of the client's samples of that class.
        """
        import pandas as pd

        table = pd.DataFrame(
            {"samples": self.client_sizes().numpy()},
            index=pd.Index(self.client_ids, name="client_id"),
        )
        if self.num_classes is None or self.targets.dim() != 1:
            return table
        owner = torch.repeat_interleave(torch.arange(self.num_clients), self.client_sizes())
        cells = owner * self.num_classes + self.targets[self._indices]
        counts = torch.bincount(cells, minlength=self.num_clients * self.num_classes)
        table[list(range(self.num_classes))] = counts.view(self.num_clients, -1).numpy()
        return table

    def __repr__(self) -> str:
        shape = "x".join(str(size) for size in self.inputs.shape[1:])
        return (
            f"FederatedDataset({self.num_clients} clients, {len(self._indices)} training and "
            f"{len(self.test_targets)} test samples of shape {shape}, "
            f"num_classes={self.num_classes})"
        )


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


def _index_array(part: npt.ArrayLike) -> IndexArray:
    array = np.asarray(part)
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise TypeError(
            "partition must hold one-dimensional integer arrays, got "
            f"{array.dtype} of shape {array.shape}. Give sample indices per client."
        )
    return array.astype(np.int64)


def _checked_ids(client_ids: Sequence[int | str] | None, count: int) -> tuple[int | str, ...]:
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


def _check_partition(
    parts: Sequence[IndexArray], num_samples: int, client_ids: tuple[int | str, ...]
) -> None:
    owners = np.full(num_samples, -1, np.int64)
    for position, part in enumerate(parts):
        name = client_ids[position]
        if len(part) == 0:
            raise ValueError(
                f"partition must give every client at least one sample, got none for client "
                f"{name!r}. Leave the client out, or lower num_clients."
            )
        if part.min() < 0 or part.max() >= num_samples:
            bad = int(part.min() if part.min() < 0 else part.max())
            raise ValueError(
                f"partition must hold indices in [0, {num_samples}), got {bad} for client "
                f"{name!r}. Partition the training samples of this data set."
            )
        taken = part[owners[part] >= 0]
        owners[part] = position
        if len(taken) or len(np.unique(part)) != len(part):
            raise ValueError(
                "partition must give every sample to one client only, got a sample of client "
                f"{name!r} twice. Remove the repeated indices."
            )
