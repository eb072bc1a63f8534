import dataclasses
import itertools
import re
import threading
import time
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbench.algorithms import ALGORITHMS
from fedbench.algorithms.fedavg import FedAvg
from fedbench.simulation import Simulation
from fedbench.verification import Candidate, first_difference, verify
from tests.simulation.helpers import batch_norm_model, dropout_model, tiny_workload

THREADS = Candidate("threads", 3, delays=True)
PROCESSES = Candidate("processes", 2)


def difference(left, right):
    return first_difference(left, right, round_index=1, phase="train", client="a")


def test_equal_states_have_no_difference():
    state = {"a": torch.tensor([1.0, float("nan")]), "b": [1, "x", None, 2.5], "c": {"n": -0.0}}
    assert difference(state, {**state, "a": state["a"].clone()}) is None


def test_a_difference_is_counted_in_elements_and_ulps():
    left = torch.tensor([1.0, 2.0, -3.0])
    right = left.clone()
    right[1] = torch.nextafter(right[1], torch.tensor(9.0))
    right[2] = torch.nextafter(right[2], torch.tensor(0.0))
    found = difference({"w": left}, {"w": right})
    assert (found.entry, found.num_elements, found.num_different, found.max_ulps) == (
        "['w']",
        3,
        2,
        1,
    )
    assert "round 1, train, client 'a', entry ['w']: 2 of 3 elements differ, by at most 1 ulp" in (
        str(found)
    )


def test_values_are_shown_as_plain_numbers():
    left, right = np.array([1.0, 0.1], np.float32), np.array([1.0, 0.2], np.float32)
    assert difference(left, right).what.endswith("(element 1: 0.1 against 0.2)")
    assert "(element 0: 7 against 8)" in difference(torch.tensor([7]), torch.tensor([8])).what
    assert difference(np.int64(3), np.int64(4)).what == "3 against 4"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_many_ulps_are_told_as_a_number_too(dtype):
    left = torch.tensor([0.0, 2.0, float("nan")], dtype=torch.float32).to(dtype)
    right = torch.tensor([0.0, -0.5, 1.0], dtype=torch.float32).to(dtype)
    found = difference(left, right)
    shown = found.max_ulps > 2**20
    assert shown == (dtype is not torch.bfloat16)  # its 65536 values are fewer than that
    assert (" ulps and 2.5 in value (element 1: 2.0 against -0.5)" in found.what) == shown
    near = difference(torch.tensor([1.0]), torch.tensor([1.125]))  # 2 ** 20 ulps
    assert (near.max_ulps, "in value" in near.what) == (2**20, False)
    nothing = difference(torch.tensor([float("inf")]), torch.tensor([1.0]))
    assert "in value" not in nothing.what


def test_signed_zeros_differ_by_a_bit_and_no_ulp():
    found = difference(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert found.num_different == 1
    assert found.max_ulps == 0


@given(st.floats(-(2.0**120), 2.0**120, width=32), st.integers(1, 50))
def test_ulps_are_steps_of_nextafter(start, steps):
    value = np.float32(start)
    for _ in range(steps):
        value = np.nextafter(value, np.float32(np.inf))
    found = difference(np.array([np.float32(start)]), np.array([value]))
    crossed_zero = start < 0 < value or (start < 0 and value == 0)
    assert found.max_ulps in ({steps, steps - 1, steps + 1} if crossed_zero else {steps})


@pytest.mark.parametrize(
    ("left", "right", "entry", "words"),
    [
        ({"a": 1}, {"b": 1}, "(all)", "only one side has"),
        ({"a": [1, 2]}, {"a": [1]}, "['a']", "2 against 1 entries"),
        ({"a": torch.zeros(2)}, {"a": torch.zeros(3)}, "['a']", r"float32[2] against float32[3]"),
        ({"a": torch.zeros(2)}, {"a": torch.zeros(2).double()}, "['a']", "float64"),
        ({"a": 1}, {"a": True}, "['a']", "1 against True"),
        ({"a": torch.tensor([1, 2])}, {"a": torch.tensor([1, 3])}, "['a']", "1 of 2 elements"),
        (
            {"a": torch.ones(1, dtype=torch.bfloat16)},
            {"a": torch.zeros(1, dtype=torch.bfloat16)},
            "['a']",
            "1 of 1 elements differ",
        ),
    ],
)
def test_other_differences_are_named(left, right, entry, words):
    found = difference(left, right)
    assert found.entry == entry
    assert words in found.what


@pytest.mark.parametrize("model", [batch_norm_model, dropout_model])
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_backends_are_verified(model, algorithm):
    result = verify(
        tiny_workload(model), algorithm=algorithm, candidates=[THREADS, PROCESSES], rounds=2
    )
    assert result.identical, result.differences
    assert len(set(result.digests.values())) == 1
    frame = result.to_frame()
    assert frame["identical"].all()
    assert (frame["compared"] > 20).all()


def test_whole_numbers_of_the_table_stay_whole():
    sides = [Candidate("sequential"), Candidate("threads", 1)]
    frame = verify(tiny_workload(), candidates=sides, rounds=1).to_frame()
    assert frame["workers"].isna().tolist() == [True, False]
    assert frame[["workers", "round"]].to_csv(index=False).splitlines() == [
        "workers,round",
        ",",
        "1,",
    ]


@pytest.mark.parametrize("algorithm", ALGORITHMS.names())
def test_every_algorithm_is_the_same_on_threads(algorithm):
    result = verify(
        tiny_workload(batch_norm_model), algorithm=algorithm, candidates=[THREADS], rounds=2
    )
    assert result.identical, result.differences


_counter = itertools.count()
_lock = threading.Lock()
_shared = torch.zeros(1)


@dataclasses.dataclass(frozen=True)
class GlobalDraw(FedAvg):
    """Draws from one generator that all clients share."""

    def train(self, client, down):
        metrics = super().train(client, down)
        with _lock:
            client.model.flat[0] += next(_counter) * 1e-3
        return metrics


@dataclasses.dataclass(frozen=True)
class SharedBuffer(FedAvg):
    """Every client adds to one tensor and sends it."""

    def uplink(self, client, down):
        update = super().uplink(client, down)
        with _lock:
            _shared.add_(1.0)
            return dataclasses.replace(update, tensors={**update.tensors, "count": _shared.clone()})


@dataclasses.dataclass(frozen=True)
class AliasedState(FedAvg):
    """Keeps the worker's model instead of a copy of it: the next client overwrites it."""

    stateful = True

    def train(self, client, down):
        metrics = super().train(client, down)
        client.state["kept"] = client.model.flat
        return metrics


@dataclasses.dataclass(frozen=True)
class OrderDependentSum(FedAvg):
    """Folds float32 sums in the order in which the clients finished."""

    finished: ClassVar[list] = []

    def train(self, client, down):
        metrics = super().train(client, down)
        type(self).finished.append(client.client_id)
        return metrics

    def aggregate(self, server, updates):
        by_client = dict(updates)
        order = type(self).finished[-len(by_client) :]
        total = sum(by_client[name].tensors["delta"] * 0.1 for name in order)
        return server.moved(total)


@pytest.mark.parametrize(
    ("algorithm", "phase", "entry"),
    [
        (GlobalDraw(), "uplink", "['delta']"),
        (SharedBuffer(), "uplink", "['count']"),
        (AliasedState(), "train", "['state']['kept']"),
        (OrderDependentSum(), "aggregate", "['model']['parameters']"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_planted_faults_are_found_and_named(algorithm, phase, entry):
    workload = tiny_workload(cohort_size=6)
    result = verify(workload, algorithm=algorithm, candidates=[THREADS], rounds=6)
    found = result.differences[THREADS]
    assert (found.phase, found.entry) == (phase, entry)
    assert (found.client is None) == (phase == "aggregate")
    assert not result.identical
    assert not result.to_frame()["identical"].any()


def loop_of(simulation):
    """Stand in for a hand-written loop."""
    while True:
        simulation.run_round()
        yield simulation.model_state()


@dataclasses.dataclass(frozen=True)
class DrawsUnseeded(FedAvg):
    """Draws from a generator that it made itself, without a seed."""

    def aggregate(self, server, updates):
        noise = torch.randn((), generator=torch.Generator().manual_seed(time.time_ns() % 2**31))
        return (
            super()
            .aggregate(server, updates)
            .moved(noise * torch.ones_like(server.model.parameters))
        )


@pytest.mark.parametrize(
    ("algorithm", "repeats", "words"),
    [
        (DrawsUnseeded(), False, "Two runs of sequential differ as well"),
        (AliasedState(), True, "Two runs of sequential agree"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_a_difference_comes_with_its_likely_causes(algorithm, repeats, words):
    result = verify(tiny_workload(), algorithm=algorithm, candidates=[THREADS], rounds=3)
    assert not result.identical
    assert result.repeats is repeats
    assert result.hint.startswith(words)
    assert result.hint.endswith("See 'Different bits' in docs/guide/troubleshooting.md.")


def test_without_a_difference_there_is_no_hint():
    result = verify(tiny_workload(), candidates=[THREADS], rounds=1)
    assert (result.identical, result.repeats, result.hint) == (True, None, "")


@pytest.mark.parametrize(
    ("candidates", "error", "message"),
    [
        (["threads"], TypeError, r"got 'threads' in it\. Pass \[Candidate\('threads'\)\]"),
        (
            "threads",
            TypeError,
            r"list of Candidate, got 'threads'\. Pass \[Candidate\('threads'\)\]",
        ),
        (["thread"], TypeError, "Did you mean 'threads'"),
        ([3], TypeError, r"got 3 in it\. Pass \[Candidate\('threads'\)\]"),
        (THREADS, TypeError, "Put it into a list"),
        (5, TypeError, "list of Candidate, got 5"),
        ([], ValueError, "at least one Candidate, got none"),
    ],
)
def test_what_is_no_list_of_candidates_is_refused(candidates, error, message):
    with pytest.raises(error, match=message):
        verify(tiny_workload(), candidates=candidates)


def test_what_is_no_reference_is_refused():
    message = "must be a Candidate, a Trace or a generator function, got 'sequential'"
    with pytest.raises(TypeError, match=message):
        verify(tiny_workload(), reference="sequential")


def test_a_hand_written_loop_is_the_reference():
    result = verify(
        tiny_workload(),
        reference=lambda: loop_of(Simulation(tiny_workload())),
        candidates=[THREADS],
        rounds=3,
    )
    assert result.identical
    other = verify(
        tiny_workload(),
        reference=lambda: loop_of(Simulation(tiny_workload(), seed=1)),
        candidates=[THREADS],
        rounds=3,
    )
    assert other.differences[THREADS].phase == "model"
    assert other.differences[THREADS].round == 1


def test_a_loop_that_ends_early_is_an_error():
    with pytest.raises(ValueError, match="ended before the last round"):
        verify(
            tiny_workload(),
            reference=lambda: iter([Simulation(tiny_workload()).model_state()]),
            candidates=[THREADS],
            rounds=2,
        )


@pytest.mark.parametrize("seed", [0, 3])
def test_the_loop_of_the_guide_matches_for_every_seed(seed):
    page = Path(__file__).parents[2] / "docs" / "guide" / "verification.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    [code] = [block for block in blocks if "def train(seed" in block]
    names = {}
    exec(code, names)
    one = Candidate("sequential")
    result = verify("digits-mlp", reference=names["train"], candidates=[one], rounds=1, seed=seed)
    assert result.identical, result.differences


def test_a_loop_without_a_seed_is_refused_unless_it_is_zero():
    def unseeded():
        return loop_of(Simulation(tiny_workload()))

    with pytest.raises(ValueError, match=r"seed must be 0 .* got 2 with .*unseeded"):
        verify(tiny_workload(), reference=unseeded, candidates=[THREADS], seed=2)
    with pytest.raises(TypeError, match="which needs rounds"):
        verify(tiny_workload(), reference=lambda rounds, seed: loop_of(None), candidates=[THREADS])
    with pytest.raises(TypeError, match="which needs seed"):
        verify(tiny_workload(), reference=lambda seed, /: loop_of(None), candidates=[THREADS])
