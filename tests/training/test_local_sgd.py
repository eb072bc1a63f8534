import copy

import pytest
import torch
from torch import nn

from fedbench.data import ClientData
from fedbench.training import LOSSES, LocalWork, WorkerModel, evaluate_batches, local_sgd

CROSS_ENTROPY = LOSSES.load("cross_entropy")


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_data(num_samples, features, seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(num_samples, features, generator=generator)
    return ClientData(inputs, torch.randint(0, 3, (num_samples,), generator=generator))


def make_model(features, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(features, 9), nn.ReLU(), nn.Linear(9, 3))


def generators(epoch):
    return torch.Generator().manual_seed(100 + epoch)


def plain_loop(model, data, work, proximal=0.0):
    """The loop as one writes it by hand: fresh batches, an optimiser object, ``backward``."""
    model = copy.deepcopy(model)
    start = [p.detach().clone() for p in model.parameters()]
    optimiser = torch.optim.SGD(
        model.parameters(), lr=work.lr, momentum=work.momentum, weight_decay=work.weight_decay
    )
    losses = []
    for epoch in range(work.epochs):
        order = torch.randperm(len(data.inputs), generator=generators(epoch))
        for rows in order.split(work.batch_size):
            x, y = data.inputs[rows], data.targets[rows]
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            if proximal:
                for p, s in zip(model.parameters(), start, strict=True):
                    p.grad.add_(p.detach() - s, alpha=proximal)
            optimiser.step()
            losses.append(loss.item() * len(rows))
    return model, sum(losses) / (work.epochs * len(data.inputs))


@pytest.mark.parametrize("features", [16, 17, 65])
@pytest.mark.parametrize(
    "work",
    [
        LocalWork(epochs=2, batch_size=8, lr=0.1),
        LocalWork(epochs=3, batch_size=7, lr=0.05, momentum=0.9),
        LocalWork(epochs=1, batch_size=100, lr=0.05, weight_decay=0.01),
    ],
)
def test_the_bits_are_those_of_the_plain_loop(features, work):
    data, model = make_data(45, features), make_model(features)
    expected, expected_loss = plain_loop(model, data, work)
    worker = WorkerModel(copy.deepcopy(model))
    loss = local_sgd(worker, data, work, CROSS_ENTROPY, generators)
    for name, parameter in expected.named_parameters():
        assert torch.equal(worker.state_dict()[name], parameter.detach()), name
    assert loss == pytest.approx(expected_loss, rel=1e-12)


def test_the_proximal_term_has_the_bits_of_the_plain_loop():
    data, model = make_data(45, 16), make_model(16)
    work = LocalWork(epochs=2, batch_size=8, lr=0.1)
    expected, _ = plain_loop(model, data, work, proximal=0.3)
    worker = WorkerModel(copy.deepcopy(model))
    anchor = worker.flat.clone()
    local_sgd(worker, data, work, CROSS_ENTROPY, generators, proximal=0.3, anchor=anchor)
    for name, parameter in expected.named_parameters():
        assert torch.equal(worker.state_dict()[name], parameter.detach()), name


def test_a_correction_is_added_to_every_gradient():
    data, model = make_data(20, 16), make_model(16)
    work = LocalWork(batch_size=20, lr=0.5)
    plain, corrected = WorkerModel(copy.deepcopy(model)), WorkerModel(copy.deepcopy(model))
    correction = torch.full_like(plain.flat, 2.0)
    local_sgd(plain, data, work, CROSS_ENTROPY, generators)
    local_sgd(corrected, data, work, CROSS_ENTROPY, generators, correction=correction)
    for a, b in zip(plain.trainable, corrected.trainable, strict=True):
        assert torch.allclose(a - b, torch.ones_like(a), atol=1e-5)


def test_padding_stays_zero():
    worker = WorkerModel(make_model(17))
    local_sgd(worker, make_data(30, 17), LocalWork(lr=0.1), CROSS_ENTROPY, generators)
    used = torch.zeros_like(worker.flat)
    for view in worker.layout.views(used):
        view.fill_(1.0)
    assert worker.flat[used == 0].eq(0).all()


def test_parameters_that_the_loss_does_not_reach_stay_put():
    model = make_model(16)
    model.unused = nn.Linear(2, 2)
    model.forward = lambda x: nn.Sequential.forward(nn.Sequential(*list(model)[:3]), x)
    worker = WorkerModel(model)
    before = model.unused.weight.detach().clone()
    local_sgd(worker, make_data(10, 16), LocalWork(), CROSS_ENTROPY, generators)
    assert torch.equal(model.unused.weight, before)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epochs", 0),
        ("batch_size", 1.5),
        ("lr", -1.0),
        ("momentum", float("nan")),
        ("epochs", True),
    ],
)
def test_local_work_is_validated(field, value):
    with pytest.raises(ValueError, match=field):
        LocalWork(**{field: value})


def test_evaluation_equals_the_whole_batch_and_changes_nothing():
    data = make_data(100, 16)
    worker = WorkerModel(nn.Sequential(make_model(16), nn.BatchNorm1d(3)))
    worker.module.train()
    buffers = worker.buffers()
    sums = evaluate_batches(worker, data.inputs, data.targets, CROSS_ENTROPY, batch_size=33)
    assert worker.module.training
    assert all(torch.equal(v, buffers[k]) for k, v in worker.buffers().items())
    worker.module.eval()
    with torch.no_grad():
        outputs = worker.module(data.inputs)
    metrics = sums.metrics(CROSS_ENTROPY)
    assert metrics["accuracy"] == (outputs.argmax(1) == data.targets).double().mean().item()
    assert metrics["loss"] == pytest.approx(
        nn.functional.cross_entropy(outputs, data.targets).item(), rel=1e-6
    )
