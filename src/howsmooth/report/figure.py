"""Draw pictures with matplotlib, in the style of `howsmooth.report.style`; `panels` draws each kind of panel.

What is drawn has an id (`gid`), which is the id of its element in an SVG file; `c` is the index of the chart in the
figure and `i` that of the series in the chart:

    chart-<c>                       the panel, with everything in it
    chart-<c>-series-<i>            the line of a series
    chart-<c>-series-<i>-points     its markers
    chart-<c>-series-<i>-open       the triangles around points that are only lower bounds
    chart-<c>-series-<i>-intervals  its intervals
    chart-<c>-series-<i>-caps-<k>   the lower and the upper ends of its intervals
    chart-<c>-series-<i>-range      the range of its samples, in styles that draw a band
    chart-<c>-series-<i>-law        its fitted law
    chart-<c>-series-<i>-key        the symbol of its entry in the legend
    chart-<c>-series-<i>-legend     the text of its entry in the legend
    chart-<c>-band-<i>              a band
    chart-<c>-cells                 the image of a heat map, whose cells divide it evenly
    chart-<c>-token-<i>             the coloured rectangle of a token

Where panels share a legend, an entry has the id of the first series with its label. `point_positions` returns where
the points of all series, cells and tokens are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from howsmooth.errors import InputError
from howsmooth.report.chart import Chart, HeatMap, Panel, Picture, Tokens
from howsmooth.report.style import ANIMATION, STYLES, THEMES, current_style, new_figure
from howsmooth.report.texts import draw_shared_legend, fit_label, separate_tick_labels, wrap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from howsmooth.questions.question import Question
    from howsmooth.report.panels import Canvas


def save_figure(figure: Figure, path: Any, *, format: str | None = None) -> None:
    """Write a figure to a path or a stream, with its own background colour.

    Args:
        figure: The figure.
        path: The file or stream.
        format: "png", "svg", …; by default the ending of the path.
    """
    figure.savefig(path, facecolor=figure.get_facecolor(), format=format)


def draw_question(question: Question, records: Sequence[dict[str, Any]], *, theme: str = "light") -> Figure:
    """Draw the records of a question.

    Args:
        question: The question.
        records: Its records.
        theme: Key of `THEMES`.
    """
    return draw([] if question.charts is None else question.charts(records), theme=theme)


def draw(picture: Picture | Sequence[Panel], *, theme: str = "light") -> Figure:
    """Draw a picture, in the style of `figure_style`.

    Args:
        picture: The picture, or panels in the default arrangement.
        theme: Key of `THEMES`: "light" or "dark".

    Raises:
        InputError: If there are no panels.

    Example:
        >>> from howsmooth.report import Axis, Chart, Series
        >>> line = Series((8, 16), (1.0, 2.0), label="layer 0", linestyle="solid")
        >>> figure = draw([Chart("A model", Axis("n", "log"), Axis("Lip", "log"), [line])])
        >>> [panel.get_title(loc="left") for panel in figure.axes]
        ['A model']
    """
    from howsmooth.report.panels import Canvas, draw_colour_bars

    picture = Picture.of(picture)
    charts, colours, style = picture.panels, THEMES[theme], current_style(many_panels=picture.many_panels)
    if not charts:
        raise InputError("expected something to draw, got no panel; see the tables of these records")
    rows = _arrangement(picture, style.max_columns)
    columns, one_row = len(rows[0]), [index for index in rows[0] if index is not None]
    heights = [
        picture.height
        if picture.mosaic
        else max(charts[index].row_height(picture.width, picture.height) for index in row if index is not None)
        for row in rows
    ]
    legend_below = picture.shared_legend or (len(charts) == 1 and style is not STYLES["screen"])
    extra_height = 1.2 if picture.shared_legend else 0.5 if picture.title else 0.0
    size = max(6.4, picture.width * columns), sum(heights) + extra_height
    figure = new_figure(*size, colours, rows=1 if picture.mosaic else len(rows), style=style)
    ratios = picture.width_ratios or [1.0] * columns
    grid = figure.add_gridspec(len(rows), columns, height_ratios=heights, width_ratios=ratios)
    panels = []
    for index, chart in enumerate(charts):
        places = [(i, j) for i, row in enumerate(rows) for j, shown in enumerate(row) if shown == index]
        (top, left), (bottom, right) = places[0], places[-1]
        panel = figure.add_subplot(grid[top : bottom + 1, left : right + 1], gid=f"chart-{index}")
        panels.append(panel)
        share = sum(ratios[left : right + 1]) / sum(ratios)
        width = figure.get_figwidth() * share
        canvas = Canvas(colours, style, f"chart-{index}", width, share * size[0], own_legend=not legend_below)
        height = figure.get_figheight() * (bottom + 1 - top) / len(rows)
        draw_panel(panel, chart, canvas, height * (0.5 if legend_below and style is STYLES["slides"] else 0.75))
        before = rows[top][left - 1] if left else None
        if before is not None and _y_label(charts[before]) == _y_label(chart):
            panel.set_ylabel("")
            if isinstance(chart, HeatMap) and panel.get_ylim() == panels[before].get_ylim():
                panel.tick_params(labelleft=False)
    draw_colour_bars(figure, list(zip(panels, charts, strict=True)), colours, style)
    if legend_below:
        draw_shared_legend(figure, panels, max(len(one_row), style.legend_columns), colours, style)
    if picture.title:
        text = wrap(picture.title, 0.98 * figure.get_figwidth(), style.heading_size, 3)
        options: dict[str, Any] = {"fontsize": style.heading_size, "fontweight": "bold"}
        figure.suptitle(text, color=colours["foreground"], x=0.01, ha="left", **options)
    return separate_tick_labels(figure)


def _arrangement(picture: Picture, most: int) -> list[list[int | None]]:
    """Return the index of the panel in each column of each row; None where there is none."""
    if picture.mosaic:
        letters = list(dict.fromkeys(picture.mosaic.replace(";", "")))
        return [[letters.index(letter) for letter in row] for row in picture.mosaic.split(";")]
    count = len(picture.panels)
    columns = min(picture.columns, count, most)
    starts = range(0, count, columns)
    return [[i if i < count else None for i in range(start, start + columns)] for start in starts]


def draw_panel(panel: Axes, chart: Panel, canvas: Canvas, height: float) -> None:
    """Draw one panel, with its title and the labels of its axes.

    Args:
        panel: Where it is drawn.
        chart: What it shows.
        canvas: How it is drawn.
        height: Height in inches for the label of the y-axis.
    """
    from howsmooth.report.panels import DRAWN_BY

    DRAWN_BY[type(chart)](panel, chart, canvas)
    style, colour = canvas.style, canvas.theme["foreground"]
    heading = wrap(chart.title, 0.8 * canvas.width, style.title_size)  # bold, and beside the labels of the axis
    panel.set_title(heading, color=colour, fontsize=style.title_size, fontweight="bold", loc="left")
    if isinstance(chart, (Chart, HeatMap)) and panel.get_yticks().size:  # no message in its place
        for axis, declared, room in (("x", chart.x_axis, 0.95 * canvas.width), ("y", chart.y_axis, height)):
            label = fit_label(declared.label, room, style.label_size)
            getattr(panel, f"set_{axis}label")(label, color=colour, fontsize=style.label_size)


def _y_label(chart: Panel) -> str | None:
    return chart.y_axis.label if isinstance(chart, (Chart, HeatMap)) else None


def point_positions(figure: Figure, charts: Sequence[Panel]) -> list[list[list[tuple[float, float]]]]:
    """Return where the points of each panel are in the SVG file of a figure that `draw` returned.

    Returns:
        For each panel lists of x and y in the units of the file's `viewBox`, from the upper left corner, to within a
        unit: for a chart a list for each series (of samples, where it has samples); for a heat map the centres of the
        cells of each row, then a list for each of its series; for tokens one list with the centre of each.
    """
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # the file that is saved next has the same layout, and need not compute it
    scale, height = 72 / figure.dpi, 72 * figure.get_figheight()
    panels = {panel.get_gid(): panel for panel in figure.axes}

    def positions(panel: Axes, points: list[tuple[float, float]]) -> list[tuple[float, float]]:
        return [(scale * x, height - scale * y) for x, y in panel.transData.transform(points)] if points else []

    found = []
    for index, chart in enumerate(charts):
        panel = panels[f"chart-{index}"]
        found.append([positions(panel, points) for points in _points(panel, chart)])
    return found


def _points(panel: Axes, chart: Panel) -> list[list[tuple[float, float]]]:
    """Return the points of a panel in the coordinates of its axes."""
    if isinstance(chart, Tokens):
        cells = [patch for patch in panel.patches if "-token-" in (patch.get_gid() or "")]
        return [[tuple(cell.get_center()) for cell in cells]]  # type: ignore[attr-defined]
    found = []
    if isinstance(chart, HeatMap):
        xs, ys = chart.cells()
        found += [[(x, y) for x in xs] for y in ys]
    if isinstance(chart, (Chart, HeatMap)):
        found += [list(zip(series.x, series.y, strict=True)) for series in chart.series]
    return found


_FRAMES_PER_SECOND = 12
_LAST_FRAME_REPEATS = 12
_SIZE = (5.6, 5.2)  # inches


def save_animation(path: str | Path, frames: Iterable[Chart | HeatMap], *, theme: str = "light") -> None:
    """Write a gif with a frame for each panel; the last one is repeated. Animations are for screens, in every style.

    Args:
        path: The file.
        frames: The panels; their axes have the same limits.
        theme: Key of `THEMES`.
    """
    from matplotlib import animation
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from howsmooth.report.panels import Canvas

    colours = THEMES[theme]
    figure = new_figure(*_SIZE, colours, style=ANIMATION)
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    canvas = Canvas(colours, ANIMATION, "chart-0", _SIZE[0], _SIZE[0])
    writer = animation.PillowWriter(_FRAMES_PER_SECOND)
    with writer.saving(figure, str(path), figure.dpi):
        for index, frame in enumerate(frames):
            panel.clear()
            draw_panel(panel, frame, canvas, _SIZE[1])
            if not index:  # the layout of the first frame is that of all
                figure.draw_without_rendering()
                figure.set_layout_engine("none")
            writer.grab_frame(facecolor=figure.get_facecolor())
        for _ in range(_LAST_FRAME_REPEATS):
            writer.grab_frame(facecolor=figure.get_facecolor())
