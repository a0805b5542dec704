"""Charts contain the numbers of the records, and what is drawn are these numbers."""

from __future__ import annotations

import math

import pytest

from howsmooth.fits import growth_laws
from howsmooth.report.chart import MAX_DETAILED_SERIES, Axis, Chart, Picture, ReferenceSlope, Series
from howsmooth.report.charts import bounds_charts, growth_chart, heat_maps, sample_count_text
from howsmooth.report.paper import tightness_chart
from tests import reasons
from tests.tolerances import assert_close, less


def test_growth_chart_contains_samples_intervals_and_laws(records, growth):
    chart = growth_chart(records, growth)
    assert [series.label for series in chart.series] == ["layer 0", "layer 1"] and chart.is_detailed
    for layer, series in enumerate(chart.series):
        chosen = [record for record in records if record["layer"] == layer]
        # exact: the chart contains the records' own numbers
        assert [*zip(series.x, series.y, series.lower, series.upper, strict=True)] == [
            (record["n"], record["value"], record["lower"], record["upper"]) for record in chosen
        ]
        assert_close(series.law.exponent, 0.25, tol=1e-3)
        assert series.medians()[0] == [8, 16, 32, 64]
    assert [slope.label for slope in chart.reference_slopes] == ["√n", "n$^{1/4}$"]
    assert "(2 samples at each length)" in chart.caption


def test_captions_contain_the_number_of_samples(records):
    assert sample_count_text(records) == "2 samples at each length"
    assert sample_count_text(records[:-1]) == "1 to 2 samples at each length"
    assert sample_count_text(records[:1]) == "1 sample at each length"


def test_zeros_are_counted_and_not_drawn(records, growth, make):
    chart = growth_chart([*records, make(0, 8, 5, value=0.0, lower=0.0)], growth)
    assert chart.series[0].omitted_count == 1 and 0.0 not in chart.series[0].y
    assert chart.notes == ["1 values are zero or missing and cannot be drawn on a log scale."]


def test_a_rejected_law_is_not_drawn(make):
    rough = [
        make(0, n, sample, value=(5.0 if n < 64 else 50.0) * (1 + 0.01 * sample))
        for n in (8, 16, 32, 64, 128, 256)
        for sample in range(4)
    ]
    laws = growth_laws(rough)
    chart = growth_chart(rough, laws)
    assert chart.series[0].law is not None and not chart.series[0].law.shown
    figure = pytest.importorskip("howsmooth.report.figure", reason=reasons.MATPLOTLIB).draw([chart])
    drawn = {artist.get_gid() for artist in figure.axes[0].get_children()}
    assert "chart-0-series-0" in drawn and "chart-0-series-0-law" not in drawn


def test_reference_lines_start_below_the_points_and_end_inside():
    chart = Chart(
        "",
        Axis("", "log"),
        Axis("", "log"),
        [Series([8, 512], [1.0, 2.0])],
        reference_slopes=[ReferenceSlope(0.5, "√n")],
    )
    ((line, annotation),) = chart.reference_lines()
    assert_close(line.y[0], 0.72, tol=1e-12)
    assert_close(math.log(line.y[1] / line.y[0]) / math.log(line.x[1] / line.x[0]), 0.5, tol=1e-9)
    assert line.x[1] < 512 and annotation.text == "√n"


def test_bounds_at_the_text_and_on_the_worst_case_are_in_different_charts(bounds):
    """A lower bound on the worst case is above the measured constant: in one chart it would look violated."""
    here, worst = bounds_charts(bounds)[:2]
    assert (here.title, worst.title) == ("layer 0, at this text", "layer 0, worst case in the ball, R\u00a0=\u00a04.50")
    assert [series.label for series in here.series] == ["measured at this text", "≤ local bound"]
    assert [series.label for series in worst.series] == ["≥ two-point example", "≤ sharper Theorem 1"]
    for chart in (here, worst):
        lowest_upper = [min(s.y[i] for s in chart.series if s.label.startswith("≤")) for i in range(3)]
        others = [series.y for series in chart.series if not series.label.startswith("≤")]
        assert all(less(y[i], lowest_upper[i]) for y in others for i in range(3))
    assert len(worst.bands) == 1 and not here.bands


def test_random_tokens_are_not_called_a_text(bounds):
    here = bounds_charts([{**record, "inputs": "normalised"} for record in bounds])[0]
    assert here.title == "layer 0, at these tokens" and here.series[0].label == "measured at these tokens"


def test_distant_bounds_are_listed_in_the_notes(bounds):
    far = [
        {**record, "bound": "far", "log_value": 5000.0, "log_ratio": 4999.0}
        for record in bounds
        if record["bound"] == "this_project.upper"
    ]
    chart = bounds_charts([*bounds, *far])[1]
    assert chart.notes == ["Off the scale at n = 32: ≤\u00a0far\u00a010^2171."]
    assert chart.short_notes == ["Off the scale: 1 bound, 10^2171."]
    assert [series.label for series in chart.series] == ["≥ two-point example", "≤ sharper Theorem 1"]


def test_bounds_about_other_constants_are_only_in_the_table(bounds):
    """A supremum over n may be above the bounds at each n, and a limit of large radius below the constant."""
    others = [
        {**record, "bound": name, "holds": holds}
        for record in bounds
        if record["bound"] == "this_project.two_point_lower"
        for name, holds in (("sup", "sup over n"), ("limit", "at tX, t → ∞"))
    ]
    drawn = {series.label for chart in bounds_charts([*bounds, *others]) for series in chart.series}
    assert not drawn & {"≥ sup", "≥ limit"}


def test_heat_maps_show_medians_and_the_largest_head(make):
    values = {(0, 0): (1.0, 3.0), (0, 1): (5.0, 7.0), (1, 0): (2.0, 2.0), (1, 1): (9.0, 1.0)}
    records = [
        make(layer, n, sample, head=head, value=value * n)
        for (layer, head), pair in values.items()
        for sample, value in enumerate(pair)
        for n in (8, 16)
    ]
    maps = heat_maps(records)
    # exact: sums of small whole numbers
    assert [heat.values for heat in maps["heads"]] == [[[16.0, 48.0], [16.0, 40.0]], [[32.0, 96.0], [32.0, 80.0]]]
    # exact: as above
    assert maps["lengths"][0].values == [[48.0, 96.0], [40.0, 80.0]] and maps["lengths"][0].columns == [8, 16]


def test_tightness_has_a_row_for_each_bound(bounds):
    chart = tightness_chart(bounds)
    # from the bottom: the bounds at the text are above those on the worst case
    assert chart.y_axis.tick_labels == ["≤ sharper Theorem 1", "≥ two-point example", "≤ local bound"]
    drawn = [series for series in chart.series[1:] if series.x]
    assert_close([series.x[0] for series in drawn], [400.0, 20.0, 3.5], tol=1e-9)
    assert [series.colour for series in drawn] == [1, 1, 0]
    assert [s.label for s in chart.series if s.label] == ["bounds at this text", "bounds on the worst case"]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("style", ["screen", "paper", "slides"])
def test_matplotlib_draws_the_same_points_in_every_style(records, growth, theme, style):
    pytest.importorskip("matplotlib", reason=reasons.MATPLOTLIB)
    from howsmooth.report.figure import draw
    from howsmooth.report.style import figure_style

    chart = growth_chart(records, growth)
    with figure_style(style):
        (panel,) = draw([chart], theme=theme).axes
    medians = [[*zip(*series.medians(), strict=True)] for series in chart.series]
    drawn = [[*zip(*line.get_data(), strict=True)] for line in panel.lines]
    assert all(curve in drawn for curve in medians) and panel.get_xscale() == panel.get_yscale() == "log"


def test_many_curves_are_drawn_as_lines_only(make):
    pytest.importorskip("matplotlib", reason=reasons.MATPLOTLIB)
    from howsmooth.report.figure import draw

    many = [make(layer, n, 0) for layer in range(MAX_DETAILED_SERIES + 1) for n in (8, 16)]
    chart = growth_chart(many, {})
    (panel,) = draw([chart]).axes
    assert not chart.is_detailed and panel.containers == []


def test_a_message_replaces_a_chart_without_data():
    pytest.importorskip("matplotlib", reason=reasons.MATPLOTLIB)
    from howsmooth.report.figure import draw

    (panel,) = draw(Picture([Chart("gone", Axis(""), Axis(""), message="missing: no weights")], many_panels=True)).axes
    assert panel.texts[0].get_text() == "missing: no weights" and panel.lines[:] == []
