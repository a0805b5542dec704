"""The ladder of a layer: its constant at a text, near it and on the whole ball, each between two values.

It joins the records of `bound`, `attack ball` and `attack worst-case` on one layer, and says on which set of tokens the
constant is known to which factor, and by which statement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from howsmooth.records.columns import where
from howsmooth.report.rows import (
    bound_title,
    input_word,
    magnitude,
    model_name,
    none_first,
    number,
    ratio_text,
    special_tokens_text,
)
from howsmooth.report.table import Column, Table

KINDS = ("bound", "ball", "worst case")
_BY_PROJECT = "docs/"  # how the reference of a proof of this project begins
_ON_BALL = ("on B_R^n", "for all n")


@dataclass(frozen=True)
class Rung:
    """The largest constant on one set of tokens, between two values.

    Attributes:
        layer, head, n: which map, and for how many tokens.
        tokens: the set, in words.
        lower, upper: logarithms of the values; None where no record has one.
        below, above: where they come from, in words.
        log_text: logarithm of the constant measured at the text.
    """

    layer: int
    head: int | None
    n: int
    tokens: str
    lower: float | None
    upper: float | None
    below: str
    above: str
    log_text: float

    @property
    def log_ratio(self) -> float | None:
        """Logarithm of the factor to which the constant is known."""
        return None if self.lower is None or self.upper is None else self.upper - self.lower

    @property
    def log_over_text(self) -> float | None:
        """Logarithm of the lower value over the constant at the text."""
        return None if self.lower is None else self.lower - self.log_text


def ladder_tables(records: Sequence[dict[str, Any]]) -> list[Table]:
    """Return the ladder of each model whose records are of these questions; records of others are ignored.

    Args:
        records: Records in any mixture, as `howsmooth.read` returns them.
    """
    chosen = where(records, lambda kind: kind in KINDS, "kind")
    models = dict.fromkeys((record["model"], record.get("special_tokens")) for record in chosen)
    tables = []
    for model in models:
        group = [record for record in chosen if (record["model"], record.get("special_tokens")) == model]
        if rungs := [rung for key in _maps(group) for rung in _rungs(key, group)]:
            tables.append(_table(rungs, group[0]))
    return tables


def _table(rungs: Sequence[Rung], record: dict[str, Any]) -> Table:
    def value(log_value: float | None) -> str:
        return "" if log_value is None else magnitude(log_value)

    def over_text(rung: Rung) -> str:
        return "" if rung.log_over_text is None else ratio_text(rung.log_over_text)

    return Table(
        f"{model_name(record['model'])}: how large the constant is, and how well it is known"
        f"{special_tokens_text(record)}",
        [
            Column("layer", lambda rung: rung.layer, key=True),
            Column("head", lambda rung: rung.head, when=any(rung.head is not None for rung in rungs), key=True),
            Column("n", lambda rung: rung.n, key=True),
            Column("tokens", lambda rung: rung.tokens, "left", wrap=False, key=True),
            Column("≥", lambda rung: value(rung.lower), style="bold green", wrap=False),
            Column("≤", lambda rung: value(rung.upper), style="bold green", wrap=False),
            Column("known to", lambda rung: "" if rung.log_ratio is None else _factor(rung.log_ratio), wrap=False),
            Column(f"over {input_word(record)}", over_text, style="dim", wrap=False),
            Column("by", lambda rung: " … ".join(filter(None, (rung.below, rung.above))), "left", style="dim"),
        ],
        rungs,
        group=lambda rung: (rung.layer, rung.head, rung.n),
        caption="\n".join(_sentences(rungs, input_word(record))),
    )


def _factor(log_ratio: float) -> str:
    """Return a factor with enough digits to tell it from 1.

    Example:
        >>> _factor(math.log(1.0004)), _factor(math.log(5.14))
        ('×1.0004', '×5.14')
    """
    if log_ratio < math.log(1.1):
        return f"×{math.exp(log_ratio):.4f}"
    return ratio_text(log_ratio) if log_ratio > math.log(1e3) else f"×{number(math.exp(log_ratio), 3)}"


def _sentences(rungs: Sequence[Rung], word: str) -> Iterator[str]:
    """Say what is known on the ball, over all maps and lengths of the table."""
    ball = [rung for rung in rungs if rung.tokens.startswith("ball")]
    if known := [_factor(rung.log_ratio)[1:] for rung in ball if rung.log_ratio is not None]:
        yield f"On the ball the constant is known to a factor of {_between(known)}."
    if far := [ratio_text(rung.log_over_text)[1:] for rung in ball if rung.log_over_text is not None]:
        subject = "The text is" if word == "text" else "The tokens measured are"
        yield f"{subject} at least {_between(far)} times below the worst case there."
    if any("ours" in rung.below + rung.above for rung in rungs):
        yield "ours: a statement of this project, with its proof."


def _between(numbers: Sequence[str]) -> str:
    """Return the smallest and the largest of numbers as text."""
    ordered = sorted(dict.fromkeys(numbers), key=lambda text: float(text.replace(",", "").replace("10^", "1e")))
    return " … ".join(dict.fromkeys((ordered[0], ordered[-1])))


def _maps(records: Sequence[dict[str, Any]]) -> list[tuple[int, int | None, int]]:
    keys = dict.fromkeys((record["layer"], record["head"], record["n"]) for record in records)
    return sorted(keys, key=none_first)


def _rungs(key: tuple[int, int | None, int], records: Sequence[dict[str, Any]]) -> Iterator[Rung]:
    """Yield the rungs of one map at one length, from the text to the ball."""
    here = [record for record in records if (record["layer"], record["head"], record["n"]) == key]
    bounds, balls, worst = ([record for record in here if record["kind"] == kind] for kind in KINDS)
    measured = max((_estimate_of(record) for record in here), key=lambda estimate: estimate["value"])
    text = _log(measured["value"])
    limit = None if measured["upper"] is None else _log(measured["upper"])
    yield Rung(*key, f"the {input_word(here[0])}", text, limit, "measured", "" if limit is None else "certified", text)
    for norm, eps in sorted({(record.get("norm", "token"), record["eps"]) for record in balls}):
        at = [record for record in balls if (record.get("norm", "token"), record["eps"]) == (norm, eps)]
        near_text = f"within {eps:g} of it" if norm == "token" else f"within {eps:g} in all"
        near = max(_log(record["found"]["value"]) for record in at)
        limits = [record["log_certified"] for record in at]
        certified = None if None in limits else max(limits)  # for the text with the largest constant, whichever it is
        by = "" if certified is None else "certified (ours)"
        yield Rung(*key, near_text, near, certified, "ascent", by, text)
    holding = [bound for bound in bounds if bound["holds"] in _ON_BALL and bound["log_value"] is not None]
    lower, below = _best([bound for bound in holding if bound["side"] == "lower"], max)
    upper, above = _best([bound for bound in holding if bound["side"] == "upper"], min)
    for within, words in (("norm", "normalised"), ("sphere", "sphere"), ("ball", "ball")):
        searches = [record for record in worst if record["within"] == within]
        if searches:
            # A record of a search holds the smallest upper bound on its own set.
            stored = [{"bound": record["upper_bound"]["name"], **record["upper_bound"]} for record in searches]
            limits = [_best([bound for bound in stored if bound["log_value"] is not None], min), (upper, above)]
            limit, by = min((one for one in limits if one[0] is not None), default=(None, ""))
            yield Rung(*key, f"{words}, by ascent", max(_log(r["value"]) for r in searches), limit, "ascent", by, text)
    if holding:
        words = f"ball, R = {number(holding[0]['R'], 3)}"
        yield Rung(*key, words, lower, upper, below, above, text)


def _best(bounds: Sequence[dict[str, Any]], choose: Callable[..., dict[str, Any]]) -> tuple[float | None, str]:
    """Return the logarithm of the best bound, and its name, with a word if it is this project's own."""
    if not bounds:
        return None, ""
    bound = choose(bounds, key=lambda bound: bound["log_value"])
    ours = (bound.get("reference") or "").startswith(_BY_PROJECT)
    return bound["log_value"], bound_title(bound) + (" (ours)" if ours else "")


def _estimate_of(record: dict[str, Any]) -> dict[str, Any]:
    """Return the estimate at the text."""
    estimate: dict[str, Any] = record[{"bound": "measured", "ball": "centre", "worst case": "on_text"}[record["kind"]]]
    return estimate


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
