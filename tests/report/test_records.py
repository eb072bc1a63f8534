import json

import pytest

from fedbench.errors import RecordFormatError
from fedbench.report import Report


def test_json_round_trip_is_exact(build):
    report = build.report(
        build.measurement(totals=(0.1, 1 / 3, 2e-9)),
        build.failure("ray", 'no, "ray"\nis missing ü'),
    )
    assert Report.from_json(report.to_json()) == report


def test_not_a_number_is_stored_as_null(build):
    report = build.report(build.measurement(max_abs_diff=float("nan"), foreign_load=float("inf")))
    entry = json.loads(report.to_json())["measurements"][0]
    assert entry["max_abs_diff"] is None
    assert entry["foreign_load"] is None


def test_a_newer_schema_is_refused(build):
    document = json.loads(build.report(build.measurement()).to_json()) | {"schema_version": 99}
    with pytest.raises(RecordFormatError, match=r"a\.json must have schema version 1, got 99\."):
        Report.from_json(json.dumps(document), source="a.json")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema": "other"}', "null"])
def test_anything_else_is_refused_and_named(text):
    with pytest.raises(RecordFormatError, match=r"^b\.json must "):
        Report.from_json(text, source="b.json")


def test_a_cut_file_is_refused(build):
    document = json.loads(build.report(build.measurement()).to_json())
    del document["measurements"][0]["configuration"]["backend"]
    with pytest.raises(RecordFormatError, match="must be a whole fedbench report"):
        Report.from_json(json.dumps(document))


def test_load_reads_utf8_and_names_the_file(build, tmp_path):
    path = tmp_path / "表.json"
    report = build.report(build.failure("ray", "für"))
    path.write_bytes(report.to_json().encode())
    assert Report.load(path) == report
    path.write_text("x")
    with pytest.raises(RecordFormatError, match="表"):
        Report.load(path)


def test_a_report_is_shown_in_a_line(build):
    made = build.report(build.measurement(totals=(1.0,) * 7), build.failure("ray", "not installed"))
    assert repr(made) == "<Report of 2 rows on digits/fedavg>"
    assert [repr(entry) for entry in made.measurements] == [
        "<Measurement of digits/fedavg/sequential (1 worker): 7 rounds>",
        "<Measurement of digits/fedavg/ray (2 workers): not installed>",
    ]
