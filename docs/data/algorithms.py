"""Run every algorithm on one job and write the table of the guide: `python algorithms.py`."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean

import pandas as pd

from fedbench import History
from fedbench.algorithms import ALGORITHMS
from fedbench.configuration import Component, load, make_simulation

HERE = Path(__file__).parent
GOAL = 0.9
"""Accuracy of the server's model on the test samples that is counted to."""


def best_split(history: History, kind: str) -> str | None:
    """Return the split of this kind with the best last accuracy: IFCA has one for each centre."""
    metrics = history.records[-1].metrics
    known = [name for name in metrics if name == kind or name.startswith(f"{kind}-")]
    return max(known, key=lambda name: metrics[name]["accuracy"], default=None)


def figures(history: History) -> dict[str, float | None]:
    """Return the figures of one run; None where the algorithm has no such model."""
    test, own, personal = (best_split(history, kind) for kind in ("test", "clients", "personal"))
    last = history.records[-1].metrics

    def accuracy(split: str | None, metric: str = "accuracy") -> float | None:
        return None if split is None else last[split][metric]

    # Not every round is evaluated.
    evaluated = [record for record in history if test in record.metrics]
    reached = [r.round for r in evaluated if r.metrics[test or ""]["accuracy"] >= GOAL]
    return {
        "test": accuracy(test),
        f"rounds to {GOAL:.0%}".replace("%", " %"): min(reached, default=None),
        "clients": accuracy(own),
        "personal": accuracy(personal),
        "worst tenth": accuracy(personal, "accuracy_worst_decile"),
        "MB sent": sum(record.uplink_bytes for record in history) / 1e6,
    }


def average(values: list[float | None]) -> float | None:
    """Return the mean over the seeds, None unless every seed has a value."""
    return None if None in values else mean(v for v in values if v is not None)


def options_of(component: Component) -> str:
    """Return the hyperparameters that are not the defaults, as text."""
    defaults = {field.name: field.default for field in ALGORITHMS.load(component.name).options()}
    given = component.options.items()
    return ", ".join(f"{name} {value}" for name, value in given if value != defaults[name])


def main() -> None:
    """Run all and write the table."""
    runs: dict[tuple[str, str], list[dict[str, float | None]]] = defaultdict(list)
    for run in load(HERE / "algorithms.yaml").runs:
        component = run.configuration.algorithm
        simulation = make_simulation(run.configuration)
        with simulation.executor:
            found = figures(simulation.run(run.configuration.rounds))
        print(run.configuration.seed, component.name, found, file=sys.stderr)
        runs[component.name, options_of(component)].append(found)
    rows = [
        {"algorithm": name, "options": options}
        | {key: average([run[key] for run in found]) for key in found[0]}
        for (name, options), found in runs.items()
    ]
    pd.DataFrame(rows).to_csv(HERE / "algorithms.csv", index=False, float_format="%.4g")


if __name__ == "__main__":
    main()
