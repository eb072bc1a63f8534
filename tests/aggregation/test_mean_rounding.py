"""The mean is the real quotient, rounded once: bit for bit against exact rational numbers."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbench import aggregation
from fedbench._native import core
from tests.aggregation import inputs
from tests.aggregation.exact import UNSIGNED, mean_bits

DTYPES = ("float32", "float64", "float16", "bfloat16")


def bits_of(result: Any, dtype: str) -> np.ndarray[Any, Any]:
    if dtype == "bfloat16":
        return result.view(torch.int16).numpy().view(np.uint16)
    return result.view(UNSIGNED[dtype])


def as_updates(rows: list[np.ndarray[Any, Any]], dtype: str) -> list[Any]:
    if dtype != "bfloat16":
        return rows
    return [torch.from_numpy(row.view(np.int16).copy()).view(torch.bfloat16) for row in rows]


def check(rows: list[Any], weights: list[float], dtype: str, total: float | None = None) -> None:
    result = aggregation.mean(as_updates(rows, dtype), weights, total_weight=total)
    expected = mean_bits(rows, weights, dtype, total)
    np.testing.assert_array_equal(bits_of(result, dtype), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weight_kind", inputs.WEIGHTS)
@pytest.mark.parametrize("kind", inputs.CLASSES)
def test_every_class_of_inputs(kind: str, weight_kind: str, dtype: str) -> None:
    for clients in (1, 2, 4, 10, 15):
        rows = inputs.rows(kind, clients, 17, dtype, seed=clients)
        check(rows, inputs.weights(weight_kind, clients, clients), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("total", [1.0, 3.0, 1e-3, 12345.678, 2.0**-60])
def test_total_weight_replaces_the_divisor(total: float, dtype: str) -> None:
    for weight_kind in ("equal", "counts", "fractions"):
        rows = inputs.rows("normal", 5, 41, dtype, seed=5)
        check(rows, inputs.weights(weight_kind, 5, 5), dtype, total)


@settings(max_examples=200)
@given(data=st.data(), dtype=st.sampled_from(["float32", "float64", "float16"]))
def test_any_finite_inputs(data: st.DataObject, dtype: str) -> None:
    width = {"float16": 16, "float32": 32, "float64": 64}[dtype]
    clients = data.draw(st.integers(1, 9))
    size = data.draw(st.integers(1, 5))
    element = st.floats(allow_nan=False, allow_infinity=False, width=width)
    rows = [
        np.array(data.draw(st.lists(element, min_size=size, max_size=size)), dtype=dtype)
        for _ in range(clients)
    ]
    weight = st.one_of(
        st.integers(0, 1000).map(float),
        st.floats(0, 1e300, allow_nan=False),
        st.sampled_from([1.0, 0.1, 0.5, 1e-320, 2.0**53]),
    )
    weights = data.draw(
        st.lists(weight, min_size=clients, max_size=clients).filter(lambda ws: any(ws))
    )
    check(rows, weights, dtype)


@settings(max_examples=100)
@given(
    bits=st.lists(st.lists(st.integers(0, 0xFFFF), min_size=3, max_size=3), min_size=1, max_size=6),
    weights=st.lists(st.integers(1, 20), min_size=6, max_size=6),
)
def test_any_finite_bfloat16(bits: list[list[int]], weights: list[int]) -> None:
    rows = [np.array(row, dtype=np.uint16) for row in bits]
    rows = [np.where((row & 0x7F80) == 0x7F80, row & 0x807F, row).astype(np.uint16) for row in rows]
    check(rows, [float(w) for w in weights[: len(rows)]], "bfloat16")


def test_every_size_around_the_tile_and_vector_lengths() -> None:
    for size in [*range(70), 2047, 2048, 2049, 4099]:
        rows = inputs.rows("normal", 5, size, "float32", seed=size)
        full = aggregation.mean(rows, [1, 2, 3, 4, 5])
        np.testing.assert_array_equal(
            full.view(np.uint32), mean_bits(rows, [1, 2, 3, 4, 5], "float32")
        )


@pytest.mark.parametrize("clients", [8, 9, 17])
@pytest.mark.parametrize("weight_kind", ["equal", "counts"])
def test_sizes_around_the_tiles_have_the_bits_of_the_stream(clients: int, weight_kind: str) -> None:
    weights = inputs.weights(weight_kind, clients, clients)
    for size in (2047, 2049, 8191, 8192, 8193, 16_390):
        rows = inputs.rows("normal", clients, size, "float32", seed=size)
        total = aggregation.StreamingMean(rows[0])
        total.add_many(rows, weights)
        assert aggregation.mean(rows, weights).tobytes() == total.result().tobytes()


def test_the_order_of_clients_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    for dtype in DTYPES:
        rows = inputs.rows("mixed_magnitudes", 12, 300, dtype, seed=3)
        weights = inputs.weights("fractions", 12, 3)
        first = bits_of(aggregation.mean(as_updates(rows, dtype), weights), dtype)
        for _ in range(20):
            order = rng.permutation(12)
            again = aggregation.mean(
                as_updates([rows[k] for k in order], dtype), [weights[k] for k in order]
            )
            np.testing.assert_array_equal(bits_of(again, dtype), first)


def test_the_thread_count_does_not_matter() -> None:
    rows = inputs.rows("normal", 4, 1_500_000, "float32", seed=1)
    before = aggregation.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 5):
            aggregation.set_num_threads(threads)
            results.append(aggregation.mean(rows, [3, 1, 4, 1]).tobytes())
    finally:
        aggregation.set_num_threads(before)
    assert results[0] == results[1] == results[2]


PROGRAM = """
    import hashlib
    from fedbench import aggregation
    from fedbench._native import core
    from tests.aggregation import inputs
    digest = hashlib.sha256()
    for dtype in ("float32", "float64", "float16"):
        for kind in inputs.CLASSES:
            for weights in inputs.WEIGHTS:
                rows = inputs.rows(kind, 9, 211, dtype, seed=7)
                digest.update(aggregation.mean(rows, inputs.weights(weights, 9, 7)).tobytes())
    print(core.isa_level(), digest.hexdigest())
"""


def test_every_instruction_set_gives_the_same_bits() -> None:
    digests = set()
    for level in core.isa_levels():
        run = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(PROGRAM)],
            env={**os.environ, "FEDBENCH_ISA": level, "PYTHONPATH": os.getcwd()},
            capture_output=True,
            text=True,
            check=True,
        )
        name, digest = run.stdout.split()
        assert name == level
        digests.add(digest)
    assert len(digests) == 1


def test_flush_denormal_of_the_caller_changes_nothing_and_stays() -> None:
    rows = inputs.rows("subnormal", 5, 64, "float32", seed=2)
    expected = mean_bits(rows, [1, 2, 3, 4, 5], "float32")
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        result = aggregation.mean(rows, [1, 2, 3, 4, 5]).view(np.uint32)
        flushed = (torch.tensor([1e-310], dtype=torch.float64) * 0.5).item()
    finally:
        torch.set_flush_denormal(False)
    np.testing.assert_array_equal(result, expected)
    assert flushed == 0.0


def test_the_mean_lies_between_the_extremes_and_overflow_does_not_happen() -> None:
    huge = np.full(50, 3e38, dtype=np.float32)
    assert (aggregation.mean([huge] * 4) == huge).all()
    half = torch.full((7,), 60000.0, dtype=torch.float16)
    result = aggregation.mean([half] * 3, [1000, 1000, 1000])
    assert result.dtype is torch.float16
    assert (result == 60000).all()


def test_signs_of_zero() -> None:
    negative = np.float32([-0.0] * 20)
    assert not np.signbit(aggregation.mean([negative, negative])).any()
    tiny = np.float32([-1e-45] * 20)
    underflow = aggregation.mean([tiny, np.float32([0.0] * 20), np.float32([0.0] * 20)])
    assert (underflow == 0).all()
    assert np.signbit(underflow).all()
