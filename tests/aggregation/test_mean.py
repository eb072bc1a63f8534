"""What `mean` accepts, returns, refuses and leaves alone."""

from __future__ import annotations

import subprocess
import sys
import threading
from fractions import Fraction

import numpy as np
import pytest
import torch

from fedbench import aggregation
from fedbench.errors import LayoutError, NonFiniteError


def batch_norm_state(batches: int, fill: float) -> dict[str, torch.Tensor]:
    return {
        "weight": torch.full((3, 2), fill),
        "running_mean": torch.full((3,), fill),
        "num_batches_tracked": torch.tensor(batches),
    }


def test_numpy_use_does_not_import_torch() -> None:
    program = (
        "import sys, numpy as np, fedbench\n"
        "r = fedbench.aggregation.mean([np.float32([1, 2]), np.float32([3, 6])], [3, 1])\n"
        "assert r.tolist() == [1.5, 3.0]\n"
        "assert not {'torch', 'pandas', 'ray'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("make", [np.array, torch.tensor], ids=["numpy", "torch"])
def test_lists_stacks_generators_and_mappings_agree(make) -> None:
    data = [[1.0, 2.0, 4.0], [3.0, -6.0, 0.5]]
    rows = [make(row) for row in data]
    expected = [1.5, 0.0, 3.125]
    assert aggregation.mean(rows, [3, 1]).tolist() == expected
    assert aggregation.mean(tuple(rows), [3, 1]).tolist() == expected
    assert aggregation.mean((row for row in rows), [3, 1]).tolist() == expected
    assert aggregation.mean(make(data), [3, 1]).tolist() == expected
    states = [{"a": row} for row in rows]
    result = aggregation.mean(states, [3, 1])
    assert type(result) is dict
    assert result["a"].tolist() == expected
    assert type(result["a"]) is type(rows[0])


def test_weights_may_be_tensors_arrays_and_numpy_scalars() -> None:
    rows = [np.float32([1.0]), np.float32([5.0])]
    for weights in (torch.tensor([3, 1]), np.int64([3, 1]), (np.float16(3), 1), [3, True]):
        assert aggregation.mean(rows, weights).tolist() == [2.0]


def test_no_client_is_an_error() -> None:
    for empty in ([], (), iter([]), np.empty((0, 3), np.float32)):
        with pytest.raises(ValueError, match="at least one client's update, got none"):
            aggregation.mean(empty)


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        ([1, 2, 3], ValueError, r"one number per client \(2\), got shape \(3,\)"),
        ([[1], [2]], ValueError, "one number per client"),
        ([1, -2], ValueError, "got -2.0 for client 1"),
        ([float("nan"), 1], ValueError, "got nan for client 0"),
        ([1, float("inf")], ValueError, "got inf for client 1"),
        ([0, 0], ValueError, "positive sum, got zero for every client"),
        (["1", "2"], TypeError, "real numbers"),
        ([1, None], TypeError, "real numbers"),
        ([1j, 1], TypeError, "real numbers"),
        ([10**400, 1], ValueError, "got inf for client 0"),
        ([1, -(10**400)], ValueError, "got -inf for client 1"),
        ([Fraction(10**400, 3), 1], ValueError, "got inf for client 0"),
        ([None, *range(10_000)], TypeError, r"got \[None, 0, 1, 2, 3, 4, \.\.\.\]"),
    ],
)
def test_bad_weights_are_named(weights, error, message) -> None:
    with pytest.raises(error, match=message):
        aggregation.mean([np.float32([1]), np.float32([2])], weights)


@pytest.mark.parametrize("total", [0, -1.0, float("nan"), float("inf")])
def test_bad_total_weight(total) -> None:
    with pytest.raises(ValueError, match="total_weight must be finite and positive"):
        aggregation.mean([np.float32([1])], total_weight=total)
    with pytest.raises(TypeError, match="total_weight"):
        aggregation.mean([np.float32([1])], total_weight="3")


def test_bad_policies_are_listed() -> None:
    with pytest.raises(ValueError, match="'raise', 'propagate', 'drop', got 'skip'"):
        aggregation.mean([np.float32([1])], nonfinite="skip")
    with pytest.raises(ValueError, match="'max', 'sum', 'server', got 'mean'"):
        aggregation.mean([np.float32([1])], integers="mean")


def test_wrong_kinds_of_updates() -> None:
    with pytest.raises(TypeError, match="one update per client"):
        aggregation.mean({"a": np.float32([1])})
    with pytest.raises(TypeError, match="one update per client"):
        aggregation.mean(3)
    with pytest.raises(ValueError, match=r"\[clients, ...\], got a single array of shape \(4,\)"):
        aggregation.mean(np.ones(4, np.float32))
    with pytest.raises(TypeError, match=r"updates\[1\] must be a numpy array or a torch tensor"):
        aggregation.mean([np.float32([1]), [1.0]])
    with pytest.raises(TypeError, match=r"updates\[1\] must be a mapping"):
        aggregation.mean([{"a": np.float32([1])}, np.float32([1])])
    with pytest.raises(LayoutError, match="kind numpy like client 0's, got torch"):
        aggregation.mean([np.float32([1]), torch.ones(1)])


def test_shapes_and_dtypes_must_agree_and_nothing_broadcasts() -> None:
    with pytest.raises(LayoutError, match=r"updates\[1\] must have shape \(2, 1\).*got \(2,\)"):
        aggregation.mean([np.ones((2, 1), np.float32), np.ones(2, np.float32)])
    with pytest.raises(LayoutError, match="dtype float32 like client 0's, got float64"):
        aggregation.mean([np.ones(2, np.float32), np.ones(2)])
    with pytest.raises(LayoutError, match=r"updates\[1\]\['w'\] must have shape \(2,\)"):
        aggregation.mean([{"w": torch.ones(2)}, {"w": torch.ones(3)}])


def test_entries_are_matched_by_name() -> None:
    a = {"x": torch.tensor([1.0]), "y": torch.tensor([10.0])}
    b = {"y": torch.tensor([30.0]), "x": torch.tensor([3.0])}
    result = aggregation.mean([a, b])
    assert list(result) == ["x", "y"]
    assert (result["x"].item(), result["y"].item()) == (2.0, 20.0)
    with pytest.raises(LayoutError, match=r"updates\[1\].*missing 'y' and unexpected 'z'"):
        aggregation.mean([a, {"x": torch.ones(1), "z": torch.ones(1)}])


def test_one_client_is_copied_not_aliased() -> None:
    row = np.float32([1, 2, 3])
    result = aggregation.mean([row])
    assert result.tolist() == [1, 2, 3]
    assert not np.shares_memory(result, row)
    tensor = torch.ones(2_000_000)
    assert aggregation.mean([tensor]).data_ptr() != tensor.data_ptr()


def test_inputs_are_not_written_and_outputs_share_nothing() -> None:
    states = [batch_norm_state(k, float(k)) for k in range(4)]
    copies = [{name: value.clone() for name, value in state.items()} for state in states]
    result = aggregation.mean(states, [4, 3, 2, 1])
    addresses = {value.data_ptr() for state in states for value in state.values()}
    for state, copy in zip(states, copies, strict=True):
        assert all(torch.equal(state[name], copy[name]) for name in copy)
    assert not addresses & {value.data_ptr() for value in result.values()}


def test_integer_entries_are_never_averaged() -> None:
    states = [batch_norm_state(n, 1.0) for n in (7, 2**24 + 1, 7)]
    result = aggregation.mean(states, [1, 1, 2])
    assert result["num_batches_tracked"].dtype is torch.int64
    assert result["num_batches_tracked"].shape == ()
    assert result["num_batches_tracked"].item() == 2**24 + 1
    summed = aggregation.mean(states, integers="sum")
    assert summed["num_batches_tracked"].item() == 2**24 + 15
    server = batch_norm_state(5, 0.0)
    kept = aggregation.mean(states, integers="server", server=server)
    assert kept["num_batches_tracked"].item() == 5
    assert kept["num_batches_tracked"].data_ptr() != server["num_batches_tracked"].data_ptr()


def test_integer_policies_check_their_inputs() -> None:
    states = [{"n": np.int8([100])}, {"n": np.int8([100])}]
    with pytest.raises(OverflowError, match="sum of 'n' over the clients must fit int8"):
        aggregation.mean(states, integers="sum")
    mixed = [{"n": np.int8([100, -100])}, {"n": np.int8([-100, 100])}]
    assert aggregation.mean(mixed, integers="sum")["n"].tolist() == [0, 0]
    with pytest.raises(TypeError, match="server must be the server's state"):
        aggregation.mean(states, integers="server")
    with pytest.raises(LayoutError, match="server must have the entry 'n'"):
        aggregation.mean(states, integers="server", server={})
    with pytest.raises(TypeError, match="must have a floating dtype, got int64"):
        aggregation.mean([np.arange(3), np.arange(3)])


def test_bool_entries() -> None:
    states = [{"m": np.array([True, False])}, {"m": np.array([False, False])}]
    for policy in ("max", "sum"):
        result = aggregation.mean(states, integers=policy)["m"]
        assert result.dtype == bool
        assert result.tolist() == [True, False]


def test_each_entry_keeps_its_dtype() -> None:
    state = {
        "a": torch.tensor([1.0, 2.0]),
        "b": torch.tensor([1.0], dtype=torch.float64),
        "c": torch.tensor([1.0], dtype=torch.bfloat16),
        "d": torch.tensor([1, 2]),
        "e": torch.tensor(True),
    }
    result = aggregation.mean([state, state])
    assert {k: v.dtype for k, v in result.items()} == {k: v.dtype for k, v in state.items()}
    assert {k: v.shape for k, v in result.items()} == {k: v.shape for k, v in state.items()}


def test_scalars_empties_and_models_without_parameters() -> None:
    state = {"scalar": torch.tensor(3.0), "empty": torch.empty(0, 3)}
    result = aggregation.mean([state, state])
    assert result["scalar"].item() == 3.0
    assert result["empty"].shape == (0, 3)
    assert aggregation.mean([{}, {}]) == {}
    assert aggregation.mean([np.empty((0, 3), np.float32)] * 2).shape == (0, 3)


def test_tied_entries_stay_tied() -> None:
    def state(fill: float) -> dict[str, torch.Tensor]:
        shared = torch.full((2, 2), fill)
        return {"embed": shared, "other": torch.ones(1), "head": shared}

    result = aggregation.mean([state(1.0), state(3.0)])
    assert result["head"] is result["embed"]
    assert (result["head"] == 2.0).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_nonfinite_raise_names_client_and_entry(bad: float) -> None:
    states = [{"w": torch.zeros(3, 4), "b": torch.zeros(5)} for _ in range(100)]
    states[63]["b"][2] = bad
    with pytest.raises(NonFiniteError, match="from client 63 in entry 'b' at flat index 2"):
        aggregation.mean(states)
    with pytest.raises(NonFiniteError, match="client 63"):
        aggregation.mean(states, [1 if k != 63 else 0 for k in range(100)])
    rows = [np.zeros(3000, np.float32) for _ in range(3)]
    rows[1][2500] = bad
    with pytest.raises(NonFiniteError, match="from client 1 at flat index 2500"):
        aggregation.mean(rows)


def test_nonfinite_drop_leaves_out_client_and_weight() -> None:
    rows = [np.float32([1, 1]), np.float32([np.nan, 5]), np.float32([3, 3])]
    with pytest.warns(RuntimeWarning, match=r"left out client\(s\) 1 of 3"):
        result = aggregation.mean(rows, [1, 100, 1], nonfinite="drop")
    assert result.tolist() == [2.0, 2.0]
    with pytest.raises(NonFiniteError, match="no other client with positive weight"):
        aggregation.mean(rows, [0, 1, 0], nonfinite="drop")
    assert aggregation.mean(rows[::2], nonfinite="drop").tolist() == [2.0, 2.0]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_nonfinite_propagate_depends_on_the_set_only(dtype) -> None:
    inf, nan = np.inf, np.nan
    rows = np.array([[inf, -inf, inf, nan, 1], [1, 1, -inf, 1, 1], [nan, 0, 0, inf, 1]], dtype)
    rows[2, 0] = 2
    result = aggregation.mean(list(rows), nonfinite="propagate")
    np.testing.assert_array_equal(result, np.array([inf, -inf, nan, nan, 1], dtype))
    again = aggregation.mean(list(rows[::-1]), nonfinite="propagate")
    assert result.tobytes() == again.tobytes()
    zero_weight = aggregation.mean(list(rows), [0, 1, 1], nonfinite="propagate")
    assert zero_weight[0] == dtype(1.5)


def test_out_is_filled_and_returned() -> None:
    rows = [torch.ones(4), torch.full((4,), 3.0)]
    out = torch.empty(4)
    assert aggregation.mean(rows, out=out) is out
    assert (out == 2).all()
    states = [batch_norm_state(1, 1.0), batch_norm_state(4, 3.0)]
    target = batch_norm_state(0, 0.0)
    assert aggregation.mean(states, out=target) is target
    assert target["num_batches_tracked"].item() == 4
    assert (target["weight"] == 2).all()


def test_out_must_fit_and_stand_apart() -> None:
    rows = [np.ones(4, np.float32), np.ones(4, np.float32)]
    with pytest.raises(ValueError, match="must not share memory with the updates"):
        aggregation.mean(rows, out=rows[1])
    with pytest.raises(ValueError, match=r"out must have shape \(4,\), got \(5,\)"):
        aggregation.mean(rows, out=np.empty(5, np.float32))
    with pytest.raises(TypeError, match="out must have dtype float32, got float64"):
        aggregation.mean(rows, out=np.empty(4))
    with pytest.raises(TypeError, match="out must be a numpy array like the updates, got Tensor"):
        aggregation.mean(rows, out=torch.empty(4))
    frozen = np.empty(4, np.float32)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="writable"):
        aggregation.mean(rows, out=frozen)
    with pytest.raises(ValueError, match="C-contiguous"):
        aggregation.mean(rows, out=np.empty(8, np.float32)[::2])
    with pytest.raises(LayoutError, match="out must have the entries of"):
        aggregation.mean([{"a": rows[0]}], out={"b": rows[1]})


def test_strided_channels_last_and_foreign_memory() -> None:
    base = torch.arange(24.0).reshape(1, 2, 3, 4)
    channels_last = base.contiguous(memory_format=torch.channels_last)
    np.testing.assert_array_equal(aggregation.mean([channels_last, base]), base)
    transposed = base[0, 0].T
    assert torch.equal(aggregation.mean([transposed, transposed]), transposed)
    strided = np.arange(10, dtype=np.float32)[::2]
    assert aggregation.mean([strided, strided]).tolist() == strided.tolist()
    big_endian = np.array([1.0, 2.0], dtype=">f4")
    assert aggregation.mean([big_endian, big_endian]).tolist() == [1.0, 2.0]
    read_only = np.float32([1, 2])
    read_only.flags.writeable = False
    assert aggregation.mean([read_only, read_only]).tolist() == [1.0, 2.0]
    unaligned = np.frombuffer(b"x" + np.float32([1, 2]).tobytes(), np.float32, offset=1)
    assert aggregation.mean([unaligned, unaligned]).tolist() == [1.0, 2.0]


def test_autograd_and_inference_tensors_leave_no_history() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    result = aggregation.mean([parameter, parameter * 2])
    assert not result.requires_grad
    assert result.grad_fn is None
    with torch.inference_mode():
        inference = torch.ones(3)
    assert aggregation.mean([inference, inference]).tolist() == [1, 1, 1]
    negated = torch.tensor([1 + 2j]).conj().imag
    assert negated.is_neg()
    assert aggregation.mean([negated, negated]).tolist() == [-2.0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.ones(2, device="meta"), "must be on the CPU, got device meta"),
        (lambda: torch.ones(2).to_sparse(), "must be a dense tensor"),
        (lambda: torch.ones(2, dtype=torch.complex64), "got complex64"),
        (lambda: np.ones(2, np.complex128), "got complex128"),
        (lambda: np.array(["a"]), "must have one of the dtypes"),
        (
            lambda: np.ones(2, np.complex64),
            r"bfloat16 \(in a state dict also .*\), got complex64. Convert it to one of the first",
        ),
        (lambda: torch.nn.Linear(1, 1), r"got a Linear. Pass its state_dict\(\)"),
        (lambda: np.array([object()]), "got object"),
        (lambda: np.ma.masked_array([1.0]), "masked"),
    ],
)
def test_unsupported_arrays_are_type_errors(make, message) -> None:
    with pytest.raises(TypeError, match=message):
        aggregation.mean([make(), make()])


def test_several_threads_at_once() -> None:
    rows = [np.random.default_rng(k).standard_normal(300_000).astype(np.float32) for k in range(6)]
    expected = aggregation.mean(rows, range(1, 7)).tobytes()
    results: list[bytes] = []

    def work() -> None:
        results.extend(aggregation.mean(rows, range(1, 7)).tobytes() for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 20


def test_large_results_reuse_memory_and_outlive_their_pool() -> None:
    rows = [np.ones(2_000_000, np.float32)] * 2
    first = aggregation.mean(rows)
    address = first.__array_interface__["data"][0]
    part = first[5:7]
    del first
    second = aggregation.mean(rows)
    assert second.__array_interface__["data"][0] != address
    del part
    third = aggregation.mean(rows)
    assert third.__array_interface__["data"][0] == address


@pytest.mark.parametrize("clients", [2, 3])
def test_large_entries_may_start_anywhere_among_the_coordinates(clients) -> None:
    """Threads get parts of large results whose starts do not lie at cache lines."""
    rng = np.random.default_rng(0)
    flat = rng.standard_normal((clients, (2 << 20) + 1003)).astype(np.float32)
    states = [{"odd": row[:1003], "large": row[1003:]} for row in flat]
    out = {"odd": np.zeros(1003, np.float32), "large": np.zeros(2 << 20, np.float32)}
    before = aggregation.get_num_threads()
    aggregation.set_num_threads(1)
    expected = aggregation.mean(list(flat))
    for threads in (1, 2, 3):
        aggregation.set_num_threads(threads)
        for result in (aggregation.mean(states), aggregation.mean(states, out=out)):
            assert result["odd"].tobytes() + result["large"].tobytes() == expected.tobytes()
    aggregation.set_num_threads(before)


def test_thread_count_setting() -> None:
    before = aggregation.get_num_threads()
    aggregation.set_num_threads(3)
    assert aggregation.get_num_threads() == 3
    aggregation.set_num_threads(before)
    with pytest.raises(ValueError, match="from 1 to 1024, got 0"):
        aggregation.set_num_threads(0)
    with pytest.raises(TypeError):
        aggregation.set_num_threads(1.5)
