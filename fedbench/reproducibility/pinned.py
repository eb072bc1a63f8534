"""What the bits of a run depend on besides its seed: pinned by fedbench, or only recorded."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

from fedbench._native import core

__all__ = ["incomparable", "pinned"]

_WHY = {
    "machine": "other processors round elementary functions differently",
    "torch": "torch's kernels change from release to release",
    "torch_capability": "torch's kernels sum in another order on another instruction set",
    "intraop_threads": "torch splits reductions over its intra-op threads",
    "numpy": "numpy's functions change from release to release",
    "deterministic_algorithms": "torch chooses other kernels",
    "matmul_precision": "torch multiplies in another precision",
    "default_dtype": "tensors are made in another dtype",
    "flush_denormal": "subnormal numbers become zero",
    "device": "each device rounds in its own way",
    "vectorized": "clients that are trained at once round in another way",
}


def pinned(
    intraop_threads: int = 1, *, device: str = "cpu", vectorized: str = "no"
) -> dict[str, Any]:
    """Return what the bits of a run in this process depend on, as plain values.

    Parameters
    ----------
    intraop_threads : int
        Threads that torch may use inside a client task.
    device : str
        Where clients train.
    vectorized : str
        How clients are trained at once, if they are.

    Returns
    -------
    dict
        Versions of torch and numpy, the instruction set that torch's kernels use, intra-op
        threads, torch's flags, and, for information, the instruction set of our own kernels,
        whose results do not depend on it.
    """
    import numpy as np
    import torch

    return {
        "machine": platform.machine(),
        "torch": torch.__version__,
        "torch_capability": torch.backends.cpu.get_cpu_capability(),
        "numpy": np.__version__,
        "intraop_threads": intraop_threads,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "default_dtype": str(torch.get_default_dtype()),
        "flush_denormal": _flushes_denormals(torch),
        "device": device,
        "vectorized": vectorized,
        "kernel_isa": core.isa_level(),
    }


def incomparable(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[str]:
    """Return why two runs cannot be expected to have the same bits, empty if they can.

    Parameters
    ----------
    left, right : mapping
        From :func:`pinned`, on whatever machine.
    """
    return [
        f"{name} is {left.get(name)!r} on one side and {right.get(name)!r} on the other: {why}"
        for name, why in _WHY.items()
        if left.get(name) != right.get(name)
    ]


def _flushes_denormals(torch: Any) -> bool:
    """Return whether this thread turns subnormal results into zero."""
    return bool((torch.tensor([1e-38]) * 1e-3).item() == 0.0)
