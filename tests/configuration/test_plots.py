"""Learning curves: a panel for each metric, a line for each configuration, means over seeds."""

import sys
import xml.etree.ElementTree as ET

import pandas as pd
import pytest

from fedbench.configuration import draw, require_matplotlib
from fedbench.configuration.plots import _lines
from fedbench.errors import MissingExtraError

pytest.importorskip("matplotlib", reason="needs the extra plot")

TABLE = pd.DataFrame(
    [
        (algorithm, seed, round_, split, metric, round_ + seed)
        for algorithm in ("fedavg", None)
        for seed in (0, 1)
        for round_ in (1, 2)
        for split, metric in (("train", "loss"), ("test", "loss"), ("test", "accuracy"))
    ],
    columns=["algorithm", "seed", "round", "split", "metric", "value"],
)


def test_a_picture_of_each_format_is_made_and_is_the_same_again():
    svg, png = draw(TABLE, ["algorithm", "seed"], ".svg"), draw(TABLE, ["algorithm"], ".png")
    assert ET.fromstring(svg).tag.endswith("svg")
    assert png.startswith(b"\x89PNG")
    assert svg == draw(TABLE, ["algorithm", "seed"], ".svg")


def test_titles_and_labels_are_in_the_picture():
    import matplotlib as mpl

    with mpl.rc_context({"svg.fonttype": "none"}):
        text = draw(TABLE, ["algorithm", "seed"], ".svg").decode()
    for expected in ("train loss", "test loss", "test accuracy", "round", "fedavg", "-"):
        assert f">{expected}<" in text


def test_runs_that_differ_in_seed_share_a_line(monkeypatch):
    drawn = []
    from matplotlib.axes import Axes

    plot = Axes.plot
    monkeypatch.setattr(
        Axes,
        "plot",
        lambda axis, x, y, **o: drawn.append((list(x), list(y))) or plot(axis, x, y, **o),
    )
    draw(TABLE, ["algorithm", "seed"], ".png")
    assert drawn == [([1, 2], [1.5, 2.5])] * 6


def test_every_configuration_has_its_line():
    assert [label for label, _ in _lines(TABLE, ["algorithm"])] == ["fedavg", "-"]
    assert [label for label, _ in _lines(TABLE, [])] == [""]


def test_nothing_to_draw_is_refused():
    with pytest.raises(ValueError, match="at least one row"):
        draw(TABLE.iloc[:0], ["algorithm"], ".png")


def test_a_missing_matplotlib_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"\[plot\]"):
        require_matplotlib()
