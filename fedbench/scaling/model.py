r"""The model of a round's cost, fitted to a study and checked against it.

With one worker a round of a cohort of :math:`K` takes :math:`R_1 = O + Q`: the time :math:`Q`
inside client tasks and the rest :math:`O` (planning, broadcast, transport, aggregation). With
:math:`W` workers on as many cores the model says

.. math:: R_W = \max\left(O + c\,Q\,\frac{\lceil K/W\rceil}{K},\; c\,\frac{C}{W}\right)

where :math:`C` is the CPU time of the round in all processes, a bound that no schedule can beat,
and :math:`c` says how much slower a task is when all cores are busy (shared caches and memory, two
threads of one core). It is measured with :math:`W` independent one-worker runs side by side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbench.report import statistics
from fedbench.scaling.measure import Study
from fedbench.scaling.points import Point, Sample

__all__ = ["Growth", "Prediction", "growths", "predictions"]

_RESAMPLES = 500


@dataclass(frozen=True)
class Growth:
    """How the round with one worker grows with one thing.

    Parameters
    ----------
    factor : str
        ``"clients"``, ``"cohort"`` or ``"params"``.
    values : tuple of int
        What was measured.
    round_s : tuple of float
        Median round at each value.
    exponent : float
        Slope of the least-squares line through the logarithms: 0 is constant, 1 proportional.
    exponent_low, exponent_high : float
        95 % bootstrap interval of `exponent`.
    fixed_s, slope_s : float
        Least-squares line ``fixed_s + slope_s * value`` through relative errors: a round's fixed
        part, and what one more client or parameter costs.
    """

    factor: str
    values: tuple[int, ...]
    round_s: tuple[float, ...]
    exponent: float
    exponent_low: float
    exponent_high: float
    fixed_s: float
    slope_s: float


@dataclass(frozen=True)
class Prediction:
    """A round with several workers, predicted from one and measured.

    Parameters
    ----------
    point : Point
        The job.
    workers : int
        Workers.
    alone_s : float
        Round with one worker.
    overhead_s, task_s, cpu_s : float
        :math:`O`, :math:`Q` and :math:`C` of it.
    contention : float
        :math:`c`.
    predicted_s, measured_s : float
        Round with `workers` workers.
    """

    point: Point
    workers: int
    alone_s: float
    overhead_s: float
    task_s: float
    cpu_s: float
    contention: float
    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float:
        """How far the prediction is off, as a share of what was measured; above 0 is too slow."""
        return self.predicted_s / self.measured_s - 1


def growths(study: Study) -> list[Growth]:
    """Return the growth with registered clients, cohort and parameters."""
    return [
        _growth(factor, [(value, study.alone[point]) for value, point in sweep])
        for factor, sweep in study.settings.sweeps().items()
    ]


def _growth(factor: str, sweep: Sequence[tuple[int, Sequence[Sample]]]) -> Growth:
    values = [value for value, _ in sweep]
    seconds = [[sample.round_s for sample in samples] for _, samples in sweep]
    medians = [float(np.median(rounds)) for rounds in seconds]
    generator = np.random.Generator(np.random.PCG64(20240229))
    resampled = [
        _exponent(values, [float(np.median(generator.choice(r, len(r)))) for r in seconds])
        for _ in range(_RESAMPLES)
    ]
    low, high = np.percentile(resampled, [2.5, 97.5])
    # Relative errors: otherwise the largest value alone would determine the line.
    slope, fixed = np.polyfit(values, medians, 1, w=1 / np.asarray(medians))
    return Growth(
        factor,
        tuple(values),
        tuple(medians),
        _exponent(values, medians),
        float(low),
        float(high),
        float(fixed),
        float(slope),
    )


def _exponent(values: Sequence[float], seconds: Sequence[float]) -> float:
    return float(np.polyfit(np.log(values), np.log(seconds), 1)[0])


def predictions(study: Study) -> list[Prediction]:
    """Return, for every point, what the model predicts and what was measured."""
    return [_prediction(study, point) for point in study.settings.points()]


def _prediction(study: Study, point: Point) -> Prediction:
    workers = study.settings.workers
    alone, beside = study.alone[point], study.beside[point]
    round_s, task_s, cpu_s = (_median(alone, name) for name in ("round_s", "task_s", "cpu_s"))
    contention = _median(beside, "task_s") / task_s
    overhead = max(0.0, round_s - task_s)
    share = math.ceil(point.cohort / workers) / point.cohort
    return Prediction(
        point=point,
        workers=workers,
        alone_s=round_s,
        overhead_s=overhead,
        task_s=task_s,
        cpu_s=cpu_s,
        contention=contention,
        predicted_s=max(overhead + contention * task_s * share, contention * cpu_s / workers),
        measured_s=_median(study.together[point], "round_s"),
    )


def _median(samples: Sequence[Sample], name: str) -> float:
    # The clock of other processes ticks in hundredths of a second: its mean is finer.
    values = [getattr(sample, name) for sample in samples]
    return float(np.mean(values)) if name == "cpu_s" else statistics.median(values) or 0.0
