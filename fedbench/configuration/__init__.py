"""One configuration for runs: YAML file, environment, flags and a matrix of sweeps.

:func:`load` merges and validates what was set and returns a :class:`Plan`; :func:`make_simulation`
makes one of its runs a simulation; :func:`run_all` runs them all, in processes if asked. The
public names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbench.registry import lazy_exports

if TYPE_CHECKING:
    from fedbench.configuration.building import make_simulation as make_simulation
    from fedbench.configuration.outputs import history_files as history_files
    from fedbench.configuration.plan import Plan as Plan
    from fedbench.configuration.plan import PlannedRun as PlannedRun
    from fedbench.configuration.plan import load as load
    from fedbench.configuration.plots import PLOT_FORMATS as PLOT_FORMATS
    from fedbench.configuration.plots import draw as draw
    from fedbench.configuration.plots import require_matplotlib as require_matplotlib
    from fedbench.configuration.running import Progress as Progress
    from fedbench.configuration.running import RunResult as RunResult
    from fedbench.configuration.running import process_count as process_count
    from fedbench.configuration.running import resume as resume
    from fedbench.configuration.running import run_all as run_all
    from fedbench.configuration.running import run_one as run_one
    from fedbench.configuration.running import summary as summary
    from fedbench.configuration.running import tidy_table as tidy_table
    from fedbench.configuration.schema import Component as Component
    from fedbench.configuration.schema import RunConfiguration as RunConfiguration

_EXPORTS = {
    "Component": "schema",
    "PLOT_FORMATS": "plots",
    "Plan": "plan",
    "PlannedRun": "plan",
    "Progress": "running",
    "RunConfiguration": "schema",
    "RunResult": "running",
    "draw": "plots",
    "history_files": "outputs",
    "load": "plan",
    "make_simulation": "building",
    "process_count": "running",
    "require_matplotlib": "plots",
    "resume": "running",
    "run_all": "running",
    "run_one": "running",
    "summary": "running",
    "tidy_table": "running",
}

__all__ = [
    "PLOT_FORMATS",
    "Component",
    "Plan",
    "PlannedRun",
    "Progress",
    "RunConfiguration",
    "RunResult",
    "draw",
    "history_files",
    "load",
    "make_simulation",
    "process_count",
    "require_matplotlib",
    "resume",
    "run_all",
    "run_one",
    "summary",
    "tidy_table",
]


__getattr__ = lazy_exports(__name__, _EXPORTS)


def __dir__() -> list[str]:
    return sorted(__all__)
