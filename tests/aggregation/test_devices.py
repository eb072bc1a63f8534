"""Tensors on an accelerator: the bits of the CPU, on the updates' own device.

The path is tested on every machine by treating tensors of the CPU as if they were elsewhere, and
with a GPU where there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fedbench import aggregation
from fedbench.aggregation import _devices, _updates
from fedbench.errors import LayoutError, NonFiniteError

RULES: dict[str, Callable[..., Any]] = {
    "mean": lambda u, **k: aggregation.mean(u, range(1, len(u) + 1), **k),
    "median": aggregation.median,
    "trimmed_mean": lambda u, **k: aggregation.trimmed_mean(u, num_trimmed=1, **k),
    "mean_around_median": lambda u, **k: aggregation.mean_around_median(u, num_byzantine=1, **k),
    "geometric_median": aggregation.geometric_median,
    "centered_clip": lambda u, **k: aggregation.centered_clip(u, clip_radius=1.0, **k),
    "krum": lambda u, **k: aggregation.krum(u, num_byzantine=1, **k),
    "multi_krum": lambda u, **k: aggregation.multi_krum(u, num_byzantine=1, **k),
    "bulyan": lambda u, **k: aggregation.bulyan(u, num_byzantine=1, **k),
}


@pytest.fixture(scope="module")
def on_cpu() -> dict[Callable[..., Any], tuple[dict[str, torch.Tensor], torch.Tensor]]:
    """Results of every rule, of state dicts and of flat updates, computed the ordinary way."""
    rows = [state["w"] for state in states()]
    return {rule: (rule(states()), rule(rows)) for rule in RULES.values()}


@pytest.fixture(params=["cuda", "as if elsewhere"])
def device(request, monkeypatch) -> str:
    if request.param == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA GPU; the other parameter tests the same path without one")
        return "cuda"
    monkeypatch.setattr(_devices, "is_remote", lambda tensor: True)
    monkeypatch.setattr(_updates, "describe_alike", lambda values: None)
    return "cpu"


def states() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        {
            "w": torch.randn(4, 3, generator=generator),
            "half": torch.randn(5, generator=generator).to(torch.bfloat16),
            "steps": torch.tensor(k),
        }
        for k in range(7)
    ]


def moved(values: list[dict[str, torch.Tensor]], device: str) -> list[dict[str, torch.Tensor]]:
    return [{name: tensor.to(device) for name, tensor in state.items()} for state in values]


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one.cpu(), other)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_every_rule_gives_the_bits_of_the_cpu_on_the_device(rule, on_cpu, device) -> None:
    expected, flat = on_cpu[rule]
    updates = moved(states(), device)
    result = rule(updates)
    assert all(same(result[name], expected[name]) for name in expected)
    assert {tensor.device.type for tensor in result.values()} == {device}
    out = {name: torch.zeros_like(tensor) for name, tensor in updates[0].items()}
    assert rule(updates, out=out) is out
    assert all(same(out[name], expected[name]) for name in expected)
    rows = [state["w"] for state in updates]
    assert same(rule(rows), flat)
    assert same(rule(torch.stack(rows)), flat)
    target = torch.zeros(4, 3, device=device)
    assert rule(rows, out=target) is target
    assert same(target, flat)


def test_updates_are_not_changed_and_may_require_gradients(device) -> None:
    parameter = torch.nn.Parameter(torch.ones(3, device=device))
    result = aggregation.mean([parameter, torch.nn.Parameter(parameter * 3)])
    assert result.tolist() == [2, 2, 2]
    assert not result.requires_grad
    assert parameter.tolist() == [1, 1, 1]
    strided = torch.arange(6.0, device=device).reshape(2, 3).T
    assert aggregation.mean([strided, strided]).tolist() == strided.tolist()


def test_errors_are_those_of_the_cpu(device) -> None:
    good = torch.ones(2, device=device)
    with pytest.raises(NonFiniteError, match="client 1 at flat index 0"):
        aggregation.mean([good, good / 0])
    with pytest.raises(LayoutError, match=r"updates\[1\] must have shape \(2,\)"):
        aggregation.mean([good, torch.ones(3, device=device)])
    with pytest.raises(ValueError, match=r"out must have shape \(2,\), got \(3,\)"):
        aggregation.mean([good, good], out=torch.ones(3, device=device))
    with pytest.raises(TypeError, match=r"out must have dtype torch.float32, got torch.float64"):
        aggregation.mean([good, good], out=good.double())
    with pytest.raises(TypeError, match="out must be a torch tensor like the updates, got ndarray"):
        aggregation.mean([good, good], out=np.ones(2, np.float32))
    with pytest.raises(ValueError, match="must not require gradients"):
        aggregation.mean([good, good], out=torch.nn.Parameter(good.clone()))


def test_clients_on_different_devices_are_refused(device) -> None:
    class Elsewhere:
        device = torch.device("meta")

    with pytest.raises(LayoutError, match=r"updates\[1\] must be on device .* got meta"):
        _devices.require_device(Elsewhere(), torch.device(device), "updates[1]")
    good = torch.ones(2, device=device)
    with pytest.raises(TypeError, match="out must be on device meta like the updates"):
        _devices.require_target(good, good, torch.device("meta"), "out")


def test_integer_entries_come_from_the_server(device) -> None:
    updates = moved(states(), device)
    result = aggregation.mean(updates, integers="server", server=updates[3])
    assert result["steps"].item() == 3
    assert result["steps"].device.type == device


def test_streams_take_updates_from_the_device(device) -> None:
    updates = moved(states(), device)
    total = aggregation.StreamingMean(updates[0])
    total.add(updates[0], 2)
    total.add_many(updates[1:], [3] * 6)
    expected = aggregation.mean(states(), [2, *[3] * 6])
    assert all(same(total.result()[name], expected[name]) for name in expected)


def test_autograd_notices_writes_to_out(device) -> None:
    out = torch.zeros(2, device=device)
    version = out._version
    aggregation.mean([torch.ones(2, device=device)] * 2, out=out)
    assert out._version > version
