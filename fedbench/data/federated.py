"""Samples with targets, and their division over clients."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fedbench.data._checks import (
    IndexArray,
    check_partition,
    check_samples,
    checked_ids,
    index_array,
)
from fedbench.data._partition_tools import check_options
from fedbench.data.partitioners import natural
from fedbench.registry import missing_extra

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["ArrayDataset", "ClientData", "FederatedDataset"]


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
    client_keys : sequence of int or str, optional
        For every training sample the client it belongs to by nature (its writer, speaker,
        device), which :meth:`federate_by_key` uses.

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
    client_keys: Sequence[int | str] | None = None

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
            Options of the partitioner; a ``TypeError`` lists them where one is unknown.
        """
        from fedbench.data import PARTITIONERS

        divide = PARTITIONERS.load(partitioner) if isinstance(partitioner, str) else partitioner
        check_options(partitioner, divide, options)
        return FederatedDataset(
            self.inputs,
            self.targets,
            divide(self.targets, num_clients, seed, **options),
            test_inputs=self.test_inputs,
            test_targets=self.test_targets,
            num_classes=self.num_classes,
        )

    def federate_by_key(self, *, min_size: int = 1) -> FederatedDataset:
        """Make one client of the training samples of each key in `client_keys`.

        The keys become the ``client_ids``, in the order in which they appear.

        Parameters
        ----------
        min_size : int
            Least number of samples per client; a smaller client is an error that names it.
        """
        if self.client_keys is None:
            raise ValueError(
                "client_keys must be given for a division by key, got None. "
                "Use federate(...) with a partitioner, or give every sample a key."
            )
        ids = [key if isinstance(key, str) else operator.index(key) for key in self.client_keys]
        unique = tuple(dict.fromkeys(ids))
        return FederatedDataset(
            self.inputs,
            self.targets,
            natural(self.targets, len(unique), keys=ids, min_size=min_size),
            test_inputs=self.test_inputs,
            test_targets=self.test_targets,
            num_classes=self.num_classes,
            client_ids=unique,
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
        # Detached: samples are data, and autograd history could not be pickled.
        self.inputs = inputs.detach()
        self.targets = targets.detach()
        self.test_inputs = test_inputs.detach()
        self.test_targets = test_targets.detach()
        self.num_classes = num_classes
        self.client_ids = checked_ids(client_ids, len(partition))
        parts = [index_array(part) for part in partition]
        check_partition(parts, len(targets), self.client_ids)
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
        start, stop = self._span(client)
        return self._indices[start:stop]

    def client_size(self, client: int) -> int:
        """Return the number of training samples of the client at position `client`."""
        start, stop = self._span(client)
        return stop - start

    def _span(self, client: int) -> tuple[int, int]:
        if not 0 <= client < self.num_clients:
            raise IndexError(
                f"client must be a position in [0, {self.num_clients}), got {client!r}. "
                "Clients are numbered in the order of client_ids."
            )
        offsets = self._offsets.numpy()  # indexing a tensor would take ten times as long
        return int(offsets[client]), int(offsets[client + 1])

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

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw the class distribution: one bar per client, one colour per class.

        Parameters
        ----------
        axes : matplotlib.axes.Axes, optional
            Where to draw; a new figure by default.

        Returns
        -------
        matplotlib.axes.Axes
            The axes; ``axes.figure.savefig(path)`` writes the picture.

        Raises
        ------
        MissingExtraError
            If matplotlib is not installed.
        """
        try:
            from matplotlib.figure import Figure
        except ModuleNotFoundError as error:
            raise missing_extra("plot()", error.name, "plot") from error

        if axes is None:
            # A figure of its own, not one of pyplot's: no global state, no display needed.
            axes = Figure(layout="constrained").subplots()
        table = self.summary()
        names = [str(name) for name in table.index]
        columns = list(table.columns[1:]) or ["samples"]
        left = np.zeros(len(table))
        for column in columns:
            counts = table[column].to_numpy()
            axes.barh(names, counts, left=left, label=str(column), height=1.0)
            left = left + counts
        axes.set(xlabel="training samples", ylabel="client")
        if len(names) > 40:
            axes.set_yticks([])
        axes.invert_yaxis()
        if 1 < len(columns) <= 20:
            axes.legend(title="class", fontsize="small")
        return axes

    def __repr__(self) -> str:
        shape = "x".join(str(size) for size in self.inputs.shape[1:])
        return (
            f"FederatedDataset({self.num_clients} clients, {len(self._indices)} training and "
            f"{len(self.test_targets)} test samples of shape {shape}, "
            f"num_classes={self.num_classes})"
        )
