"""Peers for the tests: they run in processes of their own, like the real ones."""

import os
import time

import numpy as np

from fedbench.peers import Outcome
from fedbench.registry import Entry, Registry, missing_extra


def _outcome(job, value):
    ends = []
    for _ in range(job.rounds):
        time.sleep(0.01)
        ends.append(time.perf_counter())
    return Outcome(tuple(ends), {"w": np.full(3, value, np.float32)}, "1.2.3")


def same(job):
    return _outcome(job, 1.0 + job.seed)


def other(job):
    return _outcome(job, 1.5)


def drifting(job):
    return _outcome(job, os.getpid())


held = []


def large(job):
    held.append(np.ones(16 << 20))  # 128 MiB, to the end of the process: memory is looked at last
    return _outcome(job, held[0][0])


def failing(job):
    raise ValueError("the learning rate is odd")


def dying(job):
    os._exit(3)


def hanging(job):
    if job.workers == 7:
        time.sleep(600)
    return _outcome(job, 1.0)


def missing(job):
    raise missing_extra("peer 'missing'", "flwr", "flower")


NAMES = ("same", "other", "drifting", "large", "failing", "dying", "missing", "hanging")
FAKES = Registry(
    "peer",
    {
        "fedbench-sequential": Entry(f"{__name__}:same", "stands for this package"),
        **{name: Entry(f"{__name__}:{name}", "a fake") for name in NAMES},
    },
)
