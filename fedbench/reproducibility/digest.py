"""One number for a whole state: a digest that is equal when and only when the bits are."""

from __future__ import annotations

import dataclasses
import hashlib
import operator
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["check_state", "digest"]


def digest(state: Any) -> str:
    """Return the SHA-256 of a nested state, in hexadecimal.

    Parameters
    ----------
    state : object
        Mappings (keys: str, int, bool or None, in any order), sequences, sets, dataclasses,
        torch tensors of any device, numpy arrays, numbers, text, bytes and ``None``, nested at
        will.

    Returns
    -------
    str
        64 hexadecimal digits. Names, dtypes, shapes and the very bits of the values count:
        ``-0.0`` differs from ``0.0``, and NaN is equal to the same NaN. The order of a mapping's
        keys, strides, storage sharing (tied entries), ``requires_grad``, the device, and
        whether an array is torch's or numpy's do not count. Lists and tuples are alike.

    Raises
    ------
    TypeError
        If something else is found; the message says where.
    """
    hasher = _Hasher()
    _feed(hasher, state, "state")
    return hasher.digest().hex()


class _Hasher:
    """SHA-256 of headers and arrays."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()

    def update(self, data: Any) -> None:
        self._sha256.update(data)

    def update_array(self, array: Any) -> None:
        dtype, shape, data = _array_bytes(array)
        self._sha256.update(f"array {dtype} {list(shape)}\n".encode())
        self._sha256.update(data)

    def digest(self) -> bytes:
        return self._sha256.digest()


class _Unread:
    """Takes what a hasher takes, and does not look at it: values stay where they are."""

    def update(self, data: Any) -> None:
        pass

    def update_array(self, array: Any) -> None:
        pass


def check_state(state: Any, name: str = "state") -> None:
    """Raise the ``TypeError`` that :func:`digest` would raise, without reading values.

    Parameters
    ----------
    state : object
        What is to be digested later.
    name : str
        What the message calls it.

    Raises
    ------
    TypeError
        As :func:`digest` does.
    """
    _feed(_Unread(), state, name)


def _feed(hasher: _Hasher | _Unread, value: Any, path: str) -> None:
    """Add `value` to the digest. Every kind starts with a tag and a length: no ambiguities."""
    if _is_array(value, path):
        hasher.update_array(value)
    elif isinstance(value, Mapping):
        _feed_mapping(hasher, "mapping", value, path)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        _feed_mapping(hasher, f"dataclass {type(value).__qualname__}", fields, path)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        hasher.update(b"sequence %d\n" % len(value))
        for index, item in enumerate(value):
            _feed(hasher, item, f"{path}[{index}]")
    elif isinstance(value, set | frozenset):
        hasher.update(b"set %d\n" % len(value))
        for item_digest in sorted(_digest_item(item, f"{path}{{}}") for item in value):
            hasher.update(item_digest)
    else:
        hasher.update(_scalar(value, path))


def _feed_mapping(
    hasher: _Hasher | _Unread, tag: str, mapping: Mapping[Any, Any], path: str
) -> None:
    hasher.update(f"{tag} {len(mapping)}\n".encode())
    for name, key in sorted(
        ((_scalar(key, f"a key of {path}"), key) for key in mapping), key=operator.itemgetter(0)
    ):
        hasher.update(name)
        _feed(hasher, mapping[key], f"{path}[{key!r}]")


def _digest_item(item: Any, path: str) -> bytes:
    hasher = _Hasher()
    _feed(hasher, item, path)
    return hasher.digest()


def _scalar(value: Any, path: str) -> bytes:
    """Encode a plain value."""
    if value is None or isinstance(value, bool | np.bool_):
        return f"{value}\n".encode()
    if isinstance(value, float):  # numpy.float64 is one
        return b"float " + struct.pack("<d", value)
    if isinstance(value, complex):
        return b"complex " + struct.pack("<dd", value.real, value.imag)
    if isinstance(value, str):
        raw = value.encode("utf-8", "surrogatepass")
        return b"text %d\n%b" % (len(raw), raw)
    if isinstance(value, bytes | bytearray):
        return b"bytes %d\n%b" % (len(value), bytes(value))
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(
            f"{path} must be a mapping, a sequence, a tensor, an array or a plain value, got "
            f"{type(value).__name__}. Convert it first."
        ) from None
    raw = number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
    return b"int %d\n%b" % (len(raw), raw)


def _is_array(value: Any, path: str) -> bool:
    """Return whether `value` is a tensor or an array; a `TypeError` if one without plain values."""
    if _is_tensor(value):
        if value.layout != _torch().strided or value.is_quantized or value.device.type == "meta":
            raise TypeError(
                f"{path} must be a dense tensor with values, got layout {value.layout}, dtype "
                f"{value.dtype} on device {value.device}. Convert it first."
            )
        return True
    if not isinstance(value, np.ndarray | np.generic) or isinstance(
        value, float | np.integer | np.bool_ | str | bytes
    ):
        return False
    if value.dtype.hasobject or value.dtype.kind not in "biufcMmSU":
        raise TypeError(
            f"{path} must be an array of plain numbers, got dtype {value.dtype}. Convert it first."
        )
    return True


def _torch() -> Any:
    return sys.modules.get("torch")  # without torch there are no tensors to be found


def _is_tensor(value: Any) -> bool:
    torch = _torch()
    return torch is not None and isinstance(value, torch.Tensor)


def _array_bytes(array: Any) -> tuple[str, Sequence[int], Any]:
    """Return the name of the dtype, the shape and the bytes in C order."""
    if _is_tensor(array):
        plain = array.detach().resolve_conj().resolve_neg().cpu().contiguous()
        data = plain.reshape(-1).view(_torch().uint8).numpy()
        return str(array.dtype).removeprefix("torch."), tuple(array.shape), data
    contiguous = np.ascontiguousarray(array)
    little = contiguous.astype(contiguous.dtype.newbyteorder("<"), copy=False)
    name = little.dtype.name if little.dtype.kind in "biufc" else little.dtype.str
    return name, np.shape(array), little.reshape(-1).view(np.uint8)
