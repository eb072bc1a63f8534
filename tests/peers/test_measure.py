"""Peers are run, timed and compared; one that cannot is a row that says why."""

import re

import pytest

from fedbench.errors import UnknownNameError
from fedbench.peers import PeerSettings, measure_peers, peers_text, peers_to_frame
from fedbench.report.render import FRAME_FORMATS

from .fakes import FAKES, NAMES

ALL = ("fedbench-sequential", *(name for name in NAMES if name != "hanging"))


@pytest.fixture(scope="module")
def measured():
    """Return the rows by name, and the lines of progress."""
    settings = PeerSettings(("logreg",), ALL, rounds=3, repeats=1)
    lines = []
    rows = measure_peers(settings, on_progress=lines.append, registry=FAKES)
    return {row.peer: row for row in rows}, lines


@pytest.fixture(scope="module")
def rows(measured):
    return measured[0]


def test_every_peer_is_a_row_in_the_order_asked_for(rows):
    assert tuple(rows) == ALL


def test_start_up_rounds_and_total_are_apart(rows):
    (run,) = rows["same"].timed
    assert len(run.rounds_s) == 2  # the first round belongs to the start-up
    assert all(0.01 <= seconds < run.first_round_s for seconds in run.rounds_s)
    assert run.first_round_s + sum(run.rounds_s) < run.total_s


def test_results_are_compared_with_ours_and_between_runs(rows):
    found = {
        name: (row.repeatable, row.identical, row.max_abs_diff)
        for name, row in rows.items()
        if row.ok
    }
    assert found["fedbench-sequential"] == found["same"] == (True, True, 0.0)
    assert found["other"] == (True, False, 0.5)
    assert found["drifting"][:2] == (False, False)


def test_memory_is_that_of_the_peer(rows):
    grown = rows["large"].peak_memory_bytes - rows["same"].peak_memory_bytes
    assert 100e6 < grown < 200e6


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("failing", r"ValueError: the learning rate is odd$"),
        ("dying", r"the process ended in run with exit code 3$"),
        ("missing", r"needs the package 'flwr'.*pip install .* -e '\.\[flower\]'\.$"),
    ],
)
def test_a_peer_that_cannot_run_says_why(rows, name, status):
    row = rows[name]
    assert not row.ok
    assert re.search(status, row.status)
    assert (row.round_s(), row.median("total_s"), row.repeatable) == ([], None, None)


def test_progress_names_every_run_and_no_run_of_a_failed_peer(measured):
    lines = measured[1]
    assert "logreg: same: timed run 1 of 1" in lines
    assert "logreg: same: memory" in lines
    assert "logreg: failing: memory" not in lines


def test_a_peer_that_hangs_is_stopped():
    settings = PeerSettings(("logreg",), ("hanging",), workers=7, rounds=2, timeout_s=3.0)
    (row,) = measure_peers(settings, registry=FAKES)
    assert row.status == "run took longer than 3 s and was stopped"


def test_the_frame_has_ratios_to_our_fastest_row_and_keeps_failures(rows, tmp_path):
    frame = peers_to_frame(list(rows.values())).set_index("peer")
    assert frame.loc["fedbench-sequential", "round_ratio"] == 1.0
    assert frame.loc["large", "peak_mem_ratio"] > 1.5
    assert frame.loc["missing", ["round_s", "round_ratio", "identical"]].isna().all()
    assert frame.loc["missing", "rounds"] == 3
    assert frame["version"].dropna().unique().tolist() == ["1.2.3"]
    for render in FRAME_FORMATS.values():
        assert render(frame.reset_index())


def test_the_text_has_a_line_for_each_peer_and_a_note_for_each_failure(rows):
    text = peers_text(list(rows.values()), 100)
    lines = text.splitlines()
    assert lines[0] == "logreg (3 rounds, 2 workers); ratios to fedbench-sequential"
    assert [line.split()[0] for line in lines[2:10]] == list(rows)
    assert sum(line.startswith("note: logreg: ") for line in lines) == 3
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"workloads": ("logrek",)}, UnknownNameError, "Did you mean 'logreg'"),
        ({"rounds": 1}, ValueError, "rounds must be at least 2, got 1"),
        ({"workers": 0}, ValueError, "workers must be at least 1, got 0"),
        ({"repeats": 0}, ValueError, "repeats must be at least 1, got 0"),
        ({"timeout_s": float("nan")}, ValueError, "timeout must be a positive number of seconds"),
        ({"timeout_s": float("inf")}, ValueError, "timeout must be a positive number of seconds"),
    ],
)
def test_wrong_settings_are_refused(change, error, match):
    with pytest.raises(error, match=match):
        PeerSettings(**change)


def test_an_unknown_peer_is_refused_before_anything_runs():
    with pytest.raises(UnknownNameError, match="Did you mean 'flower'"):
        measure_peers(PeerSettings(("logreg",), ("flowr",)))
