"""Types of the C++ extension; `mypy.stubtest` checks them against the built module.

A buffer is a C-contiguous numpy array, or the address of a torch tensor's first element as an
int; the caller keeps what is behind an address alive for the length of the call.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt

_Buffer: TypeAlias = int | npt.NDArray[Any]

def compiler() -> str: ...
def cpu_features() -> list[str]: ...
def isa_level() -> str: ...
def isa_levels() -> list[str]: ...
def num_threads() -> int: ...
def set_num_threads(threads: int) -> None: ...
def limit_threads(threads: int) -> None: ...
def allocate(bytes: int) -> npt.NDArray[np.uint8]: ...
def copy(to: memoryview | npt.NDArray[Any], from_: memoryview | npt.NDArray[Any]) -> None: ...
@overload
def subtract(
    to: npt.NDArray[np.float32], a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]
) -> None: ...
@overload
def subtract(
    to: npt.NDArray[np.float64], a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]
) -> None: ...
def keep_buffers(bytes: int | None = None) -> None: ...
def plain_numpy_rows(rows: list[Any]) -> tuple[list[int], int, tuple[int, ...], int] | None: ...
def plain_torch_rows(
    rows: list[Any], exchange_api: Any
) -> tuple[list[int], int, tuple[int, ...], int] | None: ...
def plain_entries(
    row: Any, names: list[str], exchange_api: Any
) -> tuple[list[int], tuple[int, ...], tuple[tuple[int, ...], ...]] | None: ...
def first_overlap(
    outs: list[_Buffer], out_bytes: Sequence[int], rows: list[_Buffer], bytes: Sequence[int]
) -> int | None: ...
def mean(
    rows: list[_Buffer],
    sizes: Sequence[int],
    dtypes: Sequence[int],
    outs: list[_Buffer],
    out_dtypes: Sequence[int],
    weights: Sequence[float] | npt.NDArray[np.float64],
    total_weight: float | None,
) -> bool: ...
def mean_of_plain(
    rows: list[Any],
    names: list[str] | None,
    out: Any,
    weights: Any,
    exchange_api: Any,
    make: Callable[[Any], Any],
) -> tuple[bool, list[Any]] | None: ...
def first_nonfinite(
    rows: list[_Buffer], sizes: Sequence[int], dtypes: Sequence[int]
) -> tuple[int, int] | None: ...
def order_statistic(
    statistic: str,
    parameter: int,
    clients: int,
    rows: list[_Buffer],
    sizes: Sequence[int],
    dtypes: Sequence[int],
    outs: list[_Buffer],
) -> bool: ...
def squared_distance(
    a: list[_Buffer], b: list[_Buffer], sizes: Sequence[int], dtypes: Sequence[int]
) -> float: ...
def exact_squared_distance(
    a: list[_Buffer], b: list[_Buffer], sizes: Sequence[int], dtypes: Sequence[int]
) -> bytes: ...
def gather(
    flat: _Buffer,
    flat_size: int,
    pieces: list[_Buffer],
    offsets: Sequence[int],
    sizes: Sequence[int],
) -> None: ...
def scatter(
    flat: _Buffer,
    flat_size: int,
    pieces: list[_Buffer],
    offsets: Sequence[int],
    sizes: Sequence[int],
) -> None: ...
def sparse_mean(
    indices: list[_Buffer],
    values: list[_Buffer],
    counts: Sequence[int],
    wide_indices: bool,
    size: int,
    dtype: int,
    out: _Buffer,
    weights: Sequence[float] | npt.NDArray[np.float64],
    total_weight: float | None,
) -> tuple[bool, int | None, int]: ...
def quantized_mean(
    rows: list[_Buffer],
    size: int,
    out: _Buffer,
    coefficients: Sequence[float] | npt.NDArray[np.float64],
    total_weight: float,
) -> None: ...
def sgd_step_float32(
    size: int,
    parameters: _Buffer,
    gradient: _Buffer,
    anchor: _Buffer | None,
    correction: _Buffer | None,
    velocity: _Buffer | None,
    lr: float,
    weight_decay: float,
    proximal: float,
    momentum: float,
    nesterov: bool,
    first: bool,
) -> None: ...
def fedavgm_step_float32(
    size: int,
    parameters: _Buffer,
    update: _Buffer,
    velocity: _Buffer,
    server_lr: float,
    momentum: float,
    nesterov: bool,
) -> None: ...
def adaptive_step_float32(
    kind: str,
    size: int,
    parameters: _Buffer,
    update: _Buffer,
    first_moment: _Buffer,
    second_moment: _Buffer,
    server_lr: float,
    beta1: float,
    beta2: float,
    tau: float,
) -> None: ...
def sgd_step_float64(
    size: int,
    parameters: _Buffer,
    gradient: _Buffer,
    anchor: _Buffer | None,
    correction: _Buffer | None,
    velocity: _Buffer | None,
    lr: float,
    weight_decay: float,
    proximal: float,
    momentum: float,
    nesterov: bool,
    first: bool,
) -> None: ...
def fedavgm_step_float64(
    size: int,
    parameters: _Buffer,
    update: _Buffer,
    velocity: _Buffer,
    server_lr: float,
    momentum: float,
    nesterov: bool,
) -> None: ...
def adaptive_step_float64(
    kind: str,
    size: int,
    parameters: _Buffer,
    update: _Buffer,
    first_moment: _Buffer,
    second_moment: _Buffer,
    server_lr: float,
    beta1: float,
    beta2: float,
    tau: float,
) -> None: ...

class _Pybind11Type(type): ...

class StreamingSum(metaclass=_Pybind11Type):
    def __init__(self, sizes: Sequence[int], dtypes: Sequence[int]) -> None: ...
    def add(self, rows: list[_Buffer], weights: Sequence[float], propagate: bool) -> list[int]: ...
    def merge(self, other: StreamingSum) -> None: ...
    def result(
        self, outs: list[_Buffer], dtypes: Sequence[int], total_weight: float | None
    ) -> None: ...
    def serialize(self) -> bytes: ...
    def deserialize(self, state: bytes) -> None: ...
    def count(self) -> int: ...
    def total_weight(self) -> float: ...
    def state_bytes(self) -> int: ...
