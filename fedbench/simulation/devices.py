"""Client training on a GPU: what moves there and back, and what is drawn there.

The server's state and everything that travels stay in CPU memory, on every backend. A client task
moves the broadcast and its client's samples and state to its device, and its results back.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from fedbench.reproducibility import stream_key

__all__ = ["checked_device", "device_draws", "moved"]


def checked_device(name: str, backend: str) -> str:
    """Return `name` if clients of the executor `backend` can train there.

    Raises
    ------
    TypeError, ValueError
        If it names no device, or one that this machine lacks. Whether the nodes of a Ray cluster
        have it is known when their first task runs.
    """
    if not isinstance(name, str):
        raise TypeError(f"device must be a text such as 'cuda:0', got {type(name).__name__}.")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be 'cpu', 'cuda' or 'cuda:N', got {name!r}.")
    if device.type == "cpu":
        return "cpu"
    if backend == "threads":
        raise ValueError(
            f"device must be 'cpu' on the backend 'threads', got {name!r}: all threads would draw "
            "from the one generator of the GPU. Use processes or sequential."
        )
    if backend != "ray":
        _require_cuda(device, name)
    return name


def _require_cuda(device: torch.device, name: str) -> None:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        why = "was built without CUDA" if torch.version.cuda is None else "finds no CUDA device"
        raise ValueError(
            f"device must be 'cpu' here, got {name!r}: this torch ({torch.__version__}) {why}. "
            "Leave device out, or install a torch with CUDA on a machine with a GPU."
        )
    if device.index is not None and device.index >= count:
        raise ValueError(
            f"device must be one of cuda:0 to cuda:{count - 1}, got {name!r}. This machine has "
            f"{count}."
        )


def moved(value: Any, device: str) -> Any:
    """Return `value` with all tensors in its dataclasses, mappings, lists and tuples on `device`.

    Where all are there already, what they are in may be made anew; the tensors are the same.
    """
    if isinstance(value, Tensor):
        return value.to(device)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return dataclasses.replace(value, **{n: moved(getattr(value, n), device) for n in names})
    if isinstance(value, Mapping):
        return {key: moved(entry, device) for key, entry in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(moved(entry, device) for entry in value))
    if isinstance(value, list | tuple):
        return type(value)(moved(entry, device) for entry in value)
    return value


@contextlib.contextmanager
def device_draws(device: str, seed: int, *key: int | str) -> Iterator[None]:
    """Draw the module-level randomness on a GPU from a stream of the task's own.

    The GPU's generator is put back afterwards, and with it the CPU's, which here is the task's own.
    """
    own = int.from_bytes(stream_key(seed, "device", *key)[:7], "little")
    with torch.cuda.device(device), torch.random.fork_rng([torch.cuda.current_device()]):
        torch.cuda.manual_seed(own)
        yield
