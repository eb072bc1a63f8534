"""The default number of workers, and the memory that may be used, from made-up cgroups."""

import math
import os

import pytest

from fedbench.executors import default_workers, resources


@pytest.fixture
def cgroup(tmp_path, monkeypatch):
    """A function that sets the lines of /proc/self/cgroup and the files of the hierarchy."""
    root = tmp_path / "cgroup"

    def make(lines, files):
        own = tmp_path / "self"
        own.write_text("\n".join(lines) + "\n")
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        monkeypatch.setattr(resources, "_OWN_CGROUP", own)
        monkeypatch.setattr(resources, "_CGROUP_ROOT", root)

    monkeypatch.delenv(resources.WORKERS_VARIABLE, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    return make


@pytest.mark.parametrize(
    ("lines", "files", "expected"),
    [
        (["0::/"], {}, 16),
        (["0::/"], {"cpu.max": "max 100000\n"}, 16),
        (["0::/box"], {"box/cpu.max": "300000 100000\n"}, 3),
        (["0::/box"], {"box/cpu.max": "250000 100000\n"}, 2),
        (["0::/box"], {"box/cpu.max": "50000 100000\n"}, 1),
        (["0::/a/b"], {"a/cpu.max": "400000 100000\n", "a/b/cpu.max": "max 100000\n"}, 4),
        (["0::/not/visible/here"], {"cpu.max": "500000 100000\n"}, 5),
        (["0::/box"], {"box/cpu.max": "6400000 100000\n"}, 16),
        (
            ["3:cpu,cpuacct:/box", "0::/"],
            {"cpu/box/cpu.cfs_quota_us": "700000", "cpu/box/cpu.cfs_period_us": "100000"},
            7,
        ),
        (
            ["3:cpu:/box"],
            {"cpu/box/cpu.cfs_quota_us": "-1", "cpu/box/cpu.cfs_period_us": "100000"},
            16,
        ),
        (["0::/box"], {"box/cpu.max": "garbage"}, 16),
    ],
)
def test_the_cpu_quota_limits_the_workers(cgroup, lines, files, expected):
    cgroup(lines, files)
    assert default_workers() == expected


def test_without_cgroups_the_affinity_counts(cgroup, monkeypatch, tmp_path):
    monkeypatch.setattr(resources, "_OWN_CGROUP", tmp_path / "missing")
    assert default_workers() == 16


def test_without_an_affinity_mask_the_cpus_count(monkeypatch, tmp_path):
    monkeypatch.delenv(resources.WORKERS_VARIABLE, raising=False)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    monkeypatch.setattr(resources, "_OWN_CGROUP", tmp_path / "missing")
    assert default_workers() == 3


def test_the_environment_replaces_the_default(cgroup, monkeypatch):
    cgroup(["0::/"], {})
    monkeypatch.setenv(resources.WORKERS_VARIABLE, "40")
    assert default_workers() == 40


@pytest.mark.parametrize("text", ["", "0", "-2", "two", "1.5"])
def test_a_bad_environment_is_refused(monkeypatch, text):
    monkeypatch.setenv(resources.WORKERS_VARIABLE, text)
    with pytest.raises(ValueError, match="FEDBENCH_WORKERS must be a positive integer"):
        default_workers()


@pytest.mark.parametrize(
    ("lines", "files", "expected"),
    [
        (["0::/"], {}, math.inf),
        (["0::/box"], {"box/memory.max": "max", "box/memory.current": "5"}, math.inf),
        (["0::/box"], {"box/memory.max": "900\n", "box/memory.current": "400\n"}, 500),
        (
            ["4:memory:/box"],
            {
                "memory/box/memory.limit_in_bytes": "900",
                "memory/box/memory.usage_in_bytes": "300",
            },
            600,
        ),
    ],
)
def test_the_memory_limit_leaves_room(cgroup, lines, files, expected):
    cgroup(lines, files)
    assert resources.memory_limit() == expected
