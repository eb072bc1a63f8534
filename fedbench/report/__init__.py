"""Measure workloads over backends, and show what was measured.

The public names are imported when they are first used: a process that runs a configuration must
hold its own memory only, and not that of pandas and of the tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbench.registry import lazy_exports

if TYPE_CHECKING:
    from fedbench.report.columns import COLUMNS as COLUMNS
    from fedbench.report.columns import Column as Column
    from fedbench.report.columns import succeeded as succeeded
    from fedbench.report.comparison import Change as Change
    from fedbench.report.comparison import Timings as Timings
    from fedbench.report.comparison import compare as compare
    from fedbench.report.comparison import differences_of_environment as differences_of_environment
    from fedbench.report.comparison import load_timings as load_timings
    from fedbench.report.comparison import render_comparison as render_comparison
    from fedbench.report.comparison import to_comparison_frame as to_comparison_frame
    from fedbench.report.driver import measure as measure
    from fedbench.report.frames import to_frame as to_frame
    from fedbench.report.output import check_writable as check_writable
    from fedbench.report.output import write_atomically as write_atomically
    from fedbench.report.progress import Progress as Progress
    from fedbench.report.records import Configuration as Configuration
    from fedbench.report.records import Measurement as Measurement
    from fedbench.report.records import Report as Report
    from fedbench.report.records import Sample as Sample
    from fedbench.report.remarks import notes as notes
    from fedbench.report.render import FORMATS as FORMATS
    from fedbench.report.render import FRAME_FORMATS as FRAME_FORMATS
    from fedbench.report.render import format_of as format_of
    from fedbench.report.render import render_text as render_text
    from fedbench.report.settings import PRESETS as PRESETS
    from fedbench.report.settings import Settings as Settings
    from fedbench.report.settings import default_worker_counts as default_worker_counts
    from fedbench.report.settings import find_preset as find_preset
    from fedbench.report.trace import to_chrome_trace as to_chrome_trace

_EXPORTS = {
    "to_chrome_trace": "trace",
    "Timings": "comparison",
    "load_timings": "comparison",
    "Change": "comparison",
    "compare": "comparison",
    "differences_of_environment": "comparison",
    "to_comparison_frame": "comparison",
    "render_comparison": "comparison",
    "COLUMNS": "columns",
    "FORMATS": "render",
    "FRAME_FORMATS": "render",
    "PRESETS": "settings",
    "Column": "columns",
    "Configuration": "records",
    "Measurement": "records",
    "Progress": "progress",
    "Report": "records",
    "Sample": "records",
    "Settings": "settings",
    "check_writable": "output",
    "default_worker_counts": "settings",
    "find_preset": "settings",
    "format_of": "render",
    "measure": "driver",
    "notes": "remarks",
    "render_text": "render",
    "succeeded": "columns",
    "to_frame": "frames",
    "write_atomically": "output",
}

__all__ = [
    "COLUMNS",
    "FORMATS",
    "FRAME_FORMATS",
    "PRESETS",
    "Change",
    "Column",
    "Configuration",
    "Measurement",
    "Progress",
    "Report",
    "Sample",
    "Settings",
    "Timings",
    "check_writable",
    "compare",
    "default_worker_counts",
    "differences_of_environment",
    "find_preset",
    "format_of",
    "load_timings",
    "measure",
    "notes",
    "render_comparison",
    "render_text",
    "succeeded",
    "to_chrome_trace",
    "to_comparison_frame",
    "to_frame",
    "write_atomically",
]


__getattr__ = lazy_exports(__name__, _EXPORTS)


def __dir__() -> list[str]:
    return sorted(__all__)
