"""Run what a plan says: one simulation, or all of a matrix, one after another or in processes."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedbench.configuration.building import make_simulation
from fedbench.configuration.plan import Plan, PlannedRun
from fedbench.configuration.schema import RunConfiguration
from fedbench.reproducibility.scope import seed_global_generators
from fedbench.simulation import History, RoundRecord, Simulation, has_checkpoint

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Progress",
    "RunResult",
    "process_count",
    "resume",
    "run_all",
    "run_one",
    "summary",
    "tidy_table",
]


@dataclass(frozen=True)
class Progress:
    """How far a run is.

    Attributes
    ----------
    index : int
        Position of the run in its plan.
    done, total : int
        Committed rounds, and rounds that the run will have.
    metrics : mapping
        Metrics of the last round, by split.
    """

    index: int
    done: int
    total: int
    metrics: dict[str, dict[str, float]]


@dataclass(frozen=True)
class RunResult:
    """What became of one run.

    Attributes
    ----------
    run : PlannedRun
        What was to be run.
    history : History
        Its rounds; none if it failed.
    digest : str or None
        SHA-256 of the final state of server and clients, None if it failed.
    error : str or None
        Why it failed, in one line.
    details : str
        The traceback of the failure.
    """

    run: PlannedRun
    history: History
    digest: str | None = None
    error: str | None = None
    details: str = ""


Listener = Callable[[Progress], None]


def run_one(
    simulation: Simulation, configuration: RunConfiguration, listener: Listener | None = None
) -> History:
    """Run the simulation of a resolved configuration to its last round.

    Parameters
    ----------
    simulation : Simulation
        From :func:`make_simulation`, or resumed from a checkpoint; its executor stays open.
    configuration : RunConfiguration
        Its configuration.
    listener : callable, optional
        Called after every round.

    Returns
    -------
    History
        All rounds, those of before a resume included. At level L0 the process's generators are
        seeded first, so that a run does not depend on those before it.
    """
    total = configuration.rounds or simulation.workload.rounds
    if configuration.reproducibility == "L0":
        seed_global_generators(configuration.seed)
    left = total - simulation.rounds_done
    if left <= 0:
        return simulation.history

    def on_round(record: RoundRecord) -> None:
        if listener is not None:
            metrics = {split: dict(values) for split, values in record.metrics.items()}
            listener(Progress(0, record.round, total, metrics))

    return simulation.run(
        left,
        evaluate_every=configuration.eval_every,
        on_round=on_round,
        checkpoint_dir=configuration.checkpoints,
        checkpoint_every=configuration.checkpoint_every,
    )


def resume(simulation: Simulation, configuration: RunConfiguration) -> int:
    """Load the newest checkpoint if the configuration asks for it; return the rounds done."""
    folder = configuration.checkpoints
    if not configuration.resume or folder is None or not has_checkpoint(folder):
        return 0
    return simulation.load_checkpoint(folder)


def attempt(run: PlannedRun, listener: Listener | None = None) -> RunResult:
    """Run one of many; a failure becomes part of the result."""
    try:
        simulation = make_simulation(run.configuration)
        with simulation.executor:
            resume(simulation, run.configuration)
            history = run_one(simulation, run.configuration, listener)
        return RunResult(run, history, simulation.state_digest())
    except Exception as error:  # noqa: BLE001 - reported with the run, the others go on
        return failure(run, error)


def failure(run: PlannedRun, error: Exception) -> RunResult:
    """Return the result of a run that raised."""
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    details = "".join(traceback.format_exception(error))
    return RunResult(run, History(), None, reason, details)


def run_all(
    plan: Plan,
    *,
    on_progress: Listener | None = None,
    on_result: Callable[[int, RunResult], None] | None = None,
) -> list[RunResult]:
    """Run a plan, ``plan.settings.parallel`` runs at once, and return the results in its order.

    A run that fails does not stop the others. The results do not depend on how many run at once.

    Parameters
    ----------
    plan : Plan
        From :func:`load`.
    on_progress : callable, optional
        Called on this thread with the :class:`Progress` of a run after each of its rounds.
    on_result : callable, optional
        Called on this thread with position and :class:`RunResult` as runs end.

    Returns
    -------
    list of RunResult
        One for each run of the plan.
    """
    tell = on_progress or (lambda progress: None)
    finish = on_result or (lambda index, result: None)
    processes = process_count(plan)
    if processes > 1:
        from fedbench.configuration.parallel import run_in_processes

        return run_in_processes(plan.runs, processes, tell, finish)
    results = []
    for index, run in enumerate(plan.runs):
        result = attempt(run, _numbered(index, tell))
        finish(index, result)
        results.append(result)
    return results


def process_count(plan: Plan) -> int:
    """Return how many runs go at once: no more than there are runs, and cores for their threads."""
    from fedbench.executors.resources import available_cpus

    threads = max(run.configuration.intraop_threads for run in plan.runs)
    return min(plan.settings.parallel, len(plan.runs), max(1, available_cpus() // threads))


def tidy_table(results: Sequence[RunResult]) -> pd.DataFrame:
    """Return all metrics: the swept keys, then ``round``, ``split``, ``metric``, ``value``.

    One row for each run, round, split and metric, in the order of the runs. A run that failed has
    no rows.
    """
    import pandas as pd

    frames = []
    for result in results:
        frame = result.history.to_frame()
        for position, (key, value) in enumerate(result.run.keys.items()):
            frame.insert(position, key, [value] * len(frame))
        frames.append(frame)
    filled = [frame for frame in frames if len(frame)] or frames[:1]
    return pd.concat(filled, ignore_index=True)


def _numbered(index: int, tell: Listener) -> Listener:
    def listener(progress: Progress) -> None:
        tell(Progress(index, progress.done, progress.total, progress.metrics))

    return listener


def summary(results: Sequence[RunResult]) -> list[dict[str, Any]]:
    """Return one row for each run: swept keys, status, rounds and its last metrics."""
    rows = []
    for result in results:
        row: dict[str, Any] = {**result.run.keys, "status": "failed" if result.error else "ok"}
        row["rounds"] = len(result.history)
        for record in result.history:
            for split, metrics in record.metrics.items():
                row |= {f"{split}_{metric}": value for metric, value in metrics.items()}
        rows.append(row)
    return rows
