import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedbench
from fedbench import aggregation
from fedbench.algorithms import ALGORITHMS, Updates
from fedbench.algorithms.client import Update, dense
from fedbench.algorithms.fedavg import FedAvg
from fedbench.errors import ClientTaskError
from fedbench.simulation import Quantized, TopK
from fedbench.simulation.compression import compressed
from tests.simulation.helpers import NUM_CLIENTS, batch_norm_model, plain_model, tiny_workload


def rng(entry="delta"):
    return np.random.default_rng(len(entry))


def run(rounds=1, algorithm="fedavg", **options):
    workload = tiny_workload(plain_model, cohort_size=NUM_CLIENTS)
    simulation = fedbench.Simulation(workload, algorithm=algorithm, seed=2, **options)
    with simulation:
        simulation.run(rounds, evaluate_every=0)
    return simulation


changes = st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=40).map(torch.tensor)


@given(changes, st.floats(0.01, 1.0))
def test_top_k_keeps_the_largest_and_the_rest_is_the_residual(change, fraction):
    update, left = compressed(TopK(fraction), Update(3, {"delta": change}), {}, len(change), rng)
    sent = dense(update.tensors["delta"])
    count = max(1, round(fraction * len(change)))
    assert update.tensors["delta"].indices.dtype == torch.int32
    assert len(update.tensors["delta"].indices) == count
    assert torch.equal(sent + left["delta"], change)
    kept = sent != 0
    if kept.any() and (~kept).any():
        assert change[kept].abs().min() >= left["delta"].abs().max()


@given(changes)
def test_the_residual_is_added_to_the_next_change(change):
    first, left = compressed(TopK(0.3), Update(3, {"delta": change}), {}, len(change), rng)
    second, after = compressed(
        TopK(0.3), Update(3, {"delta": torch.zeros_like(change)}), left, len(change), rng
    )
    total = dense(first.tensors["delta"]) + dense(second.tensors["delta"]) + after["delta"]
    assert torch.equal(total, change)


def test_stochastic_quantisation_is_unbiased():
    change = torch.tensor([1.0, 0.3, -0.7004, 0.0])
    many = torch.stack(
        [
            dense(Quantized().compress(change, 4, np.random.default_rng(seed)))
            for seed in range(4000)
        ]
    )
    step = 1.0 / 127
    # The rounding error of a step is at most half of it in standard deviation.
    assert (many.mean(dim=0) - change).abs().max() < 5 * step / 2 / math.sqrt(4000)
    assert (many - change).abs().max() <= step


def test_means_of_compressed_updates_are_those_of_the_dense_ones():
    torch.manual_seed(0)
    deltas = [torch.randn(50) for _ in range(4)]
    sizes = [3, 5, 1, 7]
    for compression in (TopK(0.2), Quantized()):
        sent = [
            compressed(compression, Update(n, {"delta": delta}), {}, 50, rng)[0]
            for n, delta in zip(sizes, deltas, strict=True)
        ]
        mean = Updates("abcd", sent).mean("delta")
        exact = aggregation.mean([dense(u.tensors["delta"]) for u in sent], sizes)
        torch.testing.assert_close(mean, exact, rtol=1e-6, atol=1e-7)
        for (_, update), whole in zip(Updates("abcd", sent), sent, strict=True):
            assert torch.equal(update.tensors["delta"], dense(whole.tensors["delta"]))


def test_the_whole_change_has_the_bits_of_no_compression():
    whole = run(2, compression=TopK(1.0, error_feedback=False))
    assert whole.state_digest() == run(2).state_digest()


@pytest.mark.parametrize(
    ("compression", "each"),
    [
        # 122 parameters: 13 x 7 + 7 + 7 x 3 + 3.
        (TopK(0.1), 12 * (4 + 4)),
        (Quantized(), 122 * 1 + 4),
        (None, 122 * 4),
    ],
)
def test_the_bytes_are_those_that_travel(compression, each):
    record = run(compression=compression).history.records[0]
    assert record.uplink_bytes == NUM_CLIENTS * each


def test_buffers_travel_as_they_are():
    workload = tiny_workload(batch_norm_model, cohort_size=NUM_CLIENTS)
    with fedbench.Simulation(workload, compression=Quantized()) as simulation:
        record = simulation.run_round()
    parameters = simulation.num_parameters
    assert record.uplink_bytes == NUM_CLIENTS * (parameters + 4 + 7 * 4 + 7 * 4 + 8)


def test_error_feedback_is_client_state():
    simulation = run(2, compression=TopK(0.1))
    assert set(simulation.client_states) == set(simulation.dataset.client_ids)
    for state in simulation.client_states.values():
        assert set(state) == {"uplink residuals"}
        assert state["uplink residuals"]["delta"].any()
    assert run(2, compression=TopK(0.1, error_feedback=False)).client_states == {}


def test_feedback_brings_in_what_was_left_out():
    plain = run(30)
    distances = {}
    for feedback in (True, False):
        simulation = run(30, compression=TopK(0.05, error_feedback=feedback))
        apart = simulation.server.model.parameters - plain.server.model.parameters
        distances[feedback] = float(apart.norm())
    assert distances[True] < distances[False]


@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_every_algorithm_is_compressed_or_says_why_not(algorithm):
    kind = ALGORITHMS.load(algorithm)
    names = {field.name for field in kind.options()}
    made = kind(**({"outer_steps": 2} if "outer_steps" in names else {}))
    if "compression" in made.unsupported:
        with pytest.raises(ValueError, match=f"compression must be left out with {kind.__name__}"):
            run(algorithm=made, compression="top_k")
        return
    simulation = run(2, algorithm=made, compression=TopK(0.1))
    plain = run(2, algorithm=made)
    sent, whole = (s.history.records[-1].uplink_bytes for s in (simulation, plain))
    assert 0 < sent < whole


class SendsModels(FedAvg):
    """Sends parameters, whose missing coordinates would count as zero."""

    def uplink(self, client, down):
        return client.model_update()

    def reduction(self, server):
        return None

    def aggregate(self, server, updates):
        return server.at(updates.mean("parameters"))


def test_an_algorithm_that_sends_models_is_not_compressed():
    with pytest.raises(ClientTaskError, match="compression needs an algorithm that sends changes"):
        run(algorithm=SendsModels(), compression=Quantized())


def test_compressed_updates_are_not_folded_in_workers():
    workload = tiny_workload(plain_model)
    with pytest.raises(ValueError, match="reduce_in_workers must be left out"):
        fedbench.Simulation(workload, compression="top_k", reduce_in_workers=True)


def half_model(seed=0):
    return plain_model(seed).bfloat16()


def test_what_cannot_be_quantised_is_refused():
    with pytest.raises(ValueError, match=r"compression must be one for torch[.]bfloat16"):
        fedbench.Simulation(tiny_workload(half_model), compression="quantized")
    assert fedbench.Simulation(tiny_workload(half_model), compression="top_k") is not None
