"""Measure workloads over backends, and show what was measured."""

from fedbench.report.columns import COLUMNS, Column, succeeded
from fedbench.report.driver import Progress, measure
from fedbench.report.frames import to_frame
from fedbench.report.output import check_writable, write_atomically
from fedbench.report.records import Configuration, Measurement, Report, Sample
from fedbench.report.render import FORMATS, FRAME_FORMATS, format_of, notes, render_text
from fedbench.report.settings import PRESETS, Settings, default_worker_counts, find_preset

__all__ = [
    "COLUMNS",
    "FORMATS",
    "FRAME_FORMATS",
    "PRESETS",
    "Column",
    "Configuration",
    "Measurement",
    "Progress",
    "Report",
    "Sample",
    "Settings",
    "check_writable",
    "default_worker_counts",
    "find_preset",
    "format_of",
    "measure",
    "notes",
    "render_text",
    "succeeded",
    "to_frame",
    "write_atomically",
]
