import pytest
import torch
from torch import nn

from fedbench.errors import LayoutError
from fedbench.training import ModelState, ParameterLayout, WorkerModel, worker_model


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 5, bias=False)
        self.second = nn.Linear(5, 5, bias=False)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(5)


def test_every_parameter_starts_at_64_bytes_and_padding_is_not_counted():
    layout = ParameterLayout.of(nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 7)))
    assert layout.num_parameters == 3 * 5 + 5 + 5 * 7 + 7
    flat = layout.zeros()
    assert all(view.data_ptr() % 64 == 0 for view in layout.views(flat))


def test_pack_and_unpack_are_inverse_and_do_not_alias():
    model = nn.Linear(3, 5)
    layout = ParameterLayout.of(model)
    flat = layout.pack(model.state_dict())
    named = layout.unpack(flat)
    assert torch.equal(named["weight"], model.weight)
    named["weight"].zero_()
    assert torch.equal(layout.unpack(flat)["weight"], model.weight)


def test_pack_names_the_missing_and_the_misshapen_parameter():
    layout = ParameterLayout.of(nn.Linear(3, 5))
    with pytest.raises(LayoutError, match="'bias' is missing"):
        layout.pack({"weight": torch.zeros(5, 3)})
    with pytest.raises(LayoutError, match=r"'weight' must have shape \(5, 3\), got \(3, 5\)"):
        layout.pack({"weight": torch.zeros(3, 5), "bias": torch.zeros(5)})


def test_models_of_several_dtypes_or_without_trainable_parameters_are_refused():
    with pytest.raises(LayoutError, match=r"torch\.float32, torch\.float64"):
        ParameterLayout.of(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1).double()))
    with pytest.raises(LayoutError, match="at least one trainable parameter"):
        ParameterLayout.of(nn.ReLU())


def test_tied_parameters_appear_once_and_stay_tied():
    worker = WorkerModel(Tied())
    assert worker.layout.names == ("first.weight", "norm.weight", "norm.bias")
    worker.flat.fill_(2.0)
    assert worker.module.second.weight is worker.module.first.weight
    assert worker.module.second.weight.eq(2.0).all()
    assert set(worker.buffers()) == {
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
    }


def test_state_round_trips_with_buffers_and_frozen_parameters():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model[0].bias.requires_grad_(False)
    worker = WorkerModel(model)
    before = worker.state()
    assert "0.bias" in before.buffers
    model.train()
    model(torch.randn(8, 4))
    worker.flat.add_(1.0)
    assert int(worker.buffers()["1.num_batches_tracked"]) == 1
    worker.load(before)
    assert int(worker.buffers()["1.num_batches_tracked"]) == 0
    assert torch.equal(worker.flat, before.parameters)


def test_a_state_of_another_architecture_is_refused_and_changes_nothing():
    worker = WorkerModel(nn.Linear(3, 3))
    before = worker.flat.clone()
    other = WorkerModel(nn.Linear(9, 9)).state()
    with pytest.raises(LayoutError, match="flat parameters"):
        worker.load(other)
    with pytest.raises(LayoutError, match="unexpected \\['extra'\\]"):
        worker.load(ModelState(before, {"extra": torch.zeros(1)}))
    assert torch.equal(worker.flat, before)


def test_a_worker_keeps_one_model_for_each_owner():
    first, second = object(), object()
    built = []

    def build():
        built.append(1)
        return nn.Linear(2, 2)

    assert worker_model(first, build) is worker_model(first, build)
    assert worker_model(second, build) is not worker_model(first, build)
    assert len(built) == 2
