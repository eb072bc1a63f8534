"""Inputs that no caller means to pass: refused with a reason, never read or written wrongly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fedbench import aggregation
from fedbench.errors import LayoutError


def freed() -> torch.Tensor:
    tensor = torch.ones(1000)
    tensor.untyped_storage().resize_(0)
    return tensor


def shrunk() -> torch.Tensor:
    tensor = torch.ones(1000)
    tensor.untyped_storage().resize_(8)
    return tensor


def shrunk_behind_an_offset() -> torch.Tensor:
    tensor = torch.ones(2000)[1000:]
    tensor.untyped_storage().resize_(4 * 1000)
    return tensor


def shrunk_and_strided() -> torch.Tensor:
    tensor = torch.ones(2, 1000).T
    tensor.untyped_storage().resize_(4 * 1999)
    return tensor


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(1000)


def zeros_without_memory() -> torch.Tensor:
    return torch._efficientzerotensor((1000,))


WITHOUT_MEMORY = [
    freed,
    shrunk,
    shrunk_behind_an_offset,
    shrunk_and_strided,
    fake,
    zeros_without_memory,
    torch.nn.UninitializedParameter,
]


@pytest.mark.parametrize("make", WITHOUT_MEMORY)
def test_tensors_without_memory_are_refused(make) -> None:
    tensor = make()
    shape = (1000,) if make is torch.nn.UninitializedParameter else tuple(tensor.shape)
    good = torch.ones(shape)
    with pytest.raises(TypeError, match=r"updates\[1\] must be a tensor w"):
        aggregation.mean([good, tensor])
    with pytest.raises(TypeError, match=r"updates\[0\]\['w'\] must be a tensor w"):
        aggregation.median([{"w": tensor}] * 2)
    with pytest.raises(TypeError, match="update must be a tensor w"):
        aggregation.StreamingMean(good).add(tensor)
    with pytest.raises(TypeError, match=r"state\['w'\] must be a tensor w"):
        aggregation.FlatLayout.from_state({"w": good}).pack({"w": tensor})
    with pytest.raises(TypeError, match="update must be a tensor w"):
        aggregation.quantize(tensor)


@pytest.mark.parametrize("make", [freed, shrunk, shrunk_behind_an_offset])
def test_stacks_without_memory_are_refused(make) -> None:
    stack = make().view(10, 100)
    with pytest.raises(TypeError, match="updates must be a tensor whose elements are in memory"):
        aggregation.mean(stack)
    with pytest.raises(TypeError, match="updates must be a tensor whose elements are in memory"):
        aggregation.StreamingMean(torch.ones(100)).add_many(stack)


@pytest.mark.parametrize("make", [freed, shrunk, fake])
def test_outputs_without_memory_are_refused(make) -> None:
    good = torch.ones(1000)
    with pytest.raises(TypeError, match="out must be a tensor whose elements are in memory"):
        aggregation.mean([good, good], out=make())
    total = aggregation.StreamingMean(good)
    total.add(good)
    with pytest.raises(TypeError, match="out must be a tensor whose elements are in memory"):
        total.result(out=make())


def test_transformed_tensors_are_refused() -> None:
    def mean_of_two(tensor: torch.Tensor) -> Any:
        return aggregation.mean([tensor, tensor])

    for transform in (torch.func.functionalize, torch.func.vmap, torch.func.grad):
        with pytest.raises(TypeError, match=r"updates\[0\] must be a tensor w"):
            transform(mean_of_two)(torch.ones(2, 3))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with pytest.raises(TypeError, match=r"updates\[0\] must be a dense tensor, got layout nested"):
        aggregation.mean([nested, nested])


def test_tensors_with_room_to_spare_are_accepted() -> None:
    base = torch.arange(12.0)
    views = [base[2:6], base[8:], base[1:5]]
    assert aggregation.mean(views, [1, 1, 2]).tolist() == [3.0, 4.0, 5.0, 6.0]
    empty = torch.empty(0)
    assert aggregation.mean([empty, empty]).shape == (0,)
    assert aggregation.mean([base[:0].reshape(0, 3).T] * 2).shape == (3, 0)


def quantized(tensor: torch.Tensor) -> aggregation.QuantizedUpdate:
    return aggregation.quantize(tensor)


def sparse(tensor: torch.Tensor) -> aggregation.SparseUpdate:
    return aggregation.top_k(tensor, 2)


def streamed_into(out: Any, update: Any) -> Any:
    total = aggregation.StreamingMean(update)
    total.add(update)
    return total.result(out=out)


def packed_into(out: torch.Tensor, update: torch.Tensor) -> Any:
    return aggregation.FlatLayout.from_state({"w": update}).pack({"w": update}, out=out)


def unpacked_into(out: torch.Tensor, update: torch.Tensor) -> Any:
    return aggregation.FlatLayout.from_state({"w": update}).unpack(update, out={"w": out})


WRITERS = {
    "mean": lambda out, u: aggregation.mean([u, u], out=out),
    "mean of states": lambda out, u: aggregation.mean([{"w": u}] * 2, out={"w": out}),
    "median": lambda out, u: aggregation.median([u, u, u], out=out),
    "krum": lambda out, u: aggregation.krum([u] * 5, num_byzantine=1, out=out),
    "geometric_median": lambda out, u: aggregation.geometric_median([u, u, u], out=out),
    "quantized_mean": lambda out, u: aggregation.quantized_mean([quantized(u)], out=out),
    "sparse_mean": lambda out, u: aggregation.sparse_mean([sparse(u)], out=out),
    "streaming": streamed_into,
    "pack": packed_into,
    "unpack": unpacked_into,
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS.keys())
def test_autograd_notices_writes_to_out(write) -> None:
    parameter = torch.ones(3, requires_grad=True)
    out = torch.full((3,), 5.0)
    loss = (parameter * out).sum()
    version = out._version
    write(out, torch.tensor([1.0, 2.0, 3.0]))
    assert out._version > version
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS.keys())
def test_out_that_requires_gradients_is_refused(write) -> None:
    update = torch.tensor([127.0, 2.0, 0.0])
    out = torch.nn.Parameter(torch.zeros(3))
    with pytest.raises(ValueError, match=r"out.* must not require gradients"):
        write(out, update)
    assert (out == 0).all()
    with torch.no_grad():
        write(out, update)
    assert torch.equal(out, update)


def test_inference_tensors_may_be_written() -> None:
    with torch.inference_mode():
        out = torch.zeros(2)
        aggregation.mean([torch.ones(2)] * 2, out=out)
    aggregation.mean([torch.full((2,), 3.0)] * 2, out=out)
    assert out.tolist() == [3.0, 3.0]


@pytest.mark.parametrize("zeros", [np.zeros, torch.zeros], ids=["numpy", "torch"])
@pytest.mark.parametrize("parts", [(slice(0, 3), slice(0, 3)), (slice(0, 3), slice(2, 5))])
@pytest.mark.parametrize(
    "combine",
    [
        lambda state, out: aggregation.mean([state, state], out=out),
        lambda state, out: aggregation.median([state] * 3, out=out),
        lambda state, out: streamed_into(out, state),
        lambda state, out: aggregation.FlatLayout.from_state(state).unpack(
            aggregation.FlatLayout.from_state(state).pack(state), out=out
        ),
    ],
    ids=["mean", "median", "streaming", "unpack"],
)
def test_entries_of_out_must_not_share_memory(zeros, parts, combine) -> None:
    dtype = np.float32 if zeros is np.zeros else torch.float32
    base = zeros(9, dtype=dtype)
    state = {"a": zeros(3, dtype=dtype) + 1, "c": zeros(3, dtype=dtype) + 2}
    out = {"c": base[parts[0]], "a": base[parts[1]]}
    with pytest.raises(ValueError, match=r"out\['a'\] and out\['c'\] must not share memory"):
        combine(state, out)
    assert not base.any()
    combine(state, {"a": base[:3], "c": base[3:6]})
    assert base.tolist() == [1, 1, 1, 2, 2, 2, 0, 0, 0]


def tied_state(fill: float) -> dict[str, torch.Tensor]:
    shared = torch.full((2, 2), fill)
    return {"embed": shared, "other": torch.ones(4), "head": shared}


def test_out_may_tie_what_the_updates_tie() -> None:
    out = tied_state(0.0)
    aggregation.mean([tied_state(1.0), tied_state(3.0)], out=out)
    assert (out["embed"] == 2.0).all()
    apart = {name: tensor.clone() for name, tensor in out.items()}
    aggregation.mean([tied_state(5.0), tied_state(7.0)], out=apart)
    assert (apart["embed"] == 6.0).all()
    assert (apart["head"] == 6.0).all()
    wrong = {"embed": torch.zeros(2, 2), "other": torch.zeros(4)}
    wrong["head"] = wrong["other"].view(2, 2)
    with pytest.raises(ValueError, match=r"out\['head'\] and out\['other'\] must not share"):
        aggregation.mean([tied_state(1.0)] * 2, out=wrong)
    with pytest.raises(ValueError, match=r"out\['head'\] must have shape \(2, 2\), got \(1,\)"):
        aggregation.mean([tied_state(1.0)] * 2, out={**apart, "head": torch.zeros(1)})
    layout = aggregation.FlatLayout.from_state(out)
    layout.unpack(torch.arange(8.0), out=out)
    assert out["head"].tolist() == [[0.0, 1.0], [2.0, 3.0]]


@pytest.mark.parametrize("combine", [aggregation.mean, aggregation.median])
def test_integer_entries_of_out_are_checked_before_anything_is_written(combine) -> None:
    state = {"w": np.ones(2, np.float32), "n": np.array(3)}
    target = np.zeros(2, np.float32)
    for bad, error, message in (
        (np.int64(0), TypeError, r"out\['n'\] must be a numpy array like the updates, got int64"),
        (np.zeros((), np.int32), TypeError, r"out\['n'\] must have dtype int64, got int32"),
        (np.zeros(2, np.int64), ValueError, r"out\['n'\] must have shape \(\), got \(2,\)"),
        (target.view(np.int64).reshape(()), ValueError, r"out\['n'\] and out\['w'\] must not"),
        (state["n"], ValueError, r"out\['n'\] must not share memory with the updates"),
    ):
        with pytest.raises(error, match=message):
            combine([state, state], out={"w": target, "n": bad})
        if bad is not state["n"]:
            with pytest.raises(error, match=message):
                streamed_into({"w": target, "n": bad}, state)
        assert not target.any()


@pytest.mark.parametrize("zeros", [np.zeros, torch.zeros], ids=["numpy", "torch"])
@pytest.mark.parametrize("form", [list, tuple, iter], ids=lambda form: form.__name__)
def test_an_entry_named_none_is_refused_with_and_without_out(zeros, form) -> None:
    dtype = np.float32 if zeros is np.zeros else torch.float32
    state = {None: zeros(3, dtype=dtype) + 1, "a": zeros(3, dtype=dtype)}
    for out in (None, {name: zeros(3, dtype=dtype) for name in state}):
        for combine in (aggregation.mean, aggregation.median):
            with pytest.raises(TypeError, match=r"updates\[0\] must have names as keys, got None"):
                combine(form([state, state]), out=out)
        assert out is None or not any(value.any() for value in out.values())
    with pytest.raises(TypeError, match=r"updates\[1\] must have names as keys, got None"):
        aggregation.mean(form([{"a": state["a"]}, state]), partial="per_key")
    with pytest.raises(TypeError, match="like must have names as keys, got None"):
        aggregation.StreamingMean(state)
    with pytest.raises(TypeError, match="state must have names as keys, got None"):
        aggregation.FlatLayout.from_state(state)


def test_outputs_that_cannot_be_written_in_one_piece() -> None:
    read_only = np.zeros(3, np.float32)
    read_only.flags.writeable = False
    unaligned = np.zeros(13, np.uint8)[1:].view(np.float32)
    rows = [np.float32([1, 2, 3])] * 2
    for out, got in (
        (read_only, "a read-only"),
        (np.zeros(6, np.float32)[::2], "a strided"),
        (unaligned, "an unaligned"),
    ):
        with pytest.raises(ValueError, match=f"aligned numpy array, got {got} one"):
            aggregation.mean(rows, out=out)
        assert not out.any()
    with pytest.raises(
        ValueError, match=r"contiguous tensor .* got strides \(2,\) for shape \(3,\)"
    ):
        aggregation.mean([torch.ones(3)] * 2, out=torch.zeros(6)[::2])


@pytest.mark.parametrize(
    ("update", "remedy"),
    [
        (None, "got NoneType. Leave it out"),
        (3, r"got int\. Convert it, for example with numpy\.float32"),
        ([1.0, 2.0], r"got list\. Convert it, for example with numpy\.asarray"),
        ([], r"got list\. Convert it, for example with numpy\.asarray"),
        ((1.0, 2.0), r"got tuple\. Convert it, for example with numpy\.asarray"),
        (iter([1.0]), r"Convert it, for example with list"),
        ((np.zeros(2), 3), "got a tuple with a number. Pass updates and weights apart"),
        (aggregation.top_k(np.zeros(2), 1), "got SparseUpdate. Use sparse_mean"),
        (aggregation.quantize(np.zeros(2)), "got QuantizedUpdate. Use quantized_mean"),
        (aggregation.StreamingMean(np.zeros(2)), r"got StreamingMean\. Use its merge\(\)"),
    ],
)
def test_what_is_no_array_is_told_what_to_do(update, remedy) -> None:
    for combine in (aggregation.mean, aggregation.median):
        with pytest.raises(TypeError, match=remedy):
            combine([update])
        with pytest.raises(TypeError, match=remedy):
            combine([{"a": update}])


def test_state_dicts_where_vectors_are_expected() -> None:
    state = {"a": np.zeros(2)}
    for call in (
        lambda: aggregation.top_k(state, 1),
        lambda: aggregation.quantize(state),
        lambda: aggregation.fedavgm_step(state, state, state),
        lambda: aggregation.mean([{"a": state}]),
    ):
        with pytest.raises(TypeError, match=r"got dict\. Flatten nested .* FlatLayout\.from_state"):
            call()
    with pytest.raises(TypeError, match=r"got uint8\..*A FlatLayout of entries of several dtypes"):
        aggregation.mean([np.zeros(3, np.uint8)] * 2)
    with pytest.raises(TypeError, match=r"partial='per_key', got ndarray\. Leave partial out"):
        aggregation.mean([np.zeros(2)] * 2, partial="per_key")


def test_a_server_that_is_not_used_is_refused() -> None:
    state = {"n": np.int64(7)}
    with pytest.raises(ValueError, match="server must be None with integers='max'"):
        aggregation.mean([state], server=state)


def test_errors_say_how_many_clients_were_left_out() -> None:
    rows = [*np.ones((4, 2)), np.full(2, np.nan)]
    with (
        pytest.warns(RuntimeWarning, match="left out"),
        pytest.raises(ValueError, match="there are 4 left after nonfinite='drop'"),
    ):
        aggregation.krum(rows, num_byzantine=1, nonfinite="drop")


def test_long_lists_of_names_are_cut() -> None:
    states = [{f"{prefix}{i}": np.zeros(1) for i in range(30)} for prefix in ("", "module.")]
    with pytest.raises(
        LayoutError, match=r"missing '0', .*'19' and 10 more and unexpected 'module\.0'"
    ):
        aggregation.mean(states)


def test_names_of_buffers_are_no_string() -> None:
    with pytest.raises(TypeError, match=r"got a string\. Pass \['a'\]"):
        aggregation.FlatLayout.from_state({"a": np.zeros(1)}, buffers="local", buffer_names="a")


def test_numpy_scalars_are_no_outputs() -> None:
    rows = [np.float32(1), np.float32(3)]
    assert aggregation.mean(rows) == 2
    with pytest.raises(TypeError, match="out must be a numpy array like the updates, got float32"):
        aggregation.mean(rows, out=np.float32(0))


def mean_of(weights: Any) -> list[float]:
    rows = [np.float32([1]), np.float32([5])]
    return aggregation.mean(rows, weights).tolist()


def streamed_mean_of(weights: Any) -> list[float]:
    total = aggregation.StreamingMean(np.zeros(1, np.float32))
    total.add_many((np.float32([value]) for value in (1, 5)), weights)
    return total.result().tolist()


@pytest.mark.parametrize("combine", [mean_of, streamed_mean_of])
@pytest.mark.parametrize("weights", [{3: 0.5, 1: 0.5}, {1, 3}, frozenset({1, 3}), {1: 2}.keys()])
def test_weights_without_an_order_are_refused(combine, weights) -> None:
    with pytest.raises(TypeError, match="weights must be a sequence with one number per"):
        combine(weights)


def test_weights_by_name_are_refused_by_every_rule() -> None:
    rows = [np.float32([1]), np.float32([5])]
    for combine, updates in (
        (aggregation.geometric_median, rows),
        (aggregation.quantized_mean, [aggregation.quantize(row) for row in rows]),
        (aggregation.sparse_mean, [aggregation.top_k(row, 1) for row in rows]),
    ):
        with pytest.raises(TypeError, match=r"weights must be .*got dict"):
            combine(updates, {0: 1.0, 1: 2.0})


@pytest.mark.parametrize("combine", [mean_of, streamed_mean_of])
def test_weights_of_every_kind_mean_the_same(combine) -> None:
    with_gradient = torch.tensor([3.0, 1.0], requires_grad=True)
    for weights in (
        [3, 1],
        iter([3, 1]),
        {"a": 3, "b": 1}.values(),
        np.float16([3, 1]),
        with_gradient,
        list(with_gradient),
        torch.tensor([3, 1], dtype=torch.bfloat16),
        list(torch.tensor([3, 1], dtype=torch.bfloat16)),
        [3 * 2**80, 2**80],
    ):
        assert combine(weights) == [2.0]
    for bad, error, message in (
        (5, ValueError, r"one number per (client|update) \(2\), got shape \(\)"),
        ([[1], [2]], ValueError, r"got shape \(2, 1\)"),
        ([1, torch.ones(2)], TypeError, "must be real numbers, one per (client|update)"),
        ([[1], [1, 2]], TypeError, "must be real numbers, one per (client|update)"),
        ("31", TypeError, "must be real numbers"),
        ([3, -1], ValueError, "got -1.0 for (client|update) 1"),
    ):
        with pytest.raises(error, match=message):
            combine(bad)


def test_a_weight_may_be_a_tensor_with_gradients() -> None:
    total = aggregation.StreamingMean(np.zeros(1, np.float32))
    total.add(np.float32([1]), torch.tensor(3.0, requires_grad=True))
    total.add(np.float32([5]), torch.tensor(1, dtype=torch.bfloat16))
    assert total.result().tolist() == [2.0]
    with pytest.raises(TypeError, match="weight must be a real number"):
        total.add(np.float32([1]), torch.ones(2))
    with pytest.raises(TypeError, match=r"updates must be a sequence of updates, got dict"):
        total.add_many({"w": np.float32([1])})


@pytest.mark.parametrize("threads", [1.5, "2", None, True])
def test_thread_counts_are_integers(threads) -> None:
    before = aggregation.get_num_threads()
    with pytest.raises(TypeError, match=f"threads must be an integer, got {threads!r}"):
        aggregation.set_num_threads(threads)
    for out_of_range in (0, -1, 1025, 2**70):
        with pytest.raises(ValueError, match=f"from 1 to 1024, got {out_of_range}"):
            aggregation.set_num_threads(out_of_range)
    assert aggregation.get_num_threads() == before
    aggregation.set_num_threads(np.int64(before))
    assert aggregation.get_num_threads() == before


def test_quantised_updates_may_come_from_a_generator() -> None:
    updates = [aggregation.quantize(np.float32([k, 0, 2 * k])) for k in (1, 3)]
    expected = aggregation.quantized_mean(updates, [3, 1]).tolist()
    assert aggregation.quantized_mean((u for u in updates), iter([3, 1])).tolist() == expected
    with pytest.raises(ValueError, match="at least one client's update, got none"):
        aggregation.quantized_mean(iter([]))
    for bad in (updates[0], 3):
        with pytest.raises(TypeError, match="updates must be a sequence of QuantizedUpdate, got"):
            aggregation.quantized_mean(bad)


def test_lists_of_arrays_are_refused_with_the_way_to_name_them() -> None:
    ragged = [np.ones((2, 3), np.float32), np.ones(3, np.float32)]
    message = r"updates\[0\] must be an array or a mapping .* got a list of 2 arrays. Name them"
    for combine in (aggregation.mean, aggregation.median):
        with pytest.raises(TypeError, match=message):
            combine([ragged, ragged])
    with pytest.raises(TypeError, match="got a list of 2 arrays"):
        aggregation.StreamingMean(ragged)
    named = [{str(i): array for i, array in enumerate(update)} for update in (ragged, ragged)]
    assert aggregation.mean(named)["1"].tolist() == [1, 1, 1]


def test_sparse_updates_may_come_from_a_generator() -> None:
    updates = [aggregation.top_k(np.float32([k, 0, 2 * k]), 2) for k in (1, 3)]
    expected = aggregation.sparse_mean(updates, [3, 1])
    assert aggregation.sparse_mean((u for u in updates), iter([3, 1])).tolist() == expected.tolist()
    with pytest.raises(ValueError, match="at least one client's update, got none"):
        aggregation.sparse_mean(iter([]))


@pytest.mark.parametrize(
    ("size", "error", "message"),
    [
        ("a", TypeError, r"updates\[1\].size must be an integer, got 'a'"),
        (None, TypeError, r"updates\[1\].size must be an integer, got None"),
        (-1, ValueError, r"updates\[1\].size must be from 0 to \d+, got -1"),
        (2**63, ValueError, r"updates\[1\].size must be from 0 to \d+, got 9223372036854775808"),
    ],
)
def test_sizes_of_sparse_updates_are_checked(size, error, message) -> None:
    good = aggregation.SparseUpdate(np.int64([0]), np.float32([1]), 4)
    bad = aggregation.SparseUpdate(np.int64([0]), np.float32([1]), size)
    with pytest.raises(error, match=message):
        aggregation.sparse_mean([good, bad])


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_results_beyond_memory_say_how_large_they_are(library) -> None:
    indices, values = np.int64([0]), np.float32([1])
    if library == "torch":
        indices, values = torch.from_numpy(indices), torch.from_numpy(values)
    update = aggregation.SparseUpdate(indices, values, 10**17)
    with pytest.raises(MemoryError, match=r"shape \(10+,\) and dtype float32 takes 40+ bytes"):
        aggregation.sparse_mean([update])
