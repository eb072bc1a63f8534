"""How the cost of a round grows, and what that says about more workers than were measured.

Public names are imported when they are first used: a process that runs rounds must hold its own
memory only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbench.registry import lazy_exports

if TYPE_CHECKING:
    from fedbench.scaling.measure import ScalingSettings as ScalingSettings
    from fedbench.scaling.measure import Study as Study
    from fedbench.scaling.measure import measure_scaling as measure_scaling
    from fedbench.scaling.model import Growth as Growth
    from fedbench.scaling.model import Prediction as Prediction
    from fedbench.scaling.model import growths as growths
    from fedbench.scaling.model import predictions as predictions
    from fedbench.scaling.points import Point as Point
    from fedbench.scaling.points import Sample as Sample
    from fedbench.scaling.table import scaling_text as scaling_text
    from fedbench.scaling.table import scaling_to_frame as scaling_to_frame

_EXPORTS = {
    "Growth": "model",
    "Point": "points",
    "Prediction": "model",
    "Sample": "points",
    "ScalingSettings": "measure",
    "Study": "measure",
    "growths": "model",
    "measure_scaling": "measure",
    "predictions": "model",
    "scaling_text": "table",
    "scaling_to_frame": "table",
}

__all__ = [
    "Growth",
    "Point",
    "Prediction",
    "Sample",
    "ScalingSettings",
    "Study",
    "growths",
    "measure_scaling",
    "predictions",
    "scaling_text",
    "scaling_to_frame",
]


__getattr__ = lazy_exports(__name__, _EXPORTS)


def __dir__() -> list[str]:
    return sorted(__all__)
