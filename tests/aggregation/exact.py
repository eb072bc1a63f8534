"""The exact reference: means as rational numbers, rounded once."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

# significant bits, exponent of the least subnormal, bits of infinity
FORMATS = {
    "float16": (11, -24, 0x7C00),
    "bfloat16": (8, -133, 0x7F80),
    "float32": (24, -149, 0x7F800000),
    "float64": (53, -1074, 0x7FF0000000000000),
}
UNSIGNED = {"float16": np.uint16, "bfloat16": np.uint16, "float32": np.uint32, "float64": np.uint64}


def round_bits(value: Fraction, dtype: str) -> int:
    """Bits of the number of `dtype` nearest to `value`, ties to even; exact zero is +0."""
    precision, least, infinity = FORMATS[dtype]
    sign_bit = (infinity + (1 << (precision - 1))).bit_length() - 1
    sign = (1 << sign_bit) if value < 0 else 0
    magnitude = abs(value)
    if magnitude == 0:
        return 0
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    quantum = max(exponent - precision + 1, least)
    mantissa = round(magnitude / Fraction(2) ** quantum)  # Fraction rounds ties to even
    return sign | min(infinity, ((quantum - least) << (precision - 1)) + mantissa)


def values(array: np.ndarray[Any, Any], dtype: str) -> list[Fraction]:
    """The elements as rational numbers; bfloat16 comes as uint16 bits."""
    if dtype == "bfloat16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return [Fraction(float(x)) for x in array.ravel()]


def mean_bits(
    rows: Sequence[np.ndarray[Any, Any]],
    weights: Sequence[float],
    dtype: str,
    total_weight: float | None = None,
    out_dtype: str | None = None,
) -> np.ndarray[Any, Any]:
    """Bits of the correctly rounded weighted mean of finite rows."""
    exact_weights = [Fraction(float(w)) for w in weights]
    divisor = sum(exact_weights) if total_weight is None else Fraction(float(total_weight))
    columns = zip(*(values(row, dtype) for row in rows), strict=True)
    out = out_dtype or dtype
    bits = [
        round_bits(
            sum((w * x for w, x in zip(exact_weights, column, strict=True)), Fraction(0)) / divisor,
            out,
        )
        for column in columns
    ]
    return np.array(bits, dtype=UNSIGNED[out])
