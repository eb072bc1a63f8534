"""Every text output, byte for byte, from one fixed records file.

After a wanted change run ``python tests/report/test_golden.py`` and read the diff.
"""

import dataclasses
import sys
from pathlib import Path

import pytest

from fedbench.report import (
    FORMATS,
    FRAME_FORMATS,
    Report,
    Timings,
    compare,
    render_comparison,
    render_text,
    to_chrome_trace,
    to_comparison_frame,
)
from fedbench.report.trace import Span


def changes(report):
    """Return the comparison with a run in which `processes` was 1.5 times slower."""

    def slower(entry):
        if entry.configuration.backend != "processes":
            return entry
        rounds = tuple(
            dataclasses.replace(sample, seconds={"total": 1.5 * sample.round_s})
            for sample in entry.rounds
        )
        return dataclasses.replace(entry, rounds=rounds)

    after = dataclasses.replace(report, measurements=tuple(map(slower, report.measurements)))
    return compare(Timings.of_report(report), Timings.of_report(after))


def timeline(report):
    """Return the timeline of a run whose first row has three spans."""
    spans = (
        Span("client 3", "7/1", 10.0, 10.25),
        Span("client 5", "8/1", 10.125, 10.5),
        Span("round 1", "server", 10.0, 10.625),
    )
    first, *others = report.measurements
    traced = (dataclasses.replace(first, spans=spans), *others)
    return to_chrome_trace(dataclasses.replace(report, measurements=traced))


GOLDEN = Path(__file__).parent / "golden"
RENDERERS = {
    f"report{suffix}": FORMATS[suffix] for suffix in sorted(set(FORMATS) - {".parquet"})
} | {
    f"report-{width}.txt": lambda report, width=width: render_text(report, width).encode()
    for width in (80, 132)
}
RENDERERS |= {
    "compare.txt": lambda report: render_comparison(changes(report)).encode(),
    "trace.json": lambda report: timeline(report).encode(),
} | {
    f"compare{suffix}": lambda report, render=render: render(to_comparison_frame(changes(report)))
    for suffix, render in FRAME_FORMATS.items()
    if suffix != ".parquet"
}


@pytest.mark.parametrize("name", RENDERERS)
def test_output_is_the_golden_file_byte_for_byte(name):
    report = Report.load(GOLDEN / "records.json")
    assert RENDERERS[name](report).decode() == (GOLDEN / name).read_bytes().decode()


def test_no_golden_file_is_left_over():
    assert {path.name for path in GOLDEN.iterdir()} == {*RENDERERS, "records.json"}


def test_the_printed_table_fits_its_width():
    for width in (80, 132):
        lines = (GOLDEN / f"report-{width}.txt").read_text().splitlines()
        assert max(map(len, lines)) <= width


if __name__ == "__main__":
    for file_name, render in RENDERERS.items():
        content = render(Report.load(GOLDEN / "records.json"))
        (GOLDEN / file_name).write_bytes(content)
        sys.stdout.write(f"wrote {file_name}\n")
