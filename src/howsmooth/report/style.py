"""The style of figures: sizes for a screen, a paper or slides, colours on light and dark, and the scale of tokens.

All figures of the package are made by `new_figure`, in the style that `figure_style` sets. Figures of your own, drawn
with matplotlib, have it as well:

    with figure_style("paper"):
        draw(growth_picture(records)).savefig("growth.pdf")

Fonts in PDF, PS and EPS files are embedded as Type 42 (TrueType), which publishers accept and editors can select; SVG
files keep their text as text.
"""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from howsmooth.errors import InputError
from howsmooth.extras import require
from howsmooth.report.rows import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


FONT_SETTINGS = {"pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "none"}  # 42: TrueType; none: text as text

Theme: TypeAlias = dict[str, Any]  # colours "background", "foreground", "muted", "grid"; the tuple "palette"

# The colour-blind-safe palette of Okabe and Ito without yellow (too pale on white) and black (invisible on dark).
THEMES: dict[str, Theme] = {
    "light": {
        "background": "#ffffff",
        "foreground": "#1f2328",
        "muted": "#6e7781",
        "grid": "#e4e7eb",
        "palette": ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"),
    },
    "dark": {
        "background": "#14181d",
        "foreground": "#e3e7ec",
        "muted": "#8b949e",
        "grid": "#2a3038",
        "palette": ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#0072B2"),
    },
}


@dataclass(frozen=True)
class Style:
    """Sizes of a figure.

    Attributes:
        widths: Width in inches of a figure with one column of panels, and of a wider one; None: as declared.
        aspect: Largest height over width of a figure with one row of panels; None: that of the declared size.
        heading_size: Font size of the title of the figure, in points, like the following ones.
        title_size: Font size of the title of a panel.
        label_size: Font size of axis labels.
        tick_size: Font size of tick labels.
        legend_size: Font size of legends and notes.
        line_scale: Factor for the width of every line.
        marker_size: Size of markers in points.
        dpi: Resolution of PNG files.
        max_columns: Most panels in a row.
        legend_columns: Columns of the legend of a panel.
        samples_as_band: Whether the range of samples is drawn as a band instead of one marker for each.
    """

    widths: tuple[float, float] | None
    aspect: float | None
    heading_size: float
    title_size: float
    label_size: float
    tick_size: float
    legend_size: float
    line_scale: float
    marker_size: float
    dpi: float
    max_columns: int
    legend_columns: int = 2
    samples_as_band: bool = False


# "paper": one column of 3.3 inches or the whole text width; "slides": a slide of 16:9, read from the back of a room.
STYLES = {
    "screen": Style(None, None, 13, 13, 11, 10, 9.5, 1.0, 5.5, 160, 4),
    "paper": Style((3.3, 6.75), None, 8.5, 8, 7.5, 7, 6.8, 0.65, 3.0, 300, 2, samples_as_band=True),
    "slides": Style((10.0, 12.8), 0.58, 20, 18, 17, 15, 14.5, 1.7, 8.5, 120, 2, legend_columns=3),
}
_SMALL = Style(None, None, 13, 9.5, 9, 8, 7.5, 0.85, 3.6, 100, 4, legend_columns=1)  # many panels on a screen
_PAGE = Style((4.4, 4.4), None, 10, 10, 9, 8.5, 8.5, 0.85, 4.0, 100, 1, legend_columns=1)  # readable on a phone
ANIMATION = Style(None, None, 10.5, 10.5, 10, 9, 9, 1.0, 5.5, 110, 1)
_ONE_COLUMN = 7.5  # inches: a figure declared wider than this gets the second of the widths
_HEIGHT_SCALE = 1.1  # in the fixed widths, text takes a larger share of the height
_SMALLEST_ROW = 5.2  # inches, of each of several rows of panels with large text

_current: ContextVar[str] = ContextVar("style", default="screen")


@contextmanager
def figure_style(name: str) -> Iterator[Style]:
    """Draw figures in a style within a `with` block: those of the package, and your own drawn with matplotlib.

    Args:
        name: Key of `STYLES`: "screen" (the default elsewhere), "paper" or "slides".

    Raises:
        InputError: If there is no such style.

    Example:
        >>> with figure_style("paper") as style:
        ...     style.label_size
        7.5
    """
    if name not in STYLES:
        raise InputError(f"expected a style of {', '.join(STYLES)}, got {name!r}; choose one of these")
    from matplotlib import rc_context

    token = _current.set(name)
    try:
        with rc_context(rc_parameters(STYLES[name])):
            yield STYLES[name]
    finally:
        _current.reset(token)


@contextmanager
def page_style() -> Iterator[None]:
    """Draw panels of an HTML page within a `with` block: as wide as a phone, and enlarged on a screen."""
    token = _current.set("page")
    try:
        yield
    finally:
        _current.reset(token)


def rc_parameters(style: Style) -> dict[str, Any]:
    """Return a style as parameters of matplotlib, for figures that a user draws."""
    from cycler import cycler

    width = style.widths[0] if style.widths else 6.4
    return {
        **FONT_SETTINGS,
        "figure.figsize": (width, min(0.75, style.aspect or 1.0) * width),
        "figure.dpi": style.dpi,
        "figure.constrained_layout.use": True,
        "font.size": style.label_size,
        "axes.titlesize": style.title_size,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.labelsize": style.label_size,
        "xtick.labelsize": style.tick_size,
        "ytick.labelsize": style.tick_size,
        "legend.fontsize": style.legend_size,
        "legend.frameon": False,
        "lines.linewidth": 1.8 * style.line_scale,
        "lines.markersize": style.marker_size,
        "axes.linewidth": 0.8 * style.line_scale,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": THEMES["light"]["grid"],
        "grid.linewidth": 0.8 * style.line_scale,
        "image.cmap": "cividis",
        "axes.prop_cycle": cycler(color=THEMES["light"]["palette"]),
    }


def current_style(*, many_panels: bool = False) -> Style:
    """Return the style that `figure_style` set; on a screen, many panels have smaller text.

    Args:
        many_panels: Whether the figure has many small panels.
    """
    name = _current.get()
    if name == "page":
        return _PAGE
    return _SMALL if many_panels and name == "screen" else STYLES[name]


def new_figure(width: float, height: float, theme: Theme, *, rows: int = 1, style: Style | None = None) -> Figure:
    """Return an empty figure in the current style.

    Args:
        width: Width on a screen in inches; the other styles have their own widths.
        height: Height on a screen in inches; the other styles keep the shape.
        theme: Colours, a value of `THEMES`.
        rows: Number of rows of panels.
        style: The style, in place of the current one.

    Example:
        >>> with figure_style("paper"):
        ...     print(new_figure(5.4, 4.6, THEMES["light"]).get_figwidth())
        3.3
    """
    style = style or current_style()
    if style.widths is not None:
        declared, width = width, style.widths[width > _ONE_COLUMN]
        height *= _HEIGHT_SCALE * width / declared
        if style.aspect is not None:
            height = max(min(height, style.aspect * width), rows * _SMALLEST_ROW if rows > 1 else 0.0)
    return _figure_type()(figsize=(width, height), dpi=style.dpi, layout="constrained", facecolor=theme["background"])


@cache
def _figure_type() -> type[Figure]:
    """Return the class of all figures, which embeds fonts as `FONT_SETTINGS` says, whoever saves a figure."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    class StyledFigure(Figure):
        def savefig(self, *args: Any, **kwargs: Any) -> None:
            with rc_context(FONT_SETTINGS):
                super().savefig(*args, **kwargs)

    return StyledFigure


def apply_theme(panel: Axes, theme: Theme, style: Style | None = None, *, grid: bool = True) -> None:
    """Apply colours and sizes to a panel and its labels, and remove its frame.

    Args:
        panel: The panel, with its axis labels.
        theme: Colours, a value of `THEMES`.
        style: Sizes; by default those of the current style.
        grid: Whether to draw a grid; a picture made of cells has none.
    """
    style = style or current_style()
    panel.set_facecolor(theme["background"])
    panel.tick_params(colors=theme["foreground"], labelsize=style.tick_size, length=0, which="both")
    panel.grid(False)
    if grid:
        panel.grid(True, color=theme["grid"], linewidth=0.8 * style.line_scale)
    panel.set_axisbelow(True)
    for side in panel.spines.values():
        side.set_visible(False)
    for axis in (panel.xaxis, panel.yaxis):
        axis.label.set(color=theme["foreground"], fontsize=style.label_size)
        axis.get_offset_text().set(color=theme["foreground"], fontsize=style.tick_size)


def legend_options(theme: Theme, style: Style | None = None) -> dict[str, Any]:
    """Return the arguments that all legends share."""
    size = (style or current_style()).legend_size
    return {"frameon": False, "labelcolor": theme["foreground"], "fontsize": size}


SHARE_DECADES = 4  # range of the logarithmic scale below the largest share, as in assets/report.js
_LEAST_DECADES = math.log10(2)  # of the scale of gains: equal ones must not look different
GAIN_DECADES = SHARE_DECADES / 2  # a share is of a squared norm, a gain is a norm


def intensities(values: Sequence[float], decades: float = SHARE_DECADES) -> list[float]:
    """Return the position of each value on the logarithmic colour scale: 1 for the largest, 0 from `decades` below.

    Example:
        >>> intensities([0.5, 0.005, 0.0])
        [1.0, 0.5, 0.0]
    """
    top = max(values, default=0.0)
    if not 0 < top < math.inf:
        return [0.0] * len(values)
    return [max(0.0, 1 + math.log10(value / top) / decades) if value > 0 else 0.0 for value in values]


@dataclass(frozen=True)
class Colouring:
    """Numbers of the tokens of a text, and the logarithmic scale of their colours.

    Attributes:
        title: What the numbers are.
        values: One number for each token.
        whole: The number that is 100 %: 1 for shares, the constant for gains.
        decades: Range of the scale below the largest number.
    """

    title: str
    values: tuple[float, ...]
    whole: float
    decades: float

    @property
    def intensities(self) -> list[float]:
        """The position of each token on the scale, from 0 to 1."""
        return intensities(self.values, self.decades)

    @property
    def ends(self) -> tuple[str, str]:
        """The two ends of the scale as percentages of the whole."""
        top = max(self.values, default=0.0)
        return self.percent(top / 10**self.decades), self.percent(top)

    def percent(self, value: float) -> str:
        """Return a number as a percentage of the whole.

        Example:
            >>> Colouring("gain", (2.0, 0.001), 4.0, 2).percent(2.0)
            '50 %'
        """
        share = 100 * value / self.whole if self.whole > 0 else 0.0
        return f"{share:.0f} %" if share >= 10 else f"{number(share, 2)} %" if share > 0 else "0 %"


def share_colouring(shares: Sequence[float]) -> Colouring:
    """Return the colouring by the share of each token in the worst direction; shares add up to one."""
    return Colouring("Share of the worst direction", tuple(shares), 1.0, SHARE_DECADES)


def gain_colouring(gains: Sequence[float], constant: float) -> Colouring:
    """Return the colouring by the constant when only that token moves, relative to that when all move.

    The scale begins at the smallest gain, since gains often differ by a small factor only; it has at most two decades.

    Args:
        gains: Norms of the block columns of J, as `howsmooth.token_gains` returns them.
        constant: The norm of J.

    Example:
        >>> gain_colouring([1.0, 2.0, 4.0], 5.0).ends
        ('20 %', '80 %')
    """
    positive = [gain for gain in gains if gain > 0]
    spread = math.log10(max(positive) / min(positive)) if positive else 0.0
    decades = min(max(spread, _LEAST_DECADES), GAIN_DECADES)
    return Colouring("Constant when only this token moves, of that when all move", tuple(gains), constant, decades)


@cache
def theme_variables() -> dict[str, str]:
    """Return the CSS variables of the report in its "light" and "dark" theme, as declarations without braces."""
    css = files("howsmooth.report").joinpath("assets", "report.css").read_text(encoding="utf-8")
    found = {
        "light": re.search(r"^:root \{([^}]*)\}", css, re.M),
        "dark": re.search(r'^:root\[data-theme="dark"\] \{([^}]*)\}', css, re.M),
    }
    missing = [theme for theme, block in found.items() if block is None]
    if missing:
        raise ValueError(f"expected the variables of the {missing[0]} theme in assets/report.css, got none")
    return {theme: " ".join(block[1].split()) for theme, block in found.items() if block is not None}


# File types that matplotlib writes without a display, as its Agg canvas lists them.
FIGURE_SUFFIXES = (
    ".eps", ".jpeg", ".jpg", ".pdf", ".pgf", ".png", ".ps", ".raw", ".rgba", ".svg", ".svgz", ".tif", ".tiff", ".webp",
)  # fmt: skip


def check_plot_path(path: str, option: str = "--plot") -> None:
    """Raise InputError if matplotlib is not installed or cannot write this file type.

    Example:
        >>> check_plot_path("growth.svg")
    """
    require("matplotlib", purpose=f"for {option}")
    suffix = Path(path).suffix.lower()
    if suffix not in FIGURE_SUFFIXES:
        raise InputError(f"expected a plot file ending in .png, .svg or .pdf for {option}, got {path!r}")
    if suffix == ".pgf":
        from matplotlib import rcParams

        if shutil.which(rcParams["pgf.texsystem"]) is None:
            raise InputError(
                f"expected {rcParams['pgf.texsystem']} for a .pgf file, got none installed; install TeX, or name a "
                f".pdf for {option}"
            )


def check_animation_path(path: str, option: str = "--animate") -> None:
    """Raise InputError if this animation cannot be written.

    Example:
        >>> check_animation_path("flow.gif")
    """
    require("matplotlib", purpose=f"for {option}")
    if Path(path).suffix.lower() != ".gif":
        raise InputError(f"expected a file ending in .gif for {option}, got {path!r}")


def check_page_path(path: str, option: str = "--report") -> None:
    """Raise InputError if the file name does not end in .html or .htm.

    Example:
        >>> check_page_path("flow.html")
    """
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise InputError(f"expected a file ending in .html for {option}, got {path!r}")
