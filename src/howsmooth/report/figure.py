"""Draw charts with matplotlib, in the style of `howsmooth.report.style`.

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

Where panels share a legend, an entry has the id of the first series with its label. `point_positions` returns where
the points of all series are.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from howsmooth.lazy import deferred
from howsmooth.report.chart import Axis, Chart, Colour, Panel, Picture, Series
from howsmooth.report.rows import exponent
from howsmooth.report.style import (
    STYLES,
    THEMES,
    Style,
    Theme,
    apply_theme,
    characters,
    current_style,
    legend_options,
    new_figure,
    set_heading,
)
from howsmooth.report.ticks import length_ticks, separate_tick_labels, set_log_ticks, tick_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from howsmooth.questions.question import Question

MARKERS = ("o", "s", "^", "D", "v", "P")
LINESTYLES = {"solid": "-", "dashed": (0, (5, 2.5)), "dotted": (0, (1, 1.8)), "dashdot": (0, (5, 2, 1, 2)), "": "none"}
_MAX_NOTE_LINES = 2  # below a panel


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
    if question.figure is not None:
        figure: Figure = deferred(question.figure)(records, theme=theme)
        return figure
    return draw([] if question.charts is None else question.charts(records), theme=theme)


def draw(picture: Picture | Sequence[Panel], *, theme: str = "light") -> Figure:
    """Draw a picture, in the style of `figure_style`.

    Args:
        picture: The picture, or panels in the default arrangement.
        theme: Key of `THEMES`: "light" or "dark".

    Example:
        >>> from howsmooth.report import Series
        >>> line = Series((8, 16), (1.0, 2.0), label="layer 0", linestyle="solid")
        >>> figure = draw([Chart("A model", Axis("n", "log"), Axis("Lip", "log"), [line])])
        >>> [panel.get_title(loc="left") for panel in figure.axes]
        ['A model']
    """
    picture = Picture.of(picture)
    charts: Any = picture.panels
    columns, width, height, title = picture.columns, picture.width, picture.height, picture.title
    shared_legend = picture.shared_legend
    colours, style = THEMES[theme], current_style(many_panels=picture.many_panels)
    columns = min(columns, len(charts), style.max_columns)
    n_rows = math.ceil(len(charts) / columns)
    rows = [charts[i * columns : (i + 1) * columns] for i in range(n_rows)]
    heights = [max(chart.row_height(width, height) for chart in row) for row in rows]
    legend_below = shared_legend or (len(charts) == 1 and style is not STYLES["screen"])
    extra_height = 1.2 if shared_legend else 0.5 if title else 0.0
    figure = new_figure(max(6.4, width * columns), sum(heights) + extra_height, colours, rows=n_rows, style=style)
    panels = list(figure.subplots(n_rows, columns, squeeze=False, gridspec_kw={"height_ratios": heights}).flatten())
    panel_width = figure.get_figwidth() / columns
    for index, (panel, chart) in enumerate(zip(panels, charts, strict=False)):
        panel.set_gid(f"chart-{index}")
        _draw_panel(panel, chart, colours, style, panel_width, own_legend=not legend_below)
        heading = _wrap(chart.title, 0.88 * panel_width, style.title_size)
        panel.set_title(heading, color=colours["foreground"], fontsize=style.title_size, fontweight="bold", loc="left")
        left = charts[index - 1] if index % columns else None
        if not chart.message and (left is None or left.y_axis.label != chart.y_axis.label):
            share = 0.75 if not legend_below or style is not STYLES["slides"] else 0.5  # of the height, for a panel
            label = _fit_label(chart.y_axis.label, share * figure.get_figheight() / n_rows, style.label_size)
            panel.set_ylabel(label, color=colours["foreground"], fontsize=style.label_size)
    for panel in panels[len(charts) :]:
        panel.set_visible(False)
    if legend_below:
        _draw_shared_legend(figure, panels[: len(charts)], max(columns, style.legend_columns), colours, style)
    if title:
        set_heading(figure, title, colours)
    return separate_tick_labels(figure)


def _draw_shared_legend(figure: Figure, panels: Sequence[Axes], columns: int, colours: Theme, style: Style) -> None:
    """Draw one legend below all panels; equal entries of several panels appear once."""
    entries: dict[str, Any] = {}
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if entries:
        legend = figure.legend(
            entries.values(),
            entries.keys(),
            loc="outside lower center",
            ncols=min(columns, 3),
            **legend_options(colours, style),
        )
        _identify(legend, list(entries.values()))


def _identify(legend: Any, handles: Sequence[Any]) -> None:
    """Give the entries of a legend the ids of their series."""
    for handle, key, text in zip(handles, legend.legend_handles, legend.get_texts(), strict=True):
        if gid := (handle.get_gid() or "").removesuffix("-key"):
            if handle.get_gid() != gid:
                handle.set_gid(None)  # an empty line, for the legend alone
            key.set_gid(f"{gid}-key")
            text.set_gid(f"{gid}-legend")


def point_positions(figure: Figure, charts: Sequence[Chart]) -> list[list[list[tuple[float, float]]]]:
    """Return where the points of each series of each chart are in the SVG file of a figure that `draw` returned.

    Returns:
        For each chart and series, x and y of each point in the units of the file's `viewBox`, from the upper left
        corner, to within a unit. For a series of samples these are the samples.
    """
    figure.draw_without_rendering()
    scale, height = 72 / figure.dpi, 72 * figure.get_figheight()
    panels = {panel.get_gid(): panel for panel in figure.axes}
    return [
        [
            [(scale * x, height - scale * y) for x, y in panels[f"chart-{index}"].transData.transform(points)]
            if (points := list(zip(series.x, series.y, strict=True)))
            else []
            for series in chart.series
        ]
        for index, chart in enumerate(charts)
    ]


def _wrap(text: str, width: float, size: float) -> str:
    """Break the lines of a text so that they fit into a width in inches, and typeset its powers."""
    return _typeset("\n".join(textwrap.fill(line, characters(width, size)) for line in text.split("\n")))


def _fit_notes(chart: Chart, width: float, size: float) -> list[str]:
    """Return the notes of a chart, broken to a width in inches; the short ones if these take more than two lines."""
    notes = [_wrap(note, width, size) for note in chart.notes]
    if chart.short_notes and sum(note.count("\n") + 1 for note in notes) > _MAX_NOTE_LINES:
        return [_wrap(note, width, size) for note in chart.short_notes]
    return notes


def _fit_label(label: str, height: float, size: float) -> str:
    """Break an axis label at the double space nearest its middle if it is longer than a height in inches."""

    def shown(text: str) -> int:
        return len(re.sub(r"\$[_^]\{?([^$}]*)\}?\$", r"\1", text))

    parts = label.split("  ")
    if shown(label) <= characters(height, size) or len(parts) == 1:
        return label
    broken = [("  ".join(parts[:k]), "  ".join(parts[k:])) for k in range(1, len(parts))]
    return "\n".join(min(broken, key=lambda lines: max(map(shown, lines))))


def _typeset(text: str) -> str:
    """Write powers and roots in the notation of matplotlib: n^0.25 as n$^{0.25}$."""
    return re.sub(r"(?<=\w)\^(-?[\d.]+\d|\d)", r"$^{\1}$", text).replace("√n", "$\\sqrt{n}$")


def _draw_panel(panel: Axes, chart: Chart, colours: Theme, style: Style, panel_width: float, own_legend: bool) -> None:
    apply_theme(panel, colours, style)
    if chart.message:
        _draw_message(panel, _typeset(chart.message), colours, style)
        return
    for axis, declared in ((panel.xaxis, chart.x_axis), (panel.yaxis, chart.y_axis)):
        if declared.scale == "log":
            getattr(panel, f"set_{axis.axis_name}scale")("log")
    panel.set_xlabel(chart.x_axis.label, color=colours["foreground"], fontsize=style.label_size)
    samples = [series for series in chart.series if series.has_samples]
    gid = panel.get_gid()
    for index, band in enumerate(chart.bands):
        panel.fill_between(
            band.x,
            band.lower,
            band.upper,
            color=colours["grid"],
            alpha=0.55,
            linewidth=0,
            zorder=0,
            label=band.label or None,
            gid=f"{gid}-band-{index}",
        )
    palette_index = 0  # counts only the series that do not choose their colour
    for index, series in enumerate(chart.series):
        colour, marker = _colour_and_marker(series, palette_index, len(samples), colours)
        palette_index += series.colour is None
        _draw_series(panel, series, colour, marker, chart.is_detailed, style, f"{gid}-series-{index}")
    reference_lines = chart.reference_lines()
    for index, (series, _) in enumerate(reference_lines):
        _draw_series(panel, series, colours["muted"], "", chart.is_detailed, style, f"{gid}-slope-{index}")
    for annotation in (*chart.annotations, *(annotation for _, annotation in reference_lines)):
        panel.annotate(
            _typeset(annotation.text),
            (annotation.x, annotation.y),
            xytext=(6 if annotation.align == "left" else 0, 0),
            textcoords="offset points",
            va="center",
            fontsize=style.tick_size,
            color=_resolve_colour(annotation.colour, colours),
            ha=annotation.align,
            annotation_clip=False,
        )
    if chart.corner_text:
        panel.text(
            0.03,
            0.97,
            _typeset(chart.corner_text),
            transform=panel.transAxes,
            va="top",
            fontsize=style.legend_size,
            color=colours["foreground"],
        )
    _set_limits(panel, chart)
    for axis, declared in ((panel.xaxis, chart.x_axis), (panel.yaxis, chart.y_axis)):
        _set_ticks(axis, declared)
    if own_legend:
        _draw_legend(panel, chart, colours, style, panel_width)
    elif chart.notes:
        panel.annotate(
            "\n".join(_fit_notes(chart, 0.9 * panel_width, style.legend_size)),
            (0, 0),
            xytext=(0, -3.4 * style.label_size),
            xycoords="axes fraction",
            textcoords="offset points",
            va="top",
            fontsize=style.legend_size,
            color=colours["muted"],
            annotation_clip=False,
        )


def _draw_series(
    panel: Axes, series: Series, colour: Any, marker: str, is_detailed: bool, style: Style, gid: str
) -> None:
    line_only = series.has_samples and not is_detailed
    x, y = series.medians() if series.has_samples else (series.x, series.y)
    width = (0.6 if line_only else series.linewidth) * style.line_scale
    if series.linestyle and len(x) > (1 if series.show_markers else 0):
        panel.plot(
            x,
            y,
            linestyle=LINESTYLES[series.linestyle],
            color=colour,
            linewidth=width,
            zorder=2,
            marker="_" if len(x) == 1 else None,
            markersize=14,
            markeredgewidth=2,
            gid=gid,
        )
    if series.has_samples and is_detailed and style.samples_as_band:
        low, high = series.ranges()
        panel.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0, gid=f"{gid}-range")
        panel.plot(x, y, marker, color=colour, markersize=style.marker_size, gid=f"{gid}-points")
    elif series.show_markers and not line_only:
        _draw_markers(panel, series, colour, marker, style, gid)
    law = series.law if series.law is not None and series.law.shown and not line_only else None
    if law is not None:
        # A rejected law is not drawn: a line through the points would suggest that it fits.
        ends = [min(series.x), max(series.x)]
        panel.plot(
            ends,
            [law.at(n) for n in ends],
            linestyle=LINESTYLES[series.law_linestyle],
            color=colour,
            linewidth=1.3 * style.line_scale,
            zorder=2,
            gid=f"{gid}-law",
        )
    if series.label:
        # An empty line makes the legend entry, which combines the line style and the marker.
        power = f":  n$^{{{exponent(series.law)}}}$" if exponent(series.law) and "n^" not in series.label else ""
        panel.plot(
            [],
            [],
            linestyle=LINESTYLES[series.linestyle or (series.law_linestyle if law else "")],
            color=colour,
            marker=marker if series.show_markers and not line_only else None,
            markersize=style.marker_size,
            linewidth=width,
            markeredgewidth=0.8 if series.hollow_markers else 0,
            markerfacecolor="none" if series.hollow_markers else colour,
            label=_typeset(series.label) + power,
            gid=f"{gid}-key",
        )


def _draw_markers(panel: Axes, series: Series, colour: Any, marker: str, style: Style, gid: str) -> None:
    values = series.x if series.horizontal_intervals else series.y
    errors: tuple[list[float], list[float]] | None = None
    if series.lower and not series.hollow_markers:
        errors = (
            [
                max(0.0, value - low) if low is not None else 0.0
                for value, low in zip(values, series.lower, strict=True)
            ],
            [
                max(0.0, high - value) if high is not None else 0.0
                for value, high in zip(values, series.upper, strict=True)
            ],
        )
        # Without an upper end the point is only a lower bound: a triangle around it instead of an error bar.
        lower_bounds = [
            (x, y)
            for x, y, low, high in zip(series.x, series.y, series.lower, series.upper, strict=True)
            if high is None and low is not None
        ]
        panel.plot(
            *zip(*lower_bounds, strict=True) if lower_bounds else ((), ()),
            "^",
            color=colour,
            markersize=1.8 * style.marker_size,
            markerfacecolor="none",
            zorder=3,
            label="lower bound only" if lower_bounds and series.label else None,
            gid=f"{gid}-open",
        )
    points, caps, intervals = panel.errorbar(
        series.x,
        series.y,
        xerr=errors if series.horizontal_intervals else None,
        yerr=None if series.horizontal_intervals else errors,
        fmt=marker,
        color=colour,
        markersize=style.marker_size,
        markeredgewidth=0.8 if series.hollow_markers else 0,
        alpha=0.85,
        markerfacecolor="none" if series.hollow_markers else colour,
        elinewidth=1,
        capsize=0.4 * style.marker_size,
        zorder=3,
    )
    points.set_gid(f"{gid}-points")
    for interval in intervals:
        interval.set_gid(f"{gid}-intervals")
    for index, cap in enumerate(caps):
        cap.set_gid(f"{gid}-caps-{index}")


def _draw_message(panel: Axes, message: str, colours: Theme, style: Style) -> None:
    text = "\n".join("\n".join(textwrap.wrap(part, 62)[:7]) for part in message.split("\n"))
    panel.text(
        0.03, 0.95, text, transform=panel.transAxes, va="top", fontsize=style.legend_size, color=colours["foreground"]
    )
    panel.set(xticks=[], yticks=[], facecolor=colours["grid"])


def _set_ticks(axis: Any, declared: Axis) -> None:
    """Set the ticks of an axis whose limits are known."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

    if declared.tick_labels:
        axis.set_ticks(range(len(declared.tick_labels)), declared.tick_labels)
    elif declared.scale == "exponents":
        axis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        axis.set_major_formatter(FuncFormatter(lambda power, _: "1" if abs(power) < 1e-9 else f"$10^{{{power:.0f}}}$"))
    elif declared.ticks:
        axis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value)))
        axis.set_ticks(length_ticks(declared.ticks))
    elif declared.scale == "log":
        set_log_ticks(axis, *axis.get_view_interval())
    else:
        axis.set_major_locator(MaxNLocator(5, integer=declared.integer_ticks))
        axis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(round(value, 12))))
    axis.set_minor_locator(NullLocator())


def _set_limits(panel: Axes, chart: Chart) -> None:
    for axis, name in ((chart.x_axis, "x"), (chart.y_axis, "y")):
        if axis.lower_limit is not None or axis.upper_limit is not None:
            getattr(panel, f"set_{name}lim")(axis.lower_limit, axis.upper_limit)
    if chart.x_axis.scale == "log" and len(chart.x_axis.ticks) == 1:
        panel.set_xlim(chart.x_axis.ticks[0] / 2, chart.x_axis.ticks[0] * 2)


def _draw_legend(panel: Axes, chart: Chart, colours: Theme, style: Style, panel_width: float) -> None:
    for line in _fit_notes(chart, 0.9 * panel_width, style.legend_size):
        panel.plot([], [], " ", label=line)
    if not panel.get_legend_handles_labels()[0]:
        return
    place = (0.5, -3.4) if style.legend_columns > 1 else (-0.08, -3.2)  # in widths of the panel, in font sizes below it
    legend = panel.legend(
        title=chart.legend_title or None,
        handlelength=2.2,
        ncols=min(style.legend_columns, 2),
        loc="upper center" if style.legend_columns > 1 else "upper left",
        bbox_to_anchor=(place[0], 0.0),
        borderaxespad=-place[1] * style.label_size / style.legend_size,
        labelspacing=0.35,
        **legend_options(colours, style),
    )
    _identify(legend, panel.get_legend_handles_labels()[0])
    legend.get_title().set(color=colours["muted"], fontsize=style.legend_size)


def format_length_axes(panel: Axes, records: Sequence[dict[str, Any]], colours: Theme) -> None:
    """Format a panel that was drawn directly with matplotlib: ticks at the records' lengths, a logarithmic y-axis."""
    panel.set_xlabel("length n (tokens)")
    apply_theme(panel, colours)
    _set_ticks(panel.xaxis, Axis("", ticks=sorted({record["n"] for record in records})))
    _set_ticks(panel.yaxis, Axis("", "log"))


def series_colours(count: int, colours: Theme) -> list[Any]:
    """Return colours for `count` series: from the palette for a few, from a sequential colour map for many."""
    if count <= len(colours["palette"]):
        return list(colours["palette"][:count])
    return [_resolve_colour(index / (count - 1), colours) for index in range(count)]


def _colour_and_marker(series: Series, index: int, count: int, colours: Theme) -> tuple[Any, str]:
    marker = MARKERS[
        (series.marker_index if series.marker_index is not None else index if count <= len(MARKERS) else 0) % 6
    ]
    if series.colour is not None:
        return _resolve_colour(series.colour, colours), marker
    return series_colours(max(count, 1), colours)[index] if index < max(count, 1) else _resolve_colour(
        index % 6, colours
    ), marker


def _resolve_colour(colour: Colour, colours: Theme) -> Any:
    if isinstance(colour, str):
        return colours[colour]
    if isinstance(colour, int):
        return colours["palette"][colour % len(colours["palette"])]
    from matplotlib import colormaps

    return colormaps["viridis"](0.1 + 0.8 * colour)
