"""Updates as 8-bit integers with a scale, and their mean."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedbench._native import core
from fedbench.aggregation import _weights
from fedbench.aggregation._arrays import Buffer, describe
from fedbench.aggregation._compressed import floats, result_buffer, rows_of
from fedbench.aggregation._outputs import require_disjoint
from fedbench.aggregation._random import require_generator
from fedbench.errors import LayoutError, NonFiniteError

__all__ = ["QuantizedUpdate", "quantize", "quantized_mean"]

_LARGEST = 127  # of int8, and of its opposite
_LARGEST_EXPONENT = 900  # of a product over the divisor; sums of many stay finite


@dataclass(frozen=True, eq=False)
class QuantizedUpdate:
    """An update as 8-bit integers: ``scale * values``.

    Parameters
    ----------
    values : array of int8, any shape
    scale : float
        Finite and not negative.

    Notes
    -----
    Nothing is checked before :func:`quantized_mean` takes it; ``quantized_mean([update])`` is the
    update in float32. Equal only to itself.
    """

    values: Any
    scale: float


def quantize(update: Any, rng: np.random.Generator | None = None) -> QuantizedUpdate:
    """Quantise an update to 8-bit integers with one scale.

    The scale is the largest magnitude over 127, rounded to float32 (up where float32 has fewer
    bits, below 1.2e-38, so that an update that is not zero gets a scale that is not). Values are
    rounded to the nearest multiple of it (ties to even), or, with `rng`, to one of the two
    neighbours at random so that the expectation is the value [1]_.

    Parameters
    ----------
    update : array of floats, any shape
        A numpy array or torch CPU tensor; finite.
    rng : numpy.random.Generator, optional
        Makes the rounding stochastic.

    Returns
    -------
    QuantizedUpdate
        Of the library and shape of `update`.

    Raises
    ------
    NonFiniteError
        If `update` is not finite.
    ValueError
        If the scale would exceed the range of float32.
    TypeError
        If `update` is not an array of floats, or `rng` is not a numpy Generator.

    Notes
    -----
    Time: a few passes of numpy in float64. Memory: two or three float64 copies of the update.
    Determinism: a function of the update, and of the state of `rng`.

    References
    ----------
    .. [1] Alistarh, Grubic, Li, Tomioka and Vojnovic, "QSGD: Communication-Efficient SGD via
       Gradient Quantization and Encoding", NeurIPS 2017.

    Examples
    --------
    >>> import numpy as np
    >>> from fedbench import aggregation
    >>> aggregation.quantize(np.float32([-127, 1.4, 63.5]))
    QuantizedUpdate(values=array([-127,    1,   64], dtype=int8), scale=1.0)
    """
    if rng is not None:
        require_generator(rng)
    buffer = floats(update, "update")
    wide = _as_float64(buffer)
    if not np.isfinite(wide).all():
        index = int(np.argmin(np.isfinite(wide)))
        raise NonFiniteError(
            f"update must be finite to be quantised, got {wide[index]} at flat index {index}. "
            "Leave out such a client."
        )
    largest = float(np.abs(wide).max(initial=0.0))
    scale = _rounded_scale(largest)
    if scale == 0.0:
        steps = np.zeros(wide.shape)
    elif rng is None:
        steps = np.rint(wide / scale)
    else:
        steps = np.floor(wide / scale + rng.random(wide.shape))
    values = np.clip(steps, -_LARGEST, _LARGEST).astype(np.int8).reshape(buffer.shape)
    if buffer.kind == "numpy":
        return QuantizedUpdate(values, scale)
    import torch

    return QuantizedUpdate(torch.from_numpy(values), scale)


def quantized_mean(
    updates: Iterable[QuantizedUpdate],
    weights: Any = None,
    *,
    total_weight: float | None = None,
    out: Any = None,
) -> Any:
    r"""Weighted mean of quantised updates in float32, rounded once.

    Per coordinate the real number :math:`\sum_k c_k q_k / \sum_k w_k`, rounded once to float32,
    with :math:`c_k = w_k s_k` rounded to 53 bits, also where float64 would overflow or underflow
    (2\ :sup:`1900` times below the largest, it counts as zero; exact for scales that are
    float32 values, as :func:`quantize` makes them, and integer weights below 2\ :sup:`29`).

    Parameters
    ----------
    updates : iterable of QuantizedUpdate
        One per client, of one shape and library. Never modified.
    weights : sequence of K numbers, optional
        As for :func:`mean`.
    total_weight : float, optional
        As for :func:`mean`.
    out : array of float32, optional
        Where to write; contiguous, of the updates' shape.

    Returns
    -------
    array of float32
        Of the library and shape of the updates.

    Raises
    ------
    ValueError
        If a scale is negative or not finite (the message names the client), or an option does not
        fit.
    TypeError
        If an update is not a QuantizedUpdate of int8 values.
    LayoutError
        If updates differ in shape or library.

    Notes
    -----
    Time: one pass over the 8-bit values. Memory: the result.
    Determinism: as for :func:`mean`.

    Examples
    --------
    >>> import numpy as np
    >>> from fedbench import aggregation
    >>> a = aggregation.QuantizedUpdate(np.int8([1, 2]), 0.5)
    >>> b = aggregation.QuantizedUpdate(np.int8([3, -4]), 0.25)
    >>> aggregation.quantized_mean([a, b], weights=[1, 3])
    array([ 0.6875, -0.5   ], dtype=float32)
    """
    updates = rows_of(updates, QuantizedUpdate)
    buffers = _quantized_buffers(updates)
    values = _weights.client_weights(weights, len(buffers))
    divisor = _weights.total(total_weight)
    scales = np.array([_scale(update, k) for k, update in enumerate(updates)])
    first = buffers[0]
    buffer = result_buffer(out, first.kind, first.shape, "float32")
    require_disjoint([("out", buffer)], buffers)
    coefficients, divisor = _coefficients(values, scales, divisor)
    if not coefficients.any():
        buffer.owner[...] = 0.0
    else:
        handles = [b.handle for b in buffers]
        core.quantized_mean(handles, first.size, buffer.handle, coefficients, divisor)
    return buffer.owner if out is None else out


def _coefficients(
    weights: npt.NDArray[np.float64], scales: npt.NDArray[np.float64], total: float | None
) -> tuple[npt.NDArray[np.float64], float]:
    """Return the products of weights and scales, and the divisor, over a common power of two.

    It makes the divisor about one, unless a product would overflow then: so neither is rounded
    again where they matter to a float32 result.
    """
    weight, weight_exponent = np.frexp(weights)
    scale, scale_exponent = np.frexp(scales)
    product, exponent = weight * scale, weight_exponent + scale_exponent
    common = math.frexp(float(weights.max()) if total is None else total)[1]
    common = max(common, int(exponent[product > 0].max(initial=common)) - _LARGEST_EXPONENT)
    products = np.ldexp(product, exponent - common)
    if total is None:
        return products, math.fsum(np.ldexp(weights, -common).tolist())
    # The least divisor stands for smaller ones: either way the mean is beyond float32.
    return products, math.ldexp(total, -common) or math.ulp(0.0)


def _rounded_scale(largest: float) -> float:
    """Return the scale in float32 for an update with values up to `largest`."""
    wanted = largest / _LARGEST
    limit = float(np.finfo(np.float32).max)
    if wanted > limit:
        raise ValueError(
            f"update must be at most {limit * _LARGEST:.4g} in magnitude to have a "
            f"float32 scale, got {largest:.4g}. Clip it, for example with clip_norms."
        )
    scale = np.float32(wanted)
    if float(scale) < wanted < float(np.finfo(np.float32).tiny):
        scale = np.nextafter(scale, np.float32(1))
    return float(scale)


def _quantized_buffers(updates: list[QuantizedUpdate]) -> list[Buffer]:
    buffers: list[Buffer] = []
    for k, row in enumerate(updates):
        if not isinstance(row, QuantizedUpdate):
            raise TypeError(f"updates[{k}] must be a QuantizedUpdate, got {type(row).__name__}.")
        buffer = describe(row.values, f"updates[{k}].values")
        if buffer.dtype != "int8":
            raise TypeError(f"updates[{k}].values must be int8, got {buffer.dtype}.")
        buffers.append(buffer)
        if buffer[2:5] != buffers[0][2:5]:
            raise LayoutError(
                f"updates[{k}].values must be a {buffers[0].summary()} array like client 0's, got "
                f"{buffer.summary()}."
            )
    if not buffers:
        raise ValueError("updates must hold at least one client's update, got none.")
    return buffers


def _scale(update: QuantizedUpdate, client: int) -> float:
    try:
        scale = _weights.as_number(update.scale)
    except _weights.NO_NUMBER as error:
        raise TypeError(
            f"updates[{client}].scale must be one real number, got {reprlib.repr(update.scale)}."
        ) from error
    if not 0.0 <= scale < math.inf:
        raise ValueError(
            f"scale must be finite and not negative, got {scale} from client {client}."
        )
    return scale


def _as_float64(buffer: Buffer) -> npt.NDArray[np.float64]:
    if buffer.kind == "numpy":
        return np.asarray(buffer.owner, dtype=np.float64).reshape(-1)
    wide: npt.NDArray[np.float64] = buffer.owner.double().reshape(-1).numpy()
    return wide
