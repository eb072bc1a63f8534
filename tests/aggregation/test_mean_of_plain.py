"""The mean of plain arrays takes one call of the extension, with the long way's results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedbench import aggregation
from fedbench._native import core
from fedbench.aggregation import _arrays, mean
from fedbench.errors import NonFiniteError

WEIGHTS = [None, [3, 1, 4], [0.1, 0.7, 0.2], [1, 2.5, 3]]
LIBRARIES = ["numpy", "torch"]


def rows_of(library: str, clients: int = 3, size: int = 50) -> list[Any]:
    rng = np.random.default_rng(0)
    rows = [rng.standard_normal(size).astype(np.float32) for _ in range(clients)]
    return rows if library == "numpy" else [torch.from_numpy(row) for row in rows]


def bits(array: Any) -> bytes:
    return np.asarray(array).tobytes()


@pytest.fixture(params=LIBRARIES)
def library(request):
    if request.param == "torch" and _arrays.exchange_api() is None:
        pytest.skip("this torch has no __dlpack_c_exchange_api__ (2.10 and newer have)")
    return request.param


def short_way(library: str, rows: list[Any], out: Any, weights: Any = None) -> Any:
    """The extension's call for plain arrays; an output of ``None`` is none to make here."""
    api = _arrays.exchange_api() if library == "torch" else None
    return core.mean_of_plain(rows, None, out, weights, api, refuse_to_make)


def refuse_to_make(like: Any) -> Any:
    raise AssertionError("an output was given")


@pytest.mark.parametrize("weights", WEIGHTS)
def test_both_ways_give_the_same_bits(library, weights, monkeypatch) -> None:
    rows = rows_of(library)
    calls = []
    original = core.mean_of_plain

    def counted(*arguments: Any) -> Any:
        result = original(*arguments)
        calls.append(result is not None and result[0])
        return result

    monkeypatch.setattr(core, "mean_of_plain", counted)
    short = mean(rows, weights)
    into = mean(rows, weights, out=rows[0] * 0)
    assert calls == [True, True]
    long = mean(tuple(rows), weights)
    assert len(calls) == 2
    assert bits(short) == bits(into) == bits(long)
    assert type(short) is type(long)
    assert (short.dtype, short.shape) == (long.dtype, long.shape)


@pytest.mark.parametrize(
    "weights",
    [[1, 1], [1, 0, 1], [1, -1, 1], [1, np.nan, 1], [1, np.inf, 1], [1, 2**2000, 1],
     [1, True, 1], [1, "2", 1], (1, 2, 3), np.ones(3), torch.ones(3)],
    ids=repr,
)  # fmt: skip
def test_other_weights_take_the_long_way(library, weights) -> None:
    rows = rows_of(library)
    out = rows[0] * 0 + 7
    assert short_way(library, rows, out, weights) is None
    assert (out == 7).all()


@pytest.mark.parametrize(
    "out",
    [
        lambda rows: rows[0],
        lambda rows: rows[2],
        lambda rows: rows[0][:1],
        lambda rows: (rows[0] * 0)[::2],
        lambda rows: "out",
    ],
)
def test_other_outputs_take_the_long_way(library, out) -> None:
    rows = rows_of(library)
    before = bits(rows)
    assert short_way(library, rows, out(rows)) is None
    assert bits(rows) == before


def test_an_output_that_overlaps_in_part_takes_the_long_way(library) -> None:
    base = rows_of(library, clients=1, size=64)[0]
    rows = [base[:30], base[30:60]]
    for start in range(60):
        assert short_way(library, rows, base[start : start + 30]) is None
    with pytest.raises(ValueError, match="out must not share memory with the updates"):
        mean(rows, out=base[20:50])


def test_a_read_only_output_is_not_written() -> None:
    out = np.zeros(50, np.float32)
    out.flags.writeable = False
    assert short_way("numpy", rows_of("numpy"), out) is None
    with pytest.raises(ValueError, match="out must be a writable"):
        mean(rows_of("numpy"), out=out)


def test_a_tensor_that_is_written_says_so() -> None:
    rows, out = rows_of("torch"), torch.zeros(50)
    version = out._version
    mean(rows, out=out)
    assert out._version == version + 1
    with pytest.raises(ValueError, match="out must not require gradients"):
        mean(rows, out=torch.zeros(50, requires_grad=True))


def test_values_that_are_not_finite_follow_the_policy(library) -> None:
    rows = rows_of(library)
    rows[1][3] = float("nan")
    with pytest.raises(NonFiniteError, match="client 1 at flat index 3"):
        mean(rows)
    result = np.asarray(mean(rows, nonfinite="propagate"))
    assert np.isnan(result).tolist() == [i == 3 for i in range(50)]
    with pytest.warns(RuntimeWarning, match="left out client"):
        kept = mean(rows, nonfinite="drop")
    assert bits(kept) == bits(mean([rows[0], rows[2]]))


def test_the_extension_checks_what_it_is_given() -> None:
    rows = rows_of("numpy")
    with pytest.raises(TypeError):
        core.mean_of_plain(rows, None, rows[0], None, "no capsule", refuse_to_make)
    with pytest.raises(AssertionError, match="an output was given"):
        core.mean_of_plain(rows, None, None, None, None, refuse_to_make)
    assert short_way("numpy", [], np.zeros(2, np.float32)) is None
    assert core.mean_of_plain([{}], [], {}, None, None, refuse_to_make) == (True, [])
    assert aggregation.mean([np.float32([1, 2])]).tolist() == [1, 2]
