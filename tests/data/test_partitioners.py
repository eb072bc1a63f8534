"""Partitions: every sample once, the same for the same seed, minimum honoured or refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbench.data import PARTITIONERS, ArrayDataset, partition
from fedbench.errors import UnknownNameError

RANDOM_PARTITIONERS = [name for name in PARTITIONERS if name != "natural"]


@st.composite
def labelled_samples(draw):
    """Classes with gaps and unequal frequencies, and a number of clients that may fit."""
    seed = draw(st.integers(0, 2**32 - 1))
    num_samples = draw(st.integers(1, 300))
    classes = draw(st.lists(st.integers(0, 30), min_size=1, max_size=8, unique=True))
    targets = np.random.default_rng(seed).choice(classes, num_samples)
    return targets, draw(st.integers(1, 40))


@st.composite
def options_of(draw, name):
    options = {"min_size": draw(st.integers(1, 6))}
    if name in ("dirichlet", "quantity"):
        options["alpha"] = draw(st.sampled_from([1e-3, 0.05, 0.3, 1.0, 100.0]))
    if name == "shards":
        options["shards_per_client"] = draw(st.integers(1, 4))
    if name == "classes":
        options["classes_per_client"] = draw(st.integers(1, 4))
    return options


@pytest.mark.parametrize("name", RANDOM_PARTITIONERS)
@settings(max_examples=60)
@given(data=st.data())
def test_every_sample_belongs_to_exactly_one_client(name, data):
    targets, num_clients = data.draw(labelled_samples())
    options = data.draw(options_of(name))
    seed = data.draw(st.integers(-5, 2**40))
    try:
        parts = partition(name, targets, num_clients, seed, **options)
    except ValueError:
        # Refusals are allowed where the promise cannot be kept; never for a size that fits
        # a partitioner which can move samples.
        fits = len(targets) >= num_clients * options["min_size"]
        assert not (fits and name in ("iid", "dirichlet", "quantity"))
        return
    assert len(parts) == num_clients
    assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(targets)))
    assert min(len(part) for part in parts) >= options["min_size"]
    again = partition(name, targets, num_clients, seed, **options)
    assert all(np.array_equal(one, two) for one, two in zip(parts, again, strict=True))


@pytest.mark.parametrize("name", RANDOM_PARTITIONERS)
def test_other_seeds_give_other_partitions(name):
    targets = np.arange(1000) % 10
    first, second = (partition(name, targets, 20, seed) for seed in (0, 1))
    assert any(not np.array_equal(one, two) for one, two in zip(first, second, strict=True))


@pytest.mark.parametrize("name", RANDOM_PARTITIONERS)
def test_global_generators_are_neither_read_nor_moved(name):
    targets = np.arange(400) % 10
    torch.manual_seed(1)
    np.random.seed(1)
    first = partition(name, targets, 10, 3)
    states = torch.get_rng_state(), np.random.get_state()[1].copy()
    torch.manual_seed(2)
    np.random.seed(2)
    second = partition(name, targets, 10, 3)
    assert all(np.array_equal(one, two) for one, two in zip(first, second, strict=True))
    torch.manual_seed(1)
    np.random.seed(1)
    assert torch.equal(states[0], torch.get_rng_state())
    assert np.array_equal(states[1], np.random.get_state()[1])


def test_a_partition_does_not_change_between_releases():
    """Published results depend on these indices; a change must be deliberate."""
    parts = partition("dirichlet", np.arange(12) % 3, 3, 0, alpha=0.5, min_size=2)
    assert [part.tolist() for part in parts] == [[0, 3, 4, 6, 9], [2, 5, 8, 11], [1, 7, 10]]


def test_iid_sizes_differ_by_one_at_most():
    sizes = [len(part) for part in partition("iid", np.zeros(103, int), 10)]
    assert set(sizes) == {10, 11}


def test_dirichlet_skew_grows_as_alpha_falls():
    targets = np.arange(5000) % 10

    def largest_share(alpha):
        parts = partition("dirichlet", targets, 20, 0, alpha=alpha, min_size=5)
        return np.mean([np.bincount(targets[part]).max() / len(part) for part in parts])

    assert largest_share(0.05) > 0.6 > largest_share(0.5) > 0.15 > largest_share(1000.0)


def test_dirichlet_with_a_vanishing_alpha_still_divides_everything():
    parts = partition("dirichlet", np.arange(200) % 10, 15, 0, alpha=1e-300, min_size=2)
    assert sum(len(part) for part in parts) == 200
    assert min(len(part) for part in parts) == 2


def test_dirichlet_minimum_is_taken_from_the_largest_clients():
    targets = np.arange(1000) % 10
    loose = [len(part) for part in partition("dirichlet", targets, 50, 0, alpha=0.1)]
    tight = [len(part) for part in partition("dirichlet", targets, 50, 0, alpha=0.1, min_size=8)]
    assert min(loose) < 8 == min(tight)
    kept = [new == old for new, old in zip(tight, loose, strict=True) if 8 <= old <= 15]
    assert kept
    assert all(kept)


def test_shards_give_few_classes_per_client():
    targets = np.repeat(np.arange(10), 60)
    parts = partition("shards", targets, 100, 0)
    assert {len(part) for part in parts} == {6}
    assert max(len(np.unique(targets[part])) for part in parts) == 2


@settings(max_examples=40)
@given(num_clients=st.integers(5, 60), per_client=st.integers(1, 10), seed=st.integers(0, 99))
def test_classes_gives_exactly_k_classes_to_every_client(num_clients, per_client, seed):
    targets = np.arange(2000) % 10
    if num_clients * per_client < 10:
        with pytest.raises(ValueError, match="num_clients \\* classes_per_client"):
            partition("classes", targets, num_clients, seed, classes_per_client=per_client)
        return
    parts = partition("classes", targets, num_clients, seed, classes_per_client=per_client)
    assert {len(np.unique(targets[part])) for part in parts} == {per_client}


def test_quantity_gives_unequal_sizes_and_equal_classes():
    targets = np.arange(20000) % 2
    parts = partition("quantity", targets, 10, 0, alpha=0.5, min_size=200)
    sizes = [len(part) for part in parts]
    assert max(sizes) > 3 * min(sizes) >= 600
    assert all(0.4 < targets[part].mean() < 0.6 for part in parts)


def test_natural_follows_the_keys():
    keys = ["ü", "b", "ü", 3, "b", "ü"]
    parts = partition("natural", np.zeros(6, int), 3, keys=keys)
    assert [part.tolist() for part in parts] == [[0, 2, 5], [1, 4], [3]]
    with pytest.raises(ValueError, match="client 3 has 1 samples"):
        partition("natural", np.zeros(6, int), 3, keys=keys, min_size=2)
    with pytest.raises(ValueError, match="number of different keys \\(3\\), got 4"):
        partition("natural", np.zeros(6, int), 4, keys=keys)
    with pytest.raises(ValueError, match="one key per sample \\(6\\), got 2"):
        partition("natural", np.zeros(6, int), 3, keys=["a", "b"])


def test_numpy_numbers_are_accepted():
    options = {"alpha": np.float32(0.5), "min_size": np.int64(2)}
    assert len(partition("dirichlet", np.arange(40) % 4, np.int32(5), 1, **options)) == 5


def test_torch_targets_are_accepted():
    targets = torch.arange(40) % 4
    ours = partition("dirichlet", targets, 5, 1)
    theirs = partition("dirichlet", targets.numpy(), 5, 1)
    assert all(np.array_equal(one, two) for one, two in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("name", RANDOM_PARTITIONERS)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_clients": 0}, "num_clients must be an integer >= 1, got 0"),
        ({"num_clients": 2.0}, "num_clients must be an integer >= 1, got 2.0"),
        ({"num_clients": True}, "num_clients must be an integer >= 1, got True"),
        ({"min_size": 0}, "min_size must be an integer >= 1, got 0"),
        ({"num_clients": 31}, "number of samples \\(30\\), got 31 \\* 1"),
        ({"num_clients": 4, "min_size": 8}, "Lower num_clients to 3 or less"),
    ],
)
def test_wrong_counts_are_refused_by_name(name, arguments, message):
    with pytest.raises(ValueError, match=message):
        partition(name, np.arange(30) % 3, **({"num_clients": 3} | arguments))


@pytest.mark.parametrize("name", ["iid", "quantity"])
def test_partitions_by_number_take_any_targets(name):
    parts = partition(name, np.zeros((12, 3)), 4)
    assert sum(len(part) for part in parts) == 12
    with pytest.raises(TypeError, match="one entry per sample, got a scalar"):
        partition(name, 3, 1)


@pytest.mark.parametrize("name", ["dirichlet", "shards", "classes"])
@pytest.mark.parametrize("targets", [np.zeros(9), np.zeros((3, 3), int), ["a", "b"]])
def test_classes_must_be_integers(name, targets):
    with pytest.raises(TypeError, match="targets must be a one-dimensional array of integers"):
        partition(name, targets, 1)


@pytest.mark.parametrize("name", ["dirichlet", "quantity"])
@pytest.mark.parametrize("alpha", [0, -1.0, float("nan"), float("inf"), "0.3"])
def test_alpha_must_be_positive(name, alpha):
    with pytest.raises(ValueError, match="alpha must be a positive number"):
        partition(name, np.arange(9) % 3, 2, alpha=alpha)


def test_impossible_shards_and_classes_are_refused():
    with pytest.raises(ValueError, match="shards_per_client must be at most the number of samp"):
        partition("shards", np.arange(10) % 2, 4, shards_per_client=3)
    with pytest.raises(ValueError, match="min_size must be at most the size of the smallest"):
        partition("classes", np.array([0] * 30 + [1, 1]), 4, classes_per_client=1, min_size=3)
    with pytest.raises(ValueError, match="at most the number of classes \\(2\\), got 3"):
        partition("classes", np.arange(10) % 2, 4, classes_per_client=3)
    with pytest.raises(ValueError, match="a sample of class 1 for each"):
        partition("classes", np.array([0] * 30 + [1]), 4, classes_per_client=1)


def test_unknown_partitioner_is_refused_with_a_suggestion():
    with pytest.raises(UnknownNameError, match="Did you mean 'dirichlet'"):
        partition("dirichlett", [0, 1], 2)


@pytest.mark.parametrize(
    ("name", "option", "words"),
    [
        ("dirichlet", "minsize", "got 'minsize' for 'dirichlet'. Did you mean 'min_size'?"),
        ("iid", "alpha", "got 'alpha' for 'iid'. There are min_size."),
        ("shards", "seeds", "There are shards_per_client, min_size."),
    ],
)
def test_an_unknown_option_is_named_with_those_that_there_are(name, option, words):
    targets = torch.arange(40) % 4
    data = ArrayDataset(torch.zeros(40, 2), targets, torch.zeros(4, 2), targets[:4], 4)
    for divide in (
        lambda: data.federate(name, 2, **{option: 3}),
        lambda: partition(name, targets.numpy(), 2, **{option: 3}),
    ):
        with pytest.raises(TypeError) as raised:
            divide()
        assert words in str(raised.value)


def test_a_partitioner_of_your_own_may_take_any_option():
    targets = torch.arange(40) % 4
    data = ArrayDataset(torch.zeros(40, 2), targets, torch.zeros(4, 2), targets[:4], 4)

    def halves(_targets, num_clients, _seed, **options):
        assert options == {"anything": 1}
        return np.array_split(np.arange(40), num_clients)

    assert data.federate(halves, 2, anything=1).num_clients == 2
