"""Arrays of either library as buffers for the kernels, without importing torch for numpy users."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from fedbench._native import core
from fedbench.aggregation import _devices

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


class Buffer(NamedTuple):
    """One array, checked and contiguous.

    `handle` is what the kernels take: an address, or a numpy array. `owner` keeps it alive and is
    the caller's own array unless that had to be copied.
    """

    handle: Any
    owner: Any
    kind: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    copied: bool

    def summary(self) -> str:
        """Return library, dtype and shape in words."""
        return f"{self.kind} {self.dtype} {self.shape}"


@functools.cache
def torch_dtypes() -> dict[Any, str]:
    """Return the names of torch's dtypes; only called when torch is there."""
    import torch

    names = {getattr(torch, name): name for name in (*FLOATING, *INTEGER)}
    return names | {torch.complex64: "complex64", torch.complex128: "complex128"}


@functools.cache
def item_size(dtype: str) -> int:
    """Return the bytes of one element."""
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def address(buffer: Buffer) -> int:
    """Return the address of a buffer's first element."""
    return address_of(buffer.handle)


def address_of(handle: Any) -> int:
    """Return the address behind a buffer's handle."""
    start: int = handle if type(handle) is int else handle.__array_interface__["data"][0]
    return start


def reinterpret(part: Any, dtype: str, kind: str) -> Any:
    """Return the same memory as elements of another type."""
    if kind == "numpy":
        return part.view(np.dtype(dtype))
    import torch

    return part.view(getattr(torch, dtype))


def raw_bytes(buffer: Buffer) -> bytes:
    """Return the bytes of a buffer's elements."""
    if buffer.kind == "numpy":
        raw: bytes = buffer.owner.tobytes()
        return raw
    import torch

    flat = buffer.owner.reshape(-1).view(torch.uint8)
    return bytes(flat.numpy().tobytes())


def copy_of(flat: Buffer) -> Buffer:
    """Return a copy of an array in memory of its own."""
    if flat.kind == "numpy":
        return describe(flat.owner.copy(), "flat")
    return describe(flat.owner.detach().clone(), "flat")


def copy_into(target: Any, source: Any) -> None:
    """Copy an array into another one of its library, which may be strided."""
    if isinstance(target, np.ndarray):
        target[...] = source
    else:
        target.detach().copy_(source)


def require_named(names: Iterable[Any], where: str) -> None:
    """Refuse the key ``None``, which would be the name of an update that is a bare array."""
    if None in names:
        raise TypeError(
            f"{where} must have names as keys, got None for one of its entries. Use a string."
        )


def is_tensor(value: object) -> bool:
    """Whether `value` is a torch tensor (then torch is imported already)."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_array(value: object) -> bool:
    """Whether `value` is a numpy array or a torch tensor."""
    return isinstance(value, np.ndarray) or is_tensor(value)


def describe(value: Any, where: str, *, remote: bool = False) -> Buffer:
    """Return `value` as a buffer; `where` names it in errors.

    Strided, byte-swapped or unaligned arrays are copied once; everything else is used in place.
    With `remote`, tensors on accelerators are copied to the host; else they are refused.
    """
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if isinstance(value, np.ndarray):
        return _describe_numpy(value, where)
    if is_tensor(value):
        return _describe_torch(value, where, remote)
    if _is_update_with_weight(value):
        raise TypeError(
            f"{where} must be an array or a mapping of names to arrays, got a tuple with a number. "
            "Pass updates and weights apart: [update_0, ...], weights=[weight_0, ...]."
        )
    if isinstance(value, (list, tuple)) and any(is_array(part) for part in value):
        raise TypeError(
            f"{where} must be an array or a mapping of names to arrays, got a "
            f"{type(value).__name__} of {len(value)} arrays. Name them, for example "
            "{str(i): array for i, array in enumerate(update)}."
        )
    if callable(getattr(value, "state_dict", None)):  # a module
        raise TypeError(
            f"{where} must be an array or a mapping of names to arrays, got a "
            f"{type(value).__name__}. Pass its state_dict()."
        )
    raise TypeError(
        f"{where} must be a numpy array or a torch tensor, got {type(value).__name__}."
        + _remedy(value)
    )


def _is_update_with_weight(value: Any) -> bool:
    if not isinstance(value, tuple) or len(value) != 2:
        return False
    return isinstance(value[1], (int, float)) and not isinstance(value[0], (int, float))


_MEANT_FOR = {
    "SparseUpdate": " Use sparse_mean.",
    "QuantizedUpdate": " Use quantized_mean.",
    "StreamingMean": " Use its merge(), or pass its result().",
}


def _remedy(value: Any) -> str:
    """Say what to do with something that is no array; numpy would make a NaN of None."""
    if value is None:
        return " Leave it out."
    if isinstance(value, Mapping):
        return (
            " Flatten nested names, for example to 'layer.weight', or pack a state dict into one "
            "vector with FlatLayout.from_state(state).pack(state)."
        )
    if isinstance(value, (int, float)):
        return " Convert it, for example with numpy.float32(...) or numpy.int64(...)."
    if isinstance(value, Iterator):
        return " Convert it, for example with list(...)."
    if isinstance(value, (list, tuple)):
        return " Convert it, for example with numpy.asarray(..., dtype=numpy.float32)."
    return _MEANT_FOR.get(type(value).__name__, "")


def bytes_remedy(dtype: str) -> str:
    """Say what to do if an update is bytes, as layouts of mixed dtypes pack them."""
    if dtype != "uint8":
        return ""
    return (
        " A FlatLayout of entries of several dtypes packs bytes: make one of the floating entries "
        "alone."
    )


class Alike(NamedTuple):
    """Plain arrays that agree: the first one's buffer, and an address for each."""

    first: Buffer
    addresses: list[int]


def describe_alike(values: list[Any]) -> Alike | None:
    """Inspect plain contiguous arrays that agree in one pass; ``None`` for anything else.

    It finds what :func:`describe` finds in each, for small updates where that would take longer
    than the aggregation itself.
    """
    first = values[0]
    kind = type(first)
    if kind is np.ndarray:
        rows, library = core.plain_numpy_rows(values), "numpy"
    else:
        torch = sys.modules.get("torch")
        if torch is None or kind not in (torch.Tensor, torch.nn.Parameter):
            return None
        api = exchange_api()
        rows = _alike_tensors(values) if api is None else core.plain_torch_rows(values, api)
        library = "torch"
    if rows is None:
        return None
    addresses, code, shape, size = rows
    buffer = Buffer(addresses[0], first, library, FLOATING[code], shape, size, False)
    return Alike(buffer, addresses)


@functools.cache
def exchange_api() -> Any:
    """Return the table by which torch hands out a tensor's fields, if it is recent enough."""
    return getattr(sys.modules["torch"].Tensor, "__dlpack_c_exchange_api__", None)


def _alike_tensors(values: list[Any]) -> tuple[list[int], int, tuple[int, ...], int] | None:
    """Inspect tensors like the extension does, for a torch that has no exchange table."""
    first, strided = values[0], sys.modules["torch"].strided
    try:
        dtype, shape, size = first.dtype, first.shape, first.numel()
        name = torch_dtypes().get(dtype)
        if name not in FLOATING:
            return None
        nbytes = size * dtype.itemsize
        addresses = []
        for value in values:
            if type(value) is not type(first) or value.dtype is not dtype or value.shape != shape:
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
    except RuntimeError:  # a tensor that only stands for others; describe() says which
        return None
    return addresses, FLOATING.index(name), tuple(shape), size


def _describe_numpy(value: np.ndarray[Any, Any], where: str) -> Buffer:
    name = value.dtype.name
    _require_supported(name, where)
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{where} must be a plain numpy array, got a masked one. Fill it first.")
    plain = value.flags.c_contiguous and value.dtype.isnative and value.flags.aligned
    array = value if plain else np.array(value, dtype=value.dtype.newbyteorder("="), order="C")
    return Buffer(array, array, "numpy", name, value.shape, value.size, not plain)


def check_tensor(value: Any, where: str, *, remote: bool = False) -> str:
    """Return the name of a tensor's dtype; refuse tensors that the kernels cannot read."""
    if value.is_nested or value.layout is not sys.modules["torch"].strided:
        layout = "nested" if value.is_nested else value.layout
        raise TypeError(
            f"{where} must be a dense tensor, got layout {layout}. Convert it first, for example "
            "with .to_dense()."
        )
    elsewhere = _devices.is_remote(value)
    if not (value.is_cpu or (remote and elsewhere)):
        raise TypeError(f"{where} must be on the CPU, got device {value.device}.")
    name = torch_dtypes().get(value.dtype) or str(value.dtype)
    _require_supported(name, where)
    if not elsewhere:
        _require_memory(value, where)
    return name


def _describe_torch(value: Any, where: str, remote: bool) -> Buffer:
    name = check_tensor(value, where, remote=remote)
    tensor = _devices.to_host(value) if remote and _devices.is_remote(value) else value
    copied = tensor is not value or not tensor.is_contiguous() or tensor.is_neg()
    if tensor is value and copied:
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
            f"{where} must be a tensor with memory of its own, got {name_of(tensor)} without any "
            f"({error}). Call this outside of transformations such as torch.func.vmap, grad and "
            "functionalize, and with initialised parameters."
        ) from error
    if size and not (real and needed <= stored):
        got = f"{stored} bytes of storage for {needed}" if needed > stored else "none"
        raise TypeError(
            f"{where} must be a tensor whose elements are in memory, got {got} "
            f"({name_of(tensor)}). Fake, functional and wrapper tensors, and tensors whose storage "
            "was freed, have no values to read; pass a plain tensor."
        )


def _require_supported(dtype: str, where: str) -> None:
    if dtype not in FLOATING and dtype not in INTEGER:
        raise TypeError(
            f"{where} must have one of the dtypes {', '.join(FLOATING)} (in a state dict also "
            f"those of integers and bool), got {dtype}. Convert it to one of the first four."
        )


def listed(names: Sequence[str], most: int = 20) -> str:
    """Return names in quotes; of many, the first ones."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more


def name_of(value: object) -> str:
    return type(value).__name__
