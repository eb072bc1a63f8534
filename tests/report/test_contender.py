"""What is inside a timed round, and what is not."""

import time
from types import SimpleNamespace

import pytest
import torch

from fedbench.report import Configuration
from fedbench.report.contender import Contender


@pytest.fixture
def contender():
    """Return a contender whose simulation does nothing."""
    made = Contender(Configuration("digits-logreg", "fedavg", "sequential", 1), 0, "L1")
    record = SimpleNamespace(
        reduced_in_workers=False,
        round=1,
        seconds={"train": 0.0},
        task_s=0.0,
        uplink_bytes=7,
        metrics={"train": {"loss": 2.5}},
    )
    made._simulation = SimpleNamespace(run_round=lambda evaluate: record)
    return made


def test_a_round_waits_for_the_gpu_that_still_works(contender, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: time.sleep(0.05))
    assert contender.run_round().round_s >= 0.05


def test_a_gpu_that_nobody_uses_is_left_alone(contender, monkeypatch):
    def fail():
        raise AssertionError("it was asked")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    sample = contender.run_round()
    assert sample.uplink_bytes == 7
    assert sample.metrics == {"loss": 2.5}
