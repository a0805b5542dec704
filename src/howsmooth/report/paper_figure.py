"""The paper's figures: what was measured with its interval and law, bounds, and the published line, panel by panel."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from howsmooth.report.bound_rows import magnitude
from howsmooth.report.figure import THEMES, dress
from howsmooth.report.rows import model_name, number
from howsmooth.studies.figures.reading import correlations_of, laws_of, panel_of, series_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from howsmooth.lipschitz import Law
    from howsmooth.studies.figures.declared import Published
    from howsmooth.studies.figures.running import Outcome

_IN_SIGHT = math.log(30)  # how far above or below the points a bound is still drawn; beyond, it is named
_MOST_TICKS = 7
_HEIGHT, _MISSING_HEIGHT = 4.4, 2.0  # inches of a row


@dataclass(frozen=True)
class Style:
    words: str
    colour: int  # of the theme's palette
    marker: str
    line: str
    filled: bool


STYLES = {
    ("attention", "described"): Style("as described", 0, "o", "-", True),
    ("head", "described"): Style("as described, the head alone", 2, "D", "-", True),
    ("attention", "released"): Style("released formula, described map", 1, "s", "--", False),
    ("attention", "scripts"): Style("as released: formula and map", 3, "^", ":", False),
    ("scripts", "scripts"): Style("as released: formula, map and input", 3, "^", ":", False),
}


@dataclass
class Panel:
    """What is to be seen at one (model, text, layer, head)."""

    key: tuple
    records: list[dict[str, Any]] = field(default_factory=list)
    bounds: list[dict[str, Any]] = field(default_factory=list)
    laws: dict[tuple, Law] = field(default_factory=dict)
    published: Published | None = None
    correlation: tuple[float, float | None] | None = None
    missing: str | None = None

    @property
    def title(self) -> str:
        model, text, layer, head = self.key
        where = ", ".join([f"layer {layer}" if layer is not None else "all layers",
                           *([f"head {head}"] if head is not None else [])])
        return f"{model_name(model)}, {where}\n{text}"


def sheets(outcome: Outcome) -> dict[str, list[Panel]]:
    """The pictures of a figure by name, each as its panels; those that are missing among them."""
    found: dict[str, list[Panel]] = {}
    for panel in _panels(outcome):
        model = model_name(panel.key[0])
        tag = "".join(char if char.isalnum() or char in "-." else "-" for char in model).strip("-")
        name = outcome.figure.name if outcome.figure.sheet == "figure" else f"{outcome.figure.name}-{tag}"
        found.setdefault(name, []).append(panel)
    return found


def _panels(outcome: Outcome) -> Iterator[Panel]:
    figure, panels = outcome.figure, {}
    for record in told_apart(outcome.records):
        panels.setdefault(panel_of(record), Panel(panel_of(record))).records.append(record)
    laws, correlations = laws_of(outcome.records, figure.y), correlations_of(outcome.records)
    for key, panel in panels.items():
        panel.laws, panel.correlation = laws.get(key, {}), correlations.get(key)
        panel.bounds = [bound for bound in outcome.bounds if bound["model"] == key[0] and bound["layer"] == key[2]
                        and bound["head"] == key[3]]
        panel.published = next((line for line in figure.published
                                if (line.model, line.text, line.layer, line.head) == key), None)
    for lack in outcome.missing:
        for layer in lack.layers or (None,):
            if not any((key[0], key[1], key[2]) == (lack.model, lack.text, layer) for key in panels):
                key = (lack.model, lack.text, layer, None)
                line = next((line for line in figure.published
                             if (line.model, line.text, line.layer) == key[:3]), None)
                panels[key] = Panel(key, missing=lack.reason, published=line)
    order = list(dict.fromkeys(key[0] for key in panels))
    texts = list(dict.fromkeys(key[1] for key in panels))
    yield from sorted(panels.values(), key=lambda p: (order.index(p.key[0]), texts.index(p.key[1]), p.key[2] or 0))


def told_apart(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the scripts' numbers of models for which the scripts have no map of their own: they are there already."""
    return [record for record in records if record.get("script_map") != "attention"]


def draw(panels: list[Panel], outcome: Outcome, *, theme: str = "light") -> Figure:
    """One picture."""
    from matplotlib.figure import Figure

    figure, colours = outcome.figure, THEMES[theme]
    layers = len({panel.key[2] for panel in panels})
    columns = min(len(panels), 3) if figure.sheet == "figure" or not 1 < layers <= 4 else layers
    lines = math.ceil(len(panels) / columns)
    rows = [panels[i * columns : (i + 1) * columns] for i in range(lines)]
    heights = [_MISSING_HEIGHT if all(panel.missing for panel in row) else _HEIGHT for row in rows]
    sheet = Figure(figsize=(max(6.4, 4.1 * columns), sum(heights) + 0.5), dpi=100, layout="constrained",
                   facecolor=colours["paper"])
    places = sheet.subplots(lines, columns, squeeze=False, gridspec_kw={"height_ratios": heights}).flatten()
    for i, (place, panel) in enumerate(zip(places, panels, strict=False)):
        _draw(place, panel, figure, colours)
        if i % columns == 0 and not panel.missing:
            place.set_ylabel("Lip = ‖D$_X$f‖$_2$" if figure.y == "value" else "root mean square of |x$_i$|",
                             color=colours["ink"], fontsize=9)
        place.set_title(panel.title, color=colours["ink"], fontsize=9.5, fontweight="bold", loc="left")
    for place in places[len(panels):]:
        place.set_visible(False)
    sheet.suptitle(figure.title, color=colours["ink"], fontsize=12.5, fontweight="bold", x=0.01, ha="left")
    return sheet


def _draw(place: Any, panel: Panel, figure: Any, colours: dict) -> None:
    if panel.missing:
        _draw_missing(place, panel, colours)
        return
    if figure.x == "n":
        _draw_growth(place, panel, figure, colours)
    else:
        _draw_radius(place, panel, colours)


def _draw_missing(place: Any, panel: Panel, colours: dict) -> None:
    line = panel.published
    said = "\n".join(textwrap.wrap(f"missing: {panel.missing}", 62)[:7])
    if line:
        said += f"\n\npublished: {line.constant:g} n^{line.exponent:g}"
    place.text(0.03, 0.95, said, transform=place.transAxes, va="top", fontsize=7.5, color=colours["ink"])
    place.set_xticks([])
    place.set_yticks([])
    place.set_facecolor(colours["grid"])
    for side in place.spines.values():
        side.set_visible(False)


def _draw_growth(place: Any, panel: Panel, figure: Any, colours: dict) -> None:
    place.set_xscale("log", base=2)
    if figure.y == "value":
        place.set_yscale("log")
    for series in dict.fromkeys(map(series_of, panel.records)):
        style, points = STYLES[series], [r for r in panel.records if series_of(r) == series]
        _draw_series(place, points, figure.y, style, panel.laws.get(series), colours)
    if panel.published:
        line = panel.published
        place.plot(line.lengths, [line.constant * n**line.exponent for n in line.lengths], color=colours["ink"],
                   linewidth=1.3, dashes=(5, 2, 1, 2), label=f"published line: {line.constant:g} n^{line.exponent:g}")
    footnote = _draw_bounds(place, panel, colours) if panel.bounds else []
    dress(place, panel.records, colours)
    _dress_growth(place, panel, figure.y)
    _legend(place, footnote, colours)


def _draw_series(place: Any, points: list, y: str, style: Style, law: Law | None, colours: dict) -> None:
    colour = colours["maps"][style.colour]
    ends = [max(0.0, r["value"] - r["lower"]) if y == "value" and r["lower"] is not None else 0.0 for r in points], [
        max(0.0, r["upper"] - r["value"]) if y == "value" and r["upper"] is not None else 0.0 for r in points]
    place.errorbar([r["n"] for r in points], [r[y] for r in points], yerr=ends if style.filled else None,
                   fmt=style.marker, color=colour, markersize=3.6, markerfacecolor=colour if style.filled else "none",
                   markeredgewidth=0 if style.filled else 0.8, alpha=0.8, elinewidth=0.9, capsize=1.5, zorder=3)
    words = style.words if y == "value" else "measured"
    if law is not None:
        ns = [min(r["n"] for r in points), max(r["n"] for r in points)]
        place.plot(ns, [law.at(n) for n in ns], style.line, color=colour, linewidth=1.5, zorder=2)
        words = f"{words}: {law_text(law)}\n{short_verdict(law)}"
    place.plot([], [], style.line, color=colour, marker=style.marker, markersize=4, linewidth=1.5, label=words,
               markerfacecolor=colour if style.filled else "none")


def _draw_bounds(place: Any, panel: Panel, colours: dict) -> list[str]:
    """Draw the bounds in sight; the others in words."""
    values = [record["value"] for record in panel.records if record["value"]]
    low, high = math.log(min(values)) - _IN_SIGHT, math.log(max(values)) + _IN_SIGHT
    said = []
    for name in dict.fromkeys(bound["map"] for bound in panel.bounds):
        rows = sorted((b for b in panel.bounds if b["map"] == name), key=lambda b: b["n"])
        short, last = name.removeprefix("this_project."), rows[-1]
        whose = "" if panel.key[3] is None else ", of the head,"
        if last["refused"]:
            said.append(f"{short}: none ({last['refused'].split('got ')[-1].split(';')[0]})")
        elif all(low < b["log_value"] < high for b in rows):
            sign = "≥" if last["side"] == "lower" else "≤"
            place.plot([b["n"] for b in rows], [b["value"] for b in rows], color=colours["faint"], linewidth=1.2,
                       dashes=(1, 1.5) if sign == "≥" else (4, 1.5),
                       label=f"largest on the ball of R = {last['R']:.3g}{whose} {sign} {short}")
        else:
            sign = "≥" if last["side"] == "lower" else "≤"
            said.append(f"largest on the ball of R = {last['R']:.3g}{whose} {sign} {short}:\n"
                        f"{magnitude(last['log_value'])} at n = {last['n']}")
    return ["off the scale, or none:", *said] if said else []


def _dress_growth(place: Any, panel: Panel, y: str) -> None:
    lengths = sorted({record["n"] for record in panel.records})
    if len(lengths) > _MOST_TICKS:
        wanted = [n for n in (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024) if lengths[0] <= n <= lengths[-1]]
        place.set_xticks(wanted)
    if y != "value":  # a norm hardly changes: a linear scale with room around it
        from matplotlib.ticker import MaxNLocator, ScalarFormatter

        place.yaxis.set_major_locator(MaxNLocator(5))
        place.yaxis.set_major_formatter(ScalarFormatter(useOffset=False))
        values = [record[y] for record in panel.records]
        room = 0.05 * max(values)
        place.set_ylim(min(values) - room, max(values) + room)
    place.tick_params(labelsize=8)
    place.xaxis.label.set_size(9)


def _draw_radius(place: Any, panel: Panel, colours: dict) -> None:
    points = [r for r in panel.records if series_of(r) == ("attention", "described")]
    from matplotlib import colormaps
    from matplotlib.ticker import MaxNLocator, ScalarFormatter

    place.set_yscale("log")
    dress(place, points, colours)

    lengths = sorted({r["n"] for r in points})
    for i, n in enumerate(lengths):
        at = [r for r in points if r["n"] == n]
        named = i in (0, len(lengths) // 2, len(lengths) - 1)
        place.scatter([r["mean_radius"] for r in at], [r["value"] for r in at], s=11, linewidths=0, alpha=0.85,
                      color=colormaps["viridis"](0.05 + 0.85 * i / max(1, len(lengths) - 1)),
                      label=f"n = {n}" if named else None)
    place.xaxis.set_major_locator(MaxNLocator(4))
    place.xaxis.set_major_formatter(ScalarFormatter(useOffset=False))
    place.set_xlabel("mean radius", color=colours["ink"], fontsize=9)
    place.tick_params(labelsize=8)
    if panel.correlation:
        whole, equal = panel.correlation
        said = f"rank correlation {whole:+.2f}" + (f"\nat equal n {equal:+.2f}" if equal is not None else "")
        place.text(0.03, 0.97, said, transform=place.transAxes, va="top", fontsize=7.5, color=colours["ink"])
    _legend(place, [], colours, columns=3)


def _legend(place: Any, footnote: list[str], colours: dict, columns: int = 1) -> None:
    for line in footnote:
        place.plot([], [], " ", label=line)
    place.legend(loc="upper left", bbox_to_anchor=(-0.08, -0.16), frameon=False, fontsize=7.5, ncols=columns,
                 labelcolor=colours["ink"], handlelength=2.4, labelspacing=0.35)


def law_text(law: Law) -> str:
    """The fitted law with the interval of its exponent."""
    ends = law.exponent_interval
    power, *ends = (f"{round(value, 2) + 0.0:.2f}" for value in (law.exponent, *(ends or ())))  # no −0.00
    return f"{number(law.constant, 3)} n^{power}" + (f" ({' … '.join(ends)})" if ends else "")


def short_verdict(law: Law) -> str:
    return law.verdict.split(" (Δ")[0]
