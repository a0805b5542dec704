"""Real depth on the terminal: how tokens are spread after each layer, and how a perturbation grows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from howsmooth.report.rows import FINE, interval, model_name, number, places, token
from howsmooth.report.table import confidence_text, plain_table


def depth_tables(records: Sequence[dict[str, Any]]) -> Group:
    """Two tables for each piece of text."""
    parts: list[Table] = []
    for _, group in groupby(records, key=piece):
        run = list(group)
        parts.append(_spread_table(run))
        if any(record["own"] is not None for record in run):
            parts.append(_growth_table(run))
    return Group(*parts)


def piece(record: dict[str, Any]) -> tuple:
    """Which piece of text a record is of."""
    return record["model"], record["n"], record["sample"]


def stage(record: dict[str, Any]) -> str:
    """How deep: the number of layers passed, or the norm after the last.

    >>> stage({"depth": 6, "normed": True})
    '6, norm'
    """
    return f"{record['depth']}, norm" if record["normed"] else str(record["depth"])


def _spread_table(run: Sequence[dict[str, Any]]) -> Table:
    first = run[0]
    text = "the embedded text" if first["text"] == "embedded" else first["text"]
    table = plain_table(Text(f"{model_name(first['model'])}: {first['n']} tokens of {text}"
                             + (f" (piece {first['sample'] + 1})" if first["sample"] else "")
                             + f", {first['distinct']} different ones, through {first['layers']} layers",
                             style="bold cyan"))
    table.add_column("layers", justify="right", style="bold")
    for heading in ("norm", "largest", "cosine", "eff. rank", "from mean"):
        table.add_column(heading, justify="right", no_wrap=True)
    tolerances = "/".join(f"{tol:g}" for tol in first["tolerances"])
    table.add_column("clusters", justify="right", style="bold green", no_wrap=True)
    table.caption = Text(f"clusters of directions closer than {tolerances}", style="dim")
    table.caption_justify = "left"
    sink = first["sink"] is not None
    if sink:
        for heading in ("cosine*", "from mean*", "to sink"):
            table.add_column(heading, justify="right", style="dim", no_wrap=True)
        table.caption.append(f"; * without the sink, the token that draws most attention: {token(first['sink_token'])} "
                             f"at {first['sink']}")
    for record in run:
        cells = [number(record[key], 3) for key in ("norm", "largest_norm", "cosine", "effective_rank", "to_mean")]
        cells.append(_counts(record["clusters"]))
        if sink:
            cells += [number(record["cosine_without_sink"], 3), number(record["to_mean_without_sink"], 3),
                      _cell(record["to_sink"], 2)]
        table.add_row(stage(record), *cells)
    return table


def _growth_table(run: Sequence[dict[str, Any]]) -> Table:
    moved = {"all": "", "no-special": ", special tokens held fixed", "no-first": ", first token held fixed"}
    table = plain_table(Text(f"{model_name(run[0]['model'])}: growth of a perturbation of the first tokens"
                             + moved[run[0]["tokens"]], style="bold cyan"))
    table.add_column("layers", justify="right", style="bold")
    table.add_column("this layer", justify="right")
    table.add_column("σ₁ of all so far", justify="right", style="bold green")
    table.add_column(f"interval, {confidence_text(_known(run))}", no_wrap=True)
    table.add_column("Π of layers", justify="right")
    table.add_column("relative", justify="right")
    table.add_column("it sits on")
    table.add_column("and arrives at")
    for record in run[1:]:
        doubt = "" if record["status"] in FINE else "! "
        known = record["value"] is not None
        bounds = interval(record["lower"], record["upper"], 4) if known else ""
        table.add_row(stage(record), number(record["own"]), doubt + number(record["value"]) if known else doubt, bounds,
                      _cell(record["product"], 3), _cell(record["relative"], 3), _where(record, "top_tokens"),
                      _where(record, "top_responses"))
    return table


def _counts(counts: Sequence[int]) -> str:
    return " / ".join(str(count) for count in counts)


def _known(run: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [record for record in run if record["own"] is not None]


def _where(record: dict[str, Any], key: str) -> str:
    if record[key] is None:
        return ""
    (word, position, share), *_ = places({"top_tokens": record[key]})
    return f"{word} @{position} {share:.0%}".replace("%", " %")


def _cell(value: float | None, digits: int) -> str:
    return "" if value is None else number(value, digits)
