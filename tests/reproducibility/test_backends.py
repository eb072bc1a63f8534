"""Client tasks that draw in every way give the same bits on every backend and worker count."""

import functools
import random
import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import checkpoint

from fedbench.executors import EXECUTORS, make_executor
from fedbench.reproducibility import digest, generator_scope, make_loader, torch_generator

CLIENTS = [f"client-{index}" for index in range(6)]


class DropoutModel(nn.Module):
    """Dropout of several kinds, recomputed from a checkpoint."""

    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.4), nn.ReLU())
        # Not in the block: torch itself computes a wrong gradient for a checkpointed RReLU.
        self.head = nn.Sequential(nn.RReLU(), nn.AlphaDropout(0.2), nn.Linear(16, 3))

    def forward(self, x):
        return self.head(checkpoint.checkpoint(self.block, x, use_reentrant=False))


class RecurrentModel(nn.Module):
    """An LSTM that drops out between its layers, in one call, and attention that does."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 8, 2, dropout=0.5, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        hidden = self.lstm(x.reshape(len(x), 2, 3))[0]
        return self.head(self.attention(hidden, hidden, hidden)[0][:, -1])


class BatchNormModel(nn.Sequential):
    """Buffers that every forward pass changes, an integer one among them."""

    def __init__(self):
        super().__init__(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3))


MODELS = {"dropout": DropoutModel, "lstm": RecurrentModel, "batchnorm": BatchNormModel}


class NoisySamples(torch.utils.data.Dataset):
    """Augments with noise from all three libraries."""

    def __init__(self, client):
        generator = torch_generator(1, "data", client)
        self.inputs = torch.randn(24, 6, generator=generator)
        self.targets = torch.randint(3, (24,), generator=generator)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        noise = np.random.randn(6).astype(np.float32) * random.random() + torch.rand(6).numpy()
        return self.inputs[index] + torch.from_numpy(noise), self.targets[index]


def client_task(state, client, *, kind, round_number, delays=False):
    """Train one client as a user's code would: with draws from the global generators."""
    with generator_scope(3, client, round_number, check=True):
        model = MODELS[kind]()
        model.load_state_dict(state)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for x, y in make_loader(NoisySamples(client), 7, 3, client, round_number):
            noise = torch.randn_like(x) * float(np.random.rand()) + random.gauss(0, 1)
            if delays:  # not drawn from the task: the point is that the order is another one
                time.sleep(time.perf_counter_ns() % 7 / 2000)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x + noise), y).backward()
            optimizer.step()
        drawn = torch.rand(2), np.random.rand(2), random.random(), np.random.default_rng().random()
        return model.state_dict(), drawn


def run_rounds(executor, kind, clients=CLIENTS, delays=False):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        state = MODELS[kind]().state_dict()
    results = []
    for round_number in range(2):
        task = functools.partial(client_task, kind=kind, round_number=round_number, delays=delays)
        results.append(executor.map(task, clients, broadcast=state))
        state = results[-1][0][0]
    return digest(results)


@functools.cache
def reference(kind):
    with make_executor("sequential") as executor:
        return run_rounds(executor, kind)


@pytest.mark.parametrize("kind", MODELS)
def test_backends_agree(executor, kind):
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    assert run_rounds(executor, kind) == reference(kind)
    assert torch.equal(torch.get_rng_state(), before[0])
    np.testing.assert_equal(np.random.get_state(), before[1])
    assert random.getstate() == before[2]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("kind", MODELS)
def test_neither_workers_nor_delays_matter(kind, workers):
    with make_executor("threads", workers) as executor:
        assert run_rounds(executor, kind, delays=True) == reference(kind)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("backend_name", [name for name in EXECUTORS if name != "sequential"])
def test_no_number_of_workers_matters(backend_name, kind, workers):
    if backend_name == "ray":
        pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    with make_executor(backend_name, workers) as executor:
        assert run_rounds(executor, kind, delays=True) == reference(kind)


def test_the_tasks_of_this_test_do_draw():
    """Were the scope to hand out the same numbers to everyone, all of the above would pass."""
    digests = set()
    with make_executor("sequential") as executor:
        for client in CLIENTS[:3]:
            digests.add(run_rounds(executor, "dropout", [client]))
    assert len(digests) == 3


def test_without_a_scope_the_threads_disagree_with_themselves():
    """What the scope is for: the same task on the global generator is not repeatable."""

    def task(client):
        drawn = []
        for _ in range(30):
            time.sleep(0.0005)
            drawn.append(torch.rand(()).item())
        return client, drawn

    with torch.random.fork_rng(), make_executor("threads", 3) as executor:
        digests = set()
        for _ in range(8):
            torch.manual_seed(0)
            digests.add(digest(executor.map(task, range(6))))
    assert len(digests) > 1
