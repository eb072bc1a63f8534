"""The study as a data frame and as text."""

from __future__ import annotations

import pandas as pd

from fedbench.environment import cpu_model, package_version
from fedbench.report import statistics
from fedbench.report.columns import significant
from fedbench.scaling.measure import Study
from fedbench.scaling.model import Growth, growths, predictions

__all__ = ["scaling_text", "scaling_to_frame"]


def scaling_to_frame(study: Study) -> pd.DataFrame:
    """Return one line for each point: what one worker took, the prediction and the measurement.

    Parameters
    ----------
    study : Study
        What was measured.

    Returns
    -------
    pandas.DataFrame
        Seconds at full precision; `error_pct` is above 0 where the prediction is too slow.
    """
    return pd.DataFrame(
        [
            {
                "clients": entry.point.clients,
                "cohort": entry.point.cohort,
                "params": entry.point.params,
                "round_s": entry.alone_s,
                "task_s": entry.task_s,
                "overhead_s": entry.overhead_s,
                "cpu_s": entry.cpu_s,
                "contention": entry.contention,
                "workers": entry.workers,
                "predicted_s": entry.predicted_s,
                "measured_s": entry.measured_s,
                "error_pct": 100 * entry.error,
                "samples": len(study.alone[entry.point]),
                "seed": study.settings.seed,
                "torch_version": package_version("torch"),
                "cpu": cpu_model(),
                "date": study.date,
            }
            for entry in predictions(study)
        ]
    )


def scaling_text(study: Study) -> str:
    """Return the tables for people: growth with one worker, and the prediction for several."""
    growth = pd.DataFrame(
        [
            {
                "varied": entry.factor,
                "from": str(entry.values[0]),
                "to": str(entry.values[-1]),
                "round_s": f"{significant(entry.round_s[0])} to {significant(entry.round_s[-1])}",
                "exponent": _hundredths(entry.exponent),
                "95 % interval": (
                    f"{_hundredths(entry.exponent_low)} to {_hundredths(entry.exponent_high)}"
                ),
                "fixed_s": significant(entry.fixed_s),
                "each_s": f"{_unless_negligible(entry):.2g}",
            }
            for entry in growths(study)
        ],
        dtype=object,
    )
    checks = predictions(study)
    check = pd.DataFrame(
        [
            {
                "clients": str(entry.point.clients),
                "cohort": str(entry.point.cohort),
                "params": str(entry.point.params),
                "one worker": significant(entry.alone_s),
                "contention": significant(entry.contention),
                "predicted": significant(entry.predicted_s),
                "measured": significant(entry.measured_s),
                "error": f"{entry.error:+.0%}",
            }
            for entry in checks
        ],
        dtype=object,
    )
    usual = statistics.median([abs(entry.error) for entry in checks]) or 0.0
    worst = max(abs(entry.error) for entry in checks)
    workers = study.settings.workers
    return (
        f"One worker: how a round grows\n{growth.to_string(index=False)}\n\n"
        f"{workers} workers, predicted from one (seconds)\n{check.to_string(index=False)}\n\n"
        f"The prediction is off by {usual:.0%} in the median and by {worst:.0%} at most.\n"
    )


def _hundredths(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}"  # without the sign of a negative zero


def _unless_negligible(growth: Growth) -> float:
    """Return the slope, 0 where it adds less than a millionth to the round."""
    added = abs(growth.slope_s) * growth.values[-1]
    return growth.slope_s if added > 1e-6 * growth.round_s[-1] else 0.0
