import copy

import pytest
import torch
from torch import nn

from fedbench.errors import LayoutError
from fedbench.training import Exchange, WorkerModel


def make_model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(3, 3, bias=False)
        self.head = nn.Linear(3, 3, bias=False)
        self.head.weight = self.embed.weight
        self.last = nn.Linear(3, 1)


def test_by_default_everything_travels():
    worker = WorkerModel(make_model())
    assert worker.layout.names == ("0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias")
    statistics = ["running_mean", "running_var", "num_batches_tracked"]
    assert list(worker.sent_buffers()) == [f"1.{name}" for name in statistics]
    worker.load(worker.state())
    assert worker.kept() == {}


def test_frozen_parameters_are_neither_trained_nor_sent():
    worker = WorkerModel(make_model(), Exchange(frozen=["0.*"]))
    assert not any(name.startswith("0.") for name in worker.layout.names)
    assert {"0.weight", "0.bias"} <= worker.buffers().keys()
    assert not {"0.weight", "0.bias"} & worker.sent_buffers().keys()


def test_personal_entries_are_trained_last_and_in_no_state():
    worker = WorkerModel(make_model(), Exchange(personal=["2.*", "1.running_*"]))
    assert worker.layout.names == ("0.weight", "0.bias", "1.weight", "1.bias")
    assert [tuple(p.shape) for p in worker.trainable[4:]] == [(2, 4), (2,)]
    assert list(worker.state().buffers) == ["1.num_batches_tracked"]


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({"integers": "server"}, ["1.running_mean", "1.running_var"]),
        ({"buffers": "local"}, []),
        ({"buffers": "local", "integers": "server"}, []),
    ],
)
def test_what_is_sent_of_the_buffers(options, sent):
    assert list(WorkerModel(make_model(), Exchange(**options)).sent_buffers()) == sent


def test_each_client_has_entries_of_its_own_and_starts_from_the_initial_model():
    model = make_model()
    first = copy.deepcopy(model.state_dict())
    worker = WorkerModel(model, Exchange(personal=["2.bias"]))
    start = worker.state()
    worker.load(start)
    with torch.no_grad():
        model[2].bias.fill_(7.0)
    of_one = worker.kept()
    worker.begin({})
    worker.load(start)
    assert torch.equal(model[2].bias, first["2.bias"])
    assert torch.equal(worker.kept()["shared"]["2.bias"], first["2.bias"])
    worker.begin(of_one)
    worker.load(start)
    assert model[2].bias.tolist() == [7.0, 7.0]


def test_two_models_of_a_client_do_not_share_their_own_entries():
    model = make_model()
    worker = WorkerModel(model, Exchange(buffers="local"))
    start = worker.state()
    worker.load(start)
    model[1].running_mean.fill_(1.0)
    worker.load(start, "personal")
    assert not model[1].running_mean.any()
    model[1].running_mean.fill_(2.0)
    worker.load(start)
    assert model[1].running_mean.tolist() == [1.0] * 4
    kept = worker.kept()
    assert kept["personal"]["1.running_mean"].tolist() == [2.0] * 4
    model[1].running_mean.fill_(9.0)
    assert kept["shared"]["1.running_mean"].tolist() == [1.0] * 4


def test_tied_entries_stay_tied():
    worker = WorkerModel(Tied(), Exchange(personal=["embed.*", "head.*"]))
    assert worker.layout.names == ("last.weight", "last.bias")
    assert len(worker.trainable) == 3
    worker.load(worker.state())
    assert list(worker.kept()["shared"]) == ["embed.weight"]
    worker = WorkerModel(Tied(), Exchange(frozen=["head.*"]))
    assert worker.layout.names == ("last.weight", "last.bias")
    assert worker.sent_buffers() == {}


@pytest.mark.parametrize(
    ("model", "options", "error", "words"),
    [
        (make_model, {"personal": ["2.weihgt"]}, ValueError, "Did you mean '2.weight'"),
        (make_model, {"frozen": ["1.running_mean"]}, ValueError, "parameters of the model"),
        (make_model, {"frozen": ["9.*"]}, ValueError, "'9.*' matches none"),
        (make_model, {"frozen": ["0.*"], "personal": ["*.bias"]}, ValueError, "'0.bias' in both"),
        (Tied, {"personal": ["head.*"]}, ValueError, "'embed.weight' without|'head.weight'"),
        (make_model, {"personal": ["*"]}, LayoutError, "shared, got none. Leave one out of pers"),
        (make_model, {"frozen": ["*.*"]}, LayoutError, "at least one trainable parameter that is"),
    ],
)
def test_patterns_that_do_not_fit_the_model_are_refused(model, options, error, words):
    with pytest.raises(error, match=words):
        WorkerModel(model(), Exchange(**options))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"buffers": "mean"}, ValueError, "buffers must be one of 'average', 'local', got 'mean'"),
        ({"integers": "min"}, ValueError, "integers must be one of"),
        ({"personal": "head.*"}, TypeError, r"a list of patterns such as \['head.\*'\]"),
        ({"frozen": [3]}, TypeError, "frozen must be a list"),
    ],
)
def test_wrong_options_are_refused(options, error, words):
    with pytest.raises(error, match=words):
        Exchange(**options)
