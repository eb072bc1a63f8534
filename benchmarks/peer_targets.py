"""Hold a table of ``fedbench peers`` against what the project wants to reach.

``python benchmarks/peer_targets.py [docs/data/peers.csv]`` prints a line for each target and
workload, with the figure, and exits with 1 if one is missed.
"""

import sys
from pathlib import Path

import pandas as pd

from fedbench.peers.measure import BITWISE

# Workload (empty: both), our row (empty: the fastest bitwise one), peer, column, at least.
TARGETS = (
    ("", "", "flower", "round_s", 2.5),
    ("", "", "pfl", "round_s", 1.7),
    ("", "", "pfl-processes", "round_s", 1.0),
    ("logreg", "fedbench-vectorized", "flower", "round_s", 15.0),
    ("", "", "flower", "first_round_s", 4.0),
    ("", "", "flower", "peak_mem_mb", 1 / 0.6),
)


def checked(frame):
    """Return, for each target and workload: words, the ratio peer / ours or None, and the least.

    Parameters
    ----------
    frame : pandas.DataFrame
        What ``fedbench peers --out`` wrote.
    """
    found = []
    for wanted, own, peer, column, least in TARGETS:
        for workload in frame["workload"].unique():
            if wanted in ("", workload):
                table = frame[frame["workload"] == workload].set_index("peer")
                name = own or table.reindex(BITWISE)["round_s"].idxmin()
                ratio = value(table, peer, column) / value(table, name, column)
                words = f"{workload}: {column} of {peer} / {name}"
                found.append((words, None if ratio != ratio else ratio, least))
    return found


def value(table, name, column):
    """Return a cell; NaN for a row that is missing or failed."""
    return float(table[column].get(name, float("nan")))


def main():
    """Print the lines."""
    path = sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1] / "docs/data/peers.csv"
    missed = 0
    for words, ratio, least in checked(pd.read_csv(path)):
        holds = ratio is not None and ratio >= least
        missed += not holds
        figure = "-" if ratio is None else f"{ratio:.2f}"
        print(f"{'holds ' if holds else 'MISSED'}  {figure:>6} (at least {least:.2f})  {words}")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
