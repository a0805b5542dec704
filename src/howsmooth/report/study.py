"""What the terminal shows of a study: one row per curve, medians over samples, the law and whether to believe it."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from howsmooth.report.rows import FINE, model_name, number
from howsmooth.studies.growth import CURVE, fits_of

if TYPE_CHECKING:
    from howsmooth.lipschitz import Law

_MOST_LENGTHS = 6
_SHOWN = {"checkpoint": "checkpoint", "text": "text", "map": "map", "layer": "layer", "head": "head",
          "tokens": "moved", "estimator": "estimator", "cutting": "cutting"}
_WORDS = {"all": "all tokens", "no-first": "without the first", "no-special": "without special",
          "described": "as described", "released": "as released", None: "–"}


class Summary:
    """Medians by curve and length, gathered in one pass; of a record only the number is kept."""

    def __init__(self, records: Iterable[dict[str, Any]], **fit_options: Any):
        self.values: dict[tuple, dict[int, list[float]]] = {}
        self.unfinished: dict[str, int] = {}
        self.fits: dict[tuple, Law] = fits_of(self._seen(records), **fit_options)

    def _seen(self, records: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
        for record in records:
            key = tuple(record.get(name) for name in CURVE)
            self.values.setdefault(key, {}).setdefault(record["n"], []).append(record["value"])
            if record["status"] not in (*FINE, "as released"):
                self.unfinished[record["status"]] = self.unfinished.get(record["status"], 0) + 1
            yield record


def study_tables(summary: Summary) -> list[Table]:
    """One table per model; what is the same in all of its rows is said in the title."""
    models = dict.fromkeys(key[0] for key in summary.values)
    series = {key[0]: key[1] for key in summary.values}
    if len(models) > 1 and all(series.values()):  # checkpoints of one model belong in one table
        return [_table(list(summary.values), summary, "checkpoints")]
    return [_table([key for key in summary.values if key[0] == model], summary, model_name(model)) for model in models]


def _table(keys: list[tuple], summary: Summary, title: str) -> Table:
    varying = [name for name in _SHOWN if len({key[CURVE.index(name)] for key in keys}) > 1 or name == "layer"]
    fixed = {name: keys[0][CURVE.index(name)] for name in _SHOWN if name not in varying}
    said = [f"{fixed['map']} on {fixed['text']}" if "map" in fixed and "text" in fixed else "",
            *(_word(fixed[name]) for name in ("tokens", "cutting") if name in fixed),
            *(["as released"] if fixed.get("estimator") == "released" else [])]
    lengths = _some(sorted({n for key in keys for n in summary.values[key]}))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", title_justify="left",
                  title=Text(f"{title}: median Lip, {', '.join(word for word in said if word)}", style="bold cyan",
                             no_wrap=True, overflow="ignore"))
    for name in varying:
        table.add_column(_SHOWN[name], justify="right" if name in ("layer", "head") else "left", no_wrap=True)
    for n in lengths:
        table.add_column(f"n={n}", justify="right", no_wrap=True)
    table.add_column("α", justify="right", style="bold green", no_wrap=True)
    table.add_column("95 %" if not summary.fits else f"{100 * next(iter(summary.fits.values())).confidence:g} %",
                     no_wrap=True)
    table.add_column("is it Lip ≈ C nᵅ?", min_width=18)
    order = ("model", "checkpoint", "text", "layer", "head", "tokens", "estimator")
    rank = {key: i for i, key in enumerate(keys)}
    place = [CURVE.index(name) for name in order[2:5]]
    for key in sorted(keys, key=lambda key: (*((str(type(key[i])), key[i]) for i in place), rank[key])):
        medians = summary.values[key]
        table.add_row(*(_word(key[CURVE.index(name)]) for name in varying),
                      *(number(median(medians[n]), 3) if n in medians else "" for n in lengths),
                      *_law(summary.fits.get(key)))
    return table


def _law(law: Law | None) -> tuple[str, str, str]:
    if law is None:
        return "", "", ""
    ends = law.exponent_interval
    return f"{law.exponent:.2f}", f"{ends[0]:.2f} … {ends[1]:.2f}" if ends else "", law.verdict


def _word(value: Any) -> str:
    return _WORDS.get(value, None) or str(value)


def _some(lengths: list[int]) -> list[int]:
    """Not more columns than a terminal holds: the first, the last, and some between."""
    if len(lengths) <= _MOST_LENGTHS:
        return lengths
    step = (len(lengths) - 1) / (_MOST_LENGTHS - 1)
    return [lengths[round(i * step)] for i in range(_MOST_LENGTHS)]
