"""A ``DataLoader`` whose batches are a function of seed, client and round alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from fedbench.reproducibility.scope import generator_scope
from fedbench.reproducibility.streams import torch_generator

__all__ = ["make_loader"]

_OWN = ("batch_sampler", "generator", "sampler")


def make_loader(
    dataset: Dataset[Any],
    batch_size: int,
    seed: int,
    *key: int | str,
    shuffle: bool = True,
    num_workers: int = 0,
    **options: Any,
) -> DataLoader[Any]:
    """Return a ``DataLoader`` for one client task, to be made anew in every task.

    Parameters
    ----------
    dataset : torch.utils.data.Dataset
        Map-style: with ``__len__`` and ``__getitem__``.
    batch_size : int
        Samples in a batch.
    seed : int
        Root seed of the run.
    *key : int or str
        What identifies the task: client id, round.
    shuffle : bool, default True
        Whether the samples come in a random order, another one in each epoch (each pass over the
        loader, counted from 0). It is the order of the built-in algorithms: the permutation drawn
        from the stream ``(seed, "shuffle", *key, epoch)``.
    num_workers : int, default 0
        Worker processes that read samples ahead. They do not change the batches.
    **options
        Further arguments of ``DataLoader``, for example ``drop_last`` or ``worker_init_fn``.

    Returns
    -------
    torch.utils.data.DataLoader
        Yields the same batches on every backend, and with any number of workers: each sample is
        read in a :func:`generator_scope` of ``(*key, "augment", epoch, index)``, so random
        augmentation in ``__getitem__`` is a function of the sample and the epoch. What
        ``collate_fn`` draws is keyed too but depends on `num_workers`.

    Raises
    ------
    TypeError
        If `dataset` can only be iterated, or an option is given that decides the order.

    Notes
    -----
    A loader that is carried over from round to round instead would remember how often its client
    was sampled: the client could not be run on another worker, again after a failure, or from a
    checkpoint without replaying its history.
    """
    if isinstance(dataset, IterableDataset):
        raise TypeError(
            f"dataset must have __len__ and __getitem__, got {type(dataset).__name__}, which can "
            "only be iterated. Give each client a map-style dataset."
        )
    for name in _OWN:
        if name in options:
            raise TypeError(
                f"options must not contain {name}, which follows from seed and key. "
                "Use shuffle=False and an ordered dataset for an order of your own."
            )
    loader: DataLoader[Any] = DataLoader(
        _KeyedSamples(dataset, seed, key),
        batch_size,
        sampler=_KeyedOrder(len(cast(Sized, dataset)), shuffle, seed, key),
        num_workers=num_workers,
        # Every pass draws a base seed for its workers, from the global generator by default.
        generator=torch_generator(seed, "loader", *key),
        **options,
    )
    return loader


class _KeyedSamples(Dataset[Any]):
    """Reads each sample in a scope of its own; an index is a pair of epoch and index."""

    def __init__(self, dataset: Dataset[Any], seed: int, key: tuple[int | str, ...]) -> None:
        self._dataset, self._seed, self._key = dataset, seed, key

    def __len__(self) -> int:
        return len(cast(Sized, self._dataset))

    def __getitem__(self, index: tuple[int, int]) -> Any:
        with generator_scope(self._seed, *self._key, "augment", *index):
            return self._dataset[index[1]]


class _KeyedOrder(Sampler[tuple[int, int]]):
    """Yields pairs of epoch and index; every pass is a new epoch."""

    def __init__(
        self, num_samples: int, shuffle: bool, seed: int, key: tuple[int | str, ...]
    ) -> None:
        self._num_samples, self._shuffle, self._seed, self._key = num_samples, shuffle, seed, key
        self._epoch = 0

    def __len__(self) -> int:
        return self._num_samples

    def __iter__(self) -> Iterator[tuple[int, int]]:
        epoch = self._epoch
        self._epoch += 1
        order: Sequence[int] = range(self._num_samples)
        if self._shuffle:
            generator = torch_generator(self._seed, "shuffle", *self._key, epoch)
            order = torch.randperm(self._num_samples, generator=generator).tolist()
        return zip([epoch] * self._num_samples, order, strict=True)
