"""Odd and wrong data in whole simulations: one sample, no sample, odd names, NaN, odd classes."""

from __future__ import annotations

import dataclasses
import functools
import json

import numpy as np
import pytest
import torch

import fedbench
from fedbench.data import ArrayDataset, FederatedDataset, from_torch_dataset, load_leaf, load_npz
from fedbench.data.tables import load_table
from fedbench.errors import ClientTaskError, DataFormatError
from fedbench.models import mlp
from fedbench.workloads import Workload

NAMES = ("żaba", "Zoë 🐸", "клиент 7", "a/b\\c", "line\nbreak", "'quoted\"", "-", "0")
"""One client each; the last is not the number 0."""


def samples(total=24, features=3, classes=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(total, features, generator=generator)
    return inputs, torch.randint(0, classes, (total,), generator=generator)


def federated(sizes=(5, 1, 6), names=None, seed=0, **changes):
    inputs, targets = samples(sum(sizes))
    arguments = {
        "inputs": inputs,
        "targets": targets,
        "partition": torch.arange(sum(sizes)).split(list(sizes)),
        "test_inputs": inputs[:4],
        "test_targets": targets[:4],
        "num_classes": 4,
        "client_ids": names,
    }
    return FederatedDataset(**(arguments | changes))


def small_mlp(seed=0):
    return mlp(3, 4, hidden=(5,), seed=seed)


def workload(dataset, model=small_mlp, **changes):
    parts = {
        "name": "odd",
        "description": "odd data",
        "dataset": dataset,
        "model": model,
        "cohort_size": 3,
        "rounds": 2,
        "lr": 0.1,
        "batch_size": 2,
        "eval_every": 1,
    }
    return Workload(**(parts | changes))


def batch_norm_model(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))


@pytest.mark.parametrize("vectorized", [False, True])
def test_a_client_with_one_sample_trains_and_counts_for_one(vectorized):
    with fedbench.Simulation(workload(federated), vectorized=vectorized) as simulation:
        history = simulation.run()
    assert np.isfinite(history.last("test", "loss"))
    alone = workload(functools.partial(federated, sizes=(1,)), cohort_size=1)
    with fedbench.Simulation(alone, vectorized=vectorized) as simulation:
        before = simulation.model_state()
        simulation.run(1)
        assert any(not torch.equal(before[k], v) for k, v in simulation.model_state().items())


def test_batch_normalisation_of_one_sample_says_which_client_and_what_to_do(executor):
    job = workload(federated, batch_norm_model)
    simulation = fedbench.Simulation(job, executor=executor)
    with pytest.raises(ClientTaskError, match="a batch must have at least 2 samples") as caught:
        simulation.run()
    # The first in the cohort's order that fails: the client of one sample, or of 5 = 2 + 2 + 1.
    assert caught.value.item in (0, 1)


def test_an_empty_client_is_refused_wherever_it_comes_from(tmp_path):
    with pytest.raises(ValueError, match="at least one sample, got none for client 'empty'"):
        federated(sizes=(2, 0, 1), names=("a", "empty", "b"))
    inputs, targets = samples()
    data = ArrayDataset(inputs, targets, inputs, targets, 4)
    with pytest.raises(ValueError, match="got none for client 1"):
        data.federate(lambda targets, num_clients, seed: [[0, 1], []], 2)
    with pytest.raises(ValueError, match="at most the number of samples"):
        data.federate("iid", 25)
    # LEAF lists users without samples in one of its two files; they are no clients of it.
    content = {
        "users": ["a", "empty"],
        "num_samples": [1, 0],
        "user_data": {"a": {"x": [[0.5]], "y": [0]}, "empty": {"x": [], "y": []}},
    }
    path = tmp_path / "leaf.json"
    path.write_text(json.dumps(content))
    assert load_leaf(path, path).federate_by_key().client_ids == ("a",)


def named(name, tmp_path):
    """Return a data set whose clients have the names of NAMES, read by the loader `name`."""
    inputs, targets = samples()
    keys = [NAMES[row % len(NAMES)] for row in range(len(targets))]
    if name == "arrays":
        return ArrayDataset(inputs, targets, inputs, targets, 4, client_keys=keys)
    if name == "torch":
        pairs = torch.utils.data.TensorDataset(inputs, targets)
        return from_torch_dataset(pairs, pairs, client_keys=keys)
    if name == "npz":
        path = tmp_path / "żaba.npz"
        x, y = inputs.numpy(), targets.numpy()
        np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y, who=np.array(keys))
        return load_npz(path, clients="who")
    if name == "leaf":
        data = {
            who: {
                "x": [inputs[r].tolist() for r, key in enumerate(keys) if key == who],
                "y": [int(targets[r]) for r, key in enumerate(keys) if key == who],
            }
            for who in NAMES
        }
        counts = [len(data[who]["y"]) for who in NAMES]
        path = tmp_path / "żaba.json"
        content = {"users": NAMES, "num_samples": counts, "user_data": data}
        path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
        return load_leaf(path, path)
    import pandas as pd

    table = pd.DataFrame(inputs.numpy(), columns=["größe", "b", "c"])
    table["label"], table["wer"] = targets.numpy(), keys
    path = tmp_path / f"żaba.{name}"
    if name == "parquet":
        pytest.importorskip("pyarrow", reason="the extra 'parquet' is not installed")
        table.to_parquet(path)
    else:
        table.to_csv(path, index=False, encoding="utf-8")
    return load_table(path, path, target="label", client="wer")


@pytest.mark.parametrize("loader", ["arrays", "torch", "npz", "leaf", "csv", "parquet"])
def test_any_text_names_a_client_through_every_loader(loader, tmp_path):
    dataset = named(loader, tmp_path).federate_by_key()
    # pandas reads what looks like a number as one if the whole column does, which it does not.
    assert dataset.client_ids == NAMES
    assert [str(name) for name in dataset.summary().index] == list(NAMES)


def test_any_text_names_a_client_on_every_backend(executor, tmp_path):
    job = workload(functools.partial(federated, sizes=(3,) * len(NAMES), names=NAMES))
    job = dataclasses.replace(job, cohort_size=len(NAMES))
    with fedbench.Simulation(job, algorithm="scaffold") as reference:
        reference.run()
    with fedbench.Simulation(job, algorithm="scaffold", executor=executor) as simulation:
        simulation.run(1)
        path = simulation.save_checkpoint(tmp_path / "żaba")
    with fedbench.Simulation(job, algorithm="scaffold", executor=executor) as simulation:
        simulation.load_checkpoint(path)
        history = simulation.run(1)
        assert set(simulation.client_states) == set(NAMES)
        assert simulation.state_digest() == reference.state_digest()
    assert set(history.records[-1].cohort) == set(NAMES)


def test_the_clients_1_and_text_1_are_different_and_draw_differently():
    job = workload(functools.partial(federated, sizes=(6, 6), names=(1, "1")), cohort_size=2)
    inputs, targets = samples(6)
    twins = functools.partial(
        federated,
        sizes=(6, 6),
        names=(1, "1"),
        inputs=torch.cat([inputs, inputs]),
        targets=torch.cat([targets, targets]),
    )
    seen = []
    with fedbench.Simulation(
        dataclasses.replace(job, dataset=twins),
        observer=lambda phase, client, state: seen.append((phase, client, state)),
    ) as simulation:
        simulation.run(1)
    deltas = [state["delta"] for phase, _, state in seen if phase == "uplink"]
    assert not torch.equal(*deltas)


def test_nan_in_a_feature_is_refused_by_every_entry_point(tmp_path):
    inputs, targets = samples()
    inputs[7, 1] = torch.nan
    with pytest.raises(ValueError, match="inputs must be finite, got NaN or infinity in sample 7"):
        ArrayDataset(inputs, targets, inputs[:2], targets[:2], 4)
    with pytest.raises(ValueError, match="got NaN or infinity in sample 7"):
        federated(sizes=(24,), inputs=inputs, targets=targets)
    with pytest.raises(ValueError, match="got NaN or infinity"):
        from_torch_dataset(torch.utils.data.TensorDataset(inputs, targets))
    np.savez(tmp_path / "d.npz", x_train=inputs.numpy(), y_train=targets.numpy())
    with pytest.raises(DataFormatError, match="sample 7, array 'x_train': must be finite"):
        load_npz(tmp_path / "d.npz")
    wrong = workload(lambda seed=0: federated(sizes=(24,), inputs=inputs, targets=targets))
    with pytest.raises(ValueError, match="got NaN or infinity in sample 7"):
        fedbench.Simulation(wrong)


@pytest.mark.parametrize("vectorized", [False, True])
def test_a_class_that_the_model_lacks_is_an_error_of_the_client(vectorized):
    # Within the data set's classes: only model and data together can tell.
    targets = torch.tensor([0, 1] * 5 + [3, 3])
    job = workload(
        functools.partial(federated, targets=targets, test_targets=targets[:4]),
        functools.partial(mlp, 3, 2, hidden=(5,)),
    )
    with (
        pytest.raises(ClientTaskError, match=r"out of (bounds|range)") as caught,
        fedbench.Simulation(job, vectorized=vectorized) as simulation,
    ):
        simulation.run(1)
    assert caught.value.index is not None


def test_features_of_another_size_are_an_error_of_the_client():
    job = workload(federated, functools.partial(mlp, 5, 4, hidden=(5,)))
    with (
        pytest.raises(ClientTaskError, match="shapes cannot be multiplied"),
        fedbench.Simulation(job) as simulation,
    ):
        simulation.run(1)
