"""The study with its runs replaced by a known cost, and a small real one."""

import math
from pathlib import Path
from typing import ClassVar

import pandas as pd
import pytest

import fedbench.scaling.table
from fedbench.cli import main
from fedbench.report import FRAME_FORMATS
from fedbench.scaling import (
    Point,
    Sample,
    ScalingSettings,
    growths,
    measure_scaling,
    predictions,
    scaling_text,
    scaling_to_frame,
)

GOLDEN = Path(__file__).parent / "golden"
SETTINGS = ScalingSettings(
    clients=(100, 1000), cohorts=(10, 20, 40), widths=(64, 256), rounds=2, repeats=2
)
CONTENTION = 1.25


def task_s(point):
    """Return the seconds inside the tasks of a round, if one task runs at a time."""
    return point.cohort * (0.001 + 1e-7 * point.params)


class KnownCost:
    """Rounds whose times follow from a formula: fixed part, tasks, and nothing else."""

    runs: ClassVar[list] = []

    def __init__(self, run):
        self._points, self._workers, self._rounds = run._points, run._workers, run._rounds
        self._turn = 0
        self._busy = False
        self.closed = False
        KnownCost.runs.append(self)

    def begin(self, step):
        self._busy = step == "run"  # the driver begins several at once, and calls one alone

    def finish(self, step):
        return None if step == "prepare" else self._samples(CONTENTION if self._busy else 1.0)

    def call(self, step):
        return self._samples(CONTENTION if self._workers > 1 else 1.0)

    def _samples(self, slower):
        point = self._points[self._turn % len(self._points)]
        self._turn += 1
        tasks = task_s(point) * slower
        share = math.ceil(point.cohort / self._workers) / point.cohort
        return [Sample(0.01 + tasks * share, tasks, 0.01 + tasks)] * self._rounds

    def close(self, *, at_once=False):
        self.closed = True


@pytest.fixture
def study():
    KnownCost.runs = []
    found = measure_scaling(SETTINGS, launch=KnownCost)
    assert len(KnownCost.runs) == 4  # alone, together, and two side by side
    assert all(run.closed for run in KnownCost.runs)
    return found


def test_every_point_is_measured_in_every_repeat(study):
    points = SETTINGS.points()
    assert len(points) == 5  # the three sweeps share the point in the middle
    for samples in (study.alone, study.together):
        assert {point: len(found) for point, found in samples.items()} == dict.fromkeys(points, 4)
    assert set(map(len, study.beside.values())) == {8}


def test_growth_is_that_of_the_formula(study):
    clients, cohort, params = growths(study)
    assert (clients.factor, cohort.factor, params.factor) == ("clients", "cohort", "params")
    assert clients.exponent == pytest.approx(0, abs=1e-9)
    base = Point(1000, 20, 256)
    assert cohort.fixed_s == pytest.approx(0.01)
    assert cohort.slope_s == pytest.approx(task_s(base) / 20)
    assert params.slope_s == pytest.approx(20 * 1e-7)
    assert 0 < cohort.exponent < 1
    assert cohort.exponent_low <= cohort.exponent <= cohort.exponent_high


def test_two_workers_are_predicted_from_one(study):
    for found in predictions(study):
        assert found.contention == pytest.approx(CONTENTION)
        assert found.predicted_s == pytest.approx(found.measured_s)
        assert found.error == pytest.approx(0, abs=1e-9)


def test_no_prediction_beats_the_cpu_time(study):
    point = SETTINGS.points()[0]
    busy = [Sample(s.round_s, s.task_s, 1.0) for s in study.alone[point]]
    study.alone[point] = busy
    assert predictions(study)[0].predicted_s == pytest.approx(CONTENTION * 1.0 / 2)
    assert predictions(study)[0].error > 0


def test_the_frame_has_every_point_and_the_text_both_tables(study):
    frame = scaling_to_frame(study)
    assert len(frame) == 5
    assert frame["error_pct"].abs().max() < 1e-6
    assert (frame["overhead_s"] - 0.01).abs().max() < 1e-9
    text = scaling_text(study)
    assert text.startswith("One worker: how a round grows\n")
    assert "2 workers, predicted from one (seconds)" in text
    assert text.endswith("off by 0% in the median and by 0% at most.\n")
    assert max(map(len, text.splitlines())) <= 80


def test_text_and_file_are_the_golden_ones_byte_for_byte(study, monkeypatch):
    """After a wanted change remove the files, run this test twice and read the diff."""
    monkeypatch.setattr(fedbench.scaling.table, "cpu_model", lambda: "Test CPU")
    monkeypatch.setattr(fedbench.scaling.table, "package_version", lambda name: "2.13.0")
    study.date = "2024-02-29T12:00:00+00:00"
    frame = scaling_to_frame(study).round(9)  # sums of floats; the last bits are not the subject
    for name, content in (
        ("scaling.txt", scaling_text(study)),
        ("scaling.csv", FRAME_FORMATS[".csv"](frame).decode()),
    ):
        path = GOLDEN / name
        if not path.exists():
            path.write_text(content)
            pytest.fail(f"{name} was missing and is written; read it")
        assert content == path.read_text()


def test_an_interrupt_closes_everything_at_once():
    KnownCost.runs = []

    def interrupt(line):
        if line != "starting":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_scaling(SETTINGS, launch=KnownCost, on_progress=interrupt)
    assert all(run.closed for run in KnownCost.runs)


def test_the_number_of_parameters_is_that_of_the_model():
    simulation = Point(20, 2, 64).simulation("sequential", 0)
    assert simulation.num_parameters == Point(20, 2, 64).params


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"clients": (100,)}, "clients must have at least two values"),
        ({"clients": (10, 100)}, "clients must be at least 20, got 10"),
        ({"cohorts": (1, 1001)}, "cohorts must be at least 1 and at most 1000, got 1001"),
        ({"widths": (0, 64)}, "widths must be at least 1, got 0"),
        ({"workers": 1}, "workers must be at least 2, got 1"),
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
        ({"timeout_s": -1.0}, "timeout must be a positive number of seconds"),
        ({"timeout_s": math.inf}, "timeout must be a positive number of seconds"),
    ],
)
def test_wrong_settings_are_refused(change, match):
    with pytest.raises(ValueError, match=match):
        ScalingSettings(**change)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_small_study_runs_for_real(tmp_path, capfd):
    target = tmp_path / "scaling.csv"
    sweeps = ["--clients", "20", "40", "--cohort", "2", "4", "--width", "8", "16"]
    with pytest.raises(SystemExit) as stop:
        main(["scale", *sweeps, "--rounds", "2", "--repeats", "1", "--out", str(target)])
    assert stop.value.code == 0
    frame = pd.read_csv(target)
    assert len(frame) == 6
    timed = ["round_s", "task_s", "cpu_s", "contention", "predicted_s", "measured_s"]
    assert (frame[timed] > 0).all(axis=None)
    assert "off by" in capfd.readouterr().out
