"""The pictures that are drawn from stored measurements: speedups and a timeline."""

from __future__ import annotations

import json
import math
from pathlib import Path

from canvas import WIDTH, Picture, Words

from fedbench.report import Report
from fedbench.report.columns import COLUMNS, Row, rows

__all__ = ["speedup", "timeline"]

DATA = Path(__file__).parents[1] / "data"
_TONES = {"sequential": 0, "threads": 1, "processes": 2, "ray": 3}


def _label(row: Row) -> str:
    configuration = row.measurement.configuration
    if configuration.intraop_threads > 1:
        return f"{configuration.backend}, {configuration.intraop_threads} intra-op"
    return f"{configuration.backend}, {configuration.workers}"


def speedup(words: Words) -> Picture:
    """Draw the speedup of every row with its 95 % interval, workload by workload."""
    values = {column.name: column.compute for column in COLUMNS}
    bars = [
        row
        for row in rows(Report.load(DATA / "report.json"))
        if row.measurement.ok and not row.measurement.configuration.is_baseline
    ]
    workloads = list(dict.fromkeys(row.measurement.configuration.workload for row in bars))
    picture = Picture(
        58 + 30 * len(workloads) + 26 * len(bars), "Speedup over sequential, measured", words
    )
    left, right = 178.0, WIDTH - 60.0
    largest = max(2.0, math.ceil(max(values["speedup_high"](row) for row in bars)))
    scale = (right - left) / largest
    bottom = 10 + 30 * len(workloads) + 26 * len(bars)
    step = math.ceil(largest / 8)
    for tick in range(0, int(largest) + 1, step):
        x = left + scale * tick
        picture.line(x, 10, x, bottom, "grid")
        picture.text(x, bottom + 18, str(tick), "faint", size=13)
    picture.line(left + scale, 10, left + scale, bottom, dashed=True)
    picture.text(
        (left + right) / 2, bottom + 38, "times as fast as sequential (1 worker)", "faint", size=13
    )

    y = 10.0
    for workload in workloads:
        picture.text(10, y + 20, workload, size=14, anchor="start", bold=True)
        y += 30
        for row in bars:
            if row.measurement.configuration.workload != workload:
                continue
            low, middle, high = (
                float(values[name](row)) for name in ("speedup_low", "speedup", "speedup_high")
            )
            tone = _TONES.get(row.measurement.configuration.backend, 4)
            picture.text(left - 8, y + 15, _label(row), size=13, anchor="end")
            picture.rectangle(left, y + 3, scale * middle, 16, f"tone-{tone}", radius=2)
            picture.line(left + scale * low, y + 11, left + scale * high, y + 11)
            for end in (low, high):
                picture.line(left + scale * end, y + 7, left + scale * end, y + 15)
            picture.text(right + 52, y + 15, f"{middle:.2f}", size=13, anchor="end")
            y += 26
    return picture


def timeline(words: Words) -> Picture:
    """Draw the last round of each row of the stored trace on one scale of time."""
    events = json.loads((DATA / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    names = {
        event["pid"]: event["args"]["name"].split("/")[-1]
        for event in events
        if event["name"] == "process_name"
    }
    lanes: list[tuple[int, list[int], float, float]] = []
    for pid in names:
        if "threads)" in names[pid]:
            continue  # several threads in one operation are not what the picture is about
        spans = [event for event in events if event["ph"] == "X" and event["pid"] == pid]
        last = max((event for event in spans if event["tid"] == 0), key=lambda event: event["ts"])
        workers = sorted({event["tid"] for event in spans} - {0})
        lanes.append((pid, workers, last["ts"], last["dur"]))
    left, right = 84.0, WIDTH - 10.0
    scale = (right - left) / max(duration for *_, duration in lanes)
    picture = Picture(
        30 + sum(34 + 28 * len(workers) for _, workers, *_ in lanes),
        "Which worker ran which client when, in one round",
        words,
    )
    y = 6.0
    for pid, workers, start, duration in lanes:
        picture.text(10, y + 18, names[pid], size=13, anchor="start", bold=True)
        y += 28
        for worker in workers:
            picture.text(left - 8, y + 16, f"worker {worker}", "faint", size=13, anchor="end")
            picture.rectangle(left, y + 2, scale * duration, 20, "plain", radius=0)
            for event in events:
                inside = event["ph"] == "X" and start <= event["ts"] <= start + duration
                if inside and event["pid"] == pid and event["tid"] == worker:
                    x, width = left + scale * (event["ts"] - start), scale * event["dur"]
                    tone = 2 + int(event["name"].split()[-1]) % 3
                    picture.rectangle(x, y + 3, width, 18, f"tone-{tone}", radius=0)
            y += 28
        y += 6
    milliseconds = max(duration for *_, duration in lanes) / 1000
    picture.text(left, y + 14, "0", "faint", size=13, anchor="start")
    picture.text(right, y + 14, f"{milliseconds:.0f} ms", "faint", size=13, anchor="end")
    return picture
