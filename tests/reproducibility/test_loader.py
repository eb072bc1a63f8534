"""Batches are a function of seed, client and round: not of workers, history or backend."""

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from fedbench.data import ClientData
from fedbench.reproducibility import generator_scope, make_loader, torch_generator
from fedbench.training import shuffled_batches


class Augmented(Dataset):
    """Adds noise from all three libraries; a sample's first entry tells which one it is."""

    def __init__(self, num_samples=23):
        self.num_samples = num_samples

    def __len__(self):
        return self.num_samples

    def __getitem__(self, index):
        noise = [torch.rand(()).item(), np.random.rand(), random.random(), np.random.randn()]
        return torch.tensor([index, *noise])


def _epochs(count=2, **options):
    arguments = {"dataset": Augmented(), "batch_size": 5, "seed": 7, **options}
    loader = make_loader(
        arguments.pop("dataset"),
        arguments.pop("batch_size"),
        arguments.pop("seed"),
        *arguments.pop("key", ("client", 3)),
        **arguments,
    )
    return [list(loader) for _ in range(count)]


def _same(a, b):
    return all(len(x) == len(y) and all(map(torch.equal, x, y)) for x, y in zip(a, b, strict=True))


def test_workers_do_not_change_the_batches():
    alone = _epochs(num_workers=0)
    with_workers = _epochs(num_workers=2)
    assert _same(alone, with_workers)
    assert _same(alone, _epochs(num_workers=2, persistent_workers=True))
    first, second = torch.cat(alone[0]), torch.cat(alone[1])
    assert first[:, 0].sort().values.tolist() == list(range(23))
    assert first[:, 0].tolist() != second[:, 0].tolist()
    noise = torch.cat([first[:, 1:], second[:, 1:]]).T.tolist()
    assert all(len(set(column)) == 46 for column in noise)  # samples and epochs differ


def test_keys_and_seeds_tell_loaders_apart():
    reference = _epochs(1)
    assert _same(reference, _epochs(1))
    for other in ({"key": ("client", 4)}, {"key": ("other", 3)}, {"seed": 8}):
        assert not _same(reference, _epochs(1, **other))


def test_augmentation_belongs_to_the_sample():
    """Neither the batch size nor the order has an influence on a sample's noise."""
    shuffled = torch.cat(_epochs(1)[0])
    in_order = torch.cat(_epochs(1, batch_size=4, shuffle=False)[0])
    assert torch.equal(shuffled[shuffled[:, 0].argsort()], in_order)


def test_order_is_that_of_the_built_in_training_loop():
    inputs, targets = torch.arange(40.0).reshape(20, 2), torch.arange(20)
    loader = make_loader(TensorDataset(inputs, targets), 6, 5, "client", 3)
    for epoch in range(2):
        generator = torch_generator(5, "shuffle", "client", 3, epoch)
        expected = shuffled_batches(ClientData(inputs, targets), 6, generator)
        for batch, (x, y) in zip(loader, expected, strict=True):
            assert torch.equal(batch[0], x)
            assert torch.equal(batch[1], y)


def test_generators_of_the_process_and_of_the_task_are_untouched():
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    with generator_scope(0, "client") as generators:
        states = generators.torch.get_state(), generators.numpy.get_state(), random.getstate()
        _epochs(num_workers=0)
        _epochs(1, num_workers=1)
        assert torch.equal(generators.torch.get_state(), states[0])
        np.testing.assert_equal(generators.numpy.get_state(), states[1])
        assert random.getstate() == states[2]
    assert torch.equal(torch.get_rng_state(), before[0])
    np.testing.assert_equal(np.random.get_state(), before[1])
    assert random.getstate() == before[2]


def test_threads_read_the_same_batches():
    def task(client):
        with generator_scope(7, client, 0, check=True):
            return _epochs(key=(client, 0))

    clients = range(6)
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(task, clients))
    assert all(
        _same(task(client), result) for client, result in zip(clients, together, strict=True)
    )


def test_options_reach_the_loader():
    seen = []
    (epoch,) = _epochs(
        1, dataset=Subset(Augmented(), range(9)), drop_last=True, collate_fn=seen.append
    )
    assert epoch == [None]
    assert len(seen[0]) == 5


@pytest.mark.parametrize("name", ["sampler", "batch_sampler", "generator"])
def test_options_that_decide_the_order_are_refused(name):
    with pytest.raises(TypeError, match=f"options must not contain {name}"):
        make_loader(Augmented(), 5, 0, "client", **{name: None})


def test_iterable_datasets_are_refused():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(3))

    with pytest.raises(TypeError, match=r"got Stream, which can\s+only be iterated"):
        make_loader(Stream(), 5, 0, "client")
