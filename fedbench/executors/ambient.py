"""The caller's ambient torch state, captured and set in every worker.

Torch's results depend on settings that are not arguments: some belong to a thread (grad mode,
flush-denormal, autocast, intra-op threads), some to the process (default dtype, deterministic
algorithms, matmul precision). A worker that lacked them would compute other bits than the caller.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

__all__ = ["Ambient", "intraop_scope", "set_intraop_threads"]

_DENORMAL = 5e-324
_thread = threading.local()


@dataclass(frozen=True)
class Ambient:
    """A snapshot of the ambient state; picklable."""

    grad: bool
    inference: bool
    flush_denormal: bool
    default_dtype: torch.dtype
    default_device: str
    autocast: bool
    autocast_dtype: torch.dtype
    autocast_cache: bool
    deterministic: bool
    deterministic_warn_only: bool
    fill_uninitialized_memory: bool
    matmul_precision: str
    mkldnn: bool

    @classmethod
    def capture(cls) -> Ambient:
        """Return the state of the calling thread."""
        return cls(
            grad=torch.is_grad_enabled(),
            inference=torch.is_inference_mode_enabled(),
            # Torch has a setter only; the flag lives in the CPU's control register and acts on
            # Python's own floats as well.
            flush_denormal=_DENORMAL * float(1) == 0.0,
            default_dtype=torch.get_default_dtype(),
            default_device=str(torch.get_default_device()),
            autocast=torch.is_autocast_enabled("cpu"),
            autocast_dtype=torch.get_autocast_dtype("cpu"),
            autocast_cache=torch.is_autocast_cache_enabled(),
            deterministic=torch.are_deterministic_algorithms_enabled(),
            deterministic_warn_only=torch.is_deterministic_algorithms_warn_only_enabled(),
            fill_uninitialized_memory=torch._C._get_deterministic_fill_uninitialized_memory(),
            matmul_precision=torch.get_float32_matmul_precision(),
            mkldnn=torch._C._get_mkldnn_enabled(),
        )

    def apply(self) -> None:
        """Set this state in the calling worker thread; only what differs is touched."""
        now = Ambient.capture()
        if now == self:
            return
        if now.inference != self.inference:
            _set_inference_mode(self.inference)
        torch.set_grad_enabled(self.grad)
        torch.set_flush_denormal(self.flush_denormal)
        torch.set_default_dtype(self.default_dtype)
        if now.default_device != self.default_device:
            torch.set_default_device(self.default_device)
        torch.set_autocast_enabled("cpu", self.autocast)
        torch.set_autocast_dtype("cpu", self.autocast_dtype)
        torch.set_autocast_cache_enabled(self.autocast_cache)
        torch.use_deterministic_algorithms(
            self.deterministic, warn_only=self.deterministic_warn_only
        )
        torch._C._set_deterministic_fill_uninitialized_memory(self.fill_uninitialized_memory)
        torch.set_float32_matmul_precision(self.matmul_precision)
        torch._C._set_mkldnn_enabled(self.mkldnn)


def _set_inference_mode(on: bool) -> None:
    """Enter or leave inference mode for good: torch offers it as a scope only."""
    scope = getattr(_thread, "inference", None)
    if scope is not None:
        scope.__exit__(None, None, None)
        _thread.inference = None
    if on:
        _thread.inference = torch.inference_mode()
        _thread.inference.__enter__()


def set_intraop_threads(threads: int) -> None:
    """Set the number of torch's intra-op threads for the calling thread, for good."""
    # A thread takes over the process's number when it first looks; a number set before that look
    # would be lost.
    torch.get_num_threads()
    torch.set_num_threads(threads)


@contextmanager
def intraop_scope(threads: int) -> Iterator[None]:
    """Run the block with this many intra-op threads and restore the number before."""
    before = torch.get_num_threads()
    if before == threads:
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
