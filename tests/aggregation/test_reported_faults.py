"""Faults that users reported of aggregation elsewhere, each with the tests that rule it out."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
import torch

from fedbench import aggregation
from fedbench.aggregation import FlatLayout, StreamingMean

HERE = Path(__file__).parent

# The report: the tests that a package with that fault would fail.
REPORTED = {
    "flower#7645: weights that are all zero, or some of them": [
        "test_entry_points.test_no_weight_at_all_is_an_error",
        "test_entry_points.test_an_update_of_weight_zero_is_checked_and_contributes_nothing",
        "test_mean.test_bad_weights_are_named",
    ],
    "flower#1060, NVFlare#5240: one client of a hundred sends NaN": [
        "test_entry_points.test_one_bad_client_of_a_hundred",
        "test_mean.test_nonfinite_raise_names_client_and_entry",
        "test_streaming_mean.test_drop_leaves_out_and_warns",
    ],
    "HierFL#1, PFLlib#269: batch-norm counters and statistics": [
        "test_mean.test_integer_entries_are_never_averaged",
        "test_reported_faults.test_batch_norm_through_every_entry_point",
    ],
    "fairseq#1079, pytorch#12115: sums of 16-bit updates overflow": [
        "test_entry_points.test_large_halves_do_not_overflow",
        "test_reported_faults.test_large_bfloat16_updates_do_not_overflow",
    ],
    "parameters_to_vector promotes mixed dtypes": [
        "test_mean.test_each_entry_keeps_its_dtype",
        "test_flat_layout.test_mixed_dtypes_keep_every_bit",
    ],
    "kohya#1080: clients that train some of the entries": [
        "test_mean_per_key.test_differing_entries_are_an_error_that_lists_the_names",
        "test_mean_per_key.test_each_entry_is_averaged_over_the_clients_that_sent_it",
        "test_mean_per_key.test_each_entry_has_the_bits_of_the_mean_of_its_senders",
    ],
    "flower#4361: entries in another order": [
        "test_mean.test_entries_are_matched_by_name",
        "test_streaming_mean.test_mappings_layouts_and_integer_entries",
        "test_flat_layout.test_round_trip_of_any_state",
    ],
    "flower#4344, flower#886: scalars, empty tensors, models without parameters": [
        "test_mean.test_scalars_empties_and_models_without_parameters",
        "test_flat_layout.test_round_trip_of_any_state",
        "test_flat_layout.test_empty_state",
    ],
    "no client; one client, whose update comes back as it is": [
        "test_mean.test_no_client_is_an_error",
        "test_mean.test_one_client_is_copied_not_aliased",
        "test_entry_points.test_one_client_is_copied_and_nothing_is_written",
    ],
    "FedML: the first client's state is overwritten": [
        "test_mean.test_inputs_are_not_written_and_outputs_share_nothing",
        "test_robust_coordinatewise.test_inputs_are_left_alone_and_not_aliased",
    ],
    "NVFlare#4019: memory grows with the number of clients": [
        "test_streaming_mean.test_memory_is_bounded_by_the_model",
        "test_robust_coordinatewise.test_memory_is_the_inputs_and_a_tile",
        "test_compressed.test_no_dense_copies",
    ],
    "robust rules: NaN, ties, one client, too many Byzantine ones, identical ones": [
        "test_robust_selection.test_a_client_that_is_not_finite_is_never_preferred",
        "test_robust_selection.test_near_ties_that_float64_cannot_see",
        "test_robust_selection.test_too_many_byzantine_clients",
        "test_robust_selection.test_identical_clients",
        "test_robust_coordinatewise.test_wrong_values",
        "test_robust_coordinatewise.test_median_agrees_with_numpy_on_large_inputs",
        "test_reported_faults.test_one_client_is_the_result_of_every_rule_that_takes_one",
    ],
    "streams: result before add, add after result, threads, merge": [
        "test_streaming_mean.test_result_needs_weight_and_changes_nothing",
        "test_streaming_mean.test_two_threads_adding_to_one_object",
        "test_streaming_mean.test_merge_checks_its_argument",
    ],
    "gradients, inference, meta, sparse and CUDA tensors; foreign byte order; read-only arrays": [
        "test_mean.test_autograd_and_inference_tensors_leave_no_history",
        "test_mean.test_unsupported_arrays_are_type_errors",
        "test_mean.test_strided_channels_last_and_foreign_memory",
        "test_entry_points.test_foreign_byte_order_and_read_only_arrays",
        "test_devices.test_every_rule_gives_the_bits_of_the_cpu_on_the_device",
    ],
}


@pytest.mark.parametrize("report", REPORTED)
def test_the_tests_named_for_a_report_exist(report: str) -> None:
    for name in REPORTED[report]:
        module, _, function = name.partition(".")
        tree = ast.parse((HERE / f"{module}.py").read_text(encoding="utf-8"))
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_batch_norm_through_every_entry_point() -> None:
    models = [torch.nn.BatchNorm1d(2) for _ in range(3)]
    for k, model in enumerate(models):
        for _ in range(7):
            model(torch.tensor([[1.0 + k, 2.0], [3.0, 4.0]]))
    states = [model.state_dict() for model in models]
    weights = [1, 2, 5]
    expected = {
        name: np.average([s[name].double().numpy() for s in states], axis=0, weights=weights)
        for name in ("running_mean", "running_var", "weight", "bias")
    }
    stream = StreamingMean(states[0])
    for state, weight in zip(states, weights, strict=True):
        stream.add(state, weight)
    layout = FlatLayout.from_state(states[0])
    for result in (aggregation.mean(states, weights), stream.result()):
        assert result["num_batches_tracked"].item() == 7
        assert result["num_batches_tracked"].dtype is torch.int64
        for name, value in expected.items():
            np.testing.assert_allclose(result[name].numpy(), value, rtol=1e-6)
        packed = layout.unpack(layout.pack(result))
        assert all(torch.equal(packed[name], result[name]) for name in result)


def test_large_bfloat16_updates_do_not_overflow() -> None:
    large = torch.full((3,), 3e38, dtype=torch.bfloat16)
    result = aggregation.mean([large] * 3, [1000] * 3)
    assert result.dtype is torch.bfloat16
    assert torch.equal(result, large)


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        ("median", {}),
        ("trimmed_mean", {"num_trimmed": 0}),
        ("geometric_median", {}),
    ],
)
def test_one_client_is_the_result_of_every_rule_that_takes_one(rule: str, options: dict) -> None:
    row = np.float32([1.5, -2, 0.1])
    result = aggregation.RULES.load(rule)([row], **options)
    assert result.tobytes() == row.tobytes()
    assert not np.shares_memory(result, row)
