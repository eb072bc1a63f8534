"""Arrays of either library as buffers for the kernels, without importing torch for numpy users."""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from fedbench._native import core

if TYPE_CHECKING:
    import torch

ArrayLike: TypeAlias = "np.ndarray[Any, Any] | torch.Tensor"
"""A numpy array or a torch tensor."""

DTYPE_CODES: Mapping[str, int] = {
    "float32": 0,
    "float64": 1,
    "float16": 2,
    "bfloat16": 3,
    "int8": 4,
}
"""Numbers of the element types in csrc/include/fedbench/dtype.hpp."""

FLOATING = ("float32", "float64", "float16", "bfloat16")
INTEGER = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool",
)  # fmt: skip

# Below this a library's own allocator is as good as pooled huge pages.
_POOLED_BYTES = 4 << 20


class Buffer(NamedTuple):
    """One array, checked and contiguous.

    `handle` is what the kernels take: a numpy array or an address. `owner` keeps it alive and is
    the caller's own array unless that had to be copied.
    """

    handle: Any
    owner: Any
    kind: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    copied: bool


@functools.cache
def torch_dtypes() -> dict[Any, str]:
    """Return the names of torch's dtypes; only called when torch is there."""
    import torch

    names = {getattr(torch, name): name for name in (*FLOATING, *INTEGER)}
    return names | {torch.complex64: "complex64", torch.complex128: "complex128"}


def is_tensor(value: object) -> bool:
    """Whether `value` is a torch tensor (then torch is imported already)."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_array(value: object) -> bool:
    """Whether `value` is a numpy array or a torch tensor."""
    return isinstance(value, np.ndarray) or is_tensor(value)


def describe(value: Any, where: str) -> Buffer:
    """Return `value` as a buffer; `where` names it in errors.

    Strided, byte-swapped or unaligned arrays are copied once; everything else is used in place.
    """
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if isinstance(value, np.ndarray):
        return _describe_numpy(value, where)
    if is_tensor(value):
        return _describe_torch(value, where)
    raise TypeError(
        f"{where} must be a numpy array or a torch tensor, got {type(value).__name__}. "
        "Convert it, for example with numpy.asarray(..., dtype=numpy.float32)."
    )


def describe_alike(values: Sequence[Any]) -> list[Buffer] | None:
    """Return the buffers of plain contiguous arrays that agree, or ``None`` for anything else.

    The same as calling :func:`describe` on each, for small updates where that would take longer
    than the aggregation itself.
    """
    first = values[0]
    kind = type(first)
    if kind is np.ndarray:
        dtype, shape = first.dtype, first.shape
        if dtype.name not in FLOATING or not dtype.isnative:
            return None
        for value in values:
            if type(value) is not kind or value.dtype != dtype or value.shape != shape:
                return None
            if not value.flags.carray and not (value.flags.c_contiguous and value.flags.aligned):
                return None
        common = ("numpy", dtype.name, shape, first.size, False)
        return [tuple.__new__(Buffer, (value, value, *common)) for value in values]
    torch = sys.modules.get("torch")
    if torch is None or kind not in (torch.Tensor, torch.nn.Parameter):
        return None
    try:
        return _alike_tensors(values, kind, torch.strided)
    except RuntimeError:  # a tensor that only stands for others; describe() says which
        return None


def _alike_tensors(values: Sequence[Any], kind: Any, strided: Any) -> list[Buffer] | None:
    first = values[0]
    dtype, shape, size = first.dtype, first.shape, first.numel()
    name = torch_dtypes().get(dtype)
    if name not in FLOATING:
        return None
    nbytes = size * dtype.itemsize
    addresses = []
    for value in values:
        if type(value) is not kind or value.dtype is not dtype or value.shape != shape:
            return None
        if not value.is_cpu or value.layout is not strided:
            return None
        if not value.is_contiguous() or value.is_neg():
            return None
        start = value.data_ptr()
        stored = value.untyped_storage().nbytes() - value.storage_offset() * dtype.itemsize
        if size and (start == 0 or stored < nbytes):
            return None
        addresses.append(start)
    common = ("torch", name, tuple(shape), size, False)
    return [
        tuple.__new__(Buffer, (start, value, *common))
        for start, value in zip(addresses, values, strict=True)
    ]


def _describe_numpy(value: np.ndarray[Any, Any], where: str) -> Buffer:
    name = value.dtype.name
    _require_supported(name, where)
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{where} must be a plain numpy array, got a masked one. Fill it first.")
    plain = value.flags.c_contiguous and value.dtype.isnative and value.flags.aligned
    array = value if plain else np.array(value, dtype=value.dtype.newbyteorder("="), order="C")
    return Buffer(array, array, "numpy", name, value.shape, value.size, not plain)


def check_tensor(value: Any, where: str) -> str:
    """Return the name of a tensor's dtype; refuse tensors that the kernels cannot read."""
    if value.is_nested or value.layout is not sys.modules["torch"].strided:
        layout = "nested" if value.is_nested else value.layout
        raise TypeError(
            f"{where} must be a dense tensor, got layout {layout}. Convert it first, for example "
            "with .to_dense()."
        )
    if not value.is_cpu:
        raise TypeError(f"{where} must be on the CPU, got device {value.device}.")
    name = torch_dtypes().get(value.dtype) or str(value.dtype)
    _require_supported(name, where)
    _require_memory(value, where)
    return name


def _describe_torch(value: Any, where: str) -> Buffer:
    name = check_tensor(value, where)
    tensor = value
    copied = not tensor.is_contiguous() or tensor.is_neg()
    if copied:
        tensor = tensor.detach().resolve_neg().contiguous()
    return Buffer(
        tensor.data_ptr(), tensor, "torch", name, tuple(value.shape), value.numel(), copied
    )


def _require_memory(tensor: Any, where: str) -> None:
    """Refuse tensors whose elements are not in memory: fake, transformed, or freed."""
    try:
        size, storage = tensor.numel(), tensor.untyped_storage()
        last = tensor.storage_offset() + size - 1
        if not tensor.is_contiguous():
            spans = zip(tensor.shape, tensor.stride(), strict=True)
            last = tensor.storage_offset() + sum((n - 1) * stride for n, stride in spans)
        stored, needed = storage.nbytes(), (last + 1) * tensor.dtype.itemsize
        # A fake tensor's storage is on the meta device; asking for its address would warn.
        plain = type(tensor) is sys.modules["torch"].Tensor or storage.device.type == "cpu"
        real = plain and tensor.data_ptr() != 0
    except (RuntimeError, ValueError) as error:
        raise TypeError(
            f"{where} must be a tensor with memory of its own, got {_name(tensor)} without any "
            f"({error}). Call this outside of transformations such as torch.func.vmap, grad and "
            "functionalize, and with initialised parameters."
        ) from error
    if size and not (real and needed <= stored):
        got = f"{stored} bytes of storage for {needed}" if needed > stored else "none"
        raise TypeError(
            f"{where} must be a tensor whose elements are in memory, got {got} "
            f"({_name(tensor)}). Fake, functional and wrapper tensors, and tensors whose storage "
            "was freed, have no values to read; pass a plain tensor."
        )


def _require_supported(dtype: str, where: str) -> None:
    if dtype not in FLOATING and dtype not in INTEGER:
        raise TypeError(
            f"{where} must have one of the dtypes {', '.join((*FLOATING, *INTEGER))}, "
            f"got {dtype}. Convert it first."
        )


def empty(kind: str, shape: tuple[int, ...], dtype: str) -> Any:
    """Return an uninitialised array of `kind` (``"numpy"`` or ``"torch"``)."""
    if kind == "numpy":
        item = np.dtype(dtype)
        size = math.prod(shape) * item.itemsize
        if size < _POOLED_BYTES:
            return np.empty(shape, dtype=item)
        return _pooled(size, shape, dtype).view(item).reshape(shape)
    import torch

    torch_dtype = getattr(torch, dtype)
    size = math.prod(shape) * torch_dtype.itemsize
    if size < _POOLED_BYTES:
        return torch.empty(shape, dtype=torch_dtype, device="cpu")
    return torch.from_numpy(_pooled(size, shape, dtype)).view(torch_dtype).reshape(shape)


def _pooled(size: int, shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    try:
        return core.allocate(size)
    except MemoryError as error:
        raise MemoryError(
            f"a result of shape {shape} and dtype {dtype} takes {size} bytes, more than there is "
            "memory. Pass a smaller size, or split the update."
        ) from error


def output_buffer(out: Any, kind: str, shape: tuple[int, ...], dtype: str, where: str) -> Buffer:
    """Check that `out` can receive a result of this kind and shape, and return its buffer."""
    if kind == "numpy":
        if not isinstance(out, np.ndarray):
            raise TypeError(f"{where} must be a numpy array like the updates, got {_name(out)}.")
        if not (out.flags.writeable and out.flags.c_contiguous and out.flags.aligned):
            raise ValueError(f"{where} must be a writable, C-contiguous, aligned numpy array.")
    else:
        if not is_tensor(out):
            raise TypeError(f"{where} must be a torch tensor like the updates, got {_name(out)}.")
        if not out.is_contiguous() or out.is_neg():
            raise ValueError(f"{where} must be a contiguous tensor.")
    buffer = describe(out, where)
    if buffer.copied:
        raise ValueError(f"{where} must have native byte order, got {out.dtype}.")
    if buffer.shape != shape:
        raise ValueError(f"{where} must have shape {shape}, got {buffer.shape}.")
    if buffer.dtype != dtype:
        raise TypeError(f"{where} must have dtype {dtype}, got {buffer.dtype}.")
    return buffer


def require_no_gradient(out: Any, where: str) -> None:
    """Refuse an output that autograd follows: torch cannot record what the kernels write."""
    if is_tensor(out) and out.requires_grad and sys.modules["torch"].is_grad_enabled():
        raise ValueError(
            f"{where} must not require gradients, got a tensor with requires_grad=True. "
            "Pass out.detach(), or call this under torch.no_grad()."
        )


def announce_writes(buffers: Iterable[Buffer]) -> None:
    """Let torch know that tensors will be written: what autograd saved of them is stale then."""
    for buffer in buffers:
        if buffer.kind == "torch" and not buffer.owner.is_inference():
            # An empty operation in place advances the version, which detach() shares.
            buffer.owner.detach().reshape(-1)[:0].zero_()


def require_disjoint(
    outs: Sequence[tuple[str, Buffer]], inputs: Iterable[Buffer], of: str = "the updates"
) -> None:
    """Refuse outputs, given with their names, whose memory overlaps an input's."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(extent(buffer) for buffer in inputs):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    starts = [start for start, _ in merged]
    for where, buffer in outs:
        start, stop = extent(buffer)
        at = bisect.bisect_left(starts, stop) - 1
        if start < stop and at >= 0 and merged[at][1] > start:
            raise ValueError(f"{where} must not share memory with {of}. Pass another buffer.")


def require_apart(outs: Iterable[tuple[str, Buffer]]) -> None:
    """Refuse outputs, given with their names, that share memory with each other."""
    spans = sorted((*extent(buffer), where) for where, buffer in outs if buffer.size)
    for (_, stop, one), (start, _, another) in itertools.pairwise(spans):
        if start < stop:
            first, second = sorted((one, another))
            raise ValueError(
                f"{first} and {second} must not share memory, or one result overwrites the other. "
                "Pass arrays of their own."
            )


def extent(buffer: Buffer) -> tuple[int, int]:
    """Return the first address of a buffer and the first one after it."""
    owner = buffer.owner
    if buffer.kind == "numpy":
        start = owner.__array_interface__["data"][0]
        return start, start + owner.nbytes
    return buffer.handle, buffer.handle + buffer.size * owner.element_size()


def _name(value: object) -> str:
    return type(value).__name__
