"""Panels as HTML: matplotlib's SVG with its title, axis label, legend and notes as text, and its values as JSON.

Colours are variables of the style sheet, so that a panel follows the light and the dark theme, and ids have a prefix,
since a page has several panels. `assets/report.js` reads the JSON: for each series its name and its points, each with
where it is in the SVG and what is said about it.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from typing import Any

from markupsafe import Markup

from howsmooth.extras import MissingPackage, require
from howsmooth.report.chart import Axis, Chart, HeatMap, Panel, Picture, Series, Tokens, drawable
from howsmooth.report.figure import draw, point_positions, save_figure
from howsmooth.report.rows import counted, exponent, interval, number, token
from howsmooth.report.style import GAIN_DECADES, SHARE_DECADES, THEMES, intensities, page_style

MAX_TOKENS = 600  # of a text in colour, in a notebook
_MAX_MARKERS = 1200  # in one panel, of samples
_MAX_POINTS = 4000  # in one panel, that say their value
_MARKERS = ("●", "■", "▲", "◆", "▼", "✚")
_HOLLOW = ("○", "□", "△", "◇", "▽", "✚")
_MANY_CURVES = 12  # more get a field to find one
_VARIABLES = {
    THEMES["light"]["background"]: "var(--background)",
    THEMES["light"]["foreground"]: "var(--foreground)",
    THEMES["light"]["muted"]: "var(--muted)",
    THEMES["light"]["grid"]: "var(--line)",
    **{colour.lower(): f"var(--series-{index})" for index, colour in enumerate(THEMES["light"]["palette"])},
}


def panel_html(panel: Panel, height: float = 3.9, *, name: str, with_values: bool = True) -> Markup:
    """Return a panel as a `<figure>`.

    Args:
        panel: The panel.
        height: Height in inches, of 5.4 inches of width.
        name: Its id, unique in its page; all ids in it begin with it.
        with_values: Whether there is a script that shows values and selects curves, as on a page but not in a notebook.
    """
    if isinstance(panel, Tokens):
        return Markup(coloured_tokens(panel.words, panel.colouring.values, panel.title))
    if isinstance(panel, Chart):
        panel = thinned(panel)
    try:
        require("matplotlib", purpose="to draw")
        with page_style():
            figure = draw(Picture([_without_text(panel)], height=height))
            series = _values(figure, panel)
            svg, colours = _svg_of(figure), _colours(figure, "series")
            bands = _colours(figure, "band")
    except MissingPackage as missing:
        return Markup('<p class="muted">{}</p>').format(str(missing))
    svg = themed_svg(svg, name, panel.title, set(colours.values()))
    entries = [_entry(panel, i, colours.get(i, "")) for i in range(len(getattr(panel, "series", ())))]
    if not with_values:
        entries = [re.sub(r"</?button[^>]*>", "", entry) for entry in entries]
    if isinstance(panel, Chart):
        entries += [_band_entry(band.label, bands.get(i, "")) for i, band in enumerate(panel.bands) if band.label]
    find = '<input type="search" class="find" placeholder="find a curve" aria-label="find a curve">'
    many = with_values and sum(map(bool, entries)) > _MANY_CURVES
    heading = f"<h3>{typeset(panel.title)}</h3>" if panel.title else ""
    axis = f'<p class="axis">{typeset(_y_label(panel))}</p>' if _y_label(panel) else ""
    script = f'<script type="application/json">{embed_json(series)}</script>' if with_values else ""
    return Markup(
        f'<figure id="{escape(name)}">{heading}{axis}<div class="drawn">{svg}</div>'
        f'{find if many else ""}<ul class="legend">{"".join(entries)}</ul>{_caption(panel)}{script}</figure>'
    )


def _svg_of(figure: Any) -> str:
    from matplotlib import rc_context

    stream = io.StringIO()
    with rc_context({"svg.hashsalt": "howsmooth"}):  # the same ids whenever it is drawn
        save_figure(figure, stream, format="svg")
    return stream.getvalue()


def _y_label(panel: Panel) -> str:
    return panel.y_axis.label if isinstance(panel, Chart) and not panel.message else ""


def _caption(panel: Panel) -> str:
    if isinstance(panel, HeatMap):
        lines = [panel.caption]
    elif isinstance(panel, Chart):
        caption = panel.caption if panel.is_detailed else panel.caption_without_details
        intervals = [ends for one in panel.series for ends in zip(one.lower, one.upper, strict=True)]
        open_ends = any(high is None and low is not None for low, high in intervals)
        lines = [caption or panel.statistic(), *(note for note in panel.notes if note not in caption)]
        lines += ["△ around a marker: a lower bound only."] if open_ends and panel.is_detailed else []
    else:
        lines = []
    text = " ".join(filter(None, lines))
    return f"<figcaption>{typeset(text)}</figcaption>" if text else ""


def _without_text(panel: Panel) -> Panel:
    """Return a panel without what HTML says around it, where text wraps and grows: title, y-axis, legend and notes."""
    if not isinstance(panel, Chart):
        return replace(panel, title="")  # type: ignore[type-var]
    return replace(
        panel,
        title="",
        y_axis=replace(panel.y_axis, label=""),
        series=[replace(series, label="") for series in panel.series],
        bands=[replace(band, label="") for band in panel.bands],
        legend_title="",
        samples="",
        notes=(),
        short_notes=(),
    )


def thinned(chart: Chart) -> Chart:
    """Return a chart with at most some 1,200 markers of samples; a note says so.

    At each x of a series, samples at evenly spaced ranks are kept, with the smallest, the median and the largest.

    Example:
        >>> samples = Series([8] * 5000, list(range(5000)), has_samples=True, show_markers=True)
        >>> chart = thinned(Chart("", Axis("n"), Axis("y"), [samples]))
        >>> len(chart.series[0].x), chart.series[0].medians(), chart.notes
        (1200, ([8], [2499.5]), ['1,200 of 5,000 samples are drawn; medians, ranges and laws are of all.'])
    """
    series = [one for one in chart.series if one.has_samples]
    total = sum(len(one.x) for one in series)
    if total <= _MAX_MARKERS or not chart.is_detailed:
        return chart
    most = max(3, _MAX_MARKERS // sum(len(set(one.x)) for one in series))
    found = [_thinned(one, most) if one.has_samples else one for one in chart.series]
    kept = sum(len(one.x) for one in found if one.has_samples)
    note = f"{kept:,} of {total:,} samples are drawn; medians, ranges and laws are of all."
    return replace(chart, series=found, notes=[*chart.notes, note])


def _thinned(series: Series, most: int) -> Series:
    at: dict[float, list[int]] = {}
    for index, x in enumerate(series.x):
        at.setdefault(x, []).append(index)
    kept: list[int] = []
    for indices in at.values():
        ranked, last = sorted(indices, key=lambda index: series.y[index]), len(indices) - 1
        if last >= most:
            # Symmetric about the middle, and with it, so that the median of those kept is that of all.
            half = [i * last // (most - 1) for i in range(most // 2 - 1)]
            ranks = sorted({*half, *(last - rank for rank in half), last // 2, last - last // 2})
            ranked = [ranked[rank] for rank in ranks]
        kept += ranked
    kept.sort()

    def chosen(values: Sequence[Any]) -> list[Any]:
        return [values[index] for index in kept] if values else []

    return replace(
        series,
        x=chosen(series.x),
        y=chosen(series.y),
        lower=chosen(series.lower),
        upper=chosen(series.upper),
        details=chosen(series.details),
    )


def _values(figure: Any, panel: Panel) -> list[dict[str, Any]]:
    """Return for each series of a panel its name and its points: x and y in the SVG, and what is said about it."""
    if isinstance(panel, Chart) and not panel.message:
        drawn = [_drawn(one, panel.is_detailed) for one in panel.series]
        drawn = [replace(one, x=drawable(one.x), y=drawable(one.y)) for one in drawn]
        positions = point_positions(figure, [replace(panel, series=drawn)])[0]
        texts = [_texts(panel, one, panel.is_detailed) for one in panel.series]
        names = [one.name or one.label for one in panel.series]
    elif isinstance(panel, HeatMap) and sum(map(len, panel.values)) <= _MAX_POINTS:
        positions = point_positions(figure, [panel])[0][: len(panel.values)]
        columns, rows = panel.columns, panel.rows
        if panel.extent is not None:
            columns, rows = ([number(at, 3) for at in ats] for ats in panel.cells())
        names = [f"{plain(panel.y_axis.label)} {row}" for row in rows]
        texts = [
            [
                f"{plain(panel.x_axis.label)} {column}: {number(value)}"
                for column, value in zip(columns, row, strict=True)
            ]
            for row in panel.values
        ]
    else:
        return []
    step = math.ceil(sum(map(len, texts)) / _MAX_POINTS)
    return [
        {
            "name": plain(name),
            "points": [
                [round(x, 1), round(y, 1), plain(text)]
                for (x, y), text in list(zip(places, said, strict=True))[:: max(1, step)]
                if math.isfinite(x) and math.isfinite(y)
            ],
        }
        for name, places, said in zip(names, positions, texts, strict=True)
    ]


def _drawn(series: Series, is_detailed: bool) -> Series:
    """Return a series with the points that are drawn: the medians of many curves."""
    if not series.has_samples or is_detailed:
        return series
    x, y = series.medians()
    return replace(series, x=x, y=y, lower=(), upper=(), details=(), has_samples=False)


def _texts(chart: Chart, series: Series, is_detailed: bool) -> list[str]:
    if series.has_samples and not is_detailed:
        (xs, middles), (lows, highs) = series.medians(), series.ranges()
        return [
            f"{_at(chart.x_axis, x)}: median {number(y)} of {counted(list(series.x).count(x), 'sample')}"
            + (f", {number(low)} to {number(high)}" if low < high else "")
            for x, y, low, high in zip(xs, middles, lows, highs, strict=True)
        ]
    found = []
    for index, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
        where, value = (_at(chart.y_axis, y), x) if series.horizontal_intervals else (_at(chart.x_axis, x), y)
        scale = chart.x_axis.scale if series.horizontal_intervals else chart.y_axis.scale
        text = f"{where}: {f'10^{value:.4g}' if scale == 'exponents' else number(value, 5)}"
        if series.lower and series.lower[index] is not None:
            text += f" ({interval(series.lower[index], series.upper[index])})"
        found.append(text + (f", {series.details[index]}" if series.details and series.details[index] else ""))
    return found


def _at(axis: Axis, value: float) -> str:
    if axis.tick_labels:
        index = round(value)
        return axis.tick_labels[index] if 0 <= index < len(axis.tick_labels) else ""
    name = axis.label.partition(" (")[0].partition("  ")[0]
    name = "n" if name == "length n" else name
    return f"{name} = " + (f"10^{value:.4g}" if axis.scale == "exponents" else f"{value:,.6g}")


def _colours(figure: Any, what: str) -> dict[int, str]:
    """Return the colour of each series or band that is drawn."""
    from matplotlib.colors import to_hex

    found: dict[int, str] = {}
    for artist in figure.findobj(lambda artist: artist.get_gid() is not None):
        named = re.match(rf"chart-0-{what}-(\d+)(-points)?$", artist.get_gid())
        if named:
            found[int(named[1])] = to_hex(artist.get_color() if what == "series" else artist.get_facecolor()[0])
    return found


def _entry(panel: Any, index: int, colour: str) -> str:
    """Return the entry of a series in the legend: a button that selects its curve."""
    series: Series = panel.series[index]
    text = series.label or series.name
    if not text:
        return ""
    line_only = series.has_samples and not getattr(panel, "is_detailed", True)
    at = series.marker_index if series.marker_index is not None else index
    marker = (_HOLLOW if series.hollow_markers else _MARKERS)[at % 6] if series.show_markers and not line_only else ""
    law = exponent(series.law)
    power = f": n<sup>{escape(law)}</sup>" if law and "n^" not in text else ""
    return (
        f'<li><button type="button" data-series="{index}" aria-pressed="false"><i aria-hidden="true" '
        f'class="key {series.linestyle}" style="color: {themed_colour(colour)}">{marker or "&nbsp;"}</i>'
        f"{typeset(text)}{power}</button></li>"
    )


def _band_entry(label: str, colour: str) -> str:
    key = f'<i aria-hidden="true" class="key band" style="background: {themed_colour(colour)}">&nbsp;</i>'
    return f"<li>{key}{typeset(label)}</li>"


def themed_colour(colour: str) -> str:
    """Return a colour as a variable of the style sheet; other colours get lighter on a dark background."""
    if not colour:
        return "var(--foreground)"
    return _VARIABLES.get(colour.lower(), f"color-mix(in srgb, {colour} var(--keep), var(--foreground))")


def themed_svg(svg: str, prefix: str, title: str = "", lines: set[str] | frozenset[str] = frozenset()) -> str:
    """Return an SVG for a page: without its head and size, with colours as variables and a prefix for its ids.

    Args:
        svg: The file, as matplotlib writes it.
        prefix: What its ids get in front.
        title: What it shows, for those who cannot see it.
        lines: Colours of curves besides those of the theme.

    Example:
        >>> themed_svg('<?xml version="1.0"?><svg><g id="a" style="fill: #1f2328"/><use href="#a"/></svg>', "p", "A")
        '<svg role="img" aria-label="A"><g id="p-a" style="fill: var(--foreground)"/><use href="#p-a"/></svg>'
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' (?:xmlns(?::xlink)?|version)="[^"]*"', "", svg).replace("xlink:href=", "href=")
    svg = re.sub(r'<svg(\s[^>]*?)?\s+width="[^"]*"\s+height="[^"]*"', r"<svg\1", svg, count=1)
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{escape(plain(title))}"', 1)
    svg = re.sub(r"\s*font-family: [^;\"]*;?", "", svg)
    svg = re.sub(r'\b(d|x|y|x1|y1|x2|y2|points|transform)="([^"]*)"', _rounded, svg)
    svg = re.sub(r">\s+<", "><", svg).strip()
    svg = re.sub(r'<g id="[^"]*"/>|<defs></defs>', "", svg)
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", svg)
    for colour in {*_VARIABLES, *lines}:
        svg = re.sub(re.escape(colour), themed_colour(colour), svg, flags=re.IGNORECASE)
    return svg


def _rounded(found: re.Match[str]) -> str:
    value = re.sub(r"(\.\d\d)\d+", r"\1", " ".join(found[2].split()))
    return f'{found[1]}="{value}"'


def coloured_tokens(
    words: Sequence[str], values: Sequence[float], what: str, *, as_percent: bool = True, limit: int | None = MAX_TOKENS
) -> str:
    """Return a text whose tokens are coloured by their values on a logarithmic scale, with a legend.

    Args:
        words: The tokens as strings.
        values: One value for each token: shares, or gains.
        what: What the values are, for the legend.
        as_percent: Whether values are shares, on a scale of four decades; gains have two.
        limit: How many tokens are shown; None for all.
    """
    decades = SHARE_DECADES if as_percent else GAIN_DECADES

    def shown(value: float) -> str:
        return f"{number(100 * value, 2)} %" if as_percent else number(value, 3)

    spans = [
        f'<span style="--share:{intensity:.3f}" title="position {i}: {escape(shown(value))}">'
        f"{escape(token(word, 30))}</span>"
        for i, (word, value, intensity) in enumerate(zip(words, values, intensities(values, decades), strict=True))
    ]
    left_out = 0 if limit is None else len(spans) - limit
    more = f' <span class="muted">… {left_out} more tokens</span>' if left_out > 0 else ""
    top = max(values, default=0.0)
    legend = f'{shown(top / 10**decades)} <span class="scale"></span> {shown(top)}' if top > 0 else "all are zero"
    return (
        f'<p class="muted">{escape(what)}, log scale: {legend}</p>'
        f'<p class="words" tabindex="0">{" ".join(spans[:limit])}{more}</p>'
    )


_SYMBOLS = {"\\lambda": "λ", "\\sigma": "σ", "\\mu": "μ", "\\varepsilon": "ε", "\\cdot": "·", "\\|": "‖", "\\,": " "}
_MATHTEXT = re.compile(r"\$([^$]*)\$")
_SHIFTED = re.compile(r"([_^])(?:\{([^}]*)\}|(\w))")
_POWER = re.compile(r"(?<=\w)\^(-?[\d.]+\d|\d|\{[^}]*\})")


def typeset(text: str) -> str:
    """Return a label with mathtext such as `n$^{1/4}$`, and powers such as n^0.25, as HTML.

    Example:
        >>> typeset("n$^{1/4}$ < ‖D$_X$f‖"), typeset("10^5")
        ('n<sup>1/4</sup> &lt; ‖D<sub>X</sub>f‖', '10<sup>5</sup>')
    """

    def shifted(found: re.Match[str]) -> str:
        tag = "sub" if found[1] == "_" else "sup"
        return f"<{tag}>{found[2] or found[3]}</{tag}>"

    def math_of(found: re.Match[str]) -> str:
        inner = _with_symbols(found[1])
        return _SHIFTED.sub(shifted, re.sub(r"\\sqrt\{([^}]*)\}", r"√\1", inner)).replace("{", "").replace("}", "")

    html = _MATHTEXT.sub(math_of, escape(text))
    return _POWER.sub(lambda found: f"<sup>{found[1].strip('{}')}</sup>", html).replace("\n", "<br>")


def plain(text: str) -> str:
    """Return a label without mathtext.

    Example:
        >>> plain("‖D$_X$f‖ ~ n$^{1/4}$")
        '‖DXf‖ ~ n^1/4'
    """

    def math_of(found: re.Match[str]) -> str:
        inner = _with_symbols(found[1])
        return re.sub(r"[_{}]", "", re.sub(r"\\sqrt\{([^}]*)\}", r"√\1", inner))

    return _MATHTEXT.sub(math_of, text)


def _with_symbols(formula: str) -> str:
    for name, symbol in _SYMBOLS.items():
        formula = formula.replace(name, symbol)
    return formula


def embed_json(data: Any) -> Markup:
    r"""Return JSON for a <script> element, with `<` escaped so that no text in it can close the element.

    Example:
        >>> str(embed_json({"token": "</script><b>"}))
        '{"token":"\\u003c/script>\\u003cb>"}'
    """
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))
