"""Slow references of the robust rules, in rational arithmetic on small inputs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from tests.aggregation.exact import UNSIGNED, round_bits, values


def sort_keys(row: np.ndarray[Any, Any], dtype: str) -> list[int]:
    """Integers that sort like the elements, -0 below +0."""
    unsigned = UNSIGNED[dtype]
    bits = row.view(unsigned).astype(object)
    top = 1 << (np.dtype(unsigned).itemsize * 8 - 1)
    return [int(b) if b < top else top - 1 - int(b) for b in bits]


def columns(
    rows: Sequence[np.ndarray[Any, Any]], dtype: str
) -> list[list[tuple[int, Fraction, int]]]:
    """Per coordinate, the sorted (key, value, bits) of all clients."""
    per_row = [
        list(
            zip(
                sort_keys(row, dtype),
                values(row, dtype),
                [int(b) for b in row.view(UNSIGNED[dtype])],
                strict=True,
            )
        )
        for row in rows
    ]
    return [sorted(column) for column in zip(*per_row, strict=True)]


def median_bits(rows: Sequence[np.ndarray[Any, Any]], dtype: str) -> np.ndarray[Any, Any]:
    """Bits of the median."""
    half = len(rows) // 2
    out = [
        column[half][2]
        if len(rows) % 2
        else round_bits((column[half - 1][1] + column[half][1]) / 2, dtype)
        for column in columns(rows, dtype)
    ]
    return np.array(out, dtype=UNSIGNED[dtype])


def trimmed_bits(
    rows: Sequence[np.ndarray[Any, Any]], trimmed: int, dtype: str
) -> np.ndarray[Any, Any]:
    """Bits of the trimmed mean."""
    kept = slice(trimmed, len(rows) - trimmed)
    out = [
        round_bits(
            sum((v for _, v, _ in column[kept]), Fraction(0)) / (len(rows) - 2 * trimmed), dtype
        )
        for column in columns(rows, dtype)
    ]
    return np.array(out, dtype=UNSIGNED[dtype])


def around_median_bits(
    rows: Sequence[np.ndarray[Any, Any]], kept: int, dtype: str
) -> np.ndarray[Any, Any]:
    """Bits of the mean of the values closest to the median; the smaller of equally far ones."""
    half = len(rows) // 2
    out = []
    for column in columns(rows, dtype):
        exact = [v for _, v, _ in column]
        middle = exact[half] if len(rows) % 2 else (exact[half - 1] + exact[half]) / 2
        closest = sorted(exact, key=lambda v: (abs(v - middle), v))[:kept]
        out.append(round_bits(sum(closest, Fraction(0)) / kept, dtype))
    return np.array(out, dtype=UNSIGNED[dtype])


def squared_distances(rows: Sequence[np.ndarray[Any, Any]], dtype: str) -> list[list[Fraction]]:
    """Exact squared distances."""
    exact = [values(row, dtype) for row in rows]
    return [
        [sum(((a - b) ** 2 for a, b in zip(x, y, strict=True)), Fraction(0)) for y in exact]
        for x in exact
    ]


def krum_order(
    rows: Sequence[np.ndarray[Any, Any]],
    byzantine: int,
    dtype: str,
    among: Sequence[int],
    near: int,
) -> list[int]:
    """Clients by Krum score, then by content."""
    distances = squared_distances(rows, dtype)
    keys = [sort_keys(row, dtype) for row in rows]

    def score(i: int) -> tuple[Fraction, list[int]]:
        others = sorted(distances[i][j] for j in among if j != i)
        return sum(others[:near], Fraction(0)), keys[i]

    return sorted(among, key=score)


def mean_bits(rows: Sequence[np.ndarray[Any, Any]], dtype: str) -> np.ndarray[Any, Any]:
    """Bits of the plain mean."""
    return trimmed_bits(rows, 0, dtype)


def permutations(clients: int, count: int, seed: int) -> list[list[int]]:
    """Some orders of the clients, or all of them if there are few."""
    if clients <= 3:
        return [list(p) for p in itertools.permutations(range(clients))]
    rng = np.random.default_rng(seed)
    return [rng.permutation(clients).tolist() for _ in range(count)]
