"""The columns of the report: one entry per column, in table order, with stable names."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedbench.report import statistics
from fedbench.report.records import BANDWIDTH, Measurement, Report, Sample

__all__ = ["COLUMNS", "Column", "Row", "rows", "succeeded"]

Value = str | int | float | bool | None


@dataclass(frozen=True)
class Row:
    """One measurement beside the one that it is compared with.

    Parameters
    ----------
    measurement : Measurement
        The row's own figures.
    baseline : Measurement or None
        `sequential` with one intra-op thread on the same job in the same run, if it ran.
    report : Report
        The run that both belong to.
    """

    measurement: Measurement
    baseline: Measurement | None
    report: Report

    @property
    def label(self) -> str:
        """Backend, workers and threads in words, for charts."""
        configuration = self.measurement.configuration
        threads = configuration.intraop_threads
        text = f"{configuration.backend}, {configuration.workers} worker"
        text += "s" if configuration.workers != 1 else ""
        return f"{text}, {threads} threads" if threads != 1 else text

    @property
    def cores(self) -> int:
        """Cores that the row can keep busy."""
        configuration = self.measurement.configuration
        return configuration.workers * configuration.intraop_threads

    @property
    def no_promise(self) -> str:
        """Why the final state need not be bitwise the baseline's; empty where it has to be."""
        if self.report.reproducibility != "L1":
            return f"clients draw from the process's generators under {self.report.reproducibility}"
        if self.measurement.configuration.intraop_threads != 1:
            return "other intra-op thread counts round differently"
        if self.measurement.configuration.is_vectorized:
            return "clients that are trained at once round differently"
        return ""

    @property
    def promises_equal_bits(self) -> bool:
        """Whether the final state has to be bitwise that of the baseline."""
        return not self.no_promise

    @property
    def identical(self) -> bool | None:
        """Whether the final state is bitwise the baseline's; None if there is none to compare."""
        mine = self.measurement.digest
        theirs = self.baseline.digest if self.baseline is not None else None
        return None if mine is None or theirs is None else mine == theirs

    @property
    def broken_promise(self) -> bool:
        """Whether equal bits were promised and not delivered."""
        return self.promises_equal_bits and self.identical is False

    def speedups(self) -> list[float]:
        """Return baseline time / own time of each pair of rounds."""
        if self.baseline is None:
            return []
        theirs = [sample.round_s for sample in self.baseline.rounds]
        return statistics.paired_ratios(theirs, self.round_seconds())

    def efficiencies(self) -> list[float]:
        """Return ideal time / own time of each pair of rounds; above 1 is better than possible."""
        if self.baseline is None:
            return []
        # Against the baseline's task time: a task's own time grows when workers hinder each other,
        # which would hide the loss that this figure is to show.
        ideal = [sample.task_s / self.cores for sample in self.baseline.rounds]
        return statistics.paired_ratios(ideal, self.round_seconds())

    def round_seconds(self) -> list[float]:
        """Return the wall seconds of the timed rounds."""
        return [sample.round_s for sample in self.measurement.rounds]


def rows(report: Report) -> list[Row]:
    """Return the rows of `report` in table order."""
    return [
        Row(
            measurement=measurement,
            baseline=report.baseline(measurement.configuration),
            report=report,
        )
        for measurement in report.measurements
    ]


def succeeded(report: Report) -> bool:
    """Return whether something ran and every promise of equal bits was kept."""
    return any(entry.ok for entry in report.measurements) and not any(
        row.broken_promise for row in rows(report)
    )


@dataclass(frozen=True)
class Column:
    """A column of the table.

    Parameters
    ----------
    name : str
        Stable name in every file format.
    kind : str
        ``"text"``, ``"integer"``, ``"number"`` or ``"truth"``: the type in files.
    unit : str
        Unit of the values, empty for none.
    description : str
        One sentence for the documentation and the HTML page.
    compute : callable
        Row to value; None where the row has no such figure.
    rank : int or None
        Importance in the printed table, 1 first; None keeps the column to the files.
    label : str
        Short head in the printed table, where the name is too wide.
    legend : str
        What is said of it below the printed table; columns that stand side by side may share it.
    """

    name: str
    kind: str
    unit: str
    description: str
    compute: Callable[[Row], Value]
    rank: int | None = None
    label: str = ""
    legend: str = ""

    @property
    def head(self) -> str:
        """What stands above it in the printed table."""
        return self.label or self.name

    def show(self, row: Row) -> str:
        """Return the cell of `row` as people read it; a difference nobody ruled out is starred."""
        text = self.format(self.compute(row))
        starred = self.name == "identical" and row.identical is False and row.no_promise
        return f"{text}*" if starred else text

    def format(self, value: Any) -> str:
        """Return `value` as people read it; files keep the full precision instead."""
        if value is None or value != value:
            return "-"
        if self.kind == "truth":
            return "yes" if value else "no"
        if self.kind == "number":
            return significant(float(value))
        return str(value)


def significant(value: float, digits: int = 3) -> str:
    """Return `value` with `digits` significant digits, without an exponent where readable."""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    # From the rounded digits: 9.9999 has the exponent of 10.0.
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])
    if exponent < -4 or exponent > 8:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{max(0, digits - 1 - exponent)}f}"


def _phase(name: str) -> Callable[[Row], Value]:
    def compute(row: Row) -> Value:
        return statistics.median(
            [sample.seconds[name] for sample in row.measurement.rounds if name in sample.seconds]
        )

    return compute


def _speedup_bound(position: int) -> Callable[[Row], Value]:
    def compute(row: Row) -> Value:
        interval = statistics.bootstrap_interval(row.speedups())
        return None if interval is None else interval[position]

    return compute


def _overhead_pct(row: Row) -> Value:
    workers = row.measurement.configuration.workers
    idle = [
        100 * (1 - sample.task_s / (workers * sample.round_s))
        for sample in row.measurement.rounds
        if sample.round_s > 0
    ]
    return statistics.median(idle)


def _mean_of_rounds(pick: Callable[[Sample], float | None], scale: float) -> Callable[[Row], Value]:
    def compute(row: Row) -> Value:
        values: Sequence[float | None] = [pick(sample) for sample in row.measurement.rounds]
        known = [value for value in values if value is not None]
        # The clock of other processes ticks in hundredths of a second: single rounds are too
        # coarse, and a sum with a hole in it would be wrong.
        return sum(known) / len(known) / scale if known and len(known) == len(values) else None

    return compute


def _aggregate_bandwidth(row: Row) -> float | None:
    cohort = row.measurement.cohort
    rates = [
        # Every update is read once, and their mean, as large as one of them, written.
        sample.uplink_bytes * (1 + 1 / cohort) / sample.seconds["aggregate"] / 1e9
        for sample in row.measurement.rounds
        if cohort and not sample.reduced and sample.seconds.get("aggregate")
    ]
    return statistics.median(rates)


def _bandwidth_pct(row: Row) -> Value:
    rate, machine = _aggregate_bandwidth(row), row.report.environment.get(BANDWIDTH)
    return None if rate is None or not machine else 100 * rate * 1e9 / machine


def _setting(name: str) -> Callable[[Row], Value]:
    def compute(row: Row) -> Value:
        value: Value = row.report.settings.get(name)
        return value

    return compute


def _version(name: str) -> Callable[[Row], Value]:
    def compute(row: Row) -> Value:
        environment = row.report.environment
        value: Value = environment.get(name) or environment.get("packages", {}).get(name)
        return value

    return compute


def _peak_mem_mb(row: Row) -> Value:
    peak = row.measurement.peak_memory_bytes
    return None if peak is None else peak / 1e6


_INTERVAL = "95 % interval of speedup"

# fmt: off
COLUMNS: tuple[Column, ...] = (
    Column("workload", "text", "", "Name of the workload.",
           lambda row: row.measurement.configuration.workload),
    Column("algorithm", "text", "", "Name of the federated algorithm.",
           lambda row: row.measurement.configuration.algorithm),
    Column("backend", "text", "", "Executor that ran the client tasks.",
           lambda row: row.measurement.configuration.backend, rank=1),
    Column("workers", "integer", "", "Workers of the executor.",
           lambda row: row.measurement.configuration.workers, rank=2),
    Column("intraop_threads", "integer", "", "Torch's threads inside one operation.",
           lambda row: row.measurement.configuration.intraop_threads, rank=3, label="intraop",
           legend="torch's threads inside an operation"),
    Column("status", "text", "", "'ok', or why the row has no figures.",
           lambda row: row.measurement.status),
    Column("clients", "integer", "", "Registered clients.",
           lambda row: row.measurement.clients),
    Column("cohort", "integer", "", "Clients that take part in a round.",
           lambda row: row.measurement.cohort),
    Column("params", "integer", "", "Parameters of the model.",
           lambda row: row.measurement.params),
    Column("rounds", "integer", "", "Timed rounds; warm-up is not counted.",
           lambda row: len(row.measurement.rounds)),
    Column("startup_s", "number", "s", "Until the executor is ready, once.",
           lambda row: row.measurement.startup_s, rank=11),
    Column("round_s", "number", "s", "Median round without evaluation.",
           lambda row: statistics.median(row.round_seconds()), rank=4,
           legend="median seconds of a round"),
    Column("round_s_iqr", "number", "s", "Interquartile range of the rounds.",
           lambda row: statistics.interquartile_range(row.round_seconds()), rank=14),
    Column("speedup", "number", "", "Median of baseline time / own time, paired by round.",
           lambda row: statistics.median(row.speedups()), rank=5,
           legend="median of baseline time / own time, paired by round (not the ratio of medians)"),
    Column("speedup_low", "number", "", "Lower end of the 95 % bootstrap interval of speedup.",
           _speedup_bound(0), rank=7, label="low", legend=_INTERVAL),
    Column("speedup_high", "number", "", "Upper end of the 95 % bootstrap interval of speedup.",
           _speedup_bound(1), rank=8, label="high", legend=_INTERVAL),
    Column("efficiency", "number", "",
           "Median of ideal / own time; the ideal is the baseline's task time / cores of the row.",
           lambda row: statistics.median(row.efficiencies()), rank=9,
           legend="ideal time / own time"),
    Column("train_s", "number", "s", "Median time of local training, summed over the clients.",
           _phase("train"), rank=15),
    Column("broadcast_s", "number", "s", "Median time of planning a round and its broadcast.",
           _phase("broadcast"), rank=16),
    Column("uplink_s", "number", "s", "Median time of making the updates, summed over the clients.",
           _phase("uplink"), rank=17),
    Column("aggregate_s", "number", "s", "Median time of aggregating the updates on the server.",
           _phase("aggregate"), rank=18),
    Column("evaluate_s", "number", "s", "Evaluation of the final model, apart from the rounds.",
           lambda row: row.measurement.evaluate_s, rank=19),
    Column("cpu_s", "number", "s", "Mean CPU time of a round over all processes of the row.",
           _mean_of_rounds(lambda sample: sample.cpu_s, 1), rank=13),
    Column("overhead_pct", "number", "%",
           "Median share of the workers' time that is spent outside client tasks.",
           _overhead_pct, rank=12, label="overhead%"),
    Column("peak_mem_mb", "number", "MB (1e6 bytes)",
           "Largest memory of all processes of the row, shared pages counted once.",
           _peak_mem_mb, rank=10),
    Column("uplink_mb", "number", "MB (1e6 bytes)", "Mean bytes sent to the server per round.",
           _mean_of_rounds(lambda sample: sample.uplink_bytes, 1e6), rank=21),
    Column("max_abs_diff", "number", "",
           "Largest absolute difference of the final state from the baseline's.",
           lambda row: row.measurement.max_abs_diff, rank=20),
    Column("digest", "text", "", "SHA-256 of the final server state.",
           lambda row: row.measurement.digest),
    Column("identical", "truth", "", "Whether the final state is bitwise the baseline's.",
           lambda row: row.identical, rank=6),
    Column("seed", "integer", "", "Seed of the simulations.", _setting("seed")),
    Column("reproducibility", "text", "", "Level of the simulations, L1 or L0.",
           lambda row: row.report.reproducibility),
    Column("fedbench_version", "text", "", "Version of fedbench.", _version("fedbench")),
    Column("torch_version", "text", "", "Version of PyTorch.", _version("torch")),
    Column("date", "text", "", "When the run began, ISO 8601.",
           lambda row: row.report.created or None),
    Column("aggregate_bandwidth", "number", "GB/s (1e9 bytes)",
           "Median of the bytes that the aggregation reads and writes by its time.",
           _aggregate_bandwidth),
    Column("bandwidth_pct", "number", "%",
           "aggregate_bandwidth as a share of the memory bandwidth measured in the same run; "
           "above 100 where the updates are in the caches.",
           _bandwidth_pct),
)
# fmt: on
"""Every column, in the order of the files."""
