"""Coloured tokens in a figure: the scale, the layout, and texts that fonts and formulas do not know."""

from __future__ import annotations

import io
import warnings

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from howsmooth.report.charts import token_picture
from howsmooth.report.figure import draw, point_positions, save_figure
from howsmooth.report.style import gain_colouring, share_colouring

WORDS = ["the", "bridge", " $x^$", "日本", "\n", "##river"] * 12


def test_shares_and_gains_have_logarithmic_scales():
    shares = share_colouring([0.5, 0.005, 0.0, 5e-5])
    assert shares.intensities == pytest.approx([1, 0.5, 0, 0]) and shares.ends == ("0.0050 %", "50 %")
    gains = gain_colouring([4.0, 2.0, 1.0], 5.0)
    assert gains.intensities == pytest.approx([1, 0.5, 0]) and gains.percent(4.0) == "80 %"
    assert gain_colouring([1.0, 1.0], 1.0).intensities == pytest.approx([1, 1])
    assert gain_colouring([1.0, 1e-9, 0.0], 1.0).decades == pytest.approx(2)
    zero = gain_colouring([0.0], 0.0)
    assert zero.intensities == pytest.approx([0]) and zero.percent(0.0) == "0 %"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_token_is_drawn_inside_of_the_figure(theme):
    values = [0.5 / (i + 1) for i in range(len(WORDS))]
    colourings = [share_colouring(values), gain_colouring(values, 1.0)]
    picture = token_picture(WORDS, colourings, title="layer 0")
    figure = draw(picture, theme=theme)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no missing glyph, no formula
        for form in ("png", "svg"):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=form)
            assert len(buffer.getvalue()) > 1000
    texts = [text.get_text() for panel in figure.axes for text in panel.texts]
    assert texts.count("bridge") == 24 and texts.count("$x^$") == 24 and texts.count("��") == 24
    assert sum("log scale" in text for text in texts) == 2
    renderer = FigureCanvasAgg(figure).get_renderer()
    for panel in figure.axes:
        for text in panel.texts:
            box = text.get_window_extent(renderer)
            assert box.x0 > 0 and box.x1 < figure.bbox.x1 and box.y0 > 0 and box.y1 < figure.bbox.y1
    width, height = (72 * size for size in figure.get_size_inches())
    for (positions,) in point_positions(figure, picture.panels):
        assert len(positions) == len(WORDS) and all(0 < x < width and 0 < y < height for x, y in positions)


def test_an_empty_text(tmp_path):
    save_figure(draw(token_picture([], [share_colouring([])])), tmp_path / "empty.png")
    assert (tmp_path / "empty.png").stat().st_size > 0
