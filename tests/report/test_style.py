"""Styles set the size of figures, fonts are embedded as TrueType, and tick labels do not overlap."""

from __future__ import annotations

import io
import itertools
import math
import re

import pytest

from howsmooth.cli.options import STYLE_NAMES
from howsmooth.errors import InputError
from howsmooth.report import bounds_picture, draw, figure_style, growth_picture, save_figure, write_figures
from howsmooth.report.chart import Axis, Chart, Series
from howsmooth.report.style import STYLES, THEMES, new_figure
from tests import reasons
from tests.tolerances import at_most, less

pytest.importorskip("matplotlib", reason=reasons.MATPLOTLIB)

from howsmooth.report.texts import log_ticks, overlap, separate_tick_labels, visible_labels

EVERY_STYLE = pytest.mark.parametrize("style", STYLES)


def font_types(pdf: bytes) -> set[str]:
    """Return the types of the fonts in a PDF file; matplotlib compresses streams, not the objects of fonts."""
    return {found.decode() for found in re.findall(rb"/Subtype /(Type3|Type0|Type1|TrueType|CIDFontType\d)", pdf)}


def overlapping_labels(figure) -> list[tuple[str, str]]:
    """Return pairs of tick labels whose boxes overlap in the figure as it is drawn."""
    figure.draw_without_rendering()
    pairs = []
    for panel in figure.axes:
        for axis in (panel.xaxis, panel.yaxis):
            labels = visible_labels(axis)
            for (_, first, one), (_, second, other) in itertools.pairwise(labels):
                if one.overlaps(other):
                    pairs.append((first, second))
    return pairs


def chart(x: list[float], y: list[float]) -> Chart:
    return Chart(
        "", Axis("length n (tokens)", "log", sorted(set(x))), Axis("Lip", "log"), [Series(x, y, linestyle="solid")]
    )


@EVERY_STYLE
@pytest.mark.parametrize(
    "x, y",
    [
        ([32, 64, 128], [1040.0, 1410.0, 1300.0]),
        ([1000, 1024, 1040], [1.041, 1.042, 1.0435]),
        (list(range(100, 140)), [1e-7 * 3**k for k in range(40)]),
        ([8, 1_000_000], [0.99, 1.01]),
        ([96, 100, 104, 128], [2e5, 3e5, 9e5, 1.2e6]),
    ],
)
def test_tick_labels_do_not_overlap(style, x, y):
    with figure_style(style):
        figure = draw([chart(x, y)])
    assert overlapping_labels(figure) == []
    (panel,) = figure.axes
    assert len(visible_labels(panel.yaxis)) >= 2
    assert not any("e+" in text or "e-" in text for _, text, _ in visible_labels(panel.yaxis))


def test_the_check_of_labels_can_fail():
    figure = new_figure(3, 3, THEMES["light"])
    panel = figure.subplots()
    panel.set_xlim(0, 100)
    panel.set_xticks(range(100), [f"{tick} tokens" for tick in range(100)])
    assert overlapping_labels(figure)
    separate_tick_labels(figure)
    assert overlapping_labels(figure) == [] and len(visible_labels(panel.xaxis)) > 1


def test_every_range_has_readable_ticks():
    for low in (1e-9, 0.37, 1.0, 1040.0, 7.7e11):
        for ratio in (1.001, 1.2, 2.0, 5.0, 30.0, 1e3, 1e6, 1e15, 1e200):
            ticks = log_ticks(low, low * ratio)
            assert 2 <= len(ticks) <= 8 and ticks == sorted(set(ticks)), (low, ratio, ticks)
            assert at_most(low, ticks[0], tol=1e-6) and at_most(ticks[-1], low * ratio, tol=1e-6)


@EVERY_STYLE
def test_fonts_of_a_pdf_are_true_type(style, records, growth, bounds, tmp_path):
    with figure_style(style):
        figures = [draw(growth_picture(records, growth)), draw(bounds_picture(bounds))]
    for figure in figures:
        buffer = io.BytesIO()
        figure.savefig(buffer, format="pdf")  # by a user, without `save_figure`
        assert font_types(buffer.getvalue()) == {"Type0", "CIDFontType2"}
    written = write_figures([*records, *bounds], tmp_path, style)
    assert {path.name for path in written} == {"growth.pdf", "lengths.pdf", "tightness.pdf"}
    for path in written:
        assert font_types(path.read_bytes()) == {"Type0", "CIDFontType2"}, path.name


def test_the_check_of_fonts_can_fail():
    from matplotlib.figure import Figure

    figure, buffer = Figure(), io.BytesIO()
    figure.subplots()
    figure.savefig(buffer, format="pdf")  # the default of matplotlib
    assert font_types(buffer.getvalue()) == {"Type3"}


def test_a_style_sets_widths_and_font_sizes(records, growth):
    widths, sizes = {}, {}
    for style in STYLES:
        with figure_style(style):
            figure = draw(growth_picture(records, growth))
        widths[style], sizes[style] = figure.get_figwidth(), figure.axes[0].xaxis.label.get_fontsize()
    # exact: sizes are copied from the style
    assert widths["paper"] == 3.3 and widths["slides"] == 10.0
    assert sizes == {name: style.label_size for name, style in STYLES.items()}


def test_figures_of_a_user_have_the_style():
    from matplotlib.figure import Figure

    with figure_style("paper"):
        figure, buffer = Figure(), io.BytesIO()
        figure.subplots().set_xlabel("x")
        figure.savefig(buffer, format="pdf")
    # exact: copied from the style
    assert figure.get_figwidth() == 3.3 and figure.axes[0].xaxis.label.get_fontsize() == 7.5
    assert font_types(buffer.getvalue()) == {"Type0", "CIDFontType2"}


def test_options_and_styles_have_the_same_names():
    assert tuple(STYLES) == STYLE_NAMES
    with (
        pytest.raises(InputError, match="expected a style of screen, paper, slides, got 'poster'"),
        figure_style("poster"),
    ):
        pass


@EVERY_STYLE
def test_labels_have_words_and_symbols_only(style, bounds):
    """No name of a function, and no formula in the notation of code."""
    with figure_style(style):
        figure = draw(bounds_picture(bounds))
    texts = [text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))]
    assert any("two-point example" in text for text in texts)
    assert [text for text in texts if re.search(r"[a-z]_[a-z]{2}|this_project|B_R|\w\^\d", text)] == []


@EVERY_STYLE
def test_panels_are_used_in_full(style, bounds):
    """The values of each panel span most of its height."""
    with figure_style(style):
        figure = draw(bounds_picture(bounds))
    for panel in figure.axes:
        values = [y for line in panel.lines for y in line.get_ydata()]
        low, high = (math.log(limit) for limit in panel.get_ylim())
        assert less(0.8 * (high - low), math.log(max(values) / min(values)))


@EVERY_STYLE
def test_notes_about_many_bounds_take_two_lines_within_the_figure(style, bounds):
    far = [
        {**record, "bound": f"a bound with a long name, number {k}", "log_value": 500.0 * k, "log_ratio": 500.0 * k - 1}
        for record in bounds
        if record["bound"] == "this_project.upper"
        for k in range(1, 9)
    ]
    with figure_style(style):
        figure = draw(bounds_picture([*bounds, *far]))
    figure.draw_without_rendering()
    notes = [text for panel in figure.axes for text in panel.texts if text.get_text().startswith("Off the scale")]
    assert notes and all(note.get_text().count("\n") <= 1 for note in notes)
    whole = figure.bbox
    for note in notes:
        box = note.get_window_extent()
        assert at_most(0, box.x0) and at_most(box.x1, whole.x1) and at_most(0, box.y0)
    assert "8 bounds" in notes[-1].get_text()


def test_boxes_that_touch_count_as_overlapping():
    from matplotlib.transforms import Bbox

    first = Bbox.from_bounds(0, 0, 10, 4)
    assert overlap(first, Bbox.from_bounds(11, 0, 5, 4), "x") and not overlap(first, Bbox.from_bounds(12, 0, 5, 4), "x")
    assert overlap(first, Bbox.from_bounds(0, 3, 5, 4), "y") and not overlap(first, Bbox.from_bounds(0, 5, 5, 4), "y")


def test_saving_keeps_the_background(tmp_path, records, growth):
    save_figure(draw(growth_picture(records, growth), theme="dark"), tmp_path / "dark.svg")
    svg = (tmp_path / "dark.svg").read_text()
    assert THEMES["dark"]["background"] in svg and "<text" in svg  # text is kept as text
