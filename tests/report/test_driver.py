import dataclasses
import os

import numpy as np
import pytest

from fedbench.errors import UnknownNameError
from fedbench.report import driver
from fedbench.report.contender import Facts, largest_difference
from fedbench.report.host import ContenderError
from fedbench.report.records import Sample
from fedbench.report.settings import PRESETS, Settings

SETTINGS = Settings(
    workloads=("digits-logreg",),
    backends=("sequential", "threads", "processes"),
    workers=(2,),
    rounds=3,
    intraop_row=False,
)


class FakeHost:
    """A configuration whose every step is written down and may be made to fail."""

    def __init__(self, configuration, log, failing=(), digest="same", state=None, round_s=None):
        self.configuration = configuration
        self.name = configuration.backend
        self.log, self.failing = log, dict(failing)
        self._digest, self._state = digest, state or {"w": np.zeros(2)}
        self._round_s = round_s or (lambda: 1.0)
        self.closed = 0
        self.samples = 0
        self.pid = os.getpid()
        self.peak_memory_bytes = 123

    def begin(self, step):
        self.log.append((self.name, step))
        if step in self.failing:
            left = self.failing[step] = self.failing[step] - 1
            if left < 0:
                raise ContenderError(f"{step} failed", "the traceback")

    def finish(self, step, *, watch_memory=False):
        assert not self.closed
        if step == "run_round":
            assert watch_memory == (self.samples == 0)  # only the warm-up round is watched
            self.samples += 1
            return Sample(self.samples, {"total": self._round_s(), "train": 0.5}, 0.5, 0.1, 10)
        return {
            "prepare": Facts(100, 10, 650),
            "start": 0.25,
            "evaluate": (0.125, {"accuracy": 0.5}),
            "digest": self._digest,
            "state": self._state,
        }[step]

    def call(self, step, *, watch_memory=False):
        self.begin(step)
        return self.finish(step, watch_memory=watch_memory)

    def dismiss(self):
        self.dismissed = True

    def close(self, *, at_once=False):
        self.closed += 1
        self.closed_at_once = at_once


@pytest.fixture(autouse=True)
def known_bandwidth(monkeypatch):
    """Do not measure the machine in every test."""
    monkeypatch.setattr(driver, "memory_bandwidth", lambda: 1e10)


@pytest.fixture
def race():
    """Return a function that runs the driver with fakes: (report, hosts by backend, log)."""

    def run(settings=SETTINGS, progress=None, **per_backend):
        hosts, log = {}, []

        def launch(configuration, _settings):
            options = per_backend.get(configuration.backend, {})
            host = FakeHost(configuration, log, **options)
            hosts[configuration.backend, configuration.workers] = host
            return host

        report = driver.measure(settings, launch=launch, on_progress=progress)
        assert all(host.closed for host in hosts.values())
        return report, hosts, log

    return run


def test_rounds_are_interleaved_with_a_rotating_order(race):
    _, _, log = race()
    names = [name for name, step in log if step == "run_round"]
    a, b, c = "sequential", "threads", "processes"
    assert names == [*(a, b, c), *(a, b, c), *(b, c, a), *(c, a, b)]


LAPS = dataclasses.replace(
    SETTINGS,
    workloads=("digits-logreg", "digits-mlp"),
    backends=("sequential",),
    rounds={"digits-logreg": 20, "digits-mlp": 3},
)


def test_workloads_take_turns_in_laps(race):
    seen = []
    report, _, log = race(LAPS, seen.append)
    assert [len(entry.rounds) for entry in report.measurements] == [20, 3]
    turns = [step.message for step in seen if " of " in step.message]
    turns = [turn.replace("/fedavg/sequential (1 worker)", "") for turn in turns]
    assert list(dict.fromkeys(turns)) == [
        "digits-logreg: rounds 1 to 2 of 20",
        "digits-logreg: rounds 3 to 5 of 20",
        "digits-logreg: rounds 6 to 7 of 20",
        "digits-mlp: round 1 of 3",
        "digits-logreg: rounds 8 to 10 of 20",
        "digits-logreg: rounds 11 to 12 of 20",
        "digits-logreg: rounds 13 to 15 of 20",
        "digits-mlp: round 2 of 3",
        "digits-logreg: rounds 16 to 17 of 20",
        "digits-logreg: rounds 18 to 20 of 20",
        "digits-mlp: round 3 of 3",
    ]
    steps = [step for _, step in log]
    assert steps[:2] == ["prepare", "start"]
    assert steps.count("prepare") == 2
    assert steps.index("digest") == len(steps) - 3  # evaluate, digest of each at the end
    assert [progress.done for progress in seen] == list(range(len(seen)))
    assert {progress.total for progress in seen} == {len(seen)}


@pytest.mark.parametrize(("free", "together"), [(123, 1), (184, 1), (185, 4), (1e12, 4)])
def test_workloads_run_together_as_far_as_memory_lasts(race, monkeypatch, free, together):
    """Every row of the fakes takes 123 bytes."""
    monkeypatch.setattr(driver, "memory_limit", lambda: free)
    algorithms = ("fedavg", "fedprox", "fedadam", "fedyogi", "ditto")
    settings = dataclasses.replace(SETTINGS, backends=("sequential",), algorithms=algorithms)
    report, _, log = race(settings)
    running = most = 0
    for _, step in log:
        running += (step == "prepare") - (step == "digest")
        most = max(most, running)
    assert most == together
    assert [entry.configuration.algorithm for entry in report.measurements] == list(algorithms)


def test_a_workload_that_failed_leaves_the_others_their_laps(race):
    report, _, _ = race(LAPS, sequential={"failing": {"run_round": 0}})
    assert [entry.status for entry in report.measurements] == ["run_round failed"] * 2


def test_automatic_rounds_stop_when_the_speedups_are_known(race):
    report, _, _ = race(dataclasses.replace(SETTINGS, rounds=None))
    # All fakes take the same time: the fewest rounds that make an interval are enough.
    assert [len(entry.rounds) for entry in report.measurements] == [6, 6, 6]


def test_automatic_rounds_go_on_while_the_speedups_are_uncertain(race):
    times = iter(range(1, 10_000))
    seen = []
    settings = dataclasses.replace(SETTINGS, rounds=None, budget_s=0.5)
    report, _, _ = race(settings, seen.append, threads={"round_s": lambda: 1.0 + next(times) % 3})
    (count,) = {len(entry.rounds) for entry in report.measurements}
    assert count > 15  # more than the progress display begins with
    assert [progress.done for progress in seen] == list(range(len(seen)))
    assert all(progress.done < progress.total for progress in seen)
    assert seen[-1].total == len(seen)


@pytest.mark.parametrize(("round_s", "stopped"), [(30.5, True), (29.5, False), (19.0, False)])
def test_a_row_that_would_keep_all_others_waiting_is_stopped(race, round_s, stopped):
    # Two rounds are left after the first: the limit is 60 s for both of them.
    report, _, log = race(threads={"round_s": lambda: round_s})
    entry = report.measurements[1]
    assert entry.ok is not stopped
    assert log.count(("threads", "run_round")) == (2 if stopped else 4)
    assert (entry.clients, entry.cohort, entry.params) == (100, 10, 650)
    if stopped:
        assert entry.status == "stopped: round 1 took 30.5 s, 30 times the baseline's"


def test_without_a_baseline_no_row_is_stopped(race):
    settings = dataclasses.replace(SETTINGS, backends=("threads", "processes"))
    report, _, _ = race(settings, threads={"round_s": lambda: 1000.0})
    assert all(entry.ok for entry in report.measurements)


def test_the_memory_bandwidth_is_part_of_the_report(race):
    report, _, _ = race()
    assert report.environment["memory_bytes_per_s"] == 1e10


def test_start_up_and_warm_up_are_apart_from_the_rounds(race):
    report, _, log = race()
    for entry in report.measurements:
        assert entry.ok
        assert entry.startup_s == 0.25
        assert [sample.round for sample in entry.warmup] == [1]
        assert [sample.round for sample in entry.rounds] == [2, 3, 4]
        assert (entry.clients, entry.cohort, entry.params) == (100, 10, 650)
        assert (entry.evaluate_s, entry.metrics) == (0.125, {"accuracy": 0.5})
        assert entry.peak_memory_bytes == 123
        assert entry.max_abs_diff == 0.0
    assert [step for _, step in log[:3]] == ["prepare"] * 3


@pytest.mark.parametrize("step", ["prepare", "start", "run_round", "evaluate", "digest"])
@pytest.mark.parametrize("backend", ["sequential", "threads"])
def test_a_failing_backend_is_a_row_and_the_others_stand(race, backend, step):
    report, _, log = race(**{backend: {"failing": {step: 0}}})
    failed = [entry for entry in report.measurements if not entry.ok]
    assert [entry.configuration.backend for entry in failed] == [backend]
    assert failed[0].status == f"{step} failed"
    assert failed[0].details == "the traceback"
    assert failed[0].rounds == ()
    assert (failed[0].clients, failed[0].cohort, failed[0].params) == (100, 10, 650)
    assert all(len(entry.rounds) == 3 for entry in report.measurements if entry.ok)
    position = [i for i, entry in enumerate(log) if entry == (backend, step)]
    assert (backend, "run_round") not in log[position[-1] + 1 :]


def test_a_backend_that_fails_halfway_leaves_the_race(race):
    report, _, log = race(threads={"failing": {"run_round": 2}})
    assert [entry.ok for entry in report.measurements] == [True, False, True]
    assert log.count(("threads", "run_round")) == 3
    loads = [entry.foreign_load for entry in report.measurements]
    assert loads[1] is None  # it has no figures
    assert loads[0] == loads[2] >= 0  # from the laps before


def test_an_interrupt_closes_every_host_and_goes_on_up():
    hosts = []

    def launch(configuration, _settings):
        hosts.append(FakeHost(configuration, []))
        return hosts[-1]

    def interrupt(progress):
        if "round 2" in progress.message:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        driver.measure(SETTINGS, launch=launch, on_progress=interrupt)
    assert len(hosts) == 3
    assert all(host.closed and host.closed_at_once for host in hosts)


def test_different_states_are_measured_against_the_baseline(race):
    state = {"w": np.array([0.0, -0.5])}
    report, _, log = race(threads={"digest": "other", "state": state})
    assert [entry.max_abs_diff for entry in report.measurements] == [0.0, 0.5, 0.0]
    assert [name for name, step in log if step == "state"] == ["sequential", "threads"]


def test_a_baseline_that_ends_while_its_state_is_fetched_is_a_row_of_its_own(race):
    report, _, log = race(
        sequential={"failing": {"state": 0}},
        threads={"digest": "other"},
        processes={"digest": "another"},
    )
    assert [entry.status for entry in report.measurements] == ["state failed", "ok", "ok"]
    assert [entry.max_abs_diff for entry in report.measurements] == [None] * 3
    assert [name for name, step in log if step == "state"] == ["sequential"]


def test_without_a_baseline_nothing_is_compared(race):
    report, _, log = race(dataclasses.replace(SETTINGS, backends=("threads",)))
    assert [entry.max_abs_diff for entry in report.measurements] == [None]
    assert not [step for _, step in log if step == "state"]


def test_progress_counts_up_to_its_total(race):
    seen = []
    race(progress=seen.append)
    assert [progress.done for progress in seen] == list(range(len(seen)))
    assert {progress.total for progress in seen} == {len(seen)}


def test_progress_comes_in_blocks_of_all_rows(race):
    seen = []
    race(progress=seen.append)
    blocks = list(dict.fromkeys(progress.block for progress in seen))
    job = "digits-logreg/fedavg"
    assert blocks == [
        f"{job}: loading",
        f"{job}/sequential (1 worker): starting and warming up",
        f"{job}/threads (2 workers): starting and warming up",
        f"{job}/processes (2 workers): starting and warming up",
        *(f"{job}: round {turn} of 3" for turn in (1, 2, 3)),
        f"{job}: checking the final states",
    ]
    assert [progress.block for progress in seen].count(f"{job}: round 2 of 3") == 3


def test_a_workload_whose_extra_is_missing_is_a_row_for_every_backend(race, monkeypatch):
    import fedbench.workloads
    from fedbench.registry import missing_extra

    def load(name):
        raise missing_extra(f"workload {name!r}", "mlxtend", "data")

    monkeypatch.setattr(fedbench.workloads, "load", load)
    report, hosts, _ = race()
    assert not hosts
    assert len(report.measurements) == 3
    assert all("-e '.[data]'" in row.status for row in report.measurements)


def test_every_algorithm_and_worker_count_is_a_row(race):
    settings = dataclasses.replace(SETTINGS, algorithms=("fedavg", "fedprox"), workers=(1, 2, 1))
    report, _, _ = race(settings)
    rows = [dataclasses.astuple(entry.configuration)[1:4] for entry in report.measurements]
    assert rows == [
        (algorithm, backend, workers)
        for algorithm in ("fedavg", "fedprox")
        for backend, workers in [
            ("sequential", 1),
            ("threads", 1),
            ("threads", 2),
            ("processes", 1),
            ("processes", 2),
        ]
    ]


def test_the_threads_of_torch_are_a_row_of_their_own(monkeypatch):
    monkeypatch.setattr("fedbench.report.settings.available_cpus", lambda: 4)
    settings = dataclasses.replace(SETTINGS, intraop_row=True, backends=("threads", "sequential"))
    rows = settings.configurations("digits-logreg", "fedavg")
    assert [(row.backend, row.intraop_threads) for row in rows] == [
        ("sequential", 1),
        ("threads", 1),
        ("sequential", 4),
    ]


def test_one_core_has_no_row_for_torchs_threads(monkeypatch):
    monkeypatch.setattr("fedbench.report.settings.available_cpus", lambda: 1)
    settings = dataclasses.replace(SETTINGS, intraop_row=True)
    assert len(settings.configurations("digits-logreg", "fedavg")) == 3


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"workloads": ("digits-logrek",)}, UnknownNameError, "Did you mean 'digits-logreg'"),
        ({"backends": ("thread",)}, UnknownNameError, "Did you mean 'threads'"),
        ({"algorithms": ("fedagv",)}, UnknownNameError, "Did you mean 'fedavg'"),
        ({"workloads": ()}, ValueError, "workloads must name at least one of 'digits-logreg'"),
        ({"backends": ()}, ValueError, "backends must name at least one of"),
        ({"workers": ()}, ValueError, "workers must name at least one worker count"),
        ({"workers": (0,)}, ValueError, "workers must be at least 1, got 0"),
        ({"workers": (1.5,)}, TypeError, "workers must be an integer, got float"),
        ({"rounds": 0}, ValueError, "rounds must be at least 1, got 0"),
        ({"rounds": {"digits-logrek": 3}}, UnknownNameError, "Did you mean 'digits-logreg'"),
        ({"rounds": {}}, ValueError, "rounds must name at least one of"),
        ({"rounds": {"digits-mlp": 0}}, ValueError, "rounds of 'digits-mlp' must be at least 1"),
        ({"rounds": True}, TypeError, "rounds must be an integer, got bool"),
        ({"warmup": 0}, ValueError, "warmup must be at least 1"),
        ({"seed": -1}, ValueError, "seed must be at least 0, got -1"),
        ({"timeout_s": 0.0}, ValueError, "timeout must be a positive number of seconds"),
        ({"budget_s": -1.0}, ValueError, "budget must be a positive number of seconds"),
        ({"timeout_s": float("nan")}, ValueError, "timeout must be a positive number"),
        ({"reproducibility": "L2"}, ValueError, "Use reproducibility='L1'"),
    ],
)
def test_wrong_settings_are_refused(change, error, match):
    with pytest.raises(error, match=match):
        dataclasses.replace(SETTINGS, **change)


def test_presets_name_real_workloads():
    for preset in PRESETS.values():
        settings = Settings(workloads=preset.workloads, rounds=preset.rounds)
        assert all(settings.rounds_of(name) == count for name, count in preset.rounds.items())


class TestLargestDifference:
    def test_of_equal_states_is_zero(self):
        state = {"a": np.array([1.0, np.nan, np.inf, -np.inf]), "b": np.array(3), "c": np.empty(0)}
        assert largest_difference(state, {k: v.copy() for k, v in state.items()}) == 0.0

    def test_is_the_largest_over_all_entries(self):
        first = {"a": np.array([1.0, 2.0]), "b": np.array([[1], [5]])}
        second = {"a": np.array([1.5, 2.0]), "b": np.array([[1], [2]])}
        assert largest_difference(first, second) == 3.0

    @pytest.mark.parametrize(
        "other",
        [
            {"a": np.zeros(3)},
            {"b": np.zeros(2)},
            {"a": np.array([0.0, np.nan])},
            {"a": np.array([0.0, np.inf])},
            {},
        ],
    )
    def test_of_states_that_cannot_be_compared_is_infinite(self, other):
        assert largest_difference({"a": np.zeros(2)}, other) == np.inf
        assert largest_difference(other, {"a": np.zeros(2)}) == np.inf

    def test_of_unsigned_integers_does_not_wrap(self):
        first, second = {"a": np.array([0], np.uint8)}, {"a": np.array([1], np.uint8)}
        assert largest_difference(first, second) == 1.0


def test_vectorized_rows_come_where_they_apply():
    settings = dataclasses.replace(SETTINGS, vectorized_rows=True)
    rows = settings.configurations("digits-logreg", "fedavg", vectorizes=True)
    assert [(row.backend, row.executor, row.is_vectorized, row.workers) for row in rows] == [
        ("sequential", "sequential", False, 1),
        ("threads", "threads", False, 2),
        ("processes", "processes", False, 2),
        ("sequential+vectorized", "sequential", True, 1),
        ("processes+vectorized", "processes", True, 2),
    ]
    assert sum(row.is_baseline for row in rows) == 1
    assert len(settings.configurations("mnist5k-cnn", "fedavg", vectorizes=False)) == 3


@pytest.mark.parametrize(("algorithm", "applies"), [("fedprox", True), ("scaffold", False)])
def test_whether_they_apply_is_asked_of_the_simulation(race, algorithm, applies):
    settings = dataclasses.replace(SETTINGS, vectorized_rows=True, algorithms=(algorithm,))
    report, _, _ = race(settings)
    backends = [entry.configuration.backend for entry in report.measurements]
    assert ("processes+vectorized" in backends) == applies


def test_vectorized_rows_may_be_named():
    settings = dataclasses.replace(SETTINGS, backends=("sequential", "threads+vectorized"))
    rows = settings.configurations("digits-logreg", "fedavg")
    assert [row.backend for row in rows] == ["sequential", "threads+vectorized"]
    with pytest.raises(UnknownNameError, match="'thread'"):
        dataclasses.replace(SETTINGS, backends=("sequential", "thread+vectorized"))
