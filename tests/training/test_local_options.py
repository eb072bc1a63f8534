"""Clipping, optimisers of torch.optim, training functions of the user, and schedules."""

import copy
import math
from functools import partial

import pytest
import torch
from torch import nn

from fedbench.data import ClientData
from fedbench.errors import LayoutError
from fedbench.training import (
    OPTIMIZERS,
    SCHEDULES,
    Exchange,
    LocalWork,
    WorkerModel,
    local_sgd,
    made,
    resolve_optimizer,
    scheduled_lr,
    shuffled_batches,
)
from fedbench.training.losses import CROSS_ENTROPY

WIDTH = 16


def make_model():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 3))


def make_data(count=30):
    torch.manual_seed(4)
    return ClientData(torch.randn(count, WIDTH) * 3, torch.randint(0, 3, (count,)))


def generators(epoch):
    return torch.Generator().manual_seed(100 + epoch)


def plain_loop(model, data, work, make):
    """Train as one writes it with torch alone."""
    optimizer = make(model.parameters(), work.lr)
    for epoch in range(work.epochs):
        order = torch.randperm(len(data.inputs), generator=generators(epoch))
        batches = order.split(work.batch_size)
        if work.drop_last and len(batches) > 1 and len(batches[-1]) < work.batch_size:
            batches = batches[:-1]
        for rows in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(data.inputs[rows]), data.targets[rows]).backward()
            if work.clip_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), work.clip_norm)
            if work.clip_value is not None:
                nn.utils.clip_grad_value_(model.parameters(), work.clip_value)
            optimizer.step()
    return model


def assert_same_bits(worker, model):
    for name, value in model.state_dict().items():
        assert torch.equal(worker.module.state_dict()[name], value), name


@pytest.mark.parametrize(
    "options", [{"clip_norm": 0.5}, {"clip_value": 0.01}, {"clip_norm": 2.0, "clip_value": 0.05}]
)
def test_clipping_has_the_bits_of_torch(options):
    model, data = make_model(), make_data()
    work = LocalWork(epochs=2, batch_size=8, lr=0.1, **options)
    worker = WorkerModel(copy.deepcopy(model))
    local_sgd(worker, data, work, CROSS_ENTROPY, generators)
    assert_same_bits(worker, plain_loop(model, data, work, torch.optim.SGD))
    unclipped = WorkerModel(make_model())
    local_sgd(unclipped, data, LocalWork(epochs=2, batch_size=8, lr=0.1), CROSS_ENTROPY, generators)
    assert not torch.equal(unclipped.flat, worker.flat)


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_every_optimizer_has_the_bits_of_the_plain_loop(name):
    model, data = make_model(), make_data()
    work = LocalWork(epochs=2, batch_size=8, lr=0.01, optimizer=resolve_optimizer(name))
    worker = WorkerModel(copy.deepcopy(model))
    start = worker.state()
    local_sgd(worker, data, work, CROSS_ENTROPY, generators)
    plain_loop(model, data, work, OPTIMIZERS.load(name))
    assert_same_bits(worker, model)
    assert all(parameter.grad is None for parameter in worker.trainable)
    # Fresh state at each participation: again from the same start, the same end.
    end = worker.flat.clone()
    worker.load(start)
    local_sgd(worker, data, work, CROSS_ENTROPY, generators)
    assert torch.equal(worker.flat, end)


def test_sgd_by_name_has_the_bits_of_the_fused_loop():
    data = make_data()
    sgd = resolve_optimizer({"name": "sgd", "momentum": 0.9})
    first, second = WorkerModel(make_model()), WorkerModel(make_model())
    local_sgd(first, data, LocalWork(epochs=2, lr=0.1, optimizer=sgd), CROSS_ENTROPY, generators)
    local_sgd(second, data, LocalWork(epochs=2, lr=0.1, momentum=0.9), CROSS_ENTROPY, generators)
    assert torch.equal(first.flat, second.flat)


def test_the_terms_of_an_algorithm_reach_the_optimizer():
    data = make_data()
    anchor = WorkerModel(make_model()).flat
    ends = []
    for options in ({}, {"optimizer": resolve_optimizer("sgd")}):
        worker = WorkerModel(make_model())
        local_sgd(
            worker,
            data,
            LocalWork(lr=0.1, batch_size=10, **options),
            CROSS_ENTROPY,
            generators,
            proximal=0.3,
            anchor=anchor,
            correction=torch.full_like(anchor, 0.01),
        )
        ends.append(worker.flat)
    assert torch.equal(*ends)


def test_terms_leave_personal_parameters_alone():
    data = make_data()
    exchange = Exchange(personal=["2.*"])
    free, held = WorkerModel(make_model(), exchange), WorkerModel(make_model(), exchange)
    one_step = LocalWork(lr=0.1, batch_size=100)
    local_sgd(free, data, one_step, CROSS_ENTROPY, generators)
    correction = torch.ones_like(held.flat)
    local_sgd(held, data, one_step, CROSS_ENTROPY, generators, correction=correction)
    assert not torch.equal(free.flat, held.flat)
    assert torch.equal(free.module[2].weight, held.module[2].weight)
    assert not torch.equal(free.module[2].weight, make_model()[2].weight)


@pytest.mark.parametrize(
    ("chosen", "error", "words"),
    [
        ("adamm", ValueError, "Did you mean 'adam'"),
        ({"name": "adam", "beta": 0.9}, TypeError, "unexpected keyword argument 'beta'"),
        ({"name": "sgd", "momentum": -1.0}, ValueError, "momentum"),
        ({"betas": [0.9, 0.9]}, ValueError, "optimizer must be one of"),
        (3, TypeError, "optimizer must be a name"),
        (lambda parameters, lr: None, TypeError, "must return a torch.optim.Optimizer"),
        (lambda parameters: None, TypeError, r"must take \(parameters, lr\)"),
        (torch.optim.LBFGS, TypeError, "without a closure, but torch.optim.lbfgs:LBFGS raised"),
        (torch.optim.SparseAdam, TypeError, "must step on dense gradients"),
        ({"name": "adam", "capturable": True}, TypeError, "of the CPU .* raised AssertionError"),
    ],
)
def test_optimizers_that_cannot_be_made_are_refused(chosen, error, words):
    with pytest.raises(error, match=words):
        resolve_optimizer(chosen)


def test_an_optimizer_may_be_any_function():
    make = partial(torch.optim.Adam, betas=(0.5, 0.9))
    assert resolve_optimizer(make) is make
    listed = resolve_optimizer({"name": "adam", "betas": [0.5, 0.9]})
    assert listed.keywords == {"betas": (0.5, 0.9)}


def own_training(model, data, rng):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = torch.randperm(len(data.inputs), generator=rng)[:8]
    loss = nn.functional.cross_entropy(model(data.inputs[rows]), data.targets[rows])
    loss.backward()
    optimizer.step()
    return loss


def run_own(train, **terms):
    worker = WorkerModel(make_model())
    loss = local_sgd(
        worker, make_data(), LocalWork(train=train), CROSS_ENTROPY, generators, **terms
    )
    return worker, loss


def test_a_function_of_the_user_trains_the_model():
    worker, loss = run_own(own_training)
    model = make_model()
    expected = own_training(model, make_data(), generators(0))
    assert loss == expected.item()
    assert_same_bits(worker, model)
    assert all(parameter.grad is None for parameter in worker.trainable)


def test_parameters_that_moved_are_taken_in():
    def moves(model, data, rng):
        for parameter in model.parameters():
            parameter.data = torch.ones_like(parameter)
            parameter.requires_grad_(False)
        return 0.0

    worker, _ = run_own(moves)
    views = worker.layout.views(worker.flat)
    assert all(bool((view == 1).all()) for view in views)
    assert all(p.data_ptr() == v.data_ptr() for p, v in zip(worker.trainable, views, strict=True))
    assert all(parameter.requires_grad for parameter in worker.trainable)


def test_replaced_parameters_and_missing_losses_are_refused():
    def replaces(model, data, rng):
        model[0].weight = nn.Parameter(torch.zeros(8, WIDTH))
        return 0.0

    with pytest.raises(LayoutError, match="Change them in place"):
        run_own(replaces)
    with pytest.raises(TypeError, match=r"must return the mean training loss .* got None"):
        run_own(lambda model, data, rng: None)


@pytest.mark.parametrize("exchange", [None, Exchange(personal=["2.*"])])
@pytest.mark.parametrize("name", ["0.weight", "2.bias"])
def test_a_parameter_of_another_shape_is_refused(exchange, name):
    def shrinks(model, data, rng):
        parameter = model.get_parameter(name)
        parameter.data = parameter.data[:1].clone()
        return 0.0

    worker = WorkerModel(make_model(), exchange)
    work = LocalWork(train=shrinks)
    with pytest.raises(LayoutError, match=f"the shape of '{name}' must stay .*, got .1"):
        local_sgd(worker, make_data(), work, CROSS_ENTROPY, generators)


def test_a_function_of_the_user_does_not_know_the_terms_of_an_algorithm():
    with pytest.raises(ValueError, match="train must be left out"):
        run_own(own_training, proximal=0.1, anchor=torch.zeros(3))


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("clip_norm", 0, ValueError),
        ("clip_value", -1.0, ValueError),
        ("clip_norm", float("nan"), ValueError),
        ("optimizer", "adam", TypeError),
        ("train", 3, TypeError),
        ("drop_last", 1, TypeError),
    ],
)
def test_wrong_work_is_refused(field, value, error):
    with pytest.raises(error, match=field):
        LocalWork(**{field: value})
    with pytest.raises(ValueError, match="momentum must be left out"):
        LocalWork(momentum=0.9, optimizer=torch.optim.SGD)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("clip_norm", 1.0),
        ("clip_value", 1.0),
        ("optimizer", torch.optim.Adam),
        ("momentum", 0.9),
        ("weight_decay", 0.1),
        ("drop_last", True),
    ],
)
def test_what_a_function_of_the_user_would_not_know_is_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} must be left out beside train"):
        LocalWork(train=own_training, **{name: value})


@pytest.mark.parametrize(
    ("count", "steps"), [(1, 1), (6, 1), (7, 1), (8, 1), (13, 1), (14, 2), (15, 2), (30, 4)]
)
def test_the_smaller_last_batch_is_left_out_but_never_the_only_one(count, steps):
    work = LocalWork(epochs=3, batch_size=7, lr=0.1, drop_last=True)
    assert work.steps(count) == 3 * steps
    data = make_data(count)
    batches = shuffled_batches(data, 7, generators(0), drop_last=True)
    assert [len(y) for _, y in batches] == [min(count, 7)] * steps
    worker = WorkerModel(make_model())
    local_sgd(worker, data, work, CROSS_ENTROPY, generators)
    assert_same_bits(worker, plain_loop(make_model(), data, work, partial(torch.optim.SGD)))


def test_schedules():
    assert [made(SCHEDULES, "constant")(index) for index in (0, 5)] == [1.0, 1.0]
    step = made(SCHEDULES, {"name": "step", "every": 2, "gamma": 0.5})
    assert [step(index) for index in range(5)] == [1.0, 1.0, 0.5, 0.5, 0.25]
    exponential = made(SCHEDULES, {"name": "exponential", "gamma": 0.5})
    assert [exponential(index) for index in range(3)] == [1.0, 0.5, 0.25]
    cosine = made(SCHEDULES, {"name": "cosine", "rounds": 4, "floor": 0.2})
    values = [cosine(index) for index in range(6)]
    assert values[0] == 1.0
    assert math.isclose(values[2], 0.6)
    assert values[4] == values[5] == 0.2
    assert values == sorted(values, reverse=True)
    assert scheduled_lr(step, 0.1, 3) == 0.1 * 0.5


@pytest.mark.parametrize(
    ("chosen", "error", "words"),
    [
        ("cosinus", ValueError, "Did you mean 'cosine'"),
        ("cosine", TypeError, r"schedule\.rounds is missing: 'cosine' needs it\. Pass \{'name'"),
        ({"name": "step", "gamma": 0.5}, TypeError, r"schedule\.every is missing: 'step' needs"),
        ({"name": "step", "every": 0}, ValueError, "every must be an integer of at least 1"),
        ({"name": "step", "everi": 1}, TypeError, "no option 'everi'. It has 'every', 'gamma'"),
        ({"name": "cosine", "rounds": 3, "floor": 2.0}, ValueError, "floor must be at most 1"),
        ({"name": "exponential", "gamma": 0}, ValueError, "gamma"),
        ({"gamma": 1.0}, ValueError, "a schedule must have a name"),
    ],
)
def test_wrong_schedules_are_refused(chosen, error, words):
    with pytest.raises(error, match=words):
        made(SCHEDULES, chosen)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("inf"), float("nan"), None, 10**400])
def test_a_schedule_must_return_a_positive_number(factor):
    with pytest.raises(ValueError, match="schedule must return a positive number"):
        scheduled_lr(lambda index: factor, 0.1, 2)
