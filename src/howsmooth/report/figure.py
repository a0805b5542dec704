"""Charts drawn by matplotlib: light, dark, and in the style of a paper's column."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from howsmooth.errors import InputError
from howsmooth.report.chart import Axis, Chart, Series
from howsmooth.report.charts import bounds_charts, check_panels, growth_charts
from howsmooth.report.rows import exponent, model_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.figure import Figure

    from howsmooth.fits import Law

MARKERS = ("o", "s", "^", "D", "v", "P")
LINES = {"solid": "-", "dashed": (0, (5, 2.5)), "dotted": (0, (1, 1.8)), "dashdot": (0, (5, 2, 1, 2)), "": "none"}
_MOST_TICKS = 7  # of a small panel
_SMALL_HEIGHT, _MESSAGE_HEIGHT = 4.4, 2.0  # inches of a row of small panels, and of one that says what is missing
# Okabe and Ito's palette without its yellow (too faint on white) and its black (invisible on a dark page).
_ON_WHITE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
THEMES: dict[str, dict[str, Any]] = {
    "light": {"paper": "#ffffff", "ink": "#1f2328", "faint": "#8b949e", "grid": "#e4e7eb", "maps": _ON_WHITE},
    "dark": {
        "paper": "#14181d",
        "ink": "#e3e7ec",
        "faint": "#7d8590",
        "grid": "#2a3038",
        "maps": ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#0072B2"),
    },
    "paper": {"paper": "#ffffff", "ink": "#000000", "faint": "#767676", "grid": "#e4e7eb", "maps": _ON_WHITE},
}


@dataclass(frozen=True)
class _Look:
    """Sizes of type and lines: of a panel on a screen, of one among many, of a column in a paper."""

    title: float
    label: float
    tick: float
    legend: float
    line: float  # factor of a line's width
    mark: float
    columns: int  # of the legend
    band: bool = False  # the spread of samples as an area instead of their marks


_LOOKS = {
    "large": _Look(13, 11, 10, 9.5, 1.0, 5.5, 2),
    "small": _Look(9.5, 9, 8, 7.5, 0.85, 3.6, 1),
    "paper": _Look(8, 7.5, 7, 6.8, 0.65, 3.0, 2, band=True),
}


def check_plot_path(path: str, option: str = "--plot") -> None:
    """Refuse a plot that could not be drawn later: matplotlib missing, or a file type it cannot write."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError:
        raise InputError(
            f"expected matplotlib for {option}, got none installed; pip install 'howsmooth[plot]'"
        ) from None
    if Path(path).suffix.lstrip(".").lower() not in FigureCanvasAgg.get_supported_filetypes():
        raise InputError(f"expected a plot file ending in .png, .svg or .pdf for {option}, got {path!r}")


def save_figure(figure: Figure, path: Any) -> None:
    """Write the figure to a path or a binary stream."""
    figure.savefig(path, facecolor=figure.get_facecolor())


def growth_figure(records: Sequence[dict[str, Any]], laws: dict[tuple, Law], *, theme: str = "light") -> Figure:
    """Lip against n, one panel per model: `growth_charts`, drawn."""
    charts = growth_charts(records, laws)
    lines = max(math.ceil(sum(bool(series.name) for series in chart.series) / 2) for chart in charts)
    return draw(charts, theme=theme, columns=len(charts), width=5.4, height=4.6 + 0.22 * lines)


def bounds_figure(records: Sequence[dict[str, Any]], *, theme: str = "light") -> Figure:
    """Bounds and the measured constant of one model, one panel per map: `bounds_charts`, drawn."""
    charts = bounds_charts(records)
    check_panels(len(charts))
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
    """Charts as panels of one figure, row by row; `width` and `height` of a panel are inches."""
    from matplotlib.figure import Figure

    colours, look = THEMES[theme], _LOOKS["paper" if theme == "paper" else size]
    columns = min(columns, len(charts))
    lines = math.ceil(len(charts) / columns)
    rows = [charts[i * columns : (i + 1) * columns] for i in range(lines)]
    heights = [_MESSAGE_HEIGHT if all(chart.message for chart in row) else height for row in rows]
    more = 1.6 if shared_legend else 0.5 if title else 0.0
    figure = Figure(
        figsize=(width if theme == "paper" else max(6.4, width * columns), sum(heights) + more),
        dpi=100 if size == "small" else 160,
        layout="constrained",
        facecolor=colours["paper"],
    )
    panels = figure.subplots(
        lines, columns, squeeze=False, sharey=shared_legend, gridspec_kw={"height_ratios": heights}
    ).flatten()
    for index, (panel, chart) in enumerate(zip(panels, charts, strict=False)):
        _draw_panel(panel, chart, colours, look, own_legend=not shared_legend)
        heading = textwrap.fill(chart.title, 44) if theme == "paper" else chart.title
        panel.set_title(heading, color=colours["ink"], fontsize=look.title, fontweight="bold", loc="left")
        if index % columns == 0 and not chart.message:
            panel.set_ylabel(chart.y.label, color=colours["ink"], fontsize=look.label)
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
                ncols=min(max(columns, look.columns if theme == "paper" else 1), 3),
                labelcolor=colours["ink"],
                fontsize=look.legend,
            )
    if title:
        figure.suptitle(title, color=colours["ink"], fontsize=13, fontweight="bold", x=0.01, ha="left")
    return figure


def _draw_panel(panel: Any, chart: Chart, colours: dict, look: _Look, own_legend: bool) -> None:
    plain(panel, colours, look.tick)
    if chart.message:
        _draw_message(panel, chart.message, colours)
        return
    _scale(panel, panel.xaxis, chart.x, look, colours, _span(chart, "x"), base=2 if chart.x.ticks else 10)
    _scale(panel, panel.yaxis, chart.y, look, colours, _span(chart, "y"))
    samples = [series for series in chart.series if series.samples]
    for band in chart.bands:
        panel.fill_between(
            band.x,
            band.low,
            band.high,
            color=colours["grid"],
            alpha=0.55,
            linewidth=0,
            zorder=0,
            label=band.name or None,
        )
    own = 0
    for series in chart.series:
        index, own = own, own + (series.colour is None)
        colour, marker = _style(series, index, len(samples), colours)
        _draw_series(panel, series, colour, marker, chart.few, look)
    slopes = chart.slope_lines()
    for series, _ in slopes:
        _draw_series(panel, series, colours["faint"], "", chart.few, look)
    for label in (*chart.labels, *(label for _, label in slopes)):
        panel.annotate(
            label.text.replace("√n", "$\\sqrt{n}$"),
            (label.x, label.y),
            xytext=(6 if label.anchor == "left" else 0, 0),
            textcoords="offset points",
            va="center",
            fontsize=look.tick,
            color=_colour(label.colour, colours),
            ha={"middle": "center"}.get(label.anchor, label.anchor),
            annotation_clip=False,
        )
    if chart.corner:
        panel.text(
            0.03, 0.97, chart.corner, transform=panel.transAxes, va="top", fontsize=look.legend, color=colours["ink"]
        )
    _limits(panel, chart)
    if own_legend and look is not _LOOKS["paper"]:
        _legend(panel, chart, colours, look)
    elif chart.notes and not own_legend:
        panel.annotate(
            "\n".join(chart.notes),
            (0, -0.2),
            xycoords="axes fraction",
            va="top",
            fontsize=7.5,
            color=colours["faint"],
            annotation_clip=False,
        )


def _draw_series(panel: Any, series: Series, colour: Any, marker: str, few: bool, look: _Look) -> None:
    thin = series.samples and not few
    x, y = series.medians() if series.samples else (series.x, series.y)
    width = (0.6 if thin else series.width) * look.line
    if series.line and len(x) > (1 if series.marks else 0):
        panel.plot(
            x,
            y,
            linestyle=LINES[series.line],
            color=colour,
            linewidth=width,
            zorder=2,
            marker="_" if len(x) == 1 else None,
            markersize=14,
            markeredgewidth=2,
        )
    if series.samples and few and look.band:
        low, high = series.spread()
        panel.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        panel.plot(x, y, marker, color=colour, markersize=look.mark)
    elif series.marks and not thin:
        _draw_marks(panel, series, colour, marker, look)
    law = series.law if series.law is not None and series.law.shown and not thin else None
    if law is not None:
        # A law that is rejected is not drawn: a line through the points would say that it fits.
        ends = [min(series.x), max(series.x)]
        panel.plot(
            ends,
            [law.at(n) for n in ends],
            linestyle=LINES[series.law_line],
            color=colour,
            linewidth=1.3 * look.line,
            zorder=2,
        )
    if series.name:
        # An empty line carries the legend entry: the marker of the points on the line.
        power = f":  n$^{{{exponent(series.law)}}}$" if exponent(series.law) and "n^" not in series.name else ""
        panel.plot(
            [],
            [],
            linestyle=LINES[series.line or (series.law_line if law else "")],
            color=colour,
            marker=marker if series.marks and not thin else None,
            markersize=look.mark,
            linewidth=width,
            markeredgewidth=0.8 if series.hollow else 0,
            markerfacecolor="none" if series.hollow else colour,
            label=series.name + power,
        )


def _draw_marks(panel: Any, series: Series, colour: Any, marker: str, look: _Look) -> None:
    points = series.x if series.sideways else series.y
    ends: tuple[list[float], list[float]] | None = None
    if series.lower and not series.hollow:
        ends = (
            [
                max(0.0, value - low) if low is not None else 0.0
                for value, low in zip(points, series.lower, strict=True)
            ],
            [
                max(0.0, high - value) if high is not None else 0.0
                for value, high in zip(points, series.upper, strict=True)
            ],
        )
        # An upper end that is not there has no bar but a triangle: the point is a lower bound alone.
        alone = [
            (x, y)
            for x, y, low, high in zip(series.x, series.y, series.lower, series.upper, strict=True)
            if high is None and low is not None
        ]
        panel.plot(
            *zip(*alone, strict=True) if alone else ((), ()),
            "^",
            color=colour,
            markersize=1.8 * look.mark,
            markerfacecolor="none",
            zorder=3,
            label="lower bound only" if alone and series.name else None,
        )
    panel.errorbar(
        series.x,
        series.y,
        **{"xerr" if series.sideways else "yerr": ends},
        fmt=marker,
        color=colour,
        markersize=look.mark,
        markeredgewidth=0.8 if series.hollow else 0,
        alpha=0.85,
        markerfacecolor="none" if series.hollow else colour,
        elinewidth=1,
        capsize=0.4 * look.mark,
        zorder=3,
    )


def _draw_message(panel: Any, message: str, colours: dict) -> None:
    said = "\n".join("\n".join(textwrap.wrap(part, 62)[:7]) for part in message.split("\n"))
    panel.text(0.03, 0.95, said, transform=panel.transAxes, va="top", fontsize=7.5, color=colours["ink"])
    panel.set(xticks=[], yticks=[], facecolor=colours["grid"])


def _scale(
    panel: Any, axis: Any, declared: Axis, look: _Look, colours: dict, span: float = 1.0, base: int = 10
) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, ScalarFormatter

    name = axis.axis_name
    if declared.scale == "log":
        getattr(panel, f"set_{name}scale")("log", base=base)
    ticks = list(declared.ticks)
    if look is not _LOOKS["large"] and len(ticks) > _MOST_TICKS:
        powers = [2**k for k in range(1, 30) if ticks[0] <= 2**k <= ticks[-1]]
        ticks = powers if len(powers) > 2 else ticks[:: math.ceil(len(ticks) / _MOST_TICKS)]
    if declared.names:
        axis.set_ticks(range(len(declared.names)), declared.names)
    elif declared.scale == "powers":
        axis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        axis.set_major_formatter(FuncFormatter(lambda p, _: f"$10^{{{p:.0f}}}$" if abs(p) > 1e-9 else "1"))
    elif ticks:
        axis.set_ticks(ticks)
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    elif declared.scale == "log":
        crowded = span > (1e6 if look is _LOOKS["large"] else 1e3)
        axis.set_major_locator(LogLocator(base=10, subs=(1,) if crowded else (1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axis.set_major_locator(MaxNLocator(5, integer=declared.whole))
        axis.set_major_formatter(ScalarFormatter(useOffset=False))
    axis.set_minor_formatter(NullFormatter())
    panel.minorticks_off()
    if name == "x":
        panel.set_xlabel(declared.label, color=colours["ink"], fontsize=look.label)


def _span(chart: Chart, name: str) -> float:
    """The largest over the smallest value along an axis."""
    values = [value for series in chart.series for value in getattr(series, name) if value > 0]
    return max(values) / min(values) if values else 1.0


def _limits(panel: Any, chart: Chart) -> None:
    for axis, name in ((chart.x, "x"), (chart.y, "y")):
        if axis.low is not None or axis.high is not None:
            getattr(panel, f"set_{name}lim")(axis.low, axis.high)
    if chart.x.scale == "log" and len(chart.x.ticks) == 1:
        panel.set_xlim(chart.x.ticks[0] / 2, chart.x.ticks[0] * 2)


def _legend(panel: Any, chart: Chart, colours: dict, look: _Look) -> None:
    for line in chart.notes:
        panel.plot([], [], " ", label=line)
    if not panel.get_legend_handles_labels()[0]:
        return
    beneath = (
        {"loc": "upper center", "bbox_to_anchor": (0.5, -0.13)}
        if look is _LOOKS["large"]
        else {"loc": "upper left", "bbox_to_anchor": (-0.08, -0.16), "labelspacing": 0.35}
    )
    legend = panel.legend(
        title=chart.legend_title or None,
        frameon=False,
        labelcolor=colours["ink"],
        fontsize=look.legend,
        handlelength=2.2,
        ncols=look.columns,
        **beneath,
    )
    legend.get_title().set(color=colours["faint"], fontsize=9)


@contextmanager
def paper_style() -> Iterator[None]:
    """The style sheet of figures in a paper: matplotlib's settings while it is open."""
    from matplotlib import style

    with as_file(files("howsmooth.report").joinpath("howsmooth.mplstyle")) as sheet, style.context(str(sheet)):
        yield


def plain(panel: Any, colours: dict, size: float = 9) -> None:
    """A panel without a frame, on the theme's paper, with a faint grid."""
    panel.set_facecolor(colours["paper"])
    panel.tick_params(colors=colours["ink"], labelsize=size, length=0, which="both")
    panel.grid(True, color=colours["grid"], linewidth=0.8)
    panel.set_axisbelow(True)
    for side in panel.spines.values():
        side.set_visible(False)


def dress(panel: Any, records: Sequence[dict[str, Any]], colours: dict) -> None:
    """A panel of values against the records' lengths, drawn by hand, in the same look."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    plain(panel, colours, 10)
    _scale(
        panel,
        panel.xaxis,
        Axis("length n (tokens)", ticks=sorted({record["n"] for record in records})),
        _LOOKS["large"],
        colours,
    )
    panel.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def palette(count: int, colours: dict) -> list[Any]:
    """Colours that everyone can tell apart for a few, a scale that is ordered for everyone for many."""
    if count <= len(colours["maps"]):
        return list(colours["maps"][:count])
    return [_colour(index / (count - 1), colours) for index in range(count)]


def _style(series: Series, index: int, count: int, colours: dict) -> tuple[Any, str]:
    marker = MARKERS[(series.marker if series.marker is not None else index if count <= len(MARKERS) else 0) % 6]
    if series.colour is not None:
        return _colour(series.colour, colours), marker
    return palette(max(count, 1), colours)[index] if index < max(count, 1) else _colour(index % 6, colours), marker


def _colour(colour: int | float | str, colours: dict) -> Any:
    if isinstance(colour, str):
        return colours[colour]
    if isinstance(colour, int):
        return colours["maps"][colour % len(colours["maps"])]
    from matplotlib import colormaps

    return colormaps["viridis"](0.1 + 0.8 * colour)
