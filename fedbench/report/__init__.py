"""Measure workloads over backends, and show what was measured."""

from fedbench.report.columns import COLUMNS, Column
from fedbench.report.frames import to_frame
from fedbench.report.output import check_writable, write_atomically
from fedbench.report.records import Configuration, Measurement, Report, Sample
from fedbench.report.render import FORMATS, FRAME_FORMATS, format_of, notes, render_text

__all__ = [
    "COLUMNS",
    "FORMATS",
    "FRAME_FORMATS",
    "Column",
    "Configuration",
    "Measurement",
    "Report",
    "Sample",
    "check_writable",
    "format_of",
    "notes",
    "render_text",
    "to_frame",
    "write_atomically",
]
