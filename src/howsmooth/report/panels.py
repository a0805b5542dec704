"""Draw panels with matplotlib: one function for each kind, in `DRAWN_BY`."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy
from matplotlib import colormaps, colors
from matplotlib.axes import Axes
from matplotlib.font_manager import findfont, get_font
from matplotlib.patches import Rectangle

from howsmooth.report.chart import Axis, Chart, Colour, HeatMap, Panel, Series, Tokens, drawable
from howsmooth.report.rows import exponent, number
from howsmooth.report.style import STYLES, Style, Theme, apply_theme
from howsmooth.report.texts import (
    NOTES_BELOW,
    characters,
    draw_legend,
    fit_label,
    notes_of,
    set_ticks,
    shorten,
    typeset,
)

MARKERS = ("o", "s", "^", "D", "v", "P")
LINESTYLES = {"solid": "-", "dashed": (0, (5, 2.5)), "dotted": (0, (1, 1.8)), "dashdot": (0, (5, 2, 1, 2)), "": "none"}
TOKEN_FONT = "DejaVu Sans Mono"  # comes with matplotlib; its characters have one width, by which tokens are laid out
_MAX_WRITTEN_COLUMNS = 8  # a heat map with more columns has no numbers in its cells
_SCREEN_MARKER = STYLES["screen"].marker_size
_ON_DARK = "#fefefe"  # text on a dark cell; white is the background, which a page replaces by that of its theme


@dataclass(frozen=True)
class Canvas:
    """Where and how a panel is drawn.

    Attributes:
        theme: Colours.
        style: Sizes.
        gid: The id of the panel, with which the ids of its parts begin.
        width: Width of the panel in inches.
        declared_width: Its width in inches on a screen, as the picture declares it.
        own_legend: Whether the panel has a legend of its own.
    """

    theme: Theme
    style: Style
    gid: str
    width: float
    declared_width: float
    own_legend: bool = True

    @property
    def label_width(self) -> int:
        """How many characters of a legend entry are in one line."""
        if not self.own_legend:
            return 44
        return characters(self.width / (min(self.style.legend_columns, 2) + 0.4), self.style.legend_size)


def draw_chart(panel: Axes, chart: Chart, canvas: Canvas) -> None:
    """Draw a chart into a panel."""
    colours, style, gid = canvas.theme, canvas.style, canvas.gid
    apply_theme(panel, colours, style)
    if chart.message:
        _draw_message(panel, chart.message, canvas)
        return
    for name, declared in (("x", chart.x_axis), ("y", chart.y_axis)):
        if declared.scale == "log":
            getattr(panel, f"set_{name}scale")("log")
        elif declared.scale == "symlog":
            getattr(panel, f"set_{name}scale")("symlog", linthresh=declared.linear_below)
    for index, band in enumerate(chart.bands):
        panel.fill_between(
            band.x,
            drawable(band.lower),
            drawable(band.upper),
            color=resolve_colour(band.colour, colours),
            alpha=band.opacity,
            linewidth=0,
            zorder=0,
            label=shorten(band.label, canvas.label_width) or None,
            gid=f"{gid}-band-{index}",
        )
    logs = chart.x_axis.scale == "log", chart.y_axis.scale == "log"
    draw_all_series(panel, chart.series, canvas, is_detailed=chart.is_detailed, logs=logs)
    reference_lines = chart.reference_lines()
    for index, (series, _) in enumerate(reference_lines):
        _draw_series(panel, series, colours["muted"], "", chart.is_detailed, canvas, f"slope-{index}")
    for annotation in (*chart.annotations, *(annotation for _, annotation in reference_lines)):
        panel.annotate(
            shorten(annotation.text, 24),
            (annotation.x, annotation.y),
            xytext=({"left": 6, "center": 0, "right": -6}[annotation.align], 0),
            textcoords="offset points",
            va="center",
            fontsize=style.tick_size,
            color=resolve_colour(annotation.colour, colours),
            ha=annotation.align,
            annotation_clip=False,
        )
    if chart.corner_text:
        text, size = shorten(chart.corner_text), style.legend_size
        panel.text(0.03, 0.97, text, transform=panel.transAxes, va="top", fontsize=size, color=colours["foreground"])
    if chart.equal_scales:
        fixed = chart.x_axis.lower_limit is not None  # then the panel changes its shape, and not its limits
        panel.set_aspect("equal", adjustable="box" if fixed else "datalim")
    set_limits(panel, chart.x_axis, chart.y_axis)
    for axis, declared in ((panel.xaxis, chart.x_axis), (panel.yaxis, chart.y_axis)):
        set_ticks(axis, declared)
    room = (0.5 if chart.y_axis.tick_labels else 0.9) * canvas.width  # names on the y-axis need the other half
    notes = notes_of(chart, room, style.legend_size, as_band=style.samples_as_band)
    if notes:
        panel.annotate(
            "\n".join(notes),
            (0, 0),
            xytext=(0, -NOTES_BELOW * style.label_size),
            xycoords="axes fraction",
            textcoords="offset points",
            va="top",
            fontsize=style.legend_size,
            color=colours["muted"],
            annotation_clip=False,
        )
    if canvas.own_legend or chart.legend_inside:
        draw_legend(panel, chart, colours, style, sum(note.count("\n") + 1 for note in notes))


def draw_heat_map(panel: Axes, heat: HeatMap, canvas: Canvas) -> None:
    """Draw a heat map into a panel; its colour bar may be shared with other panels, see `draw_colour_bars`."""
    colours, style = canvas.theme, canvas.style
    apply_theme(panel, colours, style, grid=False)
    limits = heat.range()
    if limits is None:
        _draw_message(panel, "no value that can be drawn", canvas)
        return
    low, high = limits if limits[0] < limits[1] else (limits[0] / 1.1, limits[0] * 1.1 or 1.0)
    norm: Any = (colors.LogNorm if heat.scale == "log" else colors.Normalize)(low, high)
    colour_map: Any = colormaps["cividis" if heat.scale == "log" else "viridis"]
    if heat.centre is not None:
        norm = colors.TwoSlopeNorm(heat.centre, low, high)
        ends = [colours["palette"][0], colours["background"], colours["palette"][1]]
        colour_map = colors.LinearSegmentedColormap.from_list("diverging", ends).with_extremes(bad=colours["grid"])
    grid = numpy.array([drawable(row) for row in heat.values], dtype=float)
    panel.imshow(
        grid,
        aspect="equal" if heat.equal_scales else "auto",
        origin="lower" if heat.upwards or heat.extent else "upper",
        extent=heat.extent,
        norm=norm,
        cmap=colour_map,
        interpolation="nearest",
        gid=f"{canvas.gid}-cells",
    )
    if heat.contour is not None:
        panel.contour(*heat.cells(), grid, levels=[heat.contour], colors=[colours["foreground"]], linewidths=1.1)
    draw_all_series(panel, heat.series, canvas)
    if heat.extent is None:
        panel.set_xticks(range(len(heat.columns)), [shorten(str(column)) for column in heat.columns])
        panel.set_yticks(range(len(heat.rows)), [shorten(str(row), 24) for row in heat.rows])
    else:
        set_limits(panel, heat.x_axis, heat.y_axis)
        set_ticks(panel.xaxis, heat.x_axis)
        set_ticks(panel.yaxis, heat.y_axis)
    if heat.show_values and len(heat.columns) <= _MAX_WRITTEN_COLUMNS:
        for (i, j), value in numpy.ndenumerate(grid):
            if math.isfinite(value):
                panel.text(
                    j,
                    i,
                    number(value, 3),
                    ha="center",
                    va="center",
                    fontsize=style.legend_size,
                    color=_ON_DARK if norm(value) < 0.5 else "black",
                )


def draw_tokens(panel: Axes, tokens: Tokens, canvas: Canvas) -> None:
    """Draw coloured tokens into a panel, with the scale of the colours above them."""
    colours, unit = canvas.theme, canvas.width / canvas.declared_width
    width, line, space = canvas.declared_width, Tokens.LINE, Tokens.CHARACTER
    red, green, blue = colors.to_rgb(colours["palette"][1])

    def cell(x: float, y: float, length: float, shade: float, gid: str | None = None) -> None:
        face = (red, green, blue, 0.04 + 0.72 * shade)
        panel.add_patch(Rectangle((x, y - 0.4 * line), length, 0.8 * line, facecolor=face, linewidth=0, gid=gid))

    def write(x: float, y: float, text: str, size: float, **options: Any) -> None:
        """Write a text as it is: a dollar sign starts no formula."""
        style = {"color": colours["foreground"], "fontsize": size * unit, "va": "center", **options}
        panel.text(x, y, text, **style).set(parse_math=False, in_layout=False)

    panel.axis("off")
    panel.set(xlim=(-space, width - space), ylim=(tokens.row_height(width, 0.0) - 1.2 * line, 0))
    low, high = tokens.colouring.ends
    left, length, steps = 0.65, 2.4, 48
    for i in range(steps):
        cell(left + i * length / steps, 0.6 * line, length / steps, i / (steps - 1))
    write(left - 0.08, 0.6 * line, low, 8, ha="right")
    write(left + length + 0.08, 0.6 * line, f"{high}, log scale", 8)
    known = get_font(findfont(TOKEN_FONT)).get_charmap()
    places = tokens.places(width - 5 * space)
    shades = tokens.colouring.intensities
    for index, (word, (x, row), shade) in enumerate(zip(tokens.words, places, shades, strict=True)):
        y = (1.9 + row) * line
        cell(x - space / 3, y, (len(word) + 0.66) * space, shade, f"{canvas.gid}-token-{index}")
        write(x, y, "".join(char if ord(char) in known else "�" for char in word), 9, family=TOKEN_FONT)


# The function that draws each kind of panel.
DRAWN_BY: dict[type[Panel], Callable[[Axes, Any, Canvas], None]] = {
    Chart: draw_chart,
    HeatMap: draw_heat_map,
    Tokens: draw_tokens,
}


def draw_all_series(
    panel: Axes,
    series: Iterable[Series],
    canvas: Canvas,
    *,
    is_detailed: bool = True,
    logs: tuple[bool, bool] = (False, False),
) -> None:
    """Draw series with the colours that they choose, or with those of their place among the others.

    Args:
        panel: The panel.
        series: The series.
        canvas: How they are drawn.
        is_detailed: Whether series of samples have markers, intervals and laws.
        logs: Whether the x-axis and the y-axis are logarithmic.
    """
    series = list(series)
    count = sum(one.has_samples for one in series)
    place = 0  # counts only the series that do not choose their colour
    for index, one in enumerate(series):
        colour, marker = _colour_and_marker(one, place, count, canvas.theme)
        place += one.colour is None
        _draw_series(panel, _drawable(one, *logs), colour, marker, is_detailed, canvas, f"series-{index}")


def draw_colour_bars(figure: Any, drawn: Sequence[tuple[Axes, Panel]], theme: Theme, style: Style) -> None:
    """Draw the colour bars of heat maps: one for all with the same limits and label."""
    groups: dict[Any, list[tuple[Axes, HeatMap]]] = {}
    for index, (panel, heat) in enumerate(drawn):
        if isinstance(heat, HeatMap) and heat.bar_label and panel.images:
            groups.setdefault((heat.bar_label, heat.limits, None if heat.limits else index), []).append((panel, heat))
    for group in groups.values():
        (first, heat), panels = group[0], [panel for panel, _ in group]
        image: Any = first.images[0]
        extend, options = "neither", {"pad": 0.02}
        if heat.centre is not None:
            extend, options = ("both" if image.norm.vmin else "max"), {"shrink": 0.8}
        bar = figure.colorbar(image, ax=panels, extend=extend, **options)
        bar.set_label(fit_label(heat.bar_label, 0.6 * figure.get_figheight(), style.label_size))
        if heat.centre is None:
            set_ticks(bar.ax.yaxis, Axis("", heat.scale))
        else:
            bar.set_ticks([float(tick) for tick in numpy.linspace(image.norm.vmin, image.norm.vmax, 5)])
        apply_theme(bar.ax, theme, style, grid=False)
        bar.outline.set_visible(False)


def resolve_colour(colour: Colour, colours: Theme) -> Any:
    """Return a colour of a chart as matplotlib knows it."""
    if isinstance(colour, str):
        return colours.get(colour, colour)
    if isinstance(colour, int):
        return colours["palette"][colour % len(colours["palette"])]
    return colormaps["viridis"](0.1 + 0.8 * colour)


def set_limits(panel: Axes, x_axis: Axis, y_axis: Axis) -> None:
    """Set the limits that axes declare, and those around a single value on a logarithmic axis."""
    for axis, name in ((y_axis, "y"), (x_axis, "x")):
        low, high = getattr(panel, f"{name}axis").get_data_interval()
        if axis.lower_limit is not None or axis.upper_limit is not None:
            getattr(panel, f"set_{name}lim")(axis.lower_limit, axis.upper_limit)
        elif axis.scale == "log" and low <= high <= low * (1 + 1e-9):  # markers and intervals differ by rounding
            getattr(panel, f"set_autoscale{name}_on")(False)  # matplotlib's own limits would have no width
            getattr(panel, f"set_{name}lim")(low / 2, high * 2)


def _draw_message(panel: Axes, message: str, canvas: Canvas) -> None:
    text = "\n".join(typeset("\n".join(textwrap.wrap(part, 62)[:7])) for part in message.split("\n"))
    size, colour = canvas.style.legend_size, canvas.theme["foreground"]
    panel.text(0.03, 0.95, text, transform=panel.transAxes, va="top", fontsize=size, color=colour)
    panel.set(xticks=[], yticks=[], facecolor=canvas.theme["grid"])


def _drawable(series: Series, log_x: bool, log_y: bool) -> Series:
    """Return a series with NaN for what no axis can show, and with no upper end where it is infinite."""
    lower, upper = drawable(series.lower, None), drawable(series.upper, None)
    x, y = drawable(series.x, positive=log_x), drawable(series.y, positive=log_y)
    return replace(series, x=x, y=y, lower=lower, upper=upper)


def _colour_and_marker(series: Series, index: int, count: int, colours: Theme) -> tuple[Any, str]:
    place = series.marker_index if series.marker_index is not None else index if count <= len(MARKERS) else 0
    marker = MARKERS[place % len(MARKERS)]
    if series.colour is not None:
        return resolve_colour(series.colour, colours), marker
    many = index < count and count > len(colours["palette"])
    return resolve_colour(index / (count - 1) if many else index, colours), marker


def _draw_series(
    panel: Axes, series: Series, colour: Any, marker: str, is_detailed: bool, canvas: Canvas, name: str
) -> None:
    style, gid = canvas.style, f"{canvas.gid}-{name}"
    line_only = series.has_samples and not is_detailed
    x, y = series.medians() if series.has_samples else (series.x, series.y)
    # Of many series that have markers alone, each has a line in place of them, in the style of its law.
    linestyle = series.linestyle or (series.law_linestyle if line_only else "")
    width = (0.6 if line_only else series.linewidth) * style.line_scale
    if linestyle and len(x) > (1 if series.show_markers else 0):
        panel.plot(
            x,
            y,
            linestyle=LINESTYLES[linestyle],
            color=colour,
            linewidth=width,
            drawstyle="steps-post" if series.steps else "default",
            alpha=series.opacity,
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
            linestyle=LINESTYLES[linestyle or (series.law_linestyle if law else "")],
            color=colour,
            marker=marker if series.show_markers and not line_only else None,
            markersize=style.marker_size,
            linewidth=width,
            markeredgewidth=0.8 if series.hollow_markers else 0,
            markerfacecolor="none" if series.hollow_markers else colour,
            label=shorten(series.label, canvas.label_width) + power,
            gid=f"{gid}-key",
        )


def _draw_markers(panel: Axes, series: Series, colour: Any, marker: str, style: Style, gid: str) -> None:
    size = style.marker_size * (series.marker_size or _SCREEN_MARKER) / _SCREEN_MARKER
    opacity = 0.85 if series.opacity is None else series.opacity
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
        markersize=size,
        markeredgewidth=0.8 if series.hollow_markers else 0,
        alpha=opacity,
        markerfacecolor="none" if series.hollow_markers else colour,
        elinewidth=1,
        capsize=0.4 * size,
        zorder=3,
    )
    points.set_gid(f"{gid}-points")
    for interval in intervals:
        interval.set_gid(f"{gid}-intervals")
    for index, cap in enumerate(caps):
        cap.set_gid(f"{gid}-caps-{index}")
