"""Attention on measures in pictures: lengths without end, the masked constants, growth with the radius."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from howsmooth.report.bound_rows import LOG10
from howsmooth.report.figure import MARKERS, THEMES
from howsmooth.report.rows import model_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCORES = {"negative": "A = −1", "positive": "A = +1", "rotation": "A a quarter turn"}


def regimes_figure(records: Sequence[dict[str, Any]], *, theme: str = "light") -> Figure:
    """log Lip against log n, one colour per γR²: exact on two places (line), upper bound (dashed), n* (dot)."""
    figure, panel, colours = _canvas(theme)
    sizes = list(dict.fromkeys(record["gamma_r2"] for record in records))
    last = max(record["log_n"] for record in records) / LOG10
    top = max(record["log_upper"] for record in records) / LOG10
    for size, colour in zip(sizes, _colours(colours, len(sizes)), strict=True):
        chosen = sorted((r for r in records if r["gamma_r2"] == size), key=lambda r: r["log_n"])
        at = [record["log_n"] / LOG10 for record in chosen]
        for name, line, width in (("log_value", "-", 2.2), ("log_upper", "--", 1.1), ("log_at_radius", ":", 1.1)):
            panel.plot(at, [_log10(record[name]) for record in chosen], line, color=colour, linewidth=width,
                       zorder=3 if line == "-" else 2, label=f"γR² = {size:g}" if line == "-" else None)
        crossover = chosen[0]["log_crossover"] / LOG10
        if 0 < crossover <= last:
            panel.plot([crossover], [_log10(chosen[0]["log_plateau"])], "o", color=colour, markersize=7,
                       markeredgecolor=colours["paper"], markeredgewidth=1.2, zorder=4)
            panel.annotate("n*", (crossover, _log10(chosen[0]["log_plateau"])), xytext=(3, -13), color=colour,
                           textcoords="offset points", fontsize=10)
    end = min(last, 2 * top)
    panel.plot([0, end], [0, end / 2], color=colours["faint"], linewidth=1.2, dashes=(2, 2), zorder=1)
    panel.annotate("√n", (0.7 * end, 0.35 * end), xytext=(8, -8), textcoords="offset points", color=colours["faint"])
    panel.set_xlabel("length n (tokens)", color=colours["ink"], fontsize=11)
    panel.set_ylabel("Lipschitz constant", color=colours["ink"], fontsize=11)
    _powers_of_ten(panel.xaxis)
    _powers_of_ten(panel.yaxis)
    handles = [panel.plot([], [], color=colours["ink"], linewidth=width, linestyle=line, label=label)[0]
               for width, line, label in ((2.2, "-", "largest on two places, exact"), (1.1, "--", "upper bound"),
                                          (1.1, ":", "one token at the rim, as published"))]
    shown, labels = panel.get_legend_handles_labels()
    _legend(panel, colours, handles=[*shown[:len(sizes)], *handles], labels=[*labels[:len(sizes)],
            *(handle.get_label() for handle in handles)], loc="upper left")
    panel.set_title(f"From √n to the plateau, {SCORES[records[0]['scores']]}", color=colours["ink"], fontsize=13,
                    fontweight="bold", loc="left")
    return figure


def masked_figure(records: Sequence[dict[str, Any]], *, theme: str = "light") -> Figure:
    """Constants of masked attention against a, one colour per p: proved (line), attained (points), stated (dashed)."""
    figure, panel, colours = _canvas(theme)
    exponents = [p for p in dict.fromkeys(record["p"] for record in records)
                 if any(r["bound"] is not None for r in records if r["p"] == p)]
    panel.set_yscale("log")
    for index, (p, colour) in enumerate(zip(exponents, _colours(colours, len(exponents)), strict=True)):
        chosen = sorted((r for r in records if r["p"] == p), key=lambda r: r["a"])
        at = [record["a"] for record in chosen]
        name = "∞" if p == "inf" else f"{p:g}"
        panel.plot(at, [math.exp(r["log_bound"]) for r in chosen], color=colour, linewidth=2, label=f"p = {name}")
        panel.plot(at, [r["attained"] for r in chosen], MARKERS[index % len(MARKERS)], color=colour, markersize=6.5,
                   markeredgewidth=0)
    stated = {record["a"]: record["stated"] for record in records}
    panel.plot(sorted(stated), [stated[a] for a in sorted(stated)], color=colours["faint"], linewidth=1.4,
               linestyle="--", label="as stated, for all p")
    panel.set_xlabel("a = ‖A‖R²", color=colours["ink"], fontsize=11)
    panel.set_ylabel("Lipschitz constant in $d_p$", color=colours["ink"], fontsize=11)
    handles, labels = panel.get_legend_handles_labels()
    handles.append(panel.plot([], [], "o", color=colours["ink"], markersize=6.5, markeredgewidth=0)[0])
    _legend(panel, colours, handles=handles, labels=[*labels, "attained"], loc="upper left")
    panel.set_title("Masked attention: proved and attained", color=colours["ink"], fontsize=13, fontweight="bold",
                    loc="left")
    return figure


def rates_figure(records: Sequence[dict[str, Any]], rates: Sequence[dict[str, Any]], *, theme: str = "light") -> Figure:
    """What ascent over measures found against ‖A‖R² (points), and the fitted laws (lines)."""
    figure, panel, colours = _canvas(theme)
    for index, (rate, colour) in enumerate(zip(rates, _colours(colours, len(rates)), strict=True)):
        chosen = sorted((r for r in records if r["scores"] == rate["scores"]), key=lambda r: r["radius_squared"])
        at = [record["radius_squared"] for record in chosen]
        panel.plot(at, [_log10(math.log(r["value"])) for r in chosen], MARKERS[index], color=colour, markersize=7,
                   markeredgewidth=0, zorder=3)
        first, last = min(at), max(at)
        line = [first + (last - first) * i / 100 for i in range(101)]
        panel.plot(line, [_log10(rate["exponent"] * r + math.log1p(rate["turning"] * r) + math.log(rate["constant"]))
                          for r in line], color=colour, linewidth=1.8, zorder=2,
                   label=f"{SCORES[rate['scores']]}: e$^{{{rate['exponent']:.3f}\\,R²}}$,  in theory "
                         f"{rate['true_exponent']:g}")
    panel.set_xscale("log", base=2)
    panel.set_xlabel("‖A‖R²", color=colours["ink"], fontsize=11)
    panel.set_ylabel("largest constant found over measures", color=colours["ink"], fontsize=11)
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    _powers_of_ten(panel.yaxis)
    _legend(panel, colours, loc="upper left")
    panel.set_title("Growth with the radius, V = I and ‖A‖ = 1", color=colours["ink"], fontsize=13, fontweight="bold",
                    loc="left")
    return figure


def distance_figure(records: Sequence[dict[str, Any]], *, theme: str = "light") -> Figure:
    """After / before against the layer, a line for each exponent and length; without a layer the distances as bars."""
    figure, panel, colours = _canvas(theme)
    letter = records[0]["distance"]
    shown = [r for r in records if r["layer"] is None or r["quotient"] is not None]
    names = {p: "∞" if p == "inf" else f"{p:g}" for p in dict.fromkeys(r["p"] for r in shown)}
    if records[0]["layer"] is None:
        values = [math.inf if r["before"]["value"] == "inf" else r["before"]["value"] for r in shown]
        bars = panel.bar([names[r["p"]] for r in shown], [v if math.isfinite(v) else 0.0 for v in values], width=0.6,
                         color=_colours(colours, len(shown)))
        labels = [f"{v:.4g}" if math.isfinite(v) else "∞" for v in values]
        panel.bar_label(bars, labels, color=colours["ink"], padding=3)
        panel.margins(y=0.1)
        panel.grid(False, axis="x")
        panel.set_xlabel("exponent p", color=colours["ink"], fontsize=11)
        panel.set_ylabel(f"distance ${letter}_p$", color=colours["ink"], fontsize=11)
    else:
        lengths = list(dict.fromkeys(r["n"] for r in shown))
        for p, colour in zip(names, _colours(colours, len(names)), strict=True):
            for index, n in enumerate(lengths):
                chosen = sorted((r for r in shown if (r["p"], r["n"]) == (p, n)), key=lambda r: r["layer"])
                label = f"p = {names[p]}" + (f", n = {n}" if len(lengths) > 1 else "")
                panel.plot([r["layer"] for r in chosen], [r["quotient"] for r in chosen], color=colour, linewidth=1.8,
                           marker=MARKERS[index % len(MARKERS)], markersize=6, markeredgewidth=0, label=label)
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.set_ylim(bottom=0)
        panel.set_xlabel("layer", color=colours["ink"], fontsize=11)
        panel.set_ylabel(f"${letter}_p$ after attention / before", color=colours["ink"], fontsize=11)
        if names:
            _legend(panel, colours, loc="best")
    one, other = (Path(name).name for name in records[0].get("texts") or records[0]["files"])
    model = "" if records[0]["model"] is None else f"{model_name(records[0]['model'])}: "
    who = f"{one} and {other}" if one != other else f"two pieces of {one}"
    panel.set_title(f"{model}how far apart are {who}", color=colours["ink"], fontsize=13, fontweight="bold", loc="left")
    return figure


def _canvas(theme: str) -> tuple[Any, Any, dict]:
    from matplotlib.figure import Figure

    colours = THEMES[theme]
    figure = Figure(figsize=(7.2, 5.0), dpi=160, layout="constrained", facecolor=colours["paper"])
    panel = figure.subplots()
    panel.set_facecolor(colours["paper"])
    panel.tick_params(colors=colours["ink"], labelsize=10, length=0, which="both")
    panel.grid(True, color=colours["grid"], linewidth=0.8)
    panel.set_axisbelow(True)
    for side in panel.spines.values():
        side.set_visible(False)
    return figure, panel, colours


def _colours(colours: dict, count: int) -> list[Any]:
    """Colours that everyone can tell apart for a few, a scale that is ordered for everyone for many."""
    if count <= len(colours["maps"]):
        return list(colours["maps"][:count])
    from matplotlib import colormaps

    return [colormaps["viridis"](0.1 + 0.8 * index / (count - 1)) for index in range(count)]


def _powers_of_ten(axis: Any) -> None:
    """Ticks of a logarithm to base 10, as the powers they stand for."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    axis.set_major_formatter(FuncFormatter(lambda power, _: f"$10^{{{power:.0f}}}$" if abs(power) > 1e-9 else "1"))


def _log10(log_value: float) -> float:
    return log_value / LOG10


def _legend(panel: Any, colours: dict, **options: Any) -> None:
    panel.legend(frameon=False, labelcolor=colours["ink"], fontsize=9.5, handlelength=2.2, **options)
