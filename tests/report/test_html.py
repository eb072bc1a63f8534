import dataclasses
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fedbench.report import COLUMNS, FORMATS, Report

GOLDEN = Path(__file__).parent / "golden" / "records.json"
VOID = {"meta", "rect", "line", "polyline"}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

HOSTILE = "<script>alert('&\"表')</script>"


class Page(HTMLParser):
    """Tags and text of a page; fails on tags that do not nest."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text, self.links = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def page(report):
    return Page(FORMATS[".html"](report).decode())


@pytest.fixture
def golden():
    return Report.load(GOLDEN)


def test_the_page_needs_nothing_else(golden):
    text = FORMATS[".html"](golden).decode()
    parsed = page(golden)
    assert parsed.links == []
    assert "script" not in parsed.tags
    assert not re.search(r"https?://|@import|url\(", text)


def curve(text):
    """Return the corners of the curves."""
    return [
        [tuple(map(float, corner.split(","))) for corner in corners.split()]
        for corners in re.findall(r'<polyline points="([^"]+)"', text)
    ]


def test_learning_curves_show_the_loss_against_the_time(build):
    def losses(row, values):
        rounds = [*row.warmup, *row.rounds]
        told = [
            dataclasses.replace(entry, metrics={"accuracy": 0.5, "loss": value})
            for entry, value in zip(rounds, values, strict=True)
        ]
        return dataclasses.replace(row, warmup=(told[0],), rounds=tuple(told[1:]))

    slow = losses(build.measurement(totals=(4.0, 4.0)), [3.0, 2.0, 1.0])  # the warm-up takes 2 s
    fast = losses(build.measurement("threads", (1.0, 1.0), workers=2), [3.0, float("nan"), 1.0])
    text = FORMATS[".html"](build.report(slow, fast)).decode()
    assert curve(text) == [
        [(20.0, 0.0), (60.0, 50.0), (100.0, 100.0)],
        [(20.0, 0.0), (40.0, 100.0)],
    ]
    assert "Mean training loss of the cohort" in text
    assert "<span>3.00</span><span>1.00</span>" in text


def test_without_metrics_there_are_no_learning_curves(build):
    text = FORMATS[".html"](build.report(build.measurement(totals=(1.0, 1.0)))).decode()
    assert "Learning curves" not in text


def test_every_row_and_column_is_there(golden):
    parsed = page(golden)
    texts = set(parsed.text)
    assert {column.name for column in COLUMNS} <= texts
    assert {column.description for column in COLUMNS} <= texts
    assert parsed.tags.count("h2") == 4  # two workloads, columns, machine


def test_hostile_names_stay_text(build):
    report = build.report(
        build.measurement(workload=HOSTILE), build.failure(HOSTILE, HOSTILE), note=HOSTILE
    )
    parsed = page(report)
    assert "script" not in parsed.tags
    assert HOSTILE in parsed.text


def test_bars_have_the_lengths_of_their_figures(build):
    report = build.report(
        build.measurement(totals=(1.0, 1.0)),
        build.measurement("threads", (0.5, 0.5), workers=4),
    )
    text = FORMATS[".html"](report).decode()
    # The ideal of four workers, 4, is the whole width; the speedup of 2 is half of it.
    assert '<rect x="0.00%" width="25.00%"' in text
    assert '<rect x="0.00%" width="50.00%"' in text
    assert '<line x1="100.00%" x2="100.00%"' in text


def test_a_report_without_figures_has_no_charts(build):
    assert "svg" not in page(build.report(build.failure("ray", "not installed"))).tags
    assert "svg" not in page(build.report()).tags


def test_zero_times_do_not_divide_by_zero(build):
    report = build.report(build.measurement(totals=(0.0, 0.0), peak_memory_bytes=0))
    assert "svg" in page(report).tags


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
@pytest.mark.parametrize("width", [390, 1200])
def test_a_browser_shows_the_page_without_scrolling_sideways(golden, tmp_path, width):
    probe = (
        "<script>document.title = [innerWidth, document.documentElement.scrollWidth,"
        "document.querySelectorAll('svg rect').length].join('/')</script></body>"
    )
    copy = tmp_path / "page.html"
    copy.write_text(FORMATS[".html"](golden).decode().replace("</body>", probe))
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--window-size={width},2000", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run([*command, copy.as_uri()], capture_output=True, timeout=120, check=True)
    title = re.search(r"<title>(\d+)/(\d+)/(\d+)</title>", done.stdout.decode())
    assert title, done.stdout.decode()[:500]
    inner, scroll, bars = map(int, title.groups())
    assert scroll <= inner
    assert bars > 10
