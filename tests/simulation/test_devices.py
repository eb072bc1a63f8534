"""Where clients train: devices that do not exist, what moves, and a GPU where there is one."""

from __future__ import annotations

import contextlib
import dataclasses
import random

import pytest
import torch

import fedbench
from fedbench.algorithms import ALGORITHMS, RoundContext, Update
from fedbench.data import ClientData
from fedbench.executors import Resident
from fedbench.simulation import client_task
from fedbench.simulation.devices import checked_device, moved
from fedbench.simulation.rounds import client_items
from fedbench.simulation.vectorized import Chunk, VectorizedTask, vectorized_side
from fedbench.training import ModelState
from tests.simulation.helpers import batch_norm_model, dropout_model, plain_model, tiny_workload

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU and a torch with CUDA"
)


@pytest.mark.parametrize("device", ["gpu", "meta", "mps", "cuda:x", ""])
def test_other_devices_are_refused(device):
    with pytest.raises(ValueError, match="device must be 'cpu', 'cuda' or 'cuda:N', got"):
        fedbench.Simulation(tiny_workload(), device=device)
    with pytest.raises(TypeError, match="device must be a text such as 'cuda:0', got device"):
        fedbench.Simulation(tiny_workload(), device=torch.device("cpu"))


def test_threads_stay_on_the_cpu():
    with pytest.raises(ValueError, match="must be 'cpu' on the backend 'threads', got 'cuda'"):
        fedbench.Simulation(tiny_workload(), executor="threads", device="cuda")


def test_a_missing_gpu_is_said_before_anything_runs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"device must be 'cpu' here, got 'cuda': this torch \("):
        fedbench.Simulation(tiny_workload(), device="cuda")
    # The nodes of a cluster may have what this machine lacks.
    assert checked_device("cuda", "ray") == "cuda"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert checked_device("cuda:1", "processes") == "cuda:1"
    with pytest.raises(ValueError, match="one of cuda:0 to cuda:1, got 'cuda:2'"):
        checked_device("cuda:2", "sequential")


def test_vectorized_clients_need_no_gpu_where_the_server_is(monkeypatch):
    simulation = fedbench.Simulation(tiny_workload())
    expected = vectorized_side(simulation._side.value, simulation._model)
    # As on the driver of a Ray cluster whose nodes have the GPUs.
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.nn.Module, "to", lambda *_: pytest.fail("moved to the device"))
    side = dataclasses.replace(simulation._side.value, device="cuda")
    assert vectorized_side(side, simulation._model) == expected


def test_the_cpu_by_name_changes_no_bit():
    with fedbench.Simulation(tiny_workload()) as default:
        default.run()
    with fedbench.Simulation(tiny_workload(), device="cpu") as named:
        named.run()
    assert named.state_digest() == default.state_digest()
    assert named.history.pinned["device"] == "cpu"


def test_moving_reaches_every_container():
    tensor = torch.ones(2)
    value = {
        "state": ModelState(tensor, {"mean": tensor}),
        "update": Update(3, {"delta": tensor, "name": "x"}),
        "rows": [ClientData(tensor, tensor), (tensor, None)],
        "count": 5,
    }
    there = moved(value, "meta")
    assert there["state"].parameters.is_meta
    assert there["state"].buffers["mean"].is_meta
    assert there["update"].num_samples == 3
    assert there["update"].tensors["delta"].is_meta
    assert there["update"].tensors["name"] == "x"
    assert isinstance(there["rows"][0], ClientData)
    assert there["rows"][0].targets.is_meta
    assert there["rows"][1][0].is_meta
    assert there["rows"][1][1] is None
    assert there["count"] == 5
    assert not tensor.is_meta


@pytest.fixture
def on_meta(monkeypatch):
    """Let torch's device without values stand for a GPU: operations that mix devices fail there.

    What asks for values gets zeros, and nothing comes back from there.
    """
    move, item, tolist, cpu = (
        client_task.moved,
        torch.Tensor.item,
        torch.Tensor.tolist,
        torch.Tensor.cpu,
    )
    monkeypatch.setattr(client_task, "device_draws", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(client_task, "moved", lambda v, d: v if d == "cpu" else move(v, d))
    # Elsewhere what a client keeps has come back to the CPU by then, and has values.
    monkeypatch.setattr(client_task, "kept_state", lambda _algorithm, state, *_: state)
    zeros = {
        "item": lambda t: 0.0 if t.is_meta else item(t),
        "tolist": lambda t: [0.0] * t.numel() if t.is_meta else tolist(t),
        "cpu": lambda t: torch.zeros(t.shape, dtype=t.dtype) if t.is_meta else cpu(t),
        "__float__": lambda t: float(t.item()),
        "__int__": lambda t: int(t.item()),
        "__bool__": lambda t: bool(t.item()),
    }
    for name, function in zeros.items():
        monkeypatch.setattr(torch.Tensor, name, function)


def first_round(simulation):
    """Return side, broadcast and items of the first round, without an executor."""
    side, algorithm = simulation._side.value, simulation.algorithm
    context = RoundContext(0, (0, 1), 6, lambda purpose: random.Random(0))
    plan = algorithm.plan(simulation.server, context)
    down = algorithm.broadcast(simulation.server, plan)
    initial = simulation._model.state()
    items = client_items(
        side, simulation.server, plan, 0, 0.1, lambda _: algorithm.init_client(initial)
    )
    return dataclasses.replace(side, device="meta"), down, items


# FedCR looks for nonzero values, which that device cannot have.
@pytest.mark.parametrize("algorithm", sorted(set(ALGORITHMS) - {"fedcr"}))
@pytest.mark.parametrize("model", [plain_model, batch_norm_model])
def test_a_task_stays_on_its_device(algorithm, model, on_meta):
    simulation = fedbench.Simulation(tiny_workload(model), algorithm=algorithm)
    assert not simulation._model.flat.is_meta
    side, down, items = first_round(simulation)
    result = client_task.ClientTask(Resident(side))(down, items[0])
    if result.update is not None:
        tensors = [t for t in result.update.tensors.values() if isinstance(t, torch.Tensor)]
        assert tensors
        assert all(tensor.is_meta for tensor in tensors)


def test_a_vectorized_task_stays_on_its_device(on_meta):
    workload = tiny_workload(momentum=0.9, weight_decay=0.1)
    simulation = fedbench.Simulation(workload, algorithm="fedprox", vectorized=True)
    side, down, items = first_round(simulation)
    task = VectorizedTask(Resident(side), simulation._rounds.stacked)
    assert task(down, Chunk.of(items)).deltas.device.type == "cpu"


@needs_gpu
@pytest.mark.parametrize("model", [plain_model, batch_norm_model, dropout_model])
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "ditto", "fedcr"])
def test_a_gpu_reproduces_itself(model, algorithm):
    digests, states = set(), []
    for executor, device in (("sequential", "cuda"), ("processes", "cuda"), ("sequential", "cpu")):
        before = torch.cuda.get_rng_state()
        workers = 2 if executor == "processes" else None
        with fedbench.Simulation(
            tiny_workload(model),
            algorithm=algorithm,
            executor=executor,
            workers=workers,
            device=device,
        ) as simulation:
            simulation.run()
            assert all(v.device.type == "cpu" for v in simulation.model_state().values())
        assert torch.equal(torch.cuda.get_rng_state(), before)
        if device == "cuda":
            digests.add(simulation.state_digest())
        states.append(simulation.model_state())
    assert len(digests) == 1
    if model is not dropout_model:  # a GPU draws other numbers
        for name, value in states[0].items():
            assert torch.allclose(value.float(), states[2][name].float(), rtol=1e-3, atol=1e-4)


@needs_gpu
def test_vectorized_clients_on_a_gpu():
    with fedbench.Simulation(tiny_workload()) as alone:
        alone.run()
    with fedbench.Simulation(tiny_workload(), vectorized=True, device="cuda") as together:
        together.run()
    for name, value in alone.model_state().items():
        assert torch.allclose(value, together.model_state()[name], rtol=1e-3, atol=1e-4)
