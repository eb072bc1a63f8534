"""StreamingMean: exact, hence the bits of `mean`, whatever the order, partition or merge tree."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbench import aggregation
from fedbench.aggregation import FlatLayout, StreamingMean
from fedbench.errors import LayoutError, NonFiniteError
from tests.aggregation import inputs
from tests.aggregation.exact import UNSIGNED, mean_bits
from tests.aggregation.test_mean_rounding import as_updates, bits_of

DTYPES = ("float32", "float64", "float16", "bfloat16")
SIZE = 1300  # three blocks, the last one ragged


def streamed(updates: list[Any], weights: list[float]) -> StreamingMean:
    mean = StreamingMean(updates[0])
    for update, weight in zip(updates, weights, strict=True):
        mean.add(update, weight)
    return mean


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weight_kind", inputs.WEIGHTS)
@pytest.mark.parametrize("kind", inputs.CLASSES)
def test_every_class_against_exact_numbers(kind: str, weight_kind: str, dtype: str) -> None:
    rows = inputs.rows(kind, 9, 19, dtype, seed=11)
    weights = inputs.weights(weight_kind, 9, 11)
    result = streamed(as_updates(rows, dtype), weights).result()
    np.testing.assert_array_equal(bits_of(result, dtype), mean_bits(rows, weights, dtype))


def fold_at_random(
    rng: np.random.Generator, updates: list[Any], weights: list[float]
) -> StreamingMean:
    """Permute, split into parts, fold each by `add` or `add_many`, merge in a random tree."""
    order = rng.permutation(len(updates))
    parts = np.array_split(order, rng.integers(1, 6))
    partials = []
    for part in parts:
        partial = StreamingMean(updates[0])
        if rng.random() < 0.5:
            partial.add_many([updates[k] for k in part], [weights[k] for k in part])
        else:
            for k in part:
                partial.add(updates[k], weights[k])
        if rng.random() < 0.3:
            partial = pickle.loads(pickle.dumps(partial))
        partials.append(partial)
    while len(partials) > 1:
        a, b = rng.choice(len(partials), 2, replace=False)
        partials[a].merge(partials[b])
        del partials[b]
    return partials[0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", inputs.CLASSES)
def test_permutations_partitions_merges_and_threads(kind: str, dtype: str) -> None:
    rng = np.random.default_rng(5)
    rows = as_updates(inputs.rows(kind, 16, SIZE, dtype, seed=5), dtype)
    before = aggregation.get_num_threads()
    try:
        for weight_kind in ("counts", "fractions", "wide"):
            weights = inputs.weights(weight_kind, 16, 5)
            expected = bits_of(aggregation.mean(rows, weights), dtype)
            state = None
            for trial in range(10):
                aggregation.set_num_threads(1 + trial % 3)
                mean = fold_at_random(rng, rows, weights)
                np.testing.assert_array_equal(bits_of(mean.result(), dtype), expected)
                assert mean.count == 16
                pickled = mean.__getstate__()["sums"]
                assert state in (None, pickled)
                state = pickled
    finally:
        aggregation.set_num_threads(before)


@pytest.mark.slow
def test_ten_thousand_random_folds() -> None:
    rng = np.random.default_rng(0)
    trials = 0
    for kind in inputs.CLASSES:
        for weight_kind in ("counts", "fractions", "equal", "wide"):
            rows = inputs.rows(kind, 24, SIZE, "float32", seed=trials)
            weights = inputs.weights(weight_kind, 24, trials)
            expected = aggregation.mean(rows, weights).tobytes()
            for _ in range(280):
                assert fold_at_random(rng, rows, weights).result().tobytes() == expected
                trials += 1
    assert trials >= 10_000


@settings(max_examples=150)
@given(data=st.data(), dtype=st.sampled_from(["float32", "float64", "float16"]))
def test_any_finite_inputs(data: st.DataObject, dtype: str) -> None:
    width = {"float16": 16, "float32": 32, "float64": 64}[dtype]
    element = st.floats(allow_nan=False, allow_infinity=False, width=width)
    pairs = data.draw(
        st.lists(
            st.tuples(
                st.lists(element, min_size=3, max_size=3),
                st.one_of(st.integers(1, 10**6).map(float), st.floats(1e-320, 1e300)),
            ),
            min_size=1,
            max_size=8,
        )
    )
    rows = [np.array(row, dtype=dtype) for row, _ in pairs]
    weights = [weight for _, weight in pairs]
    result = streamed(rows, weights).result()
    np.testing.assert_array_equal(result.view(UNSIGNED[dtype]), mean_bits(rows, weights, dtype))


def test_many_more_updates_than_a_bin_holds() -> None:
    row = np.float32([3.4e38, -3.4e38, 1e-45, 1.0, 0.1])
    mean = StreamingMean(row)
    batch = [row] * 4000
    for _ in range(70):  # 280,000 updates: carries are resolved on the way
        mean.add_many(batch, [536870911.0] * 4000)
    assert mean.count == 280_000
    assert mean.total_weight == 280_000 * 536870911.0
    assert mean.result().tobytes() == row.tobytes()


def test_merging_full_accumulators() -> None:
    row = np.float32([1.5, -2.5e-30, 3e38])
    total = StreamingMean(row)
    for _ in range(4):
        part = StreamingMean(row)
        for _ in range(16):
            part.add_many([row] * 4000)
        total.merge(part)
    assert total.count == 4 * 16 * 4000
    assert total.result().tobytes() == row.tobytes()


def test_overflowing_sums_have_finite_means() -> None:
    huge = np.full(3, 3e38, np.float32)
    assert streamed([huge] * 5, [1e9] * 5).result().tobytes() == huge.tobytes()
    double = np.full(3, 1.7e308)
    assert streamed([double] * 5, [1e300] * 5).result().tobytes() == double.tobytes()


def test_ordinary_data_takes_sixteen_bytes_per_coordinate() -> None:
    rng = np.random.default_rng(0)
    rows = [(rng.standard_normal(100_000) * 0.05).astype(np.float32) for _ in range(10)]
    mean = streamed(rows, inputs.weights("counts", 10, 0))
    assert mean.nbytes <= 16.2 * 100_000


def test_mappings_layouts_and_integer_entries() -> None:
    def state(fill: float, batches: int) -> dict[str, torch.Tensor]:
        return {
            "w": torch.full((3, 2), fill),
            "n": torch.tensor(batches),
            "h": torch.full((4,), fill, dtype=torch.bfloat16),
        }

    states = [state(float(k), k) for k in range(5)]
    weights = [1.0, 2.0, 3.0, 4.0, 0.0]
    expected = aggregation.mean(states, weights)
    for like in (states[0], FlatLayout.from_state(states[0])):
        mean = StreamingMean(like)
        for update, weight in zip(states, weights, strict=True):
            mean.add(dict(reversed(update.items())), weight)
        result = mean.result()
        assert list(result) == ["w", "n", "h"]
        assert all(torch.equal(result[name], expected[name]) for name in result)
        assert result["n"].item() == 3
        out = state(0.0, 0)
        assert mean.result(out=out) is out
        assert torch.equal(out["w"], expected["w"])
        assert out["n"].item() == 3
    summed = StreamingMean(states[0], integers="sum")
    other = summed.empty()
    summed.add_many(states[:2])
    other.add_many(states[2:])
    summed.merge(other)
    assert summed.result()["n"].item() == 10


def test_empty_keeps_the_layout_and_forgets_the_updates() -> None:
    mean = streamed([np.float32([1, 2])], [2])
    fresh = mean.empty()
    assert StreamingMean.order_independent
    assert (fresh.count, fresh.total_weight) == (0, 0.0)
    fresh.add(np.float32([5, 5]))
    assert fresh.result().tolist() == [5, 5]
    assert mean.result().tolist() == [1, 2]


def test_result_needs_weight_and_changes_nothing() -> None:
    mean = StreamingMean(np.zeros(2, np.float32))
    with pytest.raises(ValueError, match="update of positive weight, got 0 update"):
        mean.result()
    mean.add(np.float32([1, 1]), 0)
    with pytest.raises(ValueError, match="got 1 update"):
        mean.result()
    mean.add(np.float32([1, 2]), 1)
    assert mean.result().tolist() == [1, 2]
    assert mean.result(total_weight=4).tolist() == [0.25, 0.5]
    mean.add(np.float32([3, 4]), 1)
    assert mean.result().tolist() == [2, 3]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_refused_update_leaves_the_state_as_it_was(bad: float) -> None:
    rng = np.random.default_rng(1)
    good = [rng.standard_normal(5000).astype(np.float32) for _ in range(3)]
    broken = (rng.standard_normal(5000) * 1e30).astype(np.float32)
    broken[3333] = bad
    mean = streamed(good, [1, 2, 3])
    before = pickle.dumps(mean)
    with pytest.raises(NonFiniteError, match="from update at flat index 3333"):
        mean.add(broken, 7.25)
    with pytest.raises(NonFiniteError, match="from update 1 at flat index 3333"):
        mean.add_many([good[0], broken])
    with pytest.raises(NonFiniteError):
        mean.add(broken, 0)
    assert pickle.dumps(mean) == before
    assert mean.result().tobytes() == aggregation.mean(good, [1, 2, 3]).tobytes()


def test_drop_leaves_out_and_warns() -> None:
    rows = [np.float32([1, 1]), np.float32([np.nan, 1]), np.float32([3, 3])]
    mean = StreamingMean(rows[0], nonfinite="drop")
    with pytest.warns(RuntimeWarning, match=r"left out 1 of 3 update\(s\).* 1$"):
        mean.add_many(rows)
    with pytest.warns(RuntimeWarning, match="left out 1 of 1"):
        mean.add(rows[1])
    assert mean.count == 2
    assert mean.result().tolist() == [2, 2]


def test_propagate_agrees_with_mean() -> None:
    rng = np.random.default_rng(2)
    rows = [rng.choice([np.nan, np.inf, -np.inf, 1.0, 0.5], 600, p=[0.05, 0.1, 0.1, 0.4, 0.35])
            .astype(np.float32) for _ in range(6)]  # fmt: skip
    weights = [1, 0, 2, 3, 4, 5]
    expected = aggregation.mean(rows, weights, nonfinite="propagate")
    partials = [StreamingMean(rows[0], nonfinite="propagate") for _ in range(2)]
    for k in (5, 3, 1):
        partials[0].add(rows[k], weights[k])
    partials[1].add_many([rows[k] for k in (0, 2, 4)], [weights[k] for k in (0, 2, 4)])
    partials[1] = pickle.loads(pickle.dumps(partials[1]))
    partials[0].merge(partials[1])
    assert partials[0].result().tobytes() == expected.tobytes()


def test_updates_must_fit_the_layout() -> None:
    mean = StreamingMean({"a": np.zeros(2, np.float32), "b": np.zeros(1, np.float32)})
    with pytest.raises(LayoutError, match="missing 'b'"):
        mean.add({"a": np.zeros(2, np.float32)})
    with pytest.raises(LayoutError, match=r"update\['a'\] must be .*\(2,\), got .*\(3,\)"):
        mean.add({"a": np.zeros(3, np.float32), "b": np.zeros(1, np.float32)})
    with pytest.raises(TypeError, match="update must be a mapping"):
        mean.add(np.zeros(2, np.float32))
    assert mean.count == 0
    flat = StreamingMean(np.zeros(2, np.float32))
    for weight, error in ((-1, ValueError), (float("nan"), ValueError), ("1", TypeError)):
        with pytest.raises(error, match="weight must be"):
            flat.add(np.ones(2, np.float32), weight)
    with pytest.raises(ValueError, match=r"one number per update \(2\), got shape \(1,\)"):
        flat.add_many([np.ones(2, np.float32)] * 2, [1])
    with pytest.raises(TypeError, match="like must have a floating dtype"):
        StreamingMean(np.arange(3))
    with pytest.raises(ValueError, match="integers must be 'max' or 'sum'"):
        StreamingMean(np.zeros(1, np.float32), integers="server")


def test_calls_are_atomic_where_entries_are_of_several_kinds() -> None:
    update = {"steps": np.int64([1]), "w": np.ones(200_000, np.float32)}
    total = StreamingMean(update, integers="sum")
    total.add(update)
    adding = threading.Thread(target=lambda: [total.add(update) for _ in range(60)])
    adding.start()
    seen = 0
    while adding.is_alive() or seen == 0:
        copies = [total.empty(), pickle.loads(pickle.dumps(total))]
        copies[0].merge(total)
        for copy in copies:
            assert copy.result()["steps"].item() == copy.count
        seen += 1
    adding.join()
    assert total.result()["steps"].item() == total.count == 61


def test_means_are_merged_into_each_other_at_once() -> None:
    update = {"steps": np.int64([1]), "w": np.ones(50_000, np.float32)}
    one, other = StreamingMean(update), StreamingMean(update)
    one.add(update)
    other.add(update)
    threads = [
        threading.Thread(target=lambda a=a, b=b: [a.merge(b) for _ in range(10)])
        for a, b in ((one, other), (other, one))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()


def test_the_order_of_names_does_not_matter_in_a_merge() -> None:
    a, b = np.float32([1, 2]), np.float64([[3], [5]])
    one, other = StreamingMean({"a": a, "b": b}), StreamingMean({"b": b, "a": a})
    one.add({"a": a, "b": b}, 3)
    other.add({"a": 5 * a, "b": 5 * b})
    one.merge(other)
    expected = aggregation.mean([{"a": a, "b": b}, {"a": 5 * a, "b": 5 * b}], [3, 1])
    merged = one.result()
    assert list(merged) == ["a", "b"]
    assert list(other.result()) == list(pickle.loads(pickle.dumps(other)).result()) == ["b", "a"]
    for name in "ab":
        assert merged[name].tobytes() == expected[name].tobytes()


def test_the_first_of_many_updates_is_named_by_its_position() -> None:
    total = StreamingMean(np.zeros(2, np.float32))
    good, bad = np.ones(2, np.float32), np.ones(3, np.float32)
    with pytest.raises(LayoutError, match=r"updates\[0\] must be"):
        total.add_many([bad, good])
    with pytest.raises(ValueError, match=r"got one array of shape \(2,\)\. Pass a single update"):
        total.add_many(good)


def test_merge_checks_its_argument() -> None:
    mean = StreamingMean(np.zeros(2, np.float32))
    with pytest.raises(
        LayoutError, match=r"got entries of numpy float32 \(3,\) instead of numpy f"
    ):
        mean.merge(StreamingMean(np.zeros(3, np.float32)))
    named = StreamingMean({"a": np.zeros(2)})
    with pytest.raises(LayoutError, match=r"got entries \['b'\] instead of \['a'\]"):
        named.merge(StreamingMean({"b": np.zeros(2)}))
    with pytest.raises(
        LayoutError, match=r"got entry 'a' of numpy float32 \(2,\) instead of numpy f"
    ):
        named.merge(StreamingMean({"a": np.zeros(2, np.float32)}))
    with pytest.raises(LayoutError, match="nonfinite 'drop' instead of 'raise'"):
        mean.merge(StreamingMean(np.zeros(2, np.float32), nonfinite="drop"))
    with pytest.raises(TypeError, match="other must be a StreamingMean"):
        mean.merge(np.zeros(2))
    with pytest.raises(ValueError, match="must be another streaming mean"):
        mean.merge(mean)


def test_two_threads_adding_to_one_object() -> None:
    rng = np.random.default_rng(3)
    rows = [rng.standard_normal(20_000).astype(np.float32) for _ in range(24)]
    states = [{"x": row, "n": np.array(k)} for k, row in enumerate(rows)]
    expected = aggregation.mean(rows, range(1, 25)).tobytes()
    mean = StreamingMean(states[0])

    def work(start: int) -> None:
        for k in range(start, 24, 3):
            mean.add(states[k], k + 1)

    threads = [threading.Thread(target=work, args=(start,)) for start in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert mean.result()["x"].tobytes() == expected
    assert mean.result()["n"] == 23


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_every_pickle_protocol(protocol: int) -> None:
    mean = StreamingMean({"w": np.zeros(3, np.float32), "n": np.int64(0)})
    mean.add({"w": np.float32([1, 2, 3]), "n": np.int64(4)}, 3)
    again = pickle.loads(pickle.dumps(mean, protocol))
    assert again.__getstate__() == mean.__getstate__()
    again.add({"w": np.float32([5, 6, 7]), "n": np.int64(9)})
    assert again.result()["w"].tolist() == [2, 3, 4]
    assert again.result()["n"] == 9


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_sums_travel_beside_a_pickle_of_protocol_5(kind) -> None:
    mean = StreamingMean(np.zeros(10_000, np.float32))
    mean.add(np.linspace(-1, 1, 10_000, dtype=np.float32), 3)
    buffers: list[pickle.PickleBuffer] = []
    small = pickle.dumps(mean, 5, buffer_callback=buffers.append)
    assert len(small) < 1000
    assert sum(buffer.raw().nbytes for buffer in buffers) > 10_000
    again = pickle.loads(small, buffers=[kind(buffer.raw()) for buffer in buffers])
    assert again.__getstate__() == mean.__getstate__()
    assert again.result().tobytes() == mean.result().tobytes()


def test_a_corrupt_pickle_is_refused() -> None:
    mean = streamed([np.float32([1, 2])], [2])
    state = mean.__getstate__()
    for sums in (state["sums"][:-3], state["sums"] + b"x", b"", b"\xff" * 900):
        with pytest.raises(ValueError, match="state is"):
            mean.empty().__setstate__({**state, "sums": sums})


def test_memory_is_bounded_by_the_model() -> None:
    size = 50_000
    mean = StreamingMean(np.zeros(size, np.float32))
    rng = np.random.default_rng(0)
    for _ in range(200):
        mean.add((rng.standard_normal(size) * 0.01).astype(np.float32), int(rng.integers(1, 500)))
    assert mean.nbytes <= 3 * 8 * size


def test_an_output_without_an_array_for_an_entry_is_refused() -> None:
    total = StreamingMean({"w": np.zeros(2, np.float32)})
    total.add({"w": np.ones(2, np.float32)})
    with pytest.raises(TypeError, match=r"out\['w'\] must be an array like the updates', got None"):
        total.result(out={"w": None})
