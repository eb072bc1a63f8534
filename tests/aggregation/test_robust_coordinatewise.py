"""Median, trimmed mean and mean around the median against exact arithmetic."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbench import aggregation
from fedbench.errors import LayoutError, NonFiniteError
from tests.aggregation import inputs
from tests.aggregation.exact import FORMATS, UNSIGNED
from tests.aggregation.robust_reference import (
    around_median_bits,
    median_bits,
    permutations,
    trimmed_bits,
)


def as_updates(rows: list[np.ndarray[Any, Any]], dtype: str) -> list[Any]:
    """Rows as arrays that the library takes."""
    if dtype == "bfloat16":
        return [torch.from_numpy(row.view(np.int16)).view(torch.bfloat16) for row in rows]
    return list(rows)


def bits_of(result: Any, dtype: str) -> np.ndarray[Any, Any]:
    if isinstance(result, torch.Tensor):
        view = torch.int16 if dtype in ("float16", "bfloat16") else torch.int32
        result = result.view(view).numpy()
    return result.view(UNSIGNED[dtype])


@given(
    st.sampled_from(inputs.CLASSES),
    st.sampled_from(sorted(FORMATS)),
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(0, 2**32),
)
def test_equal_to_exact_arithmetic(
    kind: str, dtype: str, clients: int, size: int, seed: int
) -> None:
    rows = inputs.rows(kind, clients, size, dtype, seed)
    updates = as_updates(rows, dtype)
    half = (clients - 1) // 2
    trimmed = seed % (half + 1)
    got = bits_of(aggregation.median(updates), dtype)
    np.testing.assert_array_equal(got, median_bits(rows, dtype))
    got = bits_of(aggregation.trimmed_mean(updates, num_trimmed=trimmed), dtype)
    np.testing.assert_array_equal(got, trimmed_bits(rows, trimmed, dtype))
    got = bits_of(aggregation.mean_around_median(updates, num_byzantine=trimmed), dtype)
    np.testing.assert_array_equal(got, around_median_bits(rows, clients - trimmed, dtype))


@pytest.mark.parametrize("clients", [64, 100, 129, 300, 2048, 2100])
def test_many_clients(clients: int) -> None:
    rows = inputs.rows("ties", clients, 3, "float32", clients)
    for row in rows[::2]:
        row *= -1
    got = aggregation.median(rows).view(np.uint32)
    np.testing.assert_array_equal(got, median_bits(rows, "float32"))
    got = aggregation.trimmed_mean(rows, num_trimmed=clients // 5).view(np.uint32)
    np.testing.assert_array_equal(got, trimmed_bits(rows, clients // 5, "float32"))
    got = aggregation.mean_around_median(rows, num_byzantine=clients // 5).view(np.uint32)
    np.testing.assert_array_equal(got, around_median_bits(rows, clients - clients // 5, "float32"))


@pytest.mark.parametrize("clients", [1, 2, 3, 9, 20])
def test_the_order_of_clients_changes_no_bit(clients: int) -> None:
    rows = inputs.rows("mixed_magnitudes", clients, 500, "float32", clients)
    expected = aggregation.trimmed_mean(rows, num_trimmed=(clients - 1) // 3).tobytes()
    for order in permutations(clients, 10, clients):
        again = aggregation.trimmed_mean([rows[k] for k in order], num_trimmed=(clients - 1) // 3)
        assert again.tobytes() == expected


def test_median_agrees_with_numpy_on_large_inputs() -> None:
    stack = np.random.default_rng(0).standard_normal((10, 200_003)).astype(np.float32)
    wide = np.median(stack.astype(np.float64), axis=0).astype(np.float32)
    np.testing.assert_array_equal(aggregation.median(stack), wide)
    np.testing.assert_array_equal(aggregation.median(stack[:9]), np.median(stack[:9], axis=0))


def test_no_trimming_is_the_mean() -> None:
    rows = inputs.rows("mixed_magnitudes", 7, 1000, "float32", 3)
    assert (
        aggregation.trimmed_mean(rows, num_trimmed=0).tobytes() == aggregation.mean(rows).tobytes()
    )


def test_zeros_are_ordered_by_sign() -> None:
    three = [np.float32([value]) for value in (-0.0, 0.0, -0.0)]
    assert np.signbit(aggregation.median(three))[0]
    assert not np.signbit(aggregation.median(three[:2]))[0]
    assert not np.signbit(aggregation.trimmed_mean(three, num_trimmed=1))[0]


@pytest.mark.parametrize("form", ["numpy", "torch", "stack", "state dict"])
def test_the_kind_given_is_the_kind_returned(form: str) -> None:
    stack = np.random.default_rng(1).standard_normal((5, 12)).astype(np.float32)
    expected = np.median(stack, axis=0)
    if form == "numpy":
        result = aggregation.median([row.reshape(3, 4) for row in stack])
        np.testing.assert_array_equal(result, expected.reshape(3, 4))
    elif form == "torch":
        result = aggregation.median([torch.from_numpy(row) for row in stack])
        assert torch.equal(result, torch.from_numpy(expected))
    elif form == "stack":
        assert torch.equal(aggregation.median(torch.from_numpy(stack)), torch.from_numpy(expected))
    else:
        states = [
            {
                "w": torch.from_numpy(row[:8]).view(2, 4),
                "steps": torch.tensor(k),
                "b": torch.from_numpy(row[8:]),
            }
            for k, row in enumerate(stack)
        ]
        states[2] = dict(reversed(states[2].items()))
        result = aggregation.median(states)
        assert list(result) == ["w", "steps", "b"]
        assert torch.equal(result["w"], torch.from_numpy(expected[:8]).view(2, 4))
        assert result["steps"] == 2
        assert result["steps"].dtype == torch.int64


def test_inputs_are_left_alone_and_not_aliased() -> None:
    rows = inputs.rows("normal", 1, 50, "float32", 0)
    before = rows[0].tobytes()
    result = aggregation.median(rows)
    assert not np.shares_memory(result, rows[0])
    assert rows[0].tobytes() == before == result.tobytes()


def test_out_is_written_and_returned() -> None:
    stack = np.random.default_rng(1).standard_normal((5, 12))
    out = np.empty(12)
    assert aggregation.median(stack, out=out) is out
    np.testing.assert_array_equal(out, np.median(stack, axis=0))
    with pytest.raises(ValueError, match="out must not share memory"):
        aggregation.median(stack, out=stack[0])


def test_strided_and_misaligned_rows() -> None:
    stack = np.random.default_rng(2).standard_normal((4, 20))
    np.testing.assert_array_equal(
        aggregation.median([row[::2] for row in stack]), np.median(stack[:, ::2], axis=0)
    )
    raw = np.zeros(4 * 81, dtype=np.uint8)
    rows = [raw[1 + 81 * k :][:80].view(np.float64) for k in range(4)]
    for k, row in enumerate(rows):
        row[:] = stack[k, :10]
    np.testing.assert_array_equal(aggregation.median(rows), np.median(stack[:, :10], axis=0))


# ru_maxrss would start at what the parent process had; the status file knows this program alone.
MEMORY = """
import pathlib, numpy
from fedbench import aggregation

def peak():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])

def run(size):
    rows = [numpy.full(size, float(k), numpy.float32) for k in range({clients})]
    out = numpy.zeros(size, numpy.float32)
    out += 1
    before = peak()
    aggregation.{call}
    return peak() - before

run(10)
print(run(2_000_000))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory from /proc")
@pytest.mark.parametrize("clients", [9, 40])
@pytest.mark.parametrize(
    "call", ["median(rows, out=out)", "trimmed_mean(rows, num_trimmed=2, out=out)"]
)
def test_memory_is_the_inputs_and_a_tile(clients: int, call: str) -> None:
    script = MEMORY.format(clients=clients, call=call)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 2048  # KiB; a copy of one row would be 8 MB


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_nonfinite_policies(special: float) -> None:
    stack = np.random.default_rng(3).standard_normal((7, 30)).astype(np.float32)
    stack[2, 5] = special
    states = [{"w": row} for row in stack]
    for rule, options in [
        (aggregation.median, {}),
        (aggregation.trimmed_mean, {"num_trimmed": 1}),
        (aggregation.mean_around_median, {"num_byzantine": 2}),
    ]:
        with pytest.raises(NonFiniteError, match=r"client 2 in entry 'w' at flat index 5"):
            rule(states, **options)
        with pytest.warns(RuntimeWarning, match=r"left out client\(s\) 2 of 7") as caught:
            dropped = rule(stack, nonfinite="drop", **options)
        assert caught[0].filename == __file__
        np.testing.assert_array_equal(dropped, rule(np.delete(stack, 2, axis=0), **options))
        through = rule(stack, nonfinite="propagate", **options)
        clean = np.delete(np.arange(30), 5)
        np.testing.assert_array_equal(through[clean], rule(stack[:, clean], **options))
        assert np.isnan(through[5]) == np.isnan(special)
        with pytest.raises(ValueError, match="nonfinite must be one of"):
            rule(stack, nonfinite="skip", **options)


def test_infinities_are_values_under_propagate() -> None:
    column = [np.float32([v]) for v in (-np.inf, 1.0, 2.0, np.inf)]
    assert aggregation.median(column, nonfinite="propagate") == 1.5
    assert np.isnan(aggregation.median([column[0], column[3]], nonfinite="propagate"))
    assert aggregation.median([column[3], column[3]], nonfinite="propagate") == np.inf
    assert aggregation.trimmed_mean(column, num_trimmed=1, nonfinite="propagate") == 1.5
    assert np.isnan(aggregation.trimmed_mean(column, num_trimmed=0, nonfinite="propagate"))
    mostly = [column[3]] * 3 + column[1:3]
    kept = aggregation.mean_around_median(mostly, num_byzantine=2, nonfinite="propagate")
    assert kept == np.inf


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: aggregation.median([]), "at least one client"),
        (lambda: aggregation.trimmed_mean([np.ones(2)] * 4, num_trimmed=2), "from 0 to 1, got 2"),
        (lambda: aggregation.trimmed_mean([np.ones(2)] * 4, num_trimmed=-1), "from 0 to 1"),
        (lambda: aggregation.mean_around_median([np.ones(2)] * 4, num_byzantine=2), "minority"),
        (lambda: aggregation.median(np.ones(3)), "stack of shape"),
    ],
)
def test_wrong_values(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_wrong_types() -> None:
    with pytest.raises(TypeError, match=r"num_trimmed must be an integer, got 0\.5"):
        aggregation.trimmed_mean([np.ones(2)] * 4, num_trimmed=0.5)
    with pytest.raises(TypeError, match="floating dtype"):
        aggregation.median([np.ones(2, dtype=np.int64)])
    with pytest.raises(LayoutError, match=r"updates\[1\] must have shape"):
        aggregation.median([np.ones(2), np.ones(3)])
