"""Compressed uplinks: what a client sends of a change of a vector.

Only entries that are changes are compressed (``delta``, ``control_delta``, ...): leaving out
coordinates of a change means "as before", leaving out those of a model would mean zero. The server
takes the mean of the compressed updates without making them dense.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedbench import aggregation
from fedbench.algorithms import Update
from fedbench.algorithms.client import dense
from fedbench.registry import Entry, Registry
from fedbench.training import ParameterLayout, checked_flag, plain

__all__ = ["COMPRESSIONS", "Compression", "Quantized", "TopK", "compressed", "num_bytes"]

_SCALE_BYTES = 4  # a float32


class Compression(ABC):
    """How a change is compressed; a frozen dataclass whose fields are the options.

    Attributes
    ----------
    error_feedback : bool
        Whether a client keeps what compression left out, and adds it to its next change [1]_.

    References
    ----------
    .. [1] Karimireddy, Rebjock, Stich and Jaggi, "Error Feedback Fixes SignSGD and other Gradient
       Compression Schemes", ICML 2019.
    """

    error_feedback: bool
    dtypes: ClassVar[frozenset[torch.dtype]]
    """Dtypes of parameters whose changes can be compressed."""

    @abstractmethod
    def compress(self, change: Tensor, num_parameters: int, rng: np.random.Generator) -> Any:
        """Return the compressed change.

        Parameters
        ----------
        change : torch.Tensor
            Flat vector; the padding between parameters is zero.
        num_parameters : int
            Number of its coordinates that are parameters.
        rng : numpy.random.Generator
            A stream of this client, round and entry.

        Returns
        -------
        SparseUpdate or QuantizedUpdate
            Of :mod:`fedbench.aggregation`.
        """


@dataclass(frozen=True)
class TopK(Compression):
    """The coordinates of largest magnitude, as pairs of a 32-bit position and a value [1]_.

    Parameters
    ----------
    fraction : float
        Share of the parameters that is sent, in (0, 1]; at least one parameter is.
    error_feedback : bool
        Keep the rest on the client and add it to its next change.

    References
    ----------
    .. [1] Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017.
    """

    dtypes: ClassVar[frozenset[torch.dtype]] = frozenset(
        {torch.float32, torch.float64, torch.float16, torch.bfloat16}
    )

    fraction: float = 0.01
    error_feedback: bool = True

    def __post_init__(self) -> None:
        value = plain(self.fraction)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            raise ValueError(f"fraction must be a number in (0, 1], got {value!r}.")
        object.__setattr__(self, "fraction", value)
        checked_flag("error_feedback", self.error_feedback)

    def compress(self, change: Tensor, num_parameters: int, rng: np.random.Generator) -> Any:
        """Return the largest coordinates."""
        count = max(1, round(self.fraction * num_parameters))
        found = aggregation.top_k(change, min(count, len(change)))
        if len(change) < 2**31:
            return replace(found, indices=found.indices.to(torch.int32))
        return found


@dataclass(frozen=True)
class Quantized(Compression):
    """8-bit integers with one scale for each vector; see :func:`fedbench.aggregation.quantize`.

    Parameters
    ----------
    stochastic : bool
        Round to one of the two neighbours at random, so that the expectation is the value (QSGD),
        instead of to the nearest one.
    error_feedback : bool
        Keep the rounding errors on the client and add them to its next change.
    """

    dtypes: ClassVar[frozenset[torch.dtype]] = frozenset({torch.float32, torch.float64})

    stochastic: bool = True
    error_feedback: bool = False

    def __post_init__(self) -> None:
        for name in ("stochastic", "error_feedback"):
            checked_flag(name, getattr(self, name))

    def compress(self, change: Tensor, num_parameters: int, rng: np.random.Generator) -> Any:
        """Return the integers and their scale."""
        return aggregation.quantize(change, rng if self.stochastic else None)


COMPRESSIONS: Registry[type[Compression]] = Registry(
    "compression",
    {
        "top_k": Entry(f"{__name__}:TopK", "the largest coordinates, with error feedback"),
        "quantized": Entry(f"{__name__}:Quantized", "8-bit integers, stochastically rounded"),
    },
)


def compressed(
    compression: Compression,
    update: Update,
    residuals: Mapping[str, Tensor],
    num_parameters: int,
    generator: Callable[[str], np.random.Generator],
) -> tuple[Update, dict[str, Tensor]]:
    """Return the update as it travels, and what was left out of it.

    Parameters
    ----------
    compression : Compression
        How.
    update : Update
        The client's update.
    residuals : mapping of str to torch.Tensor
        What was left out of the client's last update, by entry; empty at first.
    num_parameters : int
        Number of shared parameters of the model.
    generator : callable
        ``entry -> numpy.random.Generator``.

    Raises
    ------
    ValueError
        If no entry of the update is a change.
    """
    tensors = dict(update.tensors)
    names = [name for name in tensors if name == "delta" or name.endswith("_delta")]
    if not names:
        raise ValueError(
            f"compression needs an algorithm that sends changes, named 'delta' or '..._delta', "
            f"got an update with {', '.join(map(repr, tensors))}. Leave compression out."
        )
    left: dict[str, Tensor] = {}
    for name in names:
        change = tensors[name]
        if name in residuals:
            change = change + residuals[name]
        tensors[name] = compression.compress(change, num_parameters, generator(name))
        if compression.error_feedback:
            left[name] = change - dense(tensors[name])
    return replace(update, tensors=tensors), left


def num_bytes(value: Any, layout: ParameterLayout) -> int:
    """Return the bytes of all tensors in a nested mapping, without the padding of flat vectors."""
    if isinstance(value, Tensor):
        is_flat = value.shape == (layout.numel,)
        return (layout.num_parameters if is_flat else value.numel()) * value.element_size()
    if isinstance(value, Mapping):
        return sum(num_bytes(entry, layout) for entry in value.values())
    if isinstance(value, aggregation.SparseUpdate):
        return num_bytes({"indices": value.indices, "values": value.values}, layout)
    if isinstance(value, aggregation.QuantizedUpdate):
        return num_bytes(value.values, layout) + _SCALE_BYTES
    return 0
