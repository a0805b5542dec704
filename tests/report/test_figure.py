"""The growth figure draws the values of the records."""

from __future__ import annotations

import io
import re

import pytest

from howsmooth.errors import InputError
from howsmooth.report.charts import growth_charts, growth_picture
from howsmooth.report.figure import draw, point_positions, save_figure
from howsmooth.report.style import FIGURE_SUFFIXES, check_plot_path
from tests import reasons
from tests.tolerances import assert_close

pytest.importorskip("matplotlib", reason=reasons.MATPLOTLIB)


def png_bytes(figure) -> bytes:
    buffer = io.BytesIO()
    save_figure(figure, buffer)
    return buffer.getvalue()


def test_figure_draws_points_fits_and_guides(records, growth):
    (panel,) = draw(growth_picture(records, growth)).axes
    assert panel.get_xscale() == panel.get_yscale() == "log"
    points = [container.lines[0] for container in panel.containers]
    drawn = {(n, value) for line in points for n, value in zip(*line.get_data(), strict=True)}
    # exact: points have the coordinates of the records
    assert drawn == {(record["n"], record["value"]) for record in records}
    names = [text.get_text() for text in panel.get_legend().get_texts()]
    assert names == ["layer 0:  n$^{0.25}$", "layer 1:  n$^{0.25}$"]
    note = "Median of 2 samples at each length; bars: 99.9 % intervals"
    assert {text.get_text() for text in panel.texts} == {"$\\sqrt{n}$", "n$^{1/4}$", note}


def test_one_panel_per_model(records, growth, make):
    both = records + [make(0, n, 0, model="other") for n in (8, 64)]
    assert [panel.get_title(loc="left") for panel in draw(growth_picture(both, growth)).axes] == [
        "tiny<model>",
        "other",
    ]


@pytest.mark.parametrize("change", [{"upper": None}, {"upper": float("inf")}, {"value": 0.0, "lower": 0.0}])
def test_records_with_open_intervals_or_zeros_are_drawn(records, growth, make, change):
    assert png_bytes(draw(growth_picture([*records, make(2, 8, 0, **change)], growth))).startswith(b"\x89PNG")


def test_a_point_without_upper_end_is_a_triangle(records, growth, make):
    (panel,) = draw(growth_picture([*records, make(0, 128, 0, upper=None)], growth)).axes
    triangles = [line.get_data() for line in panel.lines if line.get_marker() == "^" and len(line.get_xdata())]
    assert [[list(coordinate) for coordinate in points] for points in triangles] == [[[128], [128**0.25]]]
    assert "lower bound only" in {text.get_text() for text in panel.get_legend().get_texts()}


def test_a_single_length_is_drawn_without_a_fit(make):
    assert png_bytes(draw(growth_picture([make(0, 8, 0)], {}))).startswith(b"\x89PNG")


def test_of_many_maps_twelve_are_in_the_legend(make):
    many = [make(layer, n, 0, head=head) for layer in (0, 1) for head in range(12) for n in (8, 16)]
    (panel,) = draw(growth_picture(many, {})).axes
    assert len(panel.get_legend().get_texts()) == 12
    assert panel.get_legend().get_title().get_text() == "12 of 24 maps named"


def test_plot_paths_are_checked():
    check_plot_path("growth.png")
    for name in ("growth", "growth.docx"):
        with pytest.raises(InputError, match="png"):
            check_plot_path(name)


def test_plot_file_types_are_those_of_matplotlib():
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    types = {f".{name}" for name in FigureCanvasAgg.get_supported_filetypes()}
    assert set(FIGURE_SUFFIXES) <= types and {".png", ".svg", ".pdf"} <= set(FIGURE_SUFFIXES)


def test_pgf_needs_tex(monkeypatch):
    """Without TeX, matplotlib would fail after everything has been computed."""
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(InputError, match=r"expected xelatex for a .pgf file, got none installed; install TeX, or name"):
        check_plot_path("growth.pgf")
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    check_plot_path("growth.pgf")


def test_every_drawn_part_has_its_id_in_the_svg(records, growth, make):
    charts = growth_charts([*records, make(1, 128, 0, upper=None)], growth)
    figure = draw(charts)
    stream = io.StringIO()
    save_figure(figure, stream, format="svg")
    ids = re.findall(r'id="(chart-[^"]*)"', stream.getvalue())
    for index in (0, 1):
        parts = ("", "-points", "-intervals", "-law", "-key", "-legend")
        assert {f"chart-0-series-{index}{part}" for part in parts} <= set(ids)
    assert {"chart-0", "chart-0-series-1-open"} <= set(ids) and len(ids) == len(set(ids))
    ((first, second),) = point_positions(figure, charts)
    width, height = (72 * size for size in figure.get_size_inches())
    assert len(first) == 8 and len(second) == 9
    assert all(0 < x < width and 0 < y < height for x, y in (*first, *second))
    group = stream.getvalue().partition('id="chart-0-series-0-points"')[2]
    drawn = [tuple(map(float, found)) for found in re.findall(r'<use [^>]*x="([\d.]+)" y="([\d.]+)"', group)[:8]]
    assert_close(drawn, first, tol=3e-3)  # text is a little wider at another resolution, which moves the panel
