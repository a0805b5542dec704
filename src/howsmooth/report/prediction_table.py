"""Do the constants predict? Rank correlations and calibration on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from howsmooth.report.rows import model_name
from howsmooth.report.table import plain_table
from howsmooth.studies.judging import OUTCOMES
from howsmooth.studies.predictors import LABELS

Record = dict[str, Any]
PLACES = {"layer": "attacks on a layer", "model": "attacks on the model's input", "tokens": "attacks on tokens"}
FEW = 10  # texts below which an interval is not to be trusted
SHORT = {"layer_gain_small": "gain, small", "layer_gain_large": "gain, large", "layer_change_large": "change, large",
         "model_hidden_small": "hidden, small", "model_hidden_large": "hidden, large", "model_use_small": "use, small",
         "model_use_large": "use, large", "token_change": "change", "token_flip": "flip"}


def prediction_tables(rows: Sequence[Record]) -> list[RenderableType]:
    """For every model one table for each kind of attack, predictors down and outcomes across; and how to read them."""
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
    table = plain_table(Text(f"{model_name(some['model'])}, {PLACES[place]}: Spearman's ρ over texts, within layers",
                             style="bold cyan"))
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
    """What tells the ranks of a predictor from those of another: its correlations with everything, in every layer."""
    found = [row["value"] for row in rows if row["predictor"] == predictor and row["scope"] != "pooled"]
    known = any(value is not None for value in found)
    return [None if value is None else round(value, 9) for value in found] if known else predictor


def cell(row: Record | None) -> Text:
    """ρ with its interval: bold where the interval is on one side of zero, a star where the family's p is below 5 %.

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
    return Text(f"{short(row['value'])} [{short(row['lower'])} {short(row['upper'])}]{star}",
                style="bold green" if clear else "")


def short(value: float) -> str:
    """A correlation in two digits.

    >>> short(-0.314), short(1.0), short(0.0)
    ('-.31', '+1.0', '+.00')
    """
    return f"{value:+.2f}".replace("0.", ".", 1) if abs(value) < 0.995 else f"{value:+.1f}"


def _pooled(row: Record | None) -> Text:
    if row is None or row["value"] is None:
        return Text("" if row is None else "undefined")
    return Text(f"{short(row['value'])}, layers alone {short(row['expected'])}")


def _notes(rows: Sequence[Record]) -> Text:
    """How the tables of one model are to be read, and why some of it is undefined."""
    within = [row for row in rows if row["scope"] == "within"]
    if all(row["value"] is None for row in within):
        return Text("nothing to rank: all of it is undefined\n", style="dim")
    fewest, most = (of(row["texts"] for row in within if row["value"] is not None) for of in (min, max))
    family = max(row["family"] or 0 for row in within)
    lines = [f"{most if fewest == most else f'{fewest} to {most}'} texts; {100 * within[0]['confidence']:g} % BCa "
             f"intervals, texts resampled; * p < 0.05, adjusted for {family} pairs"]
    if any("_use_" in row["outcome"] for row in rows):
        lines.append("use: KL of the next token for a language model, else the cosine of mean embeddings")
    if any(row["scope"] == "pooled" for row in rows):
        lines.append("pooled: layers thrown together; “layers alone” is what is left of it with texts exchanged")
    if fewest < FEW:
        lines.append(f"fewer than {FEW} texts: do not trust the intervals")
    reasons: dict[str, list[str]] = {}
    for row in within:
        if row["value"] is None:
            names = reasons.setdefault(row["status"].removeprefix("undefined: ").split(";")[0], [])
            if LABELS[row["predictor"]] not in names:
                names.append(LABELS[row["predictor"]])
    lines += [f"undefined: {', '.join(names)} ({reason})" for reason, names in reasons.items()]
    return Text("\n".join(lines) + "\n", style="dim")


def calibration_table(curves: Sequence[Record]) -> Table:
    """Achieved over predicted change, σ₁‖E‖: the median, and that of texts by their prediction, lowest first."""
    table = plain_table(Text("Achieved change over the predicted σ₁‖E‖, medians", style="bold cyan"))
    for name in ("model", "attacked", "objective"):
        table.add_column(name, no_wrap=True)
    table.add_column("budget", justify="right", style="bold")
    table.add_column("achieved / predicted", justify="right", style="bold green")
    table.add_column("from the lowest to the highest prediction", no_wrap=True)
    for index, curve in enumerate(curves):
        last = index + 1 == len(curves) or curves[index + 1]["model"] != curve["model"]
        where = "input" if curve["layer"] is None else f"layer {curve['layer']}"
        table.add_row(model_name(curve["model"]), where, curve["objective"], f"{curve['share']:g}",
                      f"{curve['ratio']:.2f}", "  ".join(f"{bin['ratio']:.2f}" for bin in curve["bins"]),
                      end_section=last)
    return table
