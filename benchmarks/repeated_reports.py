"""How often do two reports of the same machine differ although nothing changed?

``python benchmarks/repeated_reports.py`` runs ``fedbench report`` five times, or reads the JSON
files that it is given, and compares every pair of runs row by row: how often does the 95 %
interval of the ratio contain 1? Both for the rounds, as ``fedbench compare`` does, and for the
speedups, where drift of the machine from one run to the next cancels.
"""

import argparse
import itertools
import subprocess
import sys
import tempfile
from pathlib import Path

from fedbench.report import Report, statistics
from fedbench.report.columns import rows


def samples(report):
    """Return, for each row that ran, the seconds of its rounds and its paired speedups.

    The baseline has no speedup over itself.
    """
    found = {}
    for row in rows(report):
        configuration = row.measurement.configuration
        if row.measurement.ok:
            ratios = None if configuration.is_baseline else row.speedups()
            found[str(configuration)] = (row.round_seconds(), ratios)
    return found


def agreements(reports):
    """Return, for each row, how often the intervals of its rounds and speedups contain 1.

    Parameters
    ----------
    reports : list of Report
        Runs of the same settings on the same machine.

    Returns
    -------
    dict of str to list of tuple of bool
        By row, one (rounds agree, speedups agree) for each pair of runs.
    """
    found = {}
    for first, second in itertools.combinations(map(samples, reports), 2):
        for name in first.keys() & second.keys():
            pair = zip(first[name], second[name], strict=True)
            found.setdefault(name, []).append(tuple(agree(a, b) for a, b in pair))
    return found


def agree(first, second):
    """Return whether the 95 % interval of the ratio of the medians contains 1; None without one."""
    if first is None:
        return None
    interval = statistics.ratio_interval(first, second)
    return interval is not None and interval[0] <= 1 <= interval[1]


def measured(runs, arguments):
    """Run the report `runs` times and return what it wrote."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{run}.json" for run in range(runs)]
        for number, path in enumerate(paths, 1):
            print(f"run {number} of {runs}", file=sys.stderr)
            command = [sys.executable, "-m", "fedbench", "report", "--out", str(path), *arguments]
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        return [Report.load(path) for path in paths]


def table(found):
    """Return lines with the share of agreeing pairs: by row, and of all."""
    everything = [pair for pairs in found.values() for pair in pairs]
    groups = [(name, found[name]) for name in sorted(found)]
    groups.append((f"all {len(everything)} pairs", everything))
    lines = ["{:6.0%}  {:8.0%}  {}".format(*shares(pairs), name) for name, pairs in groups]
    return "\n".join(["rounds  speedups  row", *lines])


def shares(pairs):
    """Return the share of True among what is known, at each of the two places."""
    known = [[v for v in values if v is not None] for values in zip(*pairs, strict=True)]
    return tuple(sum(values) / len(values) if values else float("nan") for values in known)


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", metavar="RUN.json", help="reports instead of new runs")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--preset", default="default")
    arguments = parser.parse_args()
    if arguments.files:
        reports = [Report.load(path) for path in arguments.files]
    else:
        reports = measured(arguments.runs, ["--preset", arguments.preset])
    print(table(agreements(reports)))


if __name__ == "__main__":
    main()
