"""Tensors on accelerators: copied to the host, combined there, and the result copied back.

The kernels define the results, to the last bit. Operations of an accelerator round and order sums
in their own ways, so computing there would give other bits than everywhere else.
"""

from __future__ import annotations

from typing import Any

from fedbench.errors import LayoutError

_HOST = ("cpu", "meta")  # meta tensors have no values to copy


def is_remote(tensor: Any) -> bool:
    """Whether a torch tensor's elements are in the memory of an accelerator."""
    return tensor.device.type not in _HOST


def to_host(tensor: Any) -> Any:
    """Return a contiguous copy in host memory, without gradient history."""
    return tensor.detach().resolve_neg().cpu().contiguous()


def require_device(tensor: Any, device: Any, where: str) -> None:
    """Refuse a client's tensor on another device than the first client's."""
    if tensor.device != device:
        raise LayoutError(
            f"{where} must be on device {device} like client 0's, got {tensor.device}. Move it "
            "with .to()."
        )


def require_target(out: Any, like: Any, device: Any, where: str) -> None:
    """Check that `out` can receive a result of the shape and dtype of a host tensor `like`."""
    if type(out).__module__.partition(".")[0] == "numpy" or not hasattr(out, "device"):
        raise TypeError(
            f"{where} must be a torch tensor like the updates, got {type(out).__name__}."
        )
    if out.device != device:
        raise TypeError(f"{where} must be on device {device} like the updates, got {out.device}.")
    if out.dtype != like.dtype:
        raise TypeError(f"{where} must have dtype {like.dtype}, got {out.dtype}.")
    if out.shape != like.shape:
        raise ValueError(f"{where} must have shape {tuple(like.shape)}, got {tuple(out.shape)}.")


def deliver(value: Any, device: Any, out: Any) -> Any:
    """Return a host tensor's values on `device`, or copy them into `out`."""
    if out is None:
        return value.to(device)
    out.detach().copy_(value)
    return out
