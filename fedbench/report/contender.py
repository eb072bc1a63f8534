"""One configuration of a report, from its data set to its final state."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from fedbench.report.processes import cpu_seconds, descendants
from fedbench.report.records import Configuration, Sample
from fedbench.report.trace import Span, trace_tasks

__all__ = ["Contender", "Facts", "largest_difference"]


@dataclass(frozen=True)
class Facts:
    """What a simulation works on: registered clients, clients per round, model parameters."""

    clients: int
    cohort: int
    params: int


class Contender:
    """A simulation that is run step by step, each step timed on its own.

    It lives in a process of its own (see :mod:`fedbench.report.host`), whose children are the
    workers: so all that this process tree uses belongs to this configuration.

    Parameters
    ----------
    configuration : Configuration
        What runs.
    seed : int
        Seed of the simulation.
    reproducibility : {"L0", "L1"}
        Level of the simulation.
    trace : bool
        Record which worker runs which client when.
    """

    def __init__(
        self,
        configuration: Configuration,
        seed: int,
        reproducibility: str,
        *,
        trace: bool = False,
    ) -> None:
        self._configuration = configuration
        self._seed = seed
        self._reproducibility = reproducibility
        self._trace = trace
        self._spans: list[Span] = []
        self._executor: Any = None
        self._simulation: Any = None

    def prepare(self) -> Facts:
        """Import the libraries, load the data and build the model: the same for all backends."""
        from fedbench import Simulation, make_executor

        wanted = self._configuration
        self._executor = make_executor(
            wanted.executor, wanted.workers, intraop_threads=wanted.intraop_threads
        )
        if self._trace:
            self._spans = trace_tasks(self._executor)
        self._simulation = Simulation(
            wanted.workload,
            algorithm=wanted.algorithm,
            executor=self._executor,
            seed=self._seed,
            reproducibility=self._reproducibility,
            vectorized=wanted.is_vectorized,
        )
        return Facts(
            clients=self._simulation.dataset.num_clients,
            cohort=self._simulation.cohort_size,
            params=self._simulation.num_parameters,
        )

    def start(self) -> float:
        """Start the executor and return the seconds until it is ready."""
        begin = time.perf_counter()
        self._executor.start()
        # Workers may get ready in the background; the first map waits for them. Not `map`, which
        # a trace would record.
        for _ in self._executor.imap(abs, range(self._executor.workers)):
            pass
        return time.perf_counter() - begin

    def run_round(self) -> Sample:
        """Run one round without evaluation."""
        workers = descendants()
        cpu_before = _cpu(workers)
        begin = time.perf_counter()
        record = self._simulation.run_round(evaluate=False)
        _wait_for_device()
        end = time.perf_counter()
        # Workers that were started in this round count from their start.
        cpu_after = _cpu(list({*workers, *descendants()}))
        if self._trace:
            self._spans.append(Span(f"round {record.round}", "server", begin, end))
        return Sample(
            round=record.round,
            seconds={**record.seconds, "total": end - begin},
            task_s=record.task_s,
            cpu_s=None if cpu_before is None or cpu_after is None else cpu_after - cpu_before,
            uplink_bytes=record.uplink_bytes,
            metrics=record.metrics.get("train", {}),
            reduced=record.reduced_in_workers,
        )

    def evaluate(self) -> tuple[float, dict[str, float]]:
        """Evaluate the server's model; return the seconds and the metrics, ``split_metric``."""
        begin = time.perf_counter()
        splits = self._simulation.evaluate()
        seconds = time.perf_counter() - begin
        return seconds, {
            f"{split}_{metric}": value
            for split, metrics in splits.items()
            for metric, value in metrics.items()
        }

    def digest(self) -> str:
        """Return the SHA-256 of the server's and all clients' states."""
        return str(self._simulation.state_digest())

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the server's and all clients' tensors by path."""
        simulation = self._simulation
        server = simulation.server
        return _arrays(
            {
                "model": simulation.model_state(),
                "extra": server.extra,
                "clients": simulation.client_states,
            }
        )

    def spans(self) -> list[Span]:
        """Return what was recorded, in the order in which it ended."""
        return self._spans

    def close(self) -> None:
        """Close the executor; safe at any time."""
        if self._executor is not None:
            self._executor.close()


def _wait_for_device() -> None:
    """Let a GPU finish what was only handed to it; nothing where none is used."""
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def _cpu(processes: list[psutil.Process]) -> float | None:
    try:
        return cpu_seconds(processes)
    except psutil.NoSuchProcess:
        return None


def _arrays(value: Any, path: str = "") -> dict[str, NDArray[Any]]:
    import torch

    if isinstance(value, torch.Tensor):
        # numpy has no bfloat16.
        value = value.float() if value.dtype == torch.bfloat16 else value
        return {path: value.detach().cpu().numpy()}
    if isinstance(value, np.ndarray):
        return {path: value}
    if isinstance(value, bool | int | float):
        return {path: np.asarray(value)}
    found: dict[str, NDArray[Any]] = {}
    if isinstance(value, Mapping):
        for key, entry in value.items():
            found |= _arrays(entry, f"{path}/{key}")
    elif isinstance(value, list | tuple):
        for index, entry in enumerate(value):
            found |= _arrays(entry, f"{path}/{index}")
    return found


def largest_difference(
    first: Mapping[str, NDArray[Any]], second: Mapping[str, NDArray[Any]]
) -> float:
    """Return the largest absolute difference of two states.

    Infinite where they cannot be compared: an entry is missing or shaped otherwise, or a value is
    NaN in one of them only.
    """
    if first.keys() != second.keys():
        return float("inf")
    largest = 0.0
    for path, mine in first.items():
        theirs = second[path]
        if mine.shape != theirs.shape:
            return float("inf")
        if mine.size == 0:
            continue
        a, b = mine.astype(np.float64), theirs.astype(np.float64)
        with np.errstate(invalid="ignore"):  # inf - inf
            apart = np.abs(a - b)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        apart = np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))
        largest = max(largest, float(apart.max()))
    return largest
