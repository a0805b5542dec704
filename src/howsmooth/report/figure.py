"""Draw charts with matplotlib, in a light or dark theme or at the column width of a paper."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from howsmooth.errors import InputError
from howsmooth.extras import require
from howsmooth.report.chart import Axis, Chart, Colour, Series
from howsmooth.report.charts import bounds_charts, check_panel_count, growth_charts
from howsmooth.report.rows import exponent, model_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from howsmooth.fits import Law

Theme: TypeAlias = dict[str, Any]  # colours "background", "foreground", "muted", "grid"; the tuple "palette"

MARKERS = ("o", "s", "^", "D", "v", "P")
LINESTYLES = {"solid": "-", "dashed": (0, (5, 2.5)), "dotted": (0, (1, 1.8)), "dashdot": (0, (5, 2, 1, 2)), "": "none"}
_MAX_TICKS = 7  # on the x-axis of a small panel
_MESSAGE_HEIGHT = 2.0  # inches, of a row of panels that contain only a message
# The colour-blind-safe palette of Okabe and Ito without yellow (too pale on white) and black (invisible on dark).
_LIGHT_PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
THEMES: dict[str, Theme] = {
    "light": {
        "background": "#ffffff",
        "foreground": "#1f2328",
        "muted": "#8b949e",
        "grid": "#e4e7eb",
        "palette": _LIGHT_PALETTE,
    },
    "dark": {
        "background": "#14181d",
        "foreground": "#e3e7ec",
        "muted": "#7d8590",
        "grid": "#2a3038",
        "palette": ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#0072B2"),
    },
    "paper": {
        "background": "#ffffff",
        "foreground": "#000000",
        "muted": "#767676",
        "grid": "#e4e7eb",
        "palette": _LIGHT_PALETTE,
    },
}


@dataclass(frozen=True)
class _PanelStyle:
    """Font sizes in points, line widths and marker sizes of a panel."""

    title_size: float
    label_size: float
    tick_size: float
    legend_size: float
    line_scale: float  # multiplies the width of every line
    marker_size: float
    legend_columns: int
    samples_as_band: bool = False  # draw the range of samples as a band instead of one marker for each


_PANEL_STYLES = {
    "large": _PanelStyle(13, 11, 10, 9.5, 1.0, 5.5, 2),
    "small": _PanelStyle(9.5, 9, 8, 7.5, 0.85, 3.6, 1),
    "paper": _PanelStyle(8, 7.5, 7, 6.8, 0.65, 3.0, 2, samples_as_band=True),
}


def check_plot_path(path: str, option: str = "--plot") -> None:
    """Raise InputError if matplotlib is not installed or cannot write this file type; called before computing."""
    require("matplotlib", purpose=f"for {option}")
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    if Path(path).suffix.lstrip(".").lower() not in FigureCanvasAgg.get_supported_filetypes():
        raise InputError(f"expected a plot file ending in .png, .svg or .pdf for {option}, got {path!r}")


def save_figure(figure: Figure, path: Any) -> None:
    """Write the figure to a path or a binary stream, with its own background colour."""
    figure.savefig(path, facecolor=figure.get_facecolor())


def growth_figure(records: Sequence[dict[str, Any]], laws: dict[tuple, Law], *, theme: str = "light") -> Figure:
    """Draw `growth_charts`: Lip against n, one panel for each model.

    Args:
        records: Measurements, as `howsmooth.measure` returns them.
        laws: Fitted laws by curve, as `howsmooth.fits.growth_laws` returns them.
        theme: Key of `THEMES`: "light", "dark" or "paper".
    """
    charts = growth_charts(records, laws)
    legend_lines = max(math.ceil(sum(bool(series.label) for series in chart.series) / 2) for chart in charts)
    return draw(charts, theme=theme, columns=len(charts), width=5.4, height=4.6 + 0.22 * legend_lines)


def bounds_figure(records: Sequence[dict[str, Any]], *, theme: str = "light") -> Figure:
    """Draw `bounds_charts`: bounds and the measured constant of one model, one panel for each map."""
    charts = bounds_charts(records)
    check_panel_count(len(charts))
    return draw(
        charts,
        theme=theme,
        width=4.6,
        height=4.2,
        shared_legend=True,
        title=f"{model_name(records[0]['model'])}: bounds and the measured constant",
    )


def draw(
    charts: Sequence[Chart],
    *,
    theme: str = "light",
    columns: int = 3,
    width: float = 5.4,
    height: float = 4.6,
    title: str = "",
    size: str = "large",
    shared_legend: bool = False,
) -> Figure:
    """Draw charts as panels of one figure, row by row.

    Args:
        charts: One chart for each panel.
        theme: Key of `THEMES`: "light", "dark" or "paper".
        columns: Largest number of panels in a row.
        width: Width of a panel in inches.
        height: Height of a panel in inches.
        title: Title above all panels.
        size: "large" for a few panels, "small" for many; ignored by the theme "paper".
        shared_legend: Whether there is one legend for all panels instead of one for each.

    Example:
        >>> from howsmooth.report import Series
        >>> line = Series((8, 16), (1.0, 2.0), label="layer 0", linestyle="solid")
        >>> figure = draw([Chart("A model", Axis("n", "log"), Axis("Lip", "log"), [line])])
        >>> [panel.get_title(loc="left") for panel in figure.axes]
        ['A model']
    """
    from matplotlib.figure import Figure

    colours, style = THEMES[theme], _PANEL_STYLES["paper" if theme == "paper" else size]
    columns = min(columns, len(charts))
    n_rows = math.ceil(len(charts) / columns)
    rows = [charts[i * columns : (i + 1) * columns] for i in range(n_rows)]
    heights = [_MESSAGE_HEIGHT if all(chart.message for chart in row) else height for row in rows]
    extra_height = 1.6 if shared_legend else 0.5 if title else 0.0
    figure = Figure(
        figsize=(width if theme == "paper" else max(6.4, width * columns), sum(heights) + extra_height),
        dpi=100 if size == "small" else 160,
        layout="constrained",
        facecolor=colours["background"],
    )
    panels = figure.subplots(
        n_rows, columns, squeeze=False, sharey=shared_legend, gridspec_kw={"height_ratios": heights}
    ).flatten()
    for index, (panel, chart) in enumerate(zip(panels, charts, strict=False)):
        _draw_panel(panel, chart, colours, style, own_legend=not shared_legend)
        heading = textwrap.fill(chart.title, 44) if theme == "paper" else chart.title
        panel.set_title(heading, color=colours["foreground"], fontsize=style.title_size, fontweight="bold", loc="left")
        if index % columns == 0 and not chart.message:
            panel.set_ylabel(chart.y_axis.label, color=colours["foreground"], fontsize=style.label_size)
    for panel in panels[len(charts) :]:
        panel.set_visible(False)
    if shared_legend or theme == "paper":
        entries = {
            label: handle
            for panel in panels[: len(charts)]
            for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
        }
        if entries:
            figure.legend(
                entries.values(),
                entries.keys(),
                loc="outside lower center",
                frameon=False,
                ncols=min(max(columns, style.legend_columns if theme == "paper" else 1), 3),
                labelcolor=colours["foreground"],
                fontsize=style.legend_size,
            )
    if title:
        figure.suptitle(title, color=colours["foreground"], fontsize=13, fontweight="bold", x=0.01, ha="left")
    return figure


def _draw_panel(panel: Axes, chart: Chart, colours: Theme, style: _PanelStyle, own_legend: bool) -> None:
    apply_theme(panel, colours, style.tick_size)
    if chart.message:
        _draw_message(panel, chart.message, colours)
        return
    _format_axis(
        panel, panel.xaxis, chart.x_axis, style, colours, _value_ratio(chart, "x"), base=2 if chart.x_axis.ticks else 10
    )
    _format_axis(panel, panel.yaxis, chart.y_axis, style, colours, _value_ratio(chart, "y"))
    samples = [series for series in chart.series if series.has_samples]
    for band in chart.bands:
        panel.fill_between(
            band.x,
            band.lower,
            band.upper,
            color=colours["grid"],
            alpha=0.55,
            linewidth=0,
            zorder=0,
            label=band.label or None,
        )
    palette_index = 0  # counts only the series that do not choose their colour
    for series in chart.series:
        colour, marker = _colour_and_marker(series, palette_index, len(samples), colours)
        palette_index += series.colour is None
        _draw_series(panel, series, colour, marker, chart.is_detailed, style)
    reference_lines = chart.reference_lines()
    for series, _ in reference_lines:
        _draw_series(panel, series, colours["muted"], "", chart.is_detailed, style)
    for annotation in (*chart.annotations, *(annotation for _, annotation in reference_lines)):
        panel.annotate(
            annotation.text.replace("√n", "$\\sqrt{n}$"),
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
            chart.corner_text,
            transform=panel.transAxes,
            va="top",
            fontsize=style.legend_size,
            color=colours["foreground"],
        )
    _set_limits(panel, chart)
    if own_legend and style is not _PANEL_STYLES["paper"]:
        _draw_legend(panel, chart, colours, style)
    elif chart.notes and not own_legend:
        panel.annotate(
            "\n".join(chart.notes),
            (0, -0.2),
            xycoords="axes fraction",
            va="top",
            fontsize=7.5,
            color=colours["muted"],
            annotation_clip=False,
        )


def _draw_series(panel: Axes, series: Series, colour: Any, marker: str, is_detailed: bool, style: _PanelStyle) -> None:
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
        )
    if series.has_samples and is_detailed and style.samples_as_band:
        low, high = series.ranges()
        panel.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        panel.plot(x, y, marker, color=colour, markersize=style.marker_size)
    elif series.show_markers and not line_only:
        _draw_markers(panel, series, colour, marker, style)
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
            label=series.label + power,
        )


def _draw_markers(panel: Axes, series: Series, colour: Any, marker: str, style: _PanelStyle) -> None:
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
        )
    panel.errorbar(
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


def _draw_message(panel: Axes, message: str, colours: Theme) -> None:
    text = "\n".join("\n".join(textwrap.wrap(part, 62)[:7]) for part in message.split("\n"))
    panel.text(0.03, 0.95, text, transform=panel.transAxes, va="top", fontsize=7.5, color=colours["foreground"])
    panel.set(xticks=[], yticks=[], facecolor=colours["grid"])


def _format_axis(
    panel: Axes, axis: Any, declared: Axis, style: _PanelStyle, colours: Theme, value_ratio: float = 1.0, base: int = 10
) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, ScalarFormatter

    name = axis.axis_name
    if declared.scale == "log":
        getattr(panel, f"set_{name}scale")("log", base=base)
    ticks = list(declared.ticks)
    if style is not _PANEL_STYLES["large"] and len(ticks) > _MAX_TICKS:
        powers = [2**k for k in range(1, 30) if ticks[0] <= 2**k <= ticks[-1]]
        ticks = powers if len(powers) > 2 else ticks[:: math.ceil(len(ticks) / _MAX_TICKS)]
    if declared.tick_labels:
        axis.set_ticks(range(len(declared.tick_labels)), declared.tick_labels)
    elif declared.scale == "exponents":
        axis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        axis.set_major_formatter(FuncFormatter(lambda p, _: f"$10^{{{p:.0f}}}$" if abs(p) > 1e-9 else "1"))
    elif ticks:
        axis.set_ticks(ticks)
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    elif declared.scale == "log":
        wide_range = value_ratio > (1e6 if style is _PANEL_STYLES["large"] else 1e3)
        axis.set_major_locator(LogLocator(base=10, subs=(1,) if wide_range else (1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axis.set_major_locator(MaxNLocator(5, integer=declared.integer_ticks))
        axis.set_major_formatter(ScalarFormatter(useOffset=False))
    axis.set_minor_formatter(NullFormatter())
    panel.minorticks_off()
    if name == "x":
        panel.set_xlabel(declared.label, color=colours["foreground"], fontsize=style.label_size)


def _value_ratio(chart: Chart, name: str) -> float:
    """Return the largest over the smallest positive value along an axis."""
    values = [value for series in chart.series for value in getattr(series, name) if value > 0]
    return max(values) / min(values) if values else 1.0


def _set_limits(panel: Axes, chart: Chart) -> None:
    for axis, name in ((chart.x_axis, "x"), (chart.y_axis, "y")):
        if axis.lower_limit is not None or axis.upper_limit is not None:
            getattr(panel, f"set_{name}lim")(axis.lower_limit, axis.upper_limit)
    if chart.x_axis.scale == "log" and len(chart.x_axis.ticks) == 1:
        panel.set_xlim(chart.x_axis.ticks[0] / 2, chart.x_axis.ticks[0] * 2)


def _draw_legend(panel: Axes, chart: Chart, colours: Theme, style: _PanelStyle) -> None:
    for line in chart.notes:
        panel.plot([], [], " ", label=line)
    if not panel.get_legend_handles_labels()[0]:
        return
    position: dict[str, Any] = (
        {"loc": "upper center", "bbox_to_anchor": (0.5, -0.13)}
        if style is _PANEL_STYLES["large"]
        else {"loc": "upper left", "bbox_to_anchor": (-0.08, -0.16), "labelspacing": 0.35}
    )
    legend = panel.legend(
        title=chart.legend_title or None,
        frameon=False,
        labelcolor=colours["foreground"],
        fontsize=style.legend_size,
        handlelength=2.2,
        ncols=style.legend_columns,
        **position,
    )
    legend.get_title().set(color=colours["muted"], fontsize=9)


@contextmanager
def paper_style() -> Iterator[None]:
    """Apply the style sheet for figures in a paper to matplotlib within a `with` block.

    Example:
        >>> import matplotlib
        >>> with paper_style():
        ...     matplotlib.rcParams["figure.figsize"]
        [3.3, 2.5]
    """
    from matplotlib import style

    with as_file(files("howsmooth.report").joinpath("howsmooth.mplstyle")) as sheet, style.context(str(sheet)):
        yield


def apply_theme(panel: Axes, colours: Theme, size: float = 9) -> None:
    """Apply the colours of a theme to a panel, remove its frame and draw a grid; `size` is that of tick labels."""
    panel.set_facecolor(colours["background"])
    panel.tick_params(colors=colours["foreground"], labelsize=size, length=0, which="both")
    panel.grid(True, color=colours["grid"], linewidth=0.8)
    panel.set_axisbelow(True)
    for side in panel.spines.values():
        side.set_visible(False)


def format_length_axes(panel: Axes, records: Sequence[dict[str, Any]], colours: Theme) -> None:
    """Format a panel that was drawn directly with matplotlib: ticks at the records' lengths, a logarithmic y-axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    apply_theme(panel, colours, 10)
    _format_axis(
        panel,
        panel.xaxis,
        Axis("length n (tokens)", ticks=sorted({record["n"] for record in records})),
        _PANEL_STYLES["large"],
        colours,
    )
    panel.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


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
