import dataclasses
import json

import pytest

from fedbench.cli import main
from fedbench.errors import RecordFormatError
from fedbench.report import (
    Report,
    Timings,
    compare,
    differences_of_environment,
    load_timings,
    render_comparison,
    to_comparison_frame,
)

STEADY = tuple(1.0 + 0.001 * i for i in range(8))
SLOWER = tuple(1.3 * value for value in STEADY)


@pytest.fixture
def runs(build):
    """Return (before, after): threads became slower, ray is new, processes fail."""
    before = build.report(
        build.measurement(totals=STEADY),
        build.measurement("threads", STEADY, workers=2),
        build.measurement("processes", STEADY, workers=2),
    )
    after = build.report(
        build.measurement(totals=STEADY[::-1]),
        build.measurement("threads", SLOWER, workers=2, digest="cd" * 32),
        build.failure("processes", "broken"),
        build.measurement("ray", STEADY, workers=2),
    )
    return before, after


def timings(*reports):
    return tuple(map(Timings.of_report, reports))


def test_verdicts(runs):
    changes = compare(*timings(*runs))
    assert [(change.name, change.verdict) for change in changes] == [
        ("digits/fedavg/sequential (1 worker)", "no difference"),
        ("digits/fedavg/threads (2 workers)", "slower"),
        ("digits/fedavg/processes (2 workers)", "only before"),
        ("digits/fedavg/ray (2 workers)", "only after"),
    ]
    assert changes[1].ratio == pytest.approx(1.3)
    assert changes[1].low <= changes[1].ratio <= changes[1].high
    assert [change.same_result for change in changes] == [True, False, None, None]


def test_the_way_back_is_faster(runs):
    assert compare(*timings(*runs[::-1]))[1].verdict == "faster"


def test_a_report_does_not_differ_from_itself(runs):
    for change in compare(*timings(runs[0], runs[0])):
        assert change.verdict == "no difference"
        assert change.ratio == 1.0


def test_a_row_that_failed_in_both_runs_has_no_figures(build):
    run = build.report(build.failure("ray", "not installed"))
    (change,) = compare(*timings(run, run))
    assert change.verdict == "no figures"
    assert not change.regressed(0.0)


@pytest.mark.parametrize("width", [200, 80, 60])
def test_long_names_leave_seconds_to_the_files(build, width):
    run = build.report(build.measurement("threads", STEADY, workers=2, workload="w" * 25))
    text = render_comparison(compare(*timings(run, run)), width)
    assert "no difference" in text
    assert max(map(len, text.splitlines())) <= max(width, 72)
    assert ("before_s" in text) == (width == 200)


def test_one_round_gives_no_verdict(build):
    report = build.report(build.measurement(totals=(1.0,)))
    assert [change.verdict for change in compare(*timings(report, report))] == ["too few rounds"]


def test_zero_times_give_no_ratio(build):
    report = build.report(build.measurement(totals=(0.0, 0.0)))
    (change,) = compare(*timings(report, report))
    assert (change.ratio, change.verdict) == (None, "too few rounds")


def test_results_of_other_seeds_are_not_compared(build):
    first = build.report(build.measurement())
    second = build.report(build.measurement(digest="cd" * 32), seed=1)
    assert compare(*timings(first, second))[0].same_result is None


def test_tolerance_applies_to_the_sure_part_of_the_change(runs):
    change = compare(*timings(*runs))[1]
    assert change.regressed(0.1)
    assert not change.regressed(0.5)


def test_other_machines_are_told_apart(runs):
    before, after = runs
    assert differences_of_environment(*timings(before, after)) == []
    other = dataclasses.replace(after, environment={"cpu": "Other CPU"})
    assert differences_of_environment(*timings(before, other)) == [
        "cpu: Test CPU before, Other CPU after"
    ]


def test_text_and_frame_have_a_line_per_row(runs):
    changes = compare(*timings(*runs))
    text = render_comparison(changes)
    assert len(text.splitlines()) == 5
    assert "digits/fedavg/threads (2 workers)" in text
    assert max(map(len, text.splitlines())) <= 80
    assert len(to_comparison_frame(changes)) == 4
    assert render_comparison([]) == "nothing to compare\n"


def pytest_benchmark_file(path, data, node="host"):
    stats = {"median": 1.0} | ({"data": list(data)} if data else {})
    document = {
        "machine_info": {"node": node, "machine": "x86_64"},
        "benchmarks": [{"fullname": "benchmarks/bench_mean.py::test_mean", "stats": stats}],
    }
    path.write_text(json.dumps(document))
    return path


def test_files_of_pytest_benchmark_are_read_too(tmp_path):
    before = load_timings(pytest_benchmark_file(tmp_path / "a.json", STEADY))
    after = load_timings(pytest_benchmark_file(tmp_path / "b.json", SLOWER, node="other"))
    (change,) = compare(before, after)
    assert (change.name, change.verdict) == ("benchmarks/bench_mean.py::test_mean", "slower")
    assert differences_of_environment(before, after) == ["node: host before, other after"]


def test_a_file_of_pytest_benchmark_without_samples_says_how_to_save_them(tmp_path):
    with pytest.raises(RecordFormatError, match="--benchmark-save-data"):
        load_timings(pytest_benchmark_file(tmp_path / "a.json", ()))


@pytest.mark.parametrize("benchmarks", [None, [{}], [3], {"stats": 1}])
def test_a_broken_file_of_pytest_benchmark_is_refused(tmp_path, benchmarks):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"machine_info": {}, "benchmarks": benchmarks}))
    with pytest.raises(
        RecordFormatError, match=r"a\.json must be a whole file of pytest-benchmark"
    ):
        load_timings(path)


class TestCommand:
    @pytest.fixture
    def files(self, runs, tmp_path):
        paths = [tmp_path / "before.json", tmp_path / "after.json"]
        for path, report in zip(paths, runs, strict=True):
            path.write_text(report.to_json(), encoding="utf-8")
        return list(map(str, paths))

    def call(self, *arguments):
        with pytest.raises(SystemExit) as stop:
            main(["compare", *arguments])
        return stop.value.code

    def test_prints_the_changes(self, files, capfd):
        assert self.call(*files) == 0
        out, err = capfd.readouterr()
        assert "slower" in out
        assert err == ""

    @pytest.mark.parametrize(("share", "code"), [("10%", 1), ("0.1", 1), ("50%", 0)])
    def test_fails_on_regression_only_beyond_the_tolerance(self, files, share, code, capfd):
        assert self.call(*files, "--fail-on-regression", share) == code
        assert ("regression: digits/fedavg/threads" in capfd.readouterr().err) == bool(code)

    @pytest.mark.parametrize("share", ["ten", "-5%", "nan", "inf", "10"])
    def test_a_wrong_share_is_refused(self, files, share, capfd):
        assert self.call(*files, "--fail-on-regression", share) == 2
        assert "must be a share such as 10%" in capfd.readouterr().err

    def test_another_machine_is_noted_and_cannot_regress(self, files, tmp_path, capfd):
        other = dataclasses.replace(Report.load(files[1]), environment={"cpu": "Other"})
        with open(files[1], "w") as stream:
            stream.write(other.to_json())
        assert self.call(*files) == 0
        assert "another machine: cpu" in capfd.readouterr().err
        assert self.call(*files, "--fail-on-regression", "10%") == 2
        assert "same machine" in capfd.readouterr().err

    def test_a_run_is_not_compared_with_itself(self, files, tmp_path, capfd):
        again = tmp_path / "again.json"
        again.symlink_to(files[0])
        assert self.call(files[0], str(again)) == 2
        assert "BEFORE and AFTER must be two files" in capfd.readouterr().err

    def test_writes_the_table(self, files, tmp_path):
        assert self.call(*files, "--out", str(tmp_path / "c.csv")) == 0
        assert (tmp_path / "c.csv").read_text().count("\n") == 5

    @pytest.mark.parametrize("content", [None, b"", b"{}", b"\xff\xfe"])
    def test_what_is_no_report_is_refused_in_one_line(self, files, tmp_path, content, capfd):
        bad = tmp_path / "bad.json"
        if content is not None:
            bad.write_bytes(content)
        assert self.call(files[0], str(bad)) == 2
        err = capfd.readouterr().err
        assert err.count("\n") == 1
        assert "bad.json" in err
