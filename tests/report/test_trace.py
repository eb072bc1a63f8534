import json
import subprocess
import sys
from dataclasses import dataclass

import pytest

from fedbench.executors import make_executor
from fedbench.report import Report, to_chrome_trace
from fedbench.report.trace import Span, trace_tasks


@dataclass(frozen=True)
class Item:
    client_id: int


class Total:
    order_independent = True

    def __init__(self):
        self.value = 0

    def empty(self):
        return Total()

    def add(self, amount):
        self.value += amount

    def merge(self, other):
        self.value += other.value


def test_map_keeps_its_results_and_records_every_task():
    with make_executor("threads", 2) as executor:
        spans = trace_tasks(executor)
        results = executor.map(lambda item: 10 * item.client_id, [Item(3), Item(1)])
        broadcast = executor.map(lambda base, item: base + item, [1, 2], broadcast=100)
    assert (results, broadcast) == ([30, 10], [101, 102])
    assert sorted(span.name for span in spans) == ["client 1", "client 3"] + ["evaluation"] * 2
    assert all(span.start_s <= span.end_s for span in spans)


def test_map_reduce_keeps_its_reports_and_records_every_task():
    reports = {}
    with make_executor("threads", 2) as executor:
        spans = trace_tasks(executor)
        total = executor.map_reduce(
            lambda item: ((item.client_id,), f"report {item.client_id}"),
            [Item(3), Item(1)],
            Total(),
            on_result=reports.__setitem__,
        )
    assert total.value == 4
    assert reports == {0: "report 3", 1: "report 1"}
    assert sorted(span.name for span in spans) == ["client 1", "client 3"]


def test_a_failing_task_is_reported_as_without_tracing():
    from fedbench.errors import ClientTaskError

    with make_executor("sequential") as executor:
        trace_tasks(executor)
        with pytest.raises(ClientTaskError):
            executor.map(lambda item: 1 // item, [1, 0])


def test_the_timeline_has_a_process_for_each_row_and_a_thread_for_each_worker(build):
    spans = (
        Span("client 1", "10/1", 5.0, 5.25),
        Span("client 2", "11/1", 5.0, 5.5),
        Span("client 3", "10/1", 5.25, 5.5),
        Span("round 1", "server", 4.0, 5.5),
    )
    report = build.report(build.measurement(), build.measurement("processes", spans=spans))
    events = json.loads(to_chrome_trace(report))["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {
        (0, 0): "server",
        (1, 0): "server",
        (1, 1): "worker 1",
        (1, 2): "worker 2",
    }
    bars = [(e["name"], e["tid"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert bars == [
        ("client 1", 1, 1e6, 250_000),
        ("client 2", 2, 1e6, 500_000),
        ("client 3", 1, 1.25e6, 250_000),
        ("round 1", 0, 0.0, 1.5e6),
    ]
    assert Report.from_json(report.to_json()) == report


def test_an_untraced_report_is_an_empty_timeline(build):
    events = json.loads(to_chrome_trace(build.report(build.measurement())))["traceEvents"]
    assert {event["ph"] for event in events} == {"M"}


@pytest.mark.timeout(300)
def test_the_command_writes_a_timeline_of_real_rounds(tmp_path):
    target = tmp_path / "trace.json"
    wanted = ["--workload", "quadratic", "--backend", "sequential", "threads", "--rounds", "1"]
    command = [sys.executable, "-m", "fedbench", "report", "--preset", "smoke", *wanted]
    subprocess.run([*command, "--trace", str(target)], capture_output=True, check=True)
    events = json.loads(target.read_text())["traceEvents"]
    for row in (0, 1):
        names = [event["name"] for event in events if event["pid"] == row and event["ph"] == "X"]
        assert {"round 1", "round 2", "client 0", "evaluation"} <= set(names)
