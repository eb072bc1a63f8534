"""Pickling for transport: payload and tensor memory kept apart, and exceptions made portable.

:func:`pack` turns an object into a payload (bytes) and a list of buffers, the raw memory of the
tensors and arrays inside. A transport moves the buffers as it likes, at addresses that are
multiples of 64 bytes, and :func:`unpack` builds the object on top of them without a copy. All
else is cloudpickled: lambdas, closures, classes from ``__main__`` and from modules that the
worker could not import.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.machinery
import io
import pickle
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import cloudpickle
import torch

from fedbench.errors import ExecutorError
from fedbench.executors.guard import kept_strides
from fedbench.executors.resident import Resident
from fedbench.executors.runner import Failure

__all__ = ["Packer", "RemoteError", "pack", "portable_failure", "unpack"]

ResidentReducer = Callable[[Resident[Any]], tuple[Any, ...]]


class RemoteError(ExecutorError):
    """Stands for an exception that could not be brought back from the worker.

    The message names its class and gives its text.
    """


def pack(
    value: Any, reduce_resident: ResidentReducer | None = None
) -> tuple[bytes, list[memoryview]]:
    """Return `value` as a payload and the buffers of its tensors and arrays.

    The buffers are views of the tensors' own memory: move them before the tensors change.

    Parameters
    ----------
    value : object
        Anything that cloudpickle can take.
    reduce_resident : callable, optional
        Gives the pickle reduction of a :class:`Resident`; by default its value is packed.

    Raises
    ------
    Exception
        Whatever the object's own pickling raises.
    """
    buffers: list[memoryview] = []
    with io.BytesIO() as stream:
        packer = Packer(stream, buffers, reduce_resident)
        packer.dump(value)
        return stream.getvalue(), buffers


def unpack(payload: bytes | memoryview, buffers: Iterable[Any] = ()) -> Any:
    """Return the object of a payload; its tensors live in `buffers` and keep them alive."""
    if not torch.is_inference_mode_enabled():
        return pickle.loads(payload, buffers=buffers)
    with torch.inference_mode(False):
        return pickle.loads(payload, buffers=buffers)


class Packer(cloudpickle.Pickler):  # type: ignore[misc]
    """Cloudpickle with the memory of tensors out of band."""

    def __init__(
        self,
        stream: io.BytesIO,
        buffers: list[memoryview],
        reduce_resident: ResidentReducer | None,
    ) -> None:
        def keep(buffer: pickle.PickleBuffer) -> None:
            buffers.append(buffer.raw())

        super().__init__(stream, protocol=5, buffer_callback=keep)
        self._reduce_resident = reduce_resident
        self._tied: dict[Any, torch.Tensor] = {}

    def reducer_override(self, obj: Any) -> Any:
        """Return how to pickle tensors, residents, and what workers could not import."""
        kind = type(obj)
        if kind is torch.Tensor:
            return self._reduce_tensor(obj)
        if kind is Resident and self._reduce_resident is not None:
            return self._reduce_resident(obj)
        if kind is functools.cached_property:
            # Before Python 3.12 it has a lock, and a class of a script would not get through.
            return _cached_property, (obj.func, obj.attrname)
        if kind is types.FunctionType or isinstance(obj, type):
            if _is_of_this_package(obj):
                return NotImplemented  # by name, without cloudpickle's search for the module
            _register_if_unimportable(obj.__module__)
        return super().reducer_override(obj)

    def _reduce_tensor(self, tensor: torch.Tensor) -> Any:
        if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
            return NotImplemented  # torch's own pickling knows these
        if not tensor.numel():
            return _empty_tensor, (tuple(tensor.shape), tensor.dtype, tensor.requires_grad)
        lazy = tensor.is_conj() or tensor.is_neg()
        place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        key = (place, tensor.requires_grad, lazy and (tensor.is_conj(), tensor.is_neg()))
        if key in self._tied:
            return _tied_tensor, (self._tied[key],)
        # This table and the pickler keep every tensor alive, so no address is used twice.
        self._tied[key] = tensor
        plain = tensor.detach()
        if lazy:
            plain = plain.resolve_conj().resolve_neg()
        return _tensor_on, (
            pickle.PickleBuffer(_flat_bytes(plain)),
            tensor.dtype,
            tuple(tensor.shape),
            None if tensor.is_contiguous() else kept_strides(plain),
            tensor.requires_grad,
        )


def _flat_bytes(tensor: torch.Tensor) -> Any:
    """Return the tensor's memory in storage order as an array, copied only if it has gaps."""
    if not tensor.is_contiguous():
        strides = kept_strides(tensor)
        if strides != tensor.stride():
            dense = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device="cpu")
            tensor = dense.copy_(tensor)
        tensor = tensor.as_strided((tensor.numel(),), (1,))
    if tensor.dtype not in _NUMPY_DTYPES:
        # Not reshape: a dimension of size one may have any stride, which view would refuse.
        tensor = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
    return tensor.numpy()


_NUMPY_DTYPES = {torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8}
"""The usual ones of those that numpy has too; others are taken as bytes."""


def _tensor_on(
    buffer: Any,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    requires_grad: bool,
) -> torch.Tensor:
    tensor = torch.frombuffer(buffer, dtype=dtype)
    if strides is not None:
        # In place, because a view would remember its base.
        tensor.as_strided_(shape, strides)
    elif len(shape) != 1:
        tensor.resize_(shape)
    return tensor.requires_grad_() if requires_grad else tensor


def _empty_tensor(shape: tuple[int, ...], dtype: torch.dtype, requires_grad: bool) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="cpu", requires_grad=requires_grad)


def _tied_tensor(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _cached_property(function: Callable[[Any], Any], name: str | None) -> Any:
    made = functools.cached_property(function)
    made.attrname = name
    return made


# -- modules that a worker cannot import ---------------------------------------------------------

_PACKAGE = __name__.partition(".")[0] + "."
_importable: dict[str, bool] = {"__main__": True, "builtins": True}


def _register_if_unimportable(name: str | None) -> None:
    """Have cloudpickle take the functions and classes of a module by value if workers lack it.

    For example a test module that pytest loaded from its path, or a module that was imported
    before the program changed its folder.
    """
    if name is None or name in _importable:
        return
    _importable[name] = name not in sys.modules or _can_be_found(name)
    if not _importable[name]:
        cloudpickle.register_pickle_by_value(sys.modules[name])


def _is_of_this_package(obj: Any) -> bool:
    """Return whether a class or function has a name under which every worker finds it."""
    return str(obj.__module__).startswith(_PACKAGE) and "<" not in obj.__qualname__


def _can_be_found(name: str) -> bool:
    """Return whether an interpreter with this one's path would find the module."""
    search: Sequence[str] | None = None
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        full_name = ".".join(parts[:depth])
        spec = _find_spec(full_name, search)
        if spec is None:
            return False
        search = spec.submodule_search_locations
        if search is None:
            loaded = sys.modules.get(full_name)
            search = getattr(loaded, "__path__", None)  # a module that acts as a package
            if search is None:
                # What follows is not found in folders: an attribute like `os.path`.
                return True
    return True


def _find_spec(name: str, search: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
    # importlib.util.find_spec would answer from sys.modules.
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec: importlib.machinery.ModuleSpec | None = find(name, search) if find else None
        if spec is not None:
            return spec
    return None


# -- exceptions ----------------------------------------------------------------------------------


def portable_failure(failure: Failure) -> Failure:
    """Return `failure` with an exception that survives the way to the calling process."""
    return dataclasses.replace(failure, error=_portable(failure.error), remote=True)


def _portable(error: BaseException) -> BaseException:
    if _survives(error):
        return error
    # Rebuild the same class without its __init__, leaving out what cannot be pickled.
    kind = type(error)
    arguments = tuple(value if _survives(value) else repr(value) for value in error.args)
    attributes = {name: value for name, value in vars(error).items() if _survives(value)}
    rebuilt = _Rebuilt(kind, arguments, attributes)
    if _survives(rebuilt):
        return rebuilt
    return RemoteError(f"{kind.__module__}.{kind.__qualname__}: {error}")


def _survives(value: Any) -> bool:
    """Return whether `value` can be packed, and unpacked to the same type."""
    expected = value.kind if isinstance(value, _Rebuilt) else type(value)
    try:
        payload, buffers = pack(value)
        return type(unpack(payload, buffers)) is expected
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - user code runs in pickling; even sys.exit() means no
        return False


class _Rebuilt(Exception):  # noqa: N818 - never raised, only unpickled as another class
    """Pickles as an exception of class `kind` that is made without calling its ``__init__``."""

    def __init__(
        self, kind: type[BaseException], arguments: tuple[Any, ...], attributes: dict[str, Any]
    ) -> None:
        super().__init__()
        self.kind = kind
        self.arguments = arguments
        self.attributes = attributes

    def __reduce__(self) -> tuple[Any, ...]:
        return _build_exception, (self.kind, self.arguments, self.attributes)


def _build_exception(
    kind: type[BaseException], arguments: tuple[Any, ...], attributes: dict[str, Any]
) -> BaseException:
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    error.__dict__.update(attributes)
    return error
