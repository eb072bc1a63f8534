"""Which worker ran which client when, as a timeline in Chrome's trace format.

Open the file in ``chrome://tracing`` or https://ui.perfetto.dev.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedbench.report.records import Report

__all__ = ["Span", "TracedTask", "to_chrome_trace", "trace_tasks"]

_SERVER = "server"


@dataclass(frozen=True)
class Span:
    """Something that took time somewhere.

    Parameters
    ----------
    name : str
        The client, or the step of the server.
    place : str
        ``"server"``, or process and thread of the worker.
    start_s, end_s : float
        Seconds of the machine's monotonic clock, which all its processes share.
    """

    name: str
    place: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class TracedTask:
    """A task that says when and where it ran.

    Parameters
    ----------
    task : callable
        The task of the simulation.
    reduces : bool
        Whether it returns (contribution, report) for ``map_reduce``.
    """

    task: Callable[..., Any]
    reduces: bool = False

    def __call__(self, *arguments: Any) -> Any:
        """Run the task; the span goes back with its result or report."""
        start = time.perf_counter()
        result = self.task(*arguments)
        client = getattr(arguments[-1], "client_id", None)
        span = Span(
            "evaluation" if client is None else f"client {client}",
            f"{os.getpid()}/{threading.get_ident()}",
            start,
            time.perf_counter(),
        )
        if self.reduces:
            contribution, report = result
            return contribution, (report, span)
        return result, span


def trace_tasks(executor: Any) -> list[Span]:
    """Make `executor` record its tasks, and return the list that the spans are appended to.

    The tasks themselves, their operands and their order are those of an executor that does not
    record, so results keep their bits; two clock readings are added to every task.
    """
    spans: list[Span] = []
    plain_map, plain_map_reduce = executor.map, executor.map_reduce

    def unwrapped(on_result: Callable[[int, Any], Any] | None) -> Callable[[int, Any], Any]:
        def receive(index: int, pair: tuple[Any, Span]) -> None:
            result, span = pair
            spans.append(span)
            if on_result is not None:
                on_result(index, result)

        return receive

    def traced_map(task: Any, items: Any, *, on_result: Any = None, **options: Any) -> list[Any]:
        pairs = plain_map(TracedTask(task), items, on_result=unwrapped(on_result), **options)
        return [result for result, _ in pairs]

    def traced_map_reduce(
        task: Any, items: Any, reducer: Any, *, on_result: Any = None, **options: Any
    ) -> Any:
        receive = unwrapped(on_result)
        return plain_map_reduce(
            TracedTask(task, reduces=True), items, reducer, on_result=receive, **options
        )

    executor.map, executor.map_reduce = traced_map, traced_map_reduce
    return spans


def to_chrome_trace(report: Report) -> str:
    """Return the timeline of all rows: a process for each row, a thread for each worker."""
    events: list[dict[str, Any]] = []
    starts = [span.start_s for entry in report.measurements for span in entry.spans]
    origin = min(starts, default=0.0)
    for row, entry in enumerate(report.measurements):
        events.append(_name("process_name", row, 0, str(entry.configuration)))
        places: dict[str, int] = {_SERVER: 0}
        events.append(_name("thread_name", row, 0, _SERVER))
        for span in entry.spans:
            if span.place not in places:
                places[span.place] = len(places)
                name = f"worker {places[span.place]}"
                events.append(_name("thread_name", row, places[span.place], name))
            events.append(
                {
                    "name": span.name,
                    "ph": "X",
                    "pid": row,
                    "tid": places[span.place],
                    "ts": round(1e6 * (span.start_s - origin), 3),
                    "dur": round(1e6 * (span.end_s - span.start_s), 3),
                }
            )
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}) + "\n"


def _name(kind: str, row: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": row, "tid": thread, "args": {"name": name}}
