"""Do the constants predict? A forest of rank correlations above, achieved over predicted changes beneath."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from howsmooth.report.figure import MARKERS, THEMES
from howsmooth.report.rows import model_name
from howsmooth.studies.predictors import LABELS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Record = dict[str, Any]
SHOWN = {"layer_gain_small": "a layer's output,\nsmall budget", "layer_gain_large": "a layer's output,\nlarge budget",
         "model_use_small": "the model's use,\nsmall budget", "model_use_large": "the model's use,\nlarge budget",
         "token_change": "the model's use,\nby real tokens"}


def prediction_figure(rows: Sequence[Record], curves: Sequence[Record], *, theme: str = "light") -> Figure:
    """One forest panel per outcome, one colour per model; one panel of calibration per model and kind of attack."""
    from matplotlib.figure import Figure

    colours = THEMES[theme]
    models = list(dict.fromkeys(row["model"] for row in rows))
    outcomes = [name for name in SHOWN if any(row["outcome"] == name and row["value"] is not None for row in rows)]
    predictors = [name for name in LABELS if any(row["predictor"] == name and row["value"] is not None and
                                                 row["scope"] == "within" for row in rows)]
    panels = [(model, place) for model in models for place in ("layer", "model")
              if any(curve["model"] == model and curve["place"] == place for curve in curves)]
    height = 1.7 + 0.3 * len(predictors)
    figure = Figure(figsize=(max(7.0, 3.6 + 2.3 * len(outcomes)), height + (4.2 if panels else 0)), dpi=160,
                    layout="constrained", facecolor=colours["paper"])
    upper, lower = figure.subfigures(2, 1, height_ratios=(height, 4.2), hspace=0.03) if panels else (figure, None)
    if outcomes:
        _forest(upper, rows, outcomes, predictors, models, colours)
    if lower is not None:
        lower.set_facecolor(colours["paper"])
        for panel, (model, place) in zip(lower.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            _calibration(panel, [curve for curve in curves if (curve["model"], curve["place"]) == (model, place)],
                         colours, f"{model_name(model)}, {'layers' if place == 'layer' else 'whole model'}")
    return figure


def _forest(figure, rows: Sequence[Record], outcomes: list[str], predictors: list[str], models: list[str],
            colours: dict) -> None:
    figure.set_facecolor(colours["paper"])
    panels = figure.subplots(1, len(outcomes), sharey=True, squeeze=False)[0]
    found = {(row["model"], row["outcome"], row["predictor"], row["scope"]): row for row in rows
             if row["scope"] in ("within", "pooled")}
    for panel, outcome in zip(panels, outcomes, strict=True):
        panel.axvline(0, color=colours["faint"], linewidth=1, zorder=1)
        for index, model in enumerate(models):
            shift = 0.22 * (index - (len(models) - 1) / 2)
            style = dict(color=colours["maps"][index % len(colours["maps"])], marker=MARKERS[index % len(MARKERS)])
            for place, predictor in enumerate(predictors):
                row = found.get((model, outcome, predictor, "within"))
                if row is None or row["value"] is None:
                    continue
                at = len(predictors) - 1 - place - shift
                if row["lower"] is not None:
                    panel.plot([row["lower"], row["upper"]], [at, at], color=style["color"], linewidth=1.6, zorder=2)
                panel.plot(row["value"], at, markersize=5, linestyle="", markeredgewidth=0, zorder=3, **style)
                pooled = found.get((model, outcome, predictor, "pooled"))
                if pooled is not None and pooled["value"] is not None:
                    panel.plot(pooled["value"], at, markersize=5, linestyle="", markerfacecolor="none",
                               markeredgewidth=0.9, alpha=0.6, zorder=2, **style)
        _plain(panel, colours)
        panel.set_xlim(-1.08, 1.08)
        panel.set_xticks([-1, 0, 1], ["−1", "0", "1"])
        panel.set_title(SHOWN[outcome], loc="left", fontsize=10.5, fontweight="bold", color=colours["ink"])
    panels[0].set_yticks(range(len(predictors)), [LABELS[name] for name in reversed(predictors)])
    panels[0].set_ylim(-0.7, len(predictors) - 0.3)
    panels[len(panels) // 2].set_xlabel("Spearman's ρ over texts within layers, 95 % interval"
                                        if rows[0]["confidence"] == 0.95 else "Spearman's ρ over texts within layers",
                                        color=colours["ink"], fontsize=10.5)
    for index, model in enumerate(models):
        texts = max(row["texts"] for row in rows if row["model"] == model)
        panels[0].plot([], [], color=colours["maps"][index % len(colours["maps"])], linewidth=1.6, markersize=5,
                       marker=MARKERS[index % len(MARKERS)], label=f"{model_name(model)}, {texts} texts")
    if any(scope == "pooled" for *_, scope in found):
        panels[0].plot([], [], "o", markersize=5, markerfacecolor="none", color=colours["faint"],
                       label="layers pooled")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=len(models) + 1,
                  frameon=False, fontsize=10, labelcolor=colours["ink"])


def _calibration(panel, curves: Sequence[Record], colours: dict, title: str) -> None:
    """Points are texts, lines the medians of groups of them by prediction; at 1 the prediction has come true."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    keys = list(dict.fromkeys((curve["layer"], curve["objective"]) for curve in curves))
    shares = sorted({curve["share"] for curve in curves})
    panel.axhline(1, color=colours["faint"], linestyle="--", linewidth=1.2, zorder=1)
    for curve in curves:
        index = keys.index((curve["layer"], curve["objective"]))
        colour = colours["maps"][index % len(colours["maps"])]
        ratios = [b / a for a, b in zip(curve["predicted"], curve["achieved"], strict=True)]
        panel.plot(curve["predicted"], ratios, MARKERS[shares.index(curve["share"]) % len(MARKERS)], color=colour,
                   markersize=3.5, markeredgewidth=0, alpha=0.45, zorder=2)
        panel.plot([bin["predicted"] for bin in curve["bins"]], [bin["ratio"] for bin in curve["bins"]], "-",
                   color=colour, linewidth=1.8, zorder=3)
    panel.set_xscale("log")
    panel.set_yscale("log")
    low, high = panel.get_ylim()
    panel.set_ylim(min(low, 0.45), max(high, 2.2))
    panel.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.yaxis.set_minor_locator(NullLocator())
    _plain(panel, colours)
    for index, (layer, objective) in enumerate(keys):
        name = _OBJECTIVES[objective] if layer is None else f"layer {layer}"
        panel.plot([], [], "-", color=colours["maps"][index % len(colours["maps"])], linewidth=1.8, label=name)
    for index, share in enumerate(shares):
        panel.plot([], [], MARKERS[index % len(MARKERS)], color=colours["faint"], markersize=4.5, linestyle="",
                   label=f"‖E‖ = {share:g} ‖X‖")
    panel.legend(frameon=False, fontsize=8.5, labelcolor=colours["ink"], loc="upper center", ncols=2,
                 bbox_to_anchor=(0.5, -0.16), handlelength=1.5)
    panel.set_title(title, loc="left", fontsize=10.5, fontweight="bold", color=colours["ink"])
    panel.set_xlabel("predicted change  σ₁ ‖E‖", color=colours["ink"], fontsize=10)
    panel.set_ylabel("achieved / predicted", color=colours["ink"], fontsize=10)


_OBJECTIVES = {"output": "hidden states", "next-token": "next token, √(2 KL)", "cosine": "embedding, chord"}


def _plain(panel, colours: dict) -> None:
    panel.set_facecolor(colours["paper"])
    panel.tick_params(colors=colours["ink"], labelsize=9.5, length=0, which="both")
    panel.grid(True, color=colours["grid"], linewidth=0.8)
    panel.set_axisbelow(True)
    for side in ("top", "right", "left", "bottom"):
        panel.spines[side].set_visible(False)
