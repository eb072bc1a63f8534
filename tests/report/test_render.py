import csv
import html
import io

import pandas as pd
import pytest

from fedbench.errors import MissingExtraError
from fedbench.report import COLUMNS, FORMATS, FRAME_FORMATS, format_of, notes, render_text, to_frame

FLOATS = [column.name for column in COLUMNS if column.kind == "number"]
HOSTILE = ["a,b", 'say "hi"', "two\nlines", "naïve 表", "=1+1", "pipe|d", "back\\slash", " pad "]


@pytest.fixture
def report(build):
    return build.report(
        build.measurement(totals=(0.1, 1 / 3, 0.2)),
        build.measurement("threads", (0.07, 0.17, 0.1), workers=2),
        build.failure("ray", "ray is not installed"),
    )


def test_csv_reads_back_exactly(report):
    content = FORMATS[".csv"](report)
    assert b"\r" not in content
    frame = to_frame(report)
    back = pd.read_csv(io.BytesIO(content))
    assert list(back.columns) == list(frame.columns)
    for name in frame.columns:
        expected, got = frame[name], back[name]
        assert got.isna().tolist() == expected.isna().tolist()
        if name not in FLOATS:
            assert got.dropna().tolist() == expected.dropna().tolist(), name
    # pandas before 3 reads floats to an ulp only: check the file's own digits.
    for written, expected in zip(
        csv.DictReader(io.StringIO(content.decode())), frame.to_dict("records"), strict=True
    ):
        for name in FLOATS:
            assert (float(written[name]) if written[name] else None) == (
                None if pd.isna(expected[name]) else expected[name]
            )


def test_parquet_reads_back_exactly(report):
    pytest.importorskip("pyarrow", reason="the extra 'parquet' is not installed")
    back = pd.read_parquet(io.BytesIO(FORMATS[".parquet"](report)))
    frame = to_frame(report)
    assert back["clients"].dtype == "Int64"
    assert back["identical"].dtype == "boolean"
    for name in frame.columns:
        assert back[name].isna().tolist() == frame[name].isna().tolist()
        assert back[name].dropna().tolist() == frame[name].dropna().tolist(), name


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_survive_csv_and_parquet(build, name):
    report = build.report(build.measurement(workload=name), build.failure(name, name))
    back = pd.read_csv(io.BytesIO(FORMATS[".csv"](report)))
    assert back["workload"].tolist() == [name, "digits"]
    assert back["backend"][1] == name
    assert back["status"][1] == name


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_do_not_break_the_markdown_table(build, name):
    report = build.report(build.measurement(workload=name))
    head, rule, *body = FORMATS[".md"](report).decode().splitlines()
    cells = body[0].replace("\\\\", "").replace("\\|", "").count("|")
    assert head.count("|") == rule.count("|") == cells


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("width", [1, 40, 80, 200])
def test_the_printed_table_has_one_line_per_row_at_any_width(build, name, width):
    report = build.report(build.measurement(workload=name), build.measurement("threads"))
    text = render_text(report, width)
    assert text.endswith("\n")
    assert "sequential" in text


@pytest.mark.parametrize("width", [40, 60, 80, 100, 132, 400])
def test_the_printed_table_is_never_wider_than_asked(report, width):
    assert max(map(len, render_text(report, width).splitlines())) <= width


def test_a_wider_terminal_shows_more(report):
    assert "peak_mem_mb" not in render_text(report, 60)
    assert "aggregate_s" in render_text(report, 400)


@pytest.mark.parametrize("width", [40, 60, 80, 132])
def test_the_legend_explains_the_columns_that_are_shown_and_no_others(report, width):
    table, legend = render_text(report, width).split("\n\n")[:2]
    (heads,) = (line.split() for line in table.splitlines() if line.split()[0] == "backend")
    text = " ".join(legend.split())
    assert text.endswith(". More: docs/guide/how_we_measure.md")
    explained = [
        head
        for entry in text.partition(". More")[0].split("; ")
        for head in entry.partition(":")[0].split(", ")
    ]
    unclear = ("intraop", "round_s", "speedup", "low", "high", "efficiency")
    assert explained == [head for head in heads if head in unclear]
    assert len(explained) >= 2
    assert len(legend.splitlines()) <= (4 if width >= 80 else 8)


def test_the_legend_is_there_once(build):
    made = build.report(build.measurement(), build.measurement(workload="other"))
    assert render_text(made).count("More: docs/guide/how_we_measure.md") == 1


def test_a_failed_backend_is_a_row_and_a_note(report):
    text = render_text(report)
    assert "note: digits/fedavg/ray (2 workers): ray is not installed" in text
    assert [line.split()[0] for line in text.splitlines()[2:5]] == ["sequential", "threads", "ray"]


def test_a_broken_promise_is_called_out(build):
    report = build.report(
        build.measurement(),
        build.measurement("threads", digest="cd" * 32, max_abs_diff=1.5e-8),
    )
    (note,) = [note for note in notes(report) if "bitwise" in note]
    assert note.startswith("digits/fedavg/threads (1 worker)")
    assert "1.50e-08" in note
    assert render_text(report).splitlines()[3].endswith(" no")
    assert "not promised" not in render_text(report)


@pytest.mark.parametrize(
    ("row", "settings", "reason"),
    [
        ({"intraop_threads": 2}, {}, "other intra-op thread counts round differently"),
        ({}, {"reproducibility": "L0"}, "clients draw from the process's generators under L0"),
    ],
)
def test_a_difference_that_nobody_ruled_out_is_starred(build, row, settings, reason):
    other = build.measurement(digest="cd" * 32, max_abs_diff=1.5e-8, **row)
    made = build.report(build.measurement(), other, **settings)
    lines = render_text(made).splitlines()
    assert lines[2].endswith(" yes")
    assert lines[3].endswith(" no*")
    assert f"* not promised: {reason}" in lines
    markdown = FORMATS[".md"](made).decode()
    assert "| no* |" in markdown
    assert f"\n\\* not promised: {reason}\n" in markdown
    assert f"* not promised: {reason}" in html.unescape(FORMATS[".html"](made).decode())
    assert to_frame(made)["identical"].tolist() == [True, False]


def test_a_row_that_is_faster_than_the_ideal_says_why_not_to_believe_it(build):
    slowed = build.measurement(totals=(4.0,) * 6)
    made = build.report(slowed, build.measurement("threads", (1.5,) * 6, workers=2))
    (note,) = notes(made)
    assert note.startswith("1 of 2 rows are faster than the ideal, most digits/fedavg/threads")
    assert "1.33 times" in note  # speedup 2.67 on two workers
    honest = build.report(slowed, build.measurement("threads", (2.1,) * 6, workers=2))
    assert notes(honest) == []
    # Stacked clients do not do the baseline's work on more cores: they do it in another way.
    stacked = build.measurement("threads+vectorized", (0.2,) * 6, workers=2, digest="cd" * 32)
    assert notes(build.report(slowed, stacked)) == []


def test_rows_without_a_baseline_say_why_nothing_is_compared(build):
    six = (1.0,) * 6
    rows = [build.measurement(name, six, workload=w) for w in "ab" for name in ("threads", "ray")]
    (note,) = notes(build.report(*rows))
    assert note.startswith("a/fedavg, b/fedavg: no speedup, and bits were not compared")
    assert note.endswith("`sequential` was not run: name it with --backend as well.")
    failed = build.failure("sequential", "ValueError: x", workload="a", workers=1)
    (_, other, own) = notes(build.report(failed, *rows))
    assert own.startswith("b/fedavg: no speedup")
    assert other.startswith("a/fedavg: no speedup")
    assert other.endswith("`sequential` failed.")
    # A baseline is one for its own job, and enough for it.
    assert notes(build.report(build.measurement(totals=six, workload="a"), *rows[:2])) == []
    assert len(notes(build.report(build.measurement(totals=six, workload="a"), *rows))) == 1
    # Where nothing ran, there is nothing to compare.
    assert len(notes(build.report(failed))) == 1


def test_wide_spread_few_rounds_and_foreign_load_are_noted(build):
    calm = build.report(build.measurement(totals=(1.0,) * 6))
    assert notes(calm) == []
    noisy = build.report(build.measurement(totals=(1.0, 2.0, 3.0), foreign_load=0.4))
    spread, few, load = notes(noisy)
    assert spread.startswith("rounds vary by more than 25%")
    assert "in 1 of 1 rows, most in digits/fedavg/sequential (1 worker): 50%." in spread
    assert few.startswith("3 timed rounds")
    assert "used up to 40% of the machine" in load


def test_the_way_to_a_traceback_is_noted(build):
    failed = build.measurement(status="ValueError: x", details="Traceback ...", rounds=())
    assert notes(build.report(failed))[1].startswith("the tracebacks of failed rows are in")


@pytest.mark.parametrize("path", ["t.csv", "T.CSV", "a.b/t.md", "x.json"])
def test_the_suffix_picks_the_format(path):
    assert format_of(path) == path[path.rindex(".") :].lower()


@pytest.mark.parametrize("path", ["t", "t.cvs", "csv", ".csv", "t.csv.gz", ""])
def test_an_unknown_suffix_lists_the_known_ones(path):
    with pytest.raises(ValueError, match=r"must end in one of .*\.csv.*, got "):
        format_of(path)


def test_a_close_suffix_is_suggested():
    with pytest.raises(ValueError, match=r"Did you mean '\.csv'\?"):
        format_of("t.cvs")


def test_a_suffix_alone_is_no_name():
    with pytest.raises(ValueError, match=r"got 'out/\.csv'\. Put a name before it: 'table\.csv'\."):
        format_of("out/.csv")


def test_parquet_without_pyarrow_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"'\.\[parquet\]'"):
        format_of("t.parquet")


def test_any_frame_can_be_written_in_every_frame_format():
    frame = pd.DataFrame({"round": [0, 1], "loss": [0.1, None], "name": ["a|b", "ü"]})
    assert FRAME_FORMATS[".csv"](frame).decode() == "round,loss,name\n0,0.1,a|b\n1,,ü\n"
    assert FRAME_FORMATS[".md"](frame).decode().splitlines()[2:] == [
        "| 0 | 0.1 | a\\|b |",
        "| 1 | - | ü |",
    ]
    back = pd.read_json(io.BytesIO(FRAME_FORMATS[".json"](frame)), orient="records")
    pd.testing.assert_frame_equal(back, frame, check_dtype=False)


def test_json_keeps_every_bit_of_a_float():
    import json

    import pandas as pd

    from fedbench.report.render import frame_to_json

    values = [0.1 + 0.2, 1e-300, float("nan")]
    rows = json.loads(frame_to_json(pd.DataFrame({"value": values, "count": [1, 2, 3]})))
    assert [row["value"] for row in rows] == [values[0], values[1], None]
    assert [row["count"] for row in rows] == [1, 2, 3]
