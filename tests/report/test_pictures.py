"""Pictures: one renderer for every kind of panel, for every arrangement, and for numbers and names of any kind."""

from __future__ import annotations

import ast
import io
import math
import re
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest

import howsmooth
from howsmooth.errors import InputError
from howsmooth.questions import QUESTIONS, find_question
from howsmooth.report.chart import (
    Annotation,
    Axis,
    Band,
    Chart,
    HeatMap,
    Panel,
    Picture,
    ReferenceSlope,
    Series,
    drawable,
)
from howsmooth.report.embedding import themed_svg
from howsmooth.report.style import STYLES, THEMES, figure_style, share_colouring
from tests import reasons
from tests.tolerances import assert_close, at_most

pytest.importorskip("matplotlib", reason=reasons.MATPLOTLIB)

from howsmooth.report import panels
from howsmooth.report.chart import Tokens
from howsmooth.report.figure import draw, point_positions, save_figure

RENDERER = {"figure", "panels", "style", "texts"}  # modules of `report` that import matplotlib
NAMES = (
    "$",
    "$$",
    "a$b",
    "$x^$",
    "costs $5 and $6",
    "<b>&amp;</b>",
    "\\frac{",
    "m$_$",
    "org/model " * 30,
    "x" * 300,
    "",
)


def svg_of(picture, **options) -> str:
    """Return the SVG of a picture; a warning of matplotlib is an error."""
    stream = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_figure(draw(picture, **options), stream, format="svg")
    return stream.getvalue()


def line(y, x=(8, 16, 32), **style) -> Series:
    return Series(x, y, **{"linestyle": "solid", "show_markers": True, **style})


def heat(values, **fields) -> HeatMap:
    return HeatMap("", Axis("head"), Axis("layer"), range(len(values[0])), range(len(values)), values, **fields)


def importers_of_matplotlib(source: str) -> bool:
    """Return whether a module imports matplotlib, for more than the types of its annotations."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    names = [
        name
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    ]
    return any(name.partition(".")[0] == "matplotlib" for name in names)


def test_only_the_renderer_imports_matplotlib():
    package = Path(howsmooth.__file__).parent
    found = {
        path.relative_to(package).with_suffix("").as_posix()
        for path in package.rglob("*.py")
        if importers_of_matplotlib(path.read_text(encoding="utf-8"))
    }
    assert found <= {f"report/{name}" for name in (*RENDERER, "embedding")}
    assert importers_of_matplotlib("def f():\n    from matplotlib.axes import Axes")
    assert not importers_of_matplotlib("if TYPE_CHECKING:\n    from matplotlib.axes import Axes")


def test_every_question_that_draws_returns_data():
    assert all(callable(find_question(name).charts) == find_question(name).draws for name in QUESTIONS)


@dataclass(frozen=True)
class Share(Panel):
    """A new kind of panel: the share of a whole as a bar."""

    title: str
    share: float


def test_a_new_kind_is_a_class_and_a_function(monkeypatch):
    def draw_share(panel, shown, canvas):
        panel.barh([0], [shown.share], color=canvas.theme["palette"][0])[0].set_gid(f"{canvas.gid}-bar")

    monkeypatch.setitem(panels.DRAWN_BY, Share, draw_share)
    picture = Picture([Share("of the norm", 0.3), Chart("a", Axis("x"), Axis("y"), [line([1, 2, 3])])])
    svg = svg_of(picture)
    assert 'id="chart-0-bar"' in svg and "of the norm" in svg
    assert "var(--series-0)" in themed_svg(svg, "p") and 'id="p-chart-0-bar"' in themed_svg(svg, "p")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("style", STYLES)
def test_any_name_is_drawn_as_it_is(name, style):
    """Names of models and files start no formula, and do not fill the figure."""
    chart = Chart(
        name,
        Axis("n", "log"),
        Axis("Lip", "log", tick_labels=()),
        [line([1.0, 2.0, 3.0], label=name), line([2.0, 2.5, 4.0], label=f"{name}2")],
        bands=[Band([8, 32], [1.0, 1.0], [2.0, 2.0], name)],
        annotations=[Annotation(16, 2.0, name)],
        legend_title=name,
    )
    with figure_style(style):
        svg = svg_of(Picture([chart], title=name))
        figure = draw([chart])
    if len(name) < 20 and "&" not in name and name:
        assert name in svg
    figure.draw_without_rendering()
    (panel,) = figure.axes
    assert at_most(0.3 * figure.get_figheight() * figure.dpi, panel.get_window_extent().height)
    cells = svg_of([heat([[1.0, 2.0]], bar_label=name), Tokens([name], share_colouring([1.0]))])
    assert "<svg" in cells


@pytest.mark.parametrize("scale", ["linear", "log"])
@pytest.mark.parametrize(
    "y", [[1.0, math.nan, 3.0], [1.0, math.inf, 3.0], [math.nan] * 3, [math.inf] * 3, [1e-320, 1.0, 1e308], [0.0] * 3]
)
def test_numbers_that_no_axis_can_show_leave_a_gap(scale, y):
    bad = [math.inf, None, math.nan]
    series = line(y, lower=bad, upper=bad, label="a", has_samples=True)
    chart = Chart("", Axis("n", scale), Axis("", scale), [series], reference_slopes=[ReferenceSlope(0.5, "√n")])
    svg = svg_of([chart])
    shown = sum(math.isfinite(value) and (value > 0 or scale == "linear") for value in drawable(y))
    group = svg.partition('id="chart-0-series-0-points"')[2].partition("</g>")[0]
    assert group.count("<use ") == shown
    assert svg_of([heat([y], scale=scale, show_values=True)])


def test_an_infinite_upper_end_is_a_lower_bound_only():
    svg = svg_of([Chart("", Axis("n"), Axis(""), [line([1, 2, 3], lower=[0.9, 1.9, 2.9], upper=[1.1, math.inf, 3.1])])])
    triangles = svg.partition('id="chart-0-series-0-open"')[2].partition('id="chart')[0]
    assert triangles.count("<use ") == 1


@pytest.mark.parametrize("series", [[], [Series((), ())], [line([2.0], [16])], [line([0.1], [16], has_samples=True)]])
def test_no_point_or_one_point(series):
    for scale in ("linear", "log"):
        assert svg_of([Chart("", Axis("n", scale, [16]), Axis("", scale), series)])
    assert svg_of([heat([[1.0]])]) and svg_of([heat([[None]])])
    with pytest.raises(InputError, match="expected something to draw, got no panel"):
        draw([])


def test_many_series_of_markers_alone_have_lines():
    """The adversarial figure has seven series, which are too many for markers."""
    series = [line([k + 1.0, k + 2.0, k + 3.0], has_samples=True, linestyle="") for k in range(7)]
    (panel,) = draw([Chart("", Axis("n", "log"), Axis("", "log"), series)]).axes
    assert sum(len(drawn.get_xdata()) == 3 and drawn.get_linestyle() != "None" for drawn in panel.lines) == 7


@pytest.mark.parametrize("style", STYLES)
def test_of_two_hundred_series_some_are_in_the_legend(style):
    many = [line([k + 1.0, k + 2.0, k + 3.0], label=f"series {k}", has_samples=True) for k in range(200)]
    with figure_style(style):
        figure = draw([Chart("", Axis("n", "log"), Axis("", "log"), many)])
    figure.draw_without_rendering()
    (panel,) = figure.axes
    (legend,) = [*figure.legends, *([panel.get_legend()] if panel.get_legend() else [])]
    labels = [text.get_text() for text in legend.get_texts()]
    assert len(labels) <= 24 and labels[0] == "series 0" and labels[-1] == "series 199"
    assert at_most(legend.get_window_extent().height, panel.get_window_extent().height, tol=1e-9)


def test_notes_and_legend_do_not_overlap(records, growth):
    from howsmooth.report.charts import growth_picture

    for style in STYLES:
        with figure_style(style):
            figure = draw(growth_picture(records, growth))
        figure.draw_without_rendering()
        (panel,) = figure.axes
        (note,) = [text for text in panel.texts if text.get_text().startswith("Median of 2 samples")]
        legend = [*figure.legends, *([panel.get_legend()] if panel.get_legend() else [])][0]
        boxes = [panel.xaxis.label.get_window_extent(), note.get_window_extent(), legend.get_window_extent()]
        assert at_most(boxes[1].y1, boxes[0].y0 + 0.5) and at_most(boxes[2].y1, boxes[1].y0 + 1.0), style


@pytest.mark.parametrize("theme", THEMES)
def test_cells_and_series_of_a_heat_map_have_positions(theme):
    circles = Series([1], [0], show_markers=True, hollow_markers=True)
    shown = heat([[1.0, 2.0, 4.0], [2.0, None, 8.0]], series=[circles])
    figure = draw([shown], theme=theme)
    stream = io.StringIO()
    save_figure(figure, stream, format="svg")
    ((first, second, (circle,)),) = point_positions(figure, [shown])
    assert len(first) == len(second) == 3
    assert_close(circle, first[1], tol=1e-6)
    assert first[0][0] < first[1][0] < first[2][0] and first[0][1] < second[0][1]  # the first row is above
    assert 'id="chart-0-cells"' in stream.getvalue() and 'id="chart-0-series-0-points"' in stream.getvalue()


def test_heat_maps_with_the_same_limits_share_a_colour_bar():
    shared = {"limits": (0.0, 2.0), "centre": 1.0, "scale": "linear", "contour": 1.0}
    assert len(draw([heat([[0.5, 1.5], [0.2, 1.2]], **shared)] * 3).axes) == 4
    assert len(draw([heat([[0.5, 1.5]])] * 3).axes) == 6
    assert len(draw([heat([[0.5, 1.5]], bar_label="")] * 3).axes) == 3


def test_a_panel_of_a_mosaic_spans_rows():
    chart = Chart("", Axis("n"), Axis("y"), [line([1, 2, 3])])
    figure = draw(Picture([chart] * 3, height=2.6, mosaic="AB;AC"))
    figure.draw_without_rendering()
    heights = [panel.get_window_extent().height for panel in figure.axes]
    assert at_most(2 * heights[1], heights[0]) and re.match("chart-2", figure.axes[2].get_gid())
