"""Every text output, byte for byte, from one fixed records file.

After a wanted change run ``python tests/report/test_golden.py`` and read the diff.
"""

import sys
from pathlib import Path

import pytest

from fedbench.report import FORMATS, Report, render_text

GOLDEN = Path(__file__).parent / "golden"
RENDERERS = {
    f"report{suffix}": FORMATS[suffix] for suffix in sorted(set(FORMATS) - {".parquet"})
} | {
    f"report-{width}.txt": lambda report, width=width: render_text(report, width).encode()
    for width in (80, 132)
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
