"""The script that holds a table of peers against the targets."""

import subprocess
import sys

import pandas as pd
import pytest
from peer_targets import TARGETS, checked

ROWS = {
    # peer: (round_s, first_round_s, peak_mem_mb)
    "fedbench-sequential": (2.0, 3.0, 300.0),
    "fedbench-threads": (1.0, 4.0, 400.0),
    "fedbench-vectorized": (0.25, 4.0, 800.0),
    "flower": (4.0, 12.0, 1000.0),
    "pfl": (1.8, 3.0, 400.0),
    "pfl-processes": (0.9, 4.0, 800.0),
}


@pytest.fixture
def table():
    records = [
        {"workload": "logreg", "peer": peer, "round_s": r, "first_round_s": f, "peak_mem_mb": m}
        for peer, (r, f, m) in ROWS.items()
    ]
    return pd.DataFrame(records)


def test_ratios_are_to_the_fastest_bitwise_row_or_the_named_one(table):
    found = {words: ratio for words, ratio, _ in checked(table)}
    assert len(found) == len(TARGETS)
    assert found["logreg: round_s of flower / fedbench-threads"] == 4.0
    assert found["logreg: round_s of flower / fedbench-vectorized"] == 16.0
    assert found["logreg: first_round_s of flower / fedbench-threads"] == 3.0
    assert found["logreg: peak_mem_mb of flower / fedbench-threads"] == 2.5
    assert found["logreg: round_s of pfl-processes / fedbench-threads"] == pytest.approx(0.9)


def test_a_peer_without_figures_has_no_ratio(table):
    found = [
        ratio for words, ratio, _ in checked(table[table["peer"] != "flower"]) if "flower" in words
    ]
    assert found == [None] * 4


def test_a_missed_target_is_exit_code_1(table, tmp_path):
    path = tmp_path / "peers.csv"
    for factor, code in ((1.0, 1), (10.0, 0)):
        slower = table.copy()
        others = ~slower["peer"].str.startswith("fedbench")
        slower.loc[others, ["round_s", "first_round_s", "peak_mem_mb"]] *= factor
        slower.to_csv(path, index=False)
        script = sys.modules["peer_targets"].__file__
        done = subprocess.run([sys.executable, script, path], capture_output=True, check=False)
        assert done.returncode == code
        assert done.stdout.count(b"MISSED") == (2 if code else 0)
