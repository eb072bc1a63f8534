"""Where each trainable parameter lies in one flat, 64-byte aligned vector."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedbench.errors import LayoutError

__all__ = ["ALIGNMENT", "ParameterLayout"]

ALIGNMENT = 64
"""Bytes. torch's matrix products may round differently for operands that are aligned differently,
so each parameter starts where an allocation of its own would start."""


@dataclass(frozen=True)
class ParameterLayout:
    """Names, shapes and offsets of the trainable parameters of a model in one flat vector.

    Every parameter starts at a multiple of 64 bytes; the padding between parameters is zero and
    stays zero under every update. Tied parameters appear once, under their first name.

    Attributes
    ----------
    names : tuple of str
        In the order of ``model.named_parameters()``.
    shapes : tuple of tuple of int
        One shape for each name.
    offsets : tuple of int
        First element of each parameter in the flat vector.
    numel : int
        Length of the flat vector, padding included.
    dtype : torch.dtype
        Dtype of all trainable parameters.
    device : torch.device
        Where they are.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]
    numel: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, model: nn.Module, without: Collection[str] = ()) -> ParameterLayout:
        """Return the layout of the parameters of `model` that require gradients.

        Those named in `without` are left out.

        Raises
        ------
        LayoutError
            If no trainable parameter is left, or there are several dtypes among them.
        """
        trainable = [
            (name, parameter)
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and name not in without
        ]
        if not trainable:
            raise LayoutError(
                "the model must have at least one trainable parameter that is shared, got none. "
                "Leave one out of personal and frozen, with requires_grad=True."
            )
        dtypes = sorted({str(p.dtype) for _, p in trainable})
        if len(dtypes) != 1:
            raise LayoutError(
                f"the trainable parameters of the model must be of exactly one dtype, got "
                f"{', '.join(dtypes)}. Convert the model, for example with model.float(), or "
                f"freeze parameters with requires_grad_(False)."
            )
        dtype = trainable[0][1].dtype
        step = ALIGNMENT // dtype.itemsize
        offsets, end = [], 0
        for _, parameter in trainable:
            offsets.append(end)
            end += math.ceil(parameter.numel() / step) * step
        return cls(
            names=tuple(name for name, _ in trainable),
            shapes=tuple(tuple(parameter.shape) for _, parameter in trainable),
            offsets=tuple(offsets),
            numel=end,
            dtype=dtype,
            device=trainable[0][1].device,
        )

    @property
    def num_parameters(self) -> int:
        """Number of trainable scalars, padding not counted."""
        return sum(math.prod(shape) for shape in self.shapes)

    def zeros(self) -> Tensor:
        """Return a flat vector of zeros."""
        return torch.zeros(self.numel, dtype=self.dtype, device=self.device)

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return one view into `flat` for each parameter, in the order of `names`."""
        if flat.shape != (self.numel,) or flat.dtype != self.dtype:
            raise LayoutError(
                f"flat must have shape ({self.numel},) and dtype {self.dtype}, "
                f"got shape {tuple(flat.shape)} and dtype {flat.dtype}."
            )
        return [
            flat[offset : offset + math.prod(shape)].view(shape)
            for offset, shape in zip(self.offsets, self.shapes, strict=True)
        ]

    def pack(self, named: Mapping[str, Tensor]) -> Tensor:
        """Return a new flat vector with the parameters of `named`.

        Raises
        ------
        LayoutError
            If `named` lacks a parameter or one has another shape.
        """
        flat = self.zeros()
        for name, view in zip(self.names, self.views(flat), strict=True):
            if name not in named:
                raise LayoutError(f"the parameter {name!r} is missing from the state.")
            source = named[name].detach()
            if source.shape != view.shape:
                raise LayoutError(
                    f"the parameter {name!r} must have shape {tuple(view.shape)}, "
                    f"got {tuple(source.shape)}."
                )
            view.copy_(source)
        return flat

    def unpack(self, flat: Tensor) -> dict[str, Tensor]:
        """Return copies of the parameters in `flat` by name."""
        views = self.views(flat)
        return {name: view.clone() for name, view in zip(self.names, views, strict=True)}
