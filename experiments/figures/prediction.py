"""Do the constants predict? Tables and figure of docs/robustness.md, from the records of that experiment.

    python -m experiments.figures.prediction minilm.jsonl smollm2.jsonl [--out docs/images/prediction]

The upper row of the figure has the rank correlations, the lower row achieved over predicted changes. Without files it
is drawn from docs/images/prediction.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from experiments.prediction.evaluation import OUTCOMES, calibrations, correlations
from experiments.prediction.predictors import LABELS
from howsmooth.report.figure import save_figure
from howsmooth.report.panels import MARKERS
from howsmooth.report.rows import model_name
from howsmooth.report.style import THEMES
from howsmooth.report.table import plain_table

Record = dict[str, Any]
PLACES = {"layer": "attacks on a layer", "model": "attacks on the model's input", "tokens": "attacks on tokens"}
MIN_TEXTS_FOR_INTERVALS = 10  # with fewer texts intervals are unreliable
SHORT = {
    "layer_gain_small": "gain, small",
    "layer_gain_large": "gain, large",
    "layer_change_large": "change, large",
    "model_hidden_small": "hidden, small",
    "model_hidden_large": "hidden, large",
    "model_use_small": "use, small",
    "model_use_large": "use, large",
    "token_change": "change",
    "token_flip": "flip",
}


def prediction_tables(rows: Sequence[Record]) -> list[RenderableType]:
    """Return for every model one table for each kind of attack, predictors by outcomes, and notes."""
    shown: list[RenderableType] = []
    for model in dict.fromkeys(row["model"] for row in rows):
        chosen = [row for row in rows if row["model"] == model]
        shown += [table for place in PLACES if (table := _table(chosen, place)) is not None]
        shown.append(_notes(chosen))
    return shown


def _table(rows: Sequence[Record], place: str) -> Table | None:
    outcomes = [outcome.name for outcome in OUTCOMES if outcome.place == place]
    cells = {(row["predictor"], row["outcome"], row["scope"]): row for row in rows if row["outcome"] in outcomes}
    outcomes = [name for name in outcomes if any(outcome == name for _, outcome, _ in cells)]
    if not outcomes:
        return None
    some = next(iter(cells.values()))
    table = plain_table(
        Text(f"{model_name(some['model'])}, {PLACES[place]}: Spearman's ρ over texts, within layers", style="bold cyan")
    )
    table.min_width = len(str(table.title))
    table.add_column("predictor", no_wrap=True)
    for name in outcomes:
        table.add_column(SHORT[name], no_wrap=True)
    pooled = "layer_gain_large" if place == "layer" and any(scope == "pooled" for *_, scope in cells) else None
    if pooled:
        table.add_column(f"{SHORT[pooled]}, pooled", no_wrap=True, style="dim")
    before = None
    for predictor in dict.fromkeys(row["predictor"] for row in cells.values()):
        texts = [cell(cells.get((predictor, name, "within"))) for name in outcomes]
        if (ranks := _ranks(rows, predictor)) == before:
            texts = [Text("ranks as above", style="dim"), *[Text("")] * (len(outcomes) - 1)]
        before = ranks
        last = [_pooled(cells.get((predictor, pooled, "pooled")))] if pooled else []
        table.add_row(LABELS[predictor], *texts, *last)
    return table


def _ranks(rows: Sequence[Record], predictor: str) -> list[float | None] | str:
    """Return what identifies the ranks of a predictor: its correlations with all outcomes in all layers."""
    found = [row["value"] for row in rows if row["predictor"] == predictor and row["scope"] != "pooled"]
    known = any(value is not None for value in found)
    return [None if value is None else round(value, 9) for value in found] if known else predictor


def cell(row: Record | None) -> Text:
    """Return ρ with its interval: bold if the interval excludes zero, with a star if the adjusted p is below 5 %.

    Example:
        >>> print(cell({"value": 0.871, "lower": 0.7, "upper": 0.94, "adjusted_p": 0.001}))
        +.87 [+.70 +.94]*
    """
    if row is None:
        return Text("")
    if row["value"] is None:
        return Text("undefined", style="dim")
    star = "*" if row["adjusted_p"] is not None and row["adjusted_p"] < 0.05 else ""
    if row["lower"] is None:
        return Text(f"{short(row['value'])}{star}")
    clear = row["lower"] > 0 or row["upper"] < 0
    return Text(
        f"{short(row['value'])} [{short(row['lower'])} {short(row['upper'])}]{star}",
        style="bold green" if clear else "",
    )


def short(value: float) -> str:
    """Return a correlation in two digits.

    Example:
        >>> short(-0.314), short(1.0), short(-1e-9)
        ('-.31', '+1.0', '+.00')
    """
    value = round(value, 2) + 0.0  # no −0
    return f"{value:+.2f}".replace("0.", ".", 1) if abs(value) < 0.995 else f"{value:+.1f}"


def _pooled(row: Record | None) -> Text:
    if row is None or row["value"] is None:
        return Text("" if row is None else "undefined")
    return Text(f"{short(row['value'])}, layers alone {short(row['expected'])}")


def _notes(rows: Sequence[Record]) -> Text:
    """Return notes on the tables of one model, and why some values are undefined."""
    within = [row for row in rows if row["scope"] == "within"]
    if all(row["value"] is None for row in within):
        return Text("nothing to rank: all correlations are undefined\n", style="dim")
    fewest, most = (of(row["texts"] for row in within if row["value"] is not None) for of in (min, max))
    family = max(row["family"] or 0 for row in within)
    lines = [
        f"{most if fewest == most else f'{fewest} to {most}'} texts; {100 * within[0]['confidence']:g} % BCa "
        f"intervals, texts resampled; * p < 0.05, adjusted for {family} pairs"
    ]
    if any("_use_" in row["outcome"] for row in rows):
        lines.append("use: KL of the next token for a language model, else the cosine of mean embeddings")
    if any(row["scope"] == "pooled" for row in rows):
        lines.append("pooled: over all layers; “layers alone” is the part that remains when texts are permuted")
    if fewest < MIN_TEXTS_FOR_INTERVALS:
        lines.append(f"fewer than {MIN_TEXTS_FOR_INTERVALS} texts: do not trust the intervals")
    reasons: dict[str, list[str]] = {}
    for row in within:
        if row["value"] is None:
            names = reasons.setdefault(row["status"].removeprefix("undefined: ").split(";")[0], [])
            if LABELS[row["predictor"]] not in names:
                names.append(LABELS[row["predictor"]])
    lines += [f"undefined: {', '.join(names)} ({reason})" for reason, names in reasons.items()]
    return Text("\n".join(lines) + "\n", style="dim")


def calibration_table(curves: Sequence[Record]) -> Table:
    """Return a table of achieved over predicted changes σ₁‖E‖: medians, over all texts and by bins of prediction."""
    table = plain_table(Text("Achieved change over the predicted σ₁‖E‖, medians", style="bold cyan"))
    for name in ("model", "attacked", "objective"):
        table.add_column(name, no_wrap=True)
    table.add_column("budget", justify="right", style="bold")
    table.add_column("achieved / predicted", justify="right", style="bold green")
    table.add_column("from the lowest to the highest prediction", no_wrap=True)
    for index, curve in enumerate(curves):
        last = index + 1 == len(curves) or curves[index + 1]["model"] != curve["model"]
        where = "input" if curve["layer"] is None else f"layer {curve['layer']}"
        table.add_row(
            model_name(curve["model"]),
            where,
            curve["objective"],
            f"{curve['share']:g}",
            f"{curve['ratio']:.2f}",
            "  ".join(f"{bin['ratio']:.2f}" for bin in curve["bins"]),
            end_section=last,
        )
    return table


SHOWN = {
    "layer_gain_small": "a layer's output,\nsmall budget",
    "layer_gain_large": "a layer's output,\nlarge budget",
    "model_use_small": "the model's use,\nsmall budget",
    "model_use_large": "the model's use,\nlarge budget",
    "token_change": "the model's use,\nby real tokens",
}


def prediction_figure(rows: Sequence[Record], curves: Sequence[Record]) -> Figure:
    """Draw one forest plot per outcome, one colour per model; one calibration plot per model and kind of attack."""
    colours = THEMES["light"]
    models = list(dict.fromkeys(row["model"] for row in rows))
    outcomes = [name for name in SHOWN if any(row["outcome"] == name and row["value"] is not None for row in rows)]
    predictors = [
        name
        for name in LABELS
        if any(row["predictor"] == name and row["value"] is not None and row["scope"] == "within" for row in rows)
    ]
    panels = [
        (model, place)
        for model in models
        for place in ("layer", "model")
        if any(curve["model"] == model and curve["place"] == place for curve in curves)
    ]
    height = 1.7 + 0.3 * len(predictors)
    figure = Figure(
        figsize=(max(7.0, 3.6 + 2.3 * len(outcomes)), height + (4.2 if panels else 0)),
        dpi=160,
        layout="constrained",
        facecolor=colours["background"],
    )
    upper, lower = figure.subfigures(2, 1, height_ratios=(height, 4.2), hspace=0.03) if panels else (figure, None)
    if outcomes:
        _forest(upper, rows, outcomes, predictors, models, colours)
    if lower is not None:
        lower.set_facecolor(colours["background"])
        for panel, (model, place) in zip(lower.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            _calibration(
                panel,
                [curve for curve in curves if (curve["model"], curve["place"]) == (model, place)],
                colours,
                f"{model_name(model)}, {'layers' if place == 'layer' else 'whole model'}",
            )
    return figure


def _forest(
    figure: Figure | SubFigure,
    rows: Sequence[Record],
    outcomes: list[str],
    predictors: list[str],
    models: list[str],
    colours: dict,
) -> None:
    figure.set_facecolor(colours["background"])
    panels = figure.subplots(1, len(outcomes), sharey=True, squeeze=False)[0]
    found = {
        (row["model"], row["outcome"], row["predictor"], row["scope"]): row
        for row in rows
        if row["scope"] in ("within", "pooled")
    }
    for panel, outcome in zip(panels, outcomes, strict=True):
        panel.axvline(0, color=colours["muted"], linewidth=1, zorder=1)
        for index, model in enumerate(models):
            shift = 0.22 * (index - (len(models) - 1) / 2)
            style = dict(
                color=colours["palette"][index % len(colours["palette"])], marker=MARKERS[index % len(MARKERS)]
            )
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
                    panel.plot(
                        pooled["value"],
                        at,
                        markersize=5,
                        linestyle="",
                        markerfacecolor="none",
                        markeredgewidth=0.9,
                        alpha=0.6,
                        zorder=2,
                        **style,
                    )
        _plain(panel, colours)
        panel.set_xlim(-1.08, 1.08)
        panel.set_xticks([-1, 0, 1], ["−1", "0", "1"])
        panel.set_title(SHOWN[outcome], loc="left", fontsize=10.5, fontweight="bold", color=colours["foreground"])
    panels[0].set_yticks(range(len(predictors)), [LABELS[name] for name in reversed(predictors)])
    panels[0].set_ylim(-0.7, len(predictors) - 0.3)
    panels[len(panels) // 2].set_xlabel(
        "Spearman's ρ over texts within layers, 95 % interval"
        if rows[0]["confidence"] == 0.95
        else "Spearman's ρ over texts within layers",
        color=colours["foreground"],
        fontsize=10.5,
    )
    for index, model in enumerate(models):
        texts = max(row["texts"] for row in rows if row["model"] == model)
        panels[0].plot(
            [],
            [],
            color=colours["palette"][index % len(colours["palette"])],
            linewidth=1.6,
            markersize=5,
            marker=MARKERS[index % len(MARKERS)],
            label=f"{model_name(model)}, {texts} texts",
        )
    if any(scope == "pooled" for *_, scope in found):
        panels[0].plot([], [], "o", markersize=5, markerfacecolor="none", color=colours["muted"], label="layers pooled")
    figure.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside upper left",
        ncols=len(models) + 1,
        frameon=False,
        fontsize=10,
        labelcolor=colours["foreground"],
    )


def _calibration(panel: Axes, curves: Sequence[Record], colours: dict, title: str) -> None:
    """Draw achieved over predicted changes: points are texts, lines medians of bins; 1 is a perfect prediction."""
    keys = list(dict.fromkeys((curve["layer"], curve["objective"]) for curve in curves))
    shares = sorted({curve["share"] for curve in curves})
    panel.axhline(1, color=colours["muted"], linestyle="--", linewidth=1.2, zorder=1)
    for curve in curves:
        index = keys.index((curve["layer"], curve["objective"]))
        colour = colours["palette"][index % len(colours["palette"])]
        ratios = [b / a for a, b in zip(curve["predicted"], curve["achieved"], strict=True)]
        panel.plot(
            curve["predicted"],
            ratios,
            MARKERS[shares.index(curve["share"]) % len(MARKERS)],
            color=colour,
            markersize=3.5,
            markeredgewidth=0,
            alpha=0.45,
            zorder=2,
        )
        panel.plot(
            [bin["predicted"] for bin in curve["bins"]],
            [bin["ratio"] for bin in curve["bins"]],
            "-",
            color=colour,
            linewidth=1.8,
            zorder=3,
        )
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
        panel.plot([], [], "-", color=colours["palette"][index % len(colours["palette"])], linewidth=1.8, label=name)
    for index, share in enumerate(shares):
        panel.plot(
            [],
            [],
            MARKERS[index % len(MARKERS)],
            color=colours["muted"],
            markersize=4.5,
            linestyle="",
            label=f"‖E‖ = {share:g} ‖X‖",
        )
    panel.legend(
        frameon=False,
        fontsize=8.5,
        labelcolor=colours["foreground"],
        loc="upper center",
        ncols=2,
        bbox_to_anchor=(0.5, -0.16),
        handlelength=1.5,
    )
    panel.set_title(title, loc="left", fontsize=10.5, fontweight="bold", color=colours["foreground"])
    panel.set_xlabel("predicted change  σ₁ ‖E‖", color=colours["foreground"], fontsize=10)
    panel.set_ylabel("achieved / predicted", color=colours["foreground"], fontsize=10)


_OBJECTIVES = {"output": "hidden states", "next-token": "next token, √(2 KL)", "cosine": "embedding, chord"}


def _plain(panel: Axes, colours: dict) -> None:
    panel.set_facecolor(colours["background"])
    panel.tick_params(colors=colours["foreground"], labelsize=9.5, length=0, which="both")
    panel.grid(True, color=colours["grid"], linewidth=0.8)
    panel.set_axisbelow(True)
    for side in ("top", "right", "left", "bottom"):
        panel.spines[side].set_visible(False)


KEPT = (
    "model",
    "outcome",
    "predictor",
    "scope",
    "value",
    "lower",
    "upper",
    "confidence",
    "p",
    "expected",
    "adjusted_p",
    "family",
    "texts",
    "status",
    "kendall",
)


def evaluated(files: list[Path]) -> dict:
    """Return correlations, calibrations and designs of the records in these files."""
    records = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    if not records:
        raise SystemExit(f"no records in {', '.join(map(str, files))}")
    return {
        "correlations": [
            rounded({name: row[name] for name in KEPT}) for row in correlations(records) if row["scope"] != "layer"
        ],
        "calibrations": [rounded(curve) for curve in calibrations(records)],
        "designs": {record["model"]: {**record["design"], "corpus": record["corpus"]} for record in records},
    }


def rounded(value: Any) -> Any:
    """Return the value with all floats rounded to four significant digits, more than the intervals justify."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="*")
    parser.add_argument("--out", type=Path, default=Path("docs/images/prediction"))
    chosen = parser.parse_args(arguments)
    kept = chosen.out.with_suffix(".json")
    found = evaluated(chosen.records) if chosen.records else json.loads(kept.read_text(encoding="utf-8"))
    console = Console(width=120)
    for table in (*prediction_tables(found["correlations"]), calibration_table(found["calibrations"])):
        console.print(table)
    if chosen.records:
        rows = [json.dumps(row, ensure_ascii=False) for row in found["correlations"]]
        rest = {name: found[name] for name in ("calibrations", "designs")}
        kept.write_text(
            '{"correlations": [\n' + ",\n".join(rows) + "\n],\n" + json.dumps(rest, ensure_ascii=False)[1:] + "\n",
            encoding="utf-8",
        )
    save_figure(prediction_figure(found["correlations"], found["calibrations"]), chosen.out.with_suffix(".png"))
    print(f"drew {chosen.out.with_suffix('.png')}")


if __name__ == "__main__":
    main()
