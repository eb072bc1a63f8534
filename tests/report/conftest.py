"""Reports made by hand for the tests of tables and files."""

from types import SimpleNamespace

import pytest

from fedbench.report import Configuration, Measurement, Report, Sample

PHASES = ("broadcast", "train", "uplink", "aggregate")


def sample(index, total, *, task_s=None, cpu_s=None, uplink_bytes=1000):
    """Return a round of `total` seconds, nine tenths of it training."""
    seconds = {"total": total, "train": 0.9 * total, "broadcast": 0.04 * total}
    seconds |= {"uplink": 0.01 * total, "aggregate": 0.05 * total}
    return Sample(
        round=index,
        seconds=seconds,
        task_s=0.9 * total if task_s is None else task_s,
        cpu_s=total if cpu_s is None else cpu_s,
        uplink_bytes=uplink_bytes,
    )


def measurement(backend="sequential", totals=(1.0,), *, workload="digits", workers=1, **changes):
    """Return a successful measurement whose rounds took `totals` seconds."""
    threads = changes.pop("intraop_threads", 1)
    task_s = changes.pop("task_s", None)
    values = {
        "configuration": Configuration(workload, "fedavg", backend, workers, threads),
        "clients": 100,
        "cohort": 10,
        "params": 650,
        "startup_s": 0.5,
        "warmup": (sample(0, 2.0),),
        "rounds": tuple(sample(i + 1, t, task_s=task_s) for i, t in enumerate(totals)),
        "peak_memory_bytes": 200_000_000,
        "digest": "ab" * 32,
        "max_abs_diff": 0.0,
        "foreign_load": 0.0,
    }
    return Measurement(**(values | changes))


def failure(backend, status, *, workload="digits", workers=2, **facts):
    """Return the measurement of a backend that could not run."""
    return Measurement(Configuration(workload, "fedavg", backend, workers), status=status, **facts)


def report(*measurements, **settings):
    """Return a report of `measurements` under L1."""
    return Report(
        tuple(measurements),
        settings={"reproducibility": "L1", "seed": 0} | settings,
        environment={"cpu": "Test CPU", "fedbench": "0.1.0", "packages": {"torch": "2.13.0"}},
        created="2024-02-29T12:00:00+00:00",
    )


@pytest.fixture(scope="session")
def build():
    """Return the functions that make samples, measurements, failures and reports."""
    return SimpleNamespace(sample=sample, measurement=measurement, failure=failure, report=report)
