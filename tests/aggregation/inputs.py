"""Classes of inputs that are hard for a mean, as numpy arrays (bfloat16 as uint16 bits)."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.aggregation.exact import FORMATS, UNSIGNED

CLASSES = (
    "normal",
    "mixed_magnitudes",
    "any_bits",
    "subnormal",
    "cancelling",
    "signed_zeros",
    "column_scales",
    "ties",
    "huge",
)


def rows(kind: str, clients: int, size: int, dtype: str, seed: int) -> list[np.ndarray[Any, Any]]:
    """`clients` rows of `size` finite elements."""
    rng = np.random.default_rng(seed)
    shape = (clients, size)
    precision, _, infinity = FORMATS[dtype]
    if kind == "any_bits":
        magnitudes = rng.integers(0, infinity, shape, dtype=UNSIGNED[dtype])
        return list(_from_bits(magnitudes, rng, dtype))
    if kind == "subnormal":
        magnitudes = rng.integers(0, 1 << precision, shape, dtype=UNSIGNED[dtype])
        return list(_from_bits(magnitudes, rng, dtype))
    if kind == "huge":
        top = infinity - (1 << (precision - 1))
        magnitudes = rng.integers(top, infinity, shape, dtype=UNSIGNED[dtype])
        return list(_from_bits(magnitudes, rng, dtype))
    if kind == "signed_zeros":
        return list(_from_bits(np.zeros(shape, UNSIGNED[dtype]), rng, dtype))
    data = rng.standard_normal(shape) * 0.05
    wide = 3.0 if dtype == "float16" else 25.0
    if kind == "mixed_magnitudes":
        data *= 10.0 ** rng.uniform(-wide, wide if dtype != "float16" else 4.0, shape)
    elif kind == "column_scales":
        data *= 10.0 ** rng.uniform(-wide, wide if dtype != "float16" else 4.0, (1, size))
    elif kind == "ties":
        ulp = 2.0 ** (1 - precision)
        data = 1.0 + ulp * rng.integers(0, 8, shape)
    result = _cast(data, dtype)
    if kind == "cancelling" and clients > 1:
        half = clients // 2
        result[half : 2 * half] = _negated(result[:half], dtype)
    return list(result)


def _cast(data: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    if dtype != "bfloat16":
        return data.astype(dtype)
    return (data.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def _negated(data: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    return data ^ np.uint16(0x8000) if dtype == "bfloat16" else -data


def _from_bits(
    magnitudes: np.ndarray[Any, Any], rng: np.random.Generator, dtype: str
) -> np.ndarray[Any, Any]:
    unsigned = UNSIGNED[dtype]
    signs = rng.integers(0, 2, magnitudes.shape).astype(unsigned)
    bits = magnitudes | (signs << unsigned(magnitudes.dtype.itemsize * 8 - 1))
    return bits if dtype == "bfloat16" else bits.view(dtype)


def weights(kind: str, clients: int, seed: int) -> list[float]:
    """`clients` weights; at least one is positive."""
    rng = np.random.default_rng(seed + 1000)
    drawn = {
        "equal": np.full(clients, 7.0),
        "counts": rng.integers(1, 1000, clients).astype(float),
        "fractions": rng.random(clients) + 1e-3,
        "quarters": rng.integers(1, 9, clients) / 4,
        "some_zero": np.where(np.arange(clients) % 3 == 1, 0.0, rng.integers(1, 50, clients)),
        "wide": 2.0 ** rng.integers(-300, 300, clients),
        "large_counts": rng.integers(2**29, 2**52, clients).astype(float),
    }[kind]
    return [float(w) for w in drawn]


WEIGHTS = ("equal", "counts", "fractions", "quarters", "some_zero", "wide", "large_counts")
