"""Data sets divided over clients: access, class table, plot, refusals of wrong data."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import torch

from fedbench.data import ArrayDataset, FederatedDataset, rotate_clients


def federated(**changes):
    arguments = {
        "inputs": torch.arange(24, dtype=torch.float32).reshape(6, 4),
        "targets": torch.tensor([0, 1, 2, 0, 1, 2]),
        "partition": [[5, 0], np.array([3]), torch.tensor([1, 2])],
        "test_inputs": torch.ones(2, 4),
        "test_targets": torch.tensor([2, 0]),
        "num_classes": 3,
    }
    return FederatedDataset(**(arguments | changes))


def test_clients_get_their_samples_in_partition_order():
    dataset = federated()
    assert dataset.num_clients == 3
    assert dataset.client_ids == (0, 1, 2)
    assert [dataset.client_size(client) for client in range(3)] == [2, 1, 2]
    assert dataset.client_sizes().tolist() == [2, 1, 2]
    assert [part.tolist() for part in dataset.partition] == [[5, 0], [3], [1, 2]]
    inputs, targets = dataset.client(0)
    assert torch.equal(inputs, dataset.inputs[[5, 0]])
    assert targets.tolist() == [2, 0]


def test_client_data_are_aligned_copies():
    dataset = federated(
        inputs=torch.randn(40, 65),
        targets=torch.zeros(40, dtype=torch.int64),
        partition=np.split(np.arange(40), 8),
    )
    for client in range(8):
        data = dataset.client(client)
        assert data.inputs.data_ptr() % 64 == data.targets.data_ptr() % 64 == 0
        data.inputs.zero_()
    assert bool(dataset.inputs.any())


def test_pickling_keeps_everything_and_stays_small():
    many = federated(
        inputs=torch.zeros(5000, 1),
        targets=torch.zeros(5000, dtype=torch.int64),
        partition=np.split(np.arange(5000), 5000),
    )
    data = pickle.dumps(many)
    # Two int64 index tensors and the ids, not 5000 pickled tensors.
    assert len(data) < 5000 * (4 + 8 + 8 + 8 + 8)
    copy = pickle.loads(data)
    assert copy.client_ids == many.client_ids
    assert torch.equal(copy.client(4321).inputs, many.client(4321).inputs)


def test_autograd_history_is_left_behind():
    inputs = torch.rand(6, 4, requires_grad=True) * 2
    dataset = pickle.loads(pickle.dumps(federated(inputs=inputs)))
    assert not dataset.client(0).inputs.requires_grad


def test_summary_counts_the_classes_of_each_client():
    table = federated(client_ids=["ana", "bö", "c"]).summary()
    assert table.columns.tolist() == ["samples", 0, 1, 2]
    assert table.index.tolist() == ["ana", "bö", "c"]
    assert table.to_numpy().tolist() == [[2, 1, 0, 1], [1, 1, 0, 0], [2, 0, 1, 1]]
    assert isinstance(table, pd.DataFrame)


def test_summary_of_a_regression_has_sizes_only():
    dataset = federated(targets=torch.rand(6), test_targets=torch.rand(2), num_classes=None)
    assert dataset.summary().columns.tolist() == ["samples"]


def test_plot_draws_one_bar_per_client_and_class():
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    axes = federated().plot()
    assert len(axes.patches) == 9
    assert sum(patch.get_width() for patch in axes.patches) == 5
    assert federated().plot(axes) is axes


def test_client_positions_out_of_range_are_refused():
    for client in (-1, 3):
        with pytest.raises(IndexError, match=r"position in \[0, 3\)"):
            federated().client(client)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"targets": torch.tensor([0, 1, 2, 0, 1, 7])}, ValueError, r"\[0, 3\), got 7 in sample 5"),
        ({"targets": torch.tensor([0, -1, 2, 0, 1, 1])}, ValueError, "got -1 in sample 1"),
        ({"test_targets": torch.tensor([3, 0])}, ValueError, "test_targets must be classes"),
        ({"targets": torch.zeros(5, dtype=torch.int64)}, ValueError, "same length, got 6 and 5"),
        ({"targets": torch.zeros(6)}, TypeError, "targets must be a torch.int64 tensor"),
        ({"inputs": torch.zeros(6, 4, dtype=torch.float64)}, TypeError, "got torch.float64"),
        ({"inputs": np.zeros((6, 4))}, TypeError, "inputs must be a torch tensor, got ndarray"),
        ({"inputs": torch.full((6, 4), torch.nan)}, ValueError, "NaN or infinity in sample 0"),
        (
            {"test_inputs": torch.tensor([[0.0] * 4, [0, 0, 0, float("inf")]])},
            ValueError,
            "test_inputs must be finite, got NaN or infinity in sample 1",
        ),
        ({"num_classes": 0}, ValueError, "num_classes must be an integer >= 1 or None"),
        ({"partition": []}, ValueError, "at least one client"),
        ({"partition": [[0], []]}, ValueError, "at least one sample, got none for client 1"),
        ({"partition": [[0], [6]]}, ValueError, r"\[0, 6\), got 6 for client 1"),
        ({"partition": [[-1], [2]]}, ValueError, r"\[0, 6\), got -1 for client 0"),
        ({"partition": [[0, 1], [1]]}, ValueError, "got sample 1 for clients 0, 1"),
        ({"partition": [[2, 2], [1]]}, ValueError, "got sample 2 for clients 0, 0"),
        ({"partition": [[0.5]]}, TypeError, "integer arrays, got float64"),
        ({"partition": [[[0]]]}, TypeError, "one-dimensional integer arrays"),
        ({"client_ids": ["a", "b"]}, ValueError, r"one name per client \(3\), got 2"),
        ({"client_ids": ["a", "é", "é"]}, ValueError, "unique, got 'é' twice"),
    ],
)
def test_wrong_data_are_refused_with_the_sample_or_client(changes, error, message):
    with pytest.raises(error, match=message):
        federated(**changes)


def array_dataset(keys=None):
    return ArrayDataset(
        torch.rand(6, 1, 4, 4),
        torch.tensor([0, 1, 0, 1, 0, 1]),
        torch.rand(2, 1, 4, 4),
        torch.tensor([0, 1]),
        2,
        client_keys=keys,
    )


def test_array_dataset_federates_by_name_and_by_function():
    dataset = array_dataset()
    assert len(dataset) == 6
    assert dataset.federate("iid", 3, seed=1).client_sizes().tolist() == [2, 2, 2]

    def first_and_rest(targets, num_clients, seed):
        assert (num_clients, seed) == (2, 0)
        return [np.arange(1), np.arange(1, len(targets))]

    assert dataset.federate(first_and_rest, 2).client_sizes().tolist() == [1, 5]


def test_array_dataset_federates_by_its_keys():
    dataset = array_dataset(keys=["żółw", "b", "b", "żółw", "c", "b"]).federate_by_key()
    assert dataset.client_ids == ("żółw", "b", "c")
    assert dataset.client_sizes().tolist() == [2, 3, 1]
    with pytest.raises(ValueError, match="client 'c' has 1 samples"):
        array_dataset(keys=["a", "a", "b", "b", "c", "b"]).federate_by_key(min_size=2)
    with pytest.raises(ValueError, match="client_keys must be given"):
        array_dataset().federate_by_key()
    with pytest.raises(ValueError, match=r"one key per training sample \(6\), got 1"):
        array_dataset(keys=["a"])


def test_rotation_shifts_each_client_by_its_angle():
    dataset = array_dataset().federate("iid", 3)
    rotated = rotate_clients(dataset, [0, 90])
    for client, turns in enumerate([0, 1, 0]):
        before, after = dataset.client(client), rotated.client(client)
        assert torch.equal(torch.rot90(before.inputs, turns, (2, 3)), after.inputs)
        assert torch.equal(before.targets, after.targets)
    assert torch.equal(dataset.test_inputs, rotated.test_inputs)


def test_rotation_by_a_small_angle_interpolates_in_the_same_sense():
    image = torch.zeros(1, 1, 9, 9)
    image[0, 0, 4, 8] = 1.0  # right of the centre, so it moves up
    dataset = FederatedDataset(
        image,
        torch.tensor([0]),
        [[0]],
        test_inputs=image,
        test_targets=torch.tensor([0]),
        num_classes=1,
    )
    turned = rotate_clients(dataset, [45.0]).inputs[0, 0]
    assert turned[1:3, 6:8].sum() > 0.5
    assert turned[5:].sum() == 0


def test_rotation_refuses_other_data_and_angles():
    with pytest.raises(TypeError, match="inputs of shape"):
        rotate_clients(federated(), [90])
    images = array_dataset().federate("iid", 2)
    for degrees in ([], [float("nan")]):
        with pytest.raises(ValueError, match="degrees must hold at least one finite angle"):
            rotate_clients(images, degrees)
