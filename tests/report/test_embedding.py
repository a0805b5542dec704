"""Panels as HTML: the values of the records at every point, whatever the labels contain, and few enough markers."""

from __future__ import annotations

import json
import math
import re
import sys
from statistics import median

import pytest

from howsmooth.report.chart import Axis, Chart, HeatMap, Series
from howsmooth.report.embedding import panel_html, thinned
from howsmooth.report.rows import interval, number
from howsmooth.report.web_page import report_page
from tests import reasons

pytest.importorskip("matplotlib", reason=reasons.MATPLOTLIB)


def figures_of(page: str) -> dict[str, list[dict]]:
    """The values in the figures of a page, by the id of the figure: name and points of each series."""
    found = re.findall(r'<figure id="([^"]+)">(.*?)</figure>', page, re.DOTALL)
    return {name: values_of(text) for name, text in found}


def values_of(figure: str) -> list[dict]:
    return json.loads(re.search(r'json">(.*?)</script>', figure, re.DOTALL)[1])


def html_of(*series: Series, title: str = "") -> str:
    return panel_html(Chart(title, Axis("n", "log"), Axis("y", "log"), series), name="p")


def test_points_say_the_values_of_the_records(records):
    series = figures_of(report_page(records))["measure-0-0"]
    assert [one["name"] for one in series] == ["layer 0", "layer 1"]
    for layer, one in enumerate(series):
        assert [text for _, _, text in one["points"]] == [
            f"n = {r['n']}: {number(r['value'], 5)} ({interval(r['lower'], r['upper'])}), "
            f"sample {r['sample']}, converged"
            for r in records
            if r["layer"] == layer
        ]
        places = [x for x, _, _ in one["points"]]
        assert sorted(places) == places and len(set(places)) == 4


def test_points_of_many_curves_are_medians_and_names_need_no_legend(many):
    page = report_page([record for record in many if record["layer"] < 4])
    series = figures_of(page)["measure-0-0"]
    assert len(series) == 48 and series[5]["name"] == "layer 0 head 5" and len(series[5]["points"]) == 7
    values = [r["value"] for r in many if (r["layer"], r["head"], r["n"]) == (0, 5, 16)]
    text = f"n = 16: median {number(median(values))} of 10 samples, {number(min(values))} to {number(max(values))}"
    assert series[5]["points"][0][2] == text


def test_samples_are_thinned_and_the_chart_says_so(make):
    records = [make(0, n, sample, value=float(n + (7 * sample) % 3000)) for n in (8, 16) for sample in range(3000)]
    page = report_page(records)
    (one,) = figures_of(page)["measure-0-0"]
    assert len(one["points"]) <= 1200 and "1,200 of 6,000 samples are drawn" in page
    assert page.count("<use ") < 4000


@pytest.mark.parametrize("size", [2, 3, 10, 11, 5000, 5001])
def test_thinning_keeps_median_and_range(size):
    y = [float((7 * i) % 10007) for i in range(size)]
    samples = Series([8.0] * size, y, has_samples=True, show_markers=True, details=[str(value) for value in y])
    other = Series([16.0] * 1300, [1.0] * 1300, has_samples=True, show_markers=True)
    kept, _ = thinned(Chart("", Axis("n"), Axis("y"), [samples, other])).series
    # exact: chosen, not computed
    assert kept.medians() == samples.medians() and kept.ranges() == samples.ranges()
    assert list(kept.details) == [str(value) for value in kept.y] and len(kept.y) <= 601


def test_labels_are_text_whatever_they_contain():
    label = "<b onclick=alert(1)>" + "x" * 300
    html = html_of(Series((8, 16), (1.0, 2.0), label=label, linestyle="solid", show_markers=True), title=label)
    assert "<b " not in html and html.count("&lt;b onclick") >= 3
    assert values_of(html)[0]["name"] == label


@pytest.mark.parametrize(
    "series",
    [
        Series((8,), (1.0,), show_markers=True, linestyle="solid"),
        Series((8, 16), (1.0, 2.0), (0.5, 1.0), (None, 2.5), label="a", show_markers=True),
        Series((), (), label="nothing", linestyle="solid"),
        Series((8, 16, 32), (1.0, math.nan, 2.0), label="a gap", linestyle="solid"),
    ],
)
def test_one_point_gaps_and_open_intervals_are_drawn(series):
    html = html_of(series)
    (values,) = values_of(html)
    finite = [y for y in series.y if not math.isnan(y)]
    assert len(values["points"]) == len(finite) and ("△ around" in html) == (None in series.upper)


def test_without_matplotlib_a_line_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    html = html_of(Series((8, 16), (1.0, 2.0)))
    assert "<svg" not in html and "pip install" in html


def test_two_hundred_curves_are_all_named():
    series = [
        Series((8, 16), (i + 1, i + 2), name=f"curve {i}", has_samples=True, linestyle="solid") for i in range(200)
    ]
    html = html_of(*series)
    assert html.count("data-series=") == 200 and 'class="find"' in html and len(html) < 150_000


def test_numbers_on_dark_cells_keep_their_colour_in_the_dark_theme():
    pytest.importorskip("matplotlib", reason=reasons.MATPLOTLIB)
    heat = HeatMap("Lip", Axis("n"), Axis("layer"), columns=[8, 16], rows=[0], values=[[1.5, 90.5]], show_values=True)
    texts = re.findall(r'<text[^>]*?style="([^"]*)"[^>]*>\s*(?:<tspan[^>]*>)?(1\.50|90\.5)', panel_html(heat, name="h"))
    assert {number for _, number in texts} == {"1.50", "90.5"}
    assert not any("var(" in style for style, _ in texts)
