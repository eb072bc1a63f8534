"""`fedbench peers` with the measurement replaced: what is printed, written and returned."""

import pandas as pd
import pytest

import fedbench.peers
from fedbench.cli import main
from fedbench.peers import Job
from fedbench.peers.measure import PeerRow, Timed


@pytest.fixture
def measured(monkeypatch):
    """Replace the measurement by fixed rows; give the settings that it was asked for."""
    asked = []

    def row(peer, status="ok", round_s=1.0, digest="ab", **changes):
        if status != "ok":
            return PeerRow(Job("logreg", 3, 2), peer, "2024-02-29", status)
        timed = [Timed(5.0 * round_s, (round_s, round_s), 9.0)]
        same = {"digests": [digest] * 2, "identical": digest == "ab", "max_abs_diff": 0.0}
        return PeerRow(
            Job("logreg", 3, 2),
            peer,
            "2024-02-29",
            timed=timed,
            peak_memory_bytes=100_000_000,
            version="1.0",
            **same | changes,
        )

    def measure(settings, *, on_progress):
        asked.append(settings)
        on_progress("logreg: plain: memory")
        return measure.rows

    measure.row, measure.asked = row, asked
    measure.rows = [row("fedbench-threads"), row("flower", round_s=4.0, digest="cd")]
    monkeypatch.setattr(fedbench.peers, "measure_peers", measure)
    return measure


def call(*arguments):
    with pytest.raises(SystemExit) as stop:
        main(["peers", *arguments])
    return stop.value.code


def test_prints_the_table_on_stdout_and_progress_on_stderr(measured, capfd):
    assert call() == 0
    out, err = capfd.readouterr()
    assert out.splitlines()[0] == "logreg (3 rounds, 2 workers); ratios to fedbench-threads"
    assert out.splitlines()[3].split()[:5] == ["flower", "20.0", "4.00", "4.00", "4.00"]
    assert err == "logreg: plain: memory\n"


def test_options_reach_the_measurement(measured):
    wanted = ["--workload", "logreg", "--peer", "plain", "flower", "--rounds", "5", "--seed", "3"]
    assert call(*wanted, "--workers", "4", "--repeats", "1", "--timeout", "9") == 0
    (settings,) = measured.asked
    assert (settings.workloads, settings.peers) == (("logreg",), ("plain", "flower"))
    assert (settings.rounds, settings.workers, settings.repeats) == (5, 4, 1)
    assert (settings.seed, settings.timeout_s) == (3, 9.0)


def test_defaults_are_all_peers_and_both_workloads(measured):
    assert call() == 0
    assert measured.asked[0].peers == fedbench.peers.PEERS.names()
    assert measured.asked[0].workloads == fedbench.peers.PEER_WORKLOADS.names()


def test_files_are_written_and_read_back(measured, tmp_path):
    measured.rows.append(measured.row("pfl", status='"pfl", =1+1\nis not installed'))
    targets = [tmp_path / "new" / f"t.{suffix}" for suffix in ("csv", "md", "json", "parquet")]
    assert call("--out", *map(str, targets)) == 0
    frames = [pd.read_csv(targets[0]), pd.read_json(targets[2]), pd.read_parquet(targets[3])]
    for frame in frames:
        assert frame["round_ratio"].tolist()[:2] == [1.0, 4.0]
        assert frame["status"][2] == '"pfl", =1+1\nis not installed'
    assert targets[1].read_text().count("\n") == 5


def test_a_broken_promise_is_exit_code_1(measured):
    measured.rows.append(measured.row("fedbench-processes", digest="cd"))
    assert call() == 1


def test_a_row_that_does_not_repeat_is_exit_code_1_only_if_it_promised_to(measured):
    measured.rows[1].digests = ["cd", "ef"]
    assert call() == 0
    measured.rows[0].digests = ["ab", "ef"]
    assert call() == 1


def test_nothing_ran_is_exit_code_1(measured, capfd):
    measured.rows = [measured.row("flower", status="not installed")]
    assert call() == 1
    assert "note: logreg: flower: not installed" in capfd.readouterr().out


def test_an_unwritable_file_is_found_before_anything_runs(measured, capfd):
    assert call("--out", "/proc/x.csv") == 2
    assert measured.asked == []
    assert capfd.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("columns", ["80", "120"])
def test_the_table_fits_the_terminal(measured, monkeypatch, capfd, columns):
    measured.rows.append(measured.row("fedbench-vectorized", max_abs_diff=1.23e-8))
    monkeypatch.setenv("COLUMNS", columns)
    assert call() == 0
    assert max(map(len, capfd.readouterr().out.splitlines())) <= int(columns)
