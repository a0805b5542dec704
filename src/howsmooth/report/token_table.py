"""Attacks on tokens on the terminal: each text with its difference, and the methods side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from howsmooth.report.diff import diff_text
from howsmooth.report.rows import model_name
from howsmooth.report.table import plain_table

_WHAT = {"flip": "margin of another next token, logits", "kl": "KL of the next token, nats",
         "hidden": "relative change of hidden states", "cosine": "1 − cosine of embeddings"}


def token_tables(records: Sequence[dict[str, Any]]) -> RenderableType:
    """The best attack on each text, then the methods."""
    return Group(*best_per_text(records), methods_table(records))


def best_per_text(records: Sequence[dict[str, Any]]) -> list[Text]:
    """For every text its best attack: a success with the fewest calls, or else the largest value."""
    groups: dict[int, list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault(record["piece"], []).append(record)
    return [attack_lines(min(group, key=lambda r: (not r["success"], r["calls"] if r["success"] else -r["value"])))
            for group in groups.values()]


def attack_lines(record: dict[str, Any]) -> Text:
    """One attack as a headline and the difference beneath it."""
    done = record["success"]
    verdict = ("flipped" if record["objective"]["name"] == "flip" else "succeeded") if done else "best found"
    if not record["verified"]:
        verdict = "NOT VERIFIED"
    lines = Text()
    lines.append(f"{record['text']} {record['piece']}", style="bold cyan")
    lines.append(f"  {record['method']['name']}: ", style="dim")
    lines.append(verdict, style="bold green" if done and record["verified"] else "yellow")
    lines.append(f" in {record['calls']} calls, {record['clean']:.3g} → {record['value']:.3g}", style="dim")
    if record["says"]:
        lines.append("   next: {!r} → {!r}".format(*record["says"]))
    if record["round_trips"] is False:
        lines.append("   reads as other tokens", style="yellow")
    return lines.append("\n  ").append(diff_text(record)).append("\n")


def methods_table(records: Sequence[dict[str, Any]]) -> Table:
    """Methods at the same edit budget and the same limit of calls: successes, and successes per call."""
    first = records[0]
    objective, edits = first["objective"]["name"], first["limits"]["edits"]
    table = plain_table(Text(f"{model_name(first['model'])}: {_WHAT[objective]}; {counted(edits, 'edit')}, "
                             f"at most {first['budget']} calls", style="bold cyan"))
    judged = first["objective"]["threshold"] is not None
    table.add_column("method", style="bold")
    table.add_column("texts", justify="right")
    if judged:
        table.add_column("verified successes", justify="right", style="bold green")
    table.add_column("calls", justify="right")
    if judged:
        table.add_column("per 100 calls", justify="right")
    table.add_column("mean value", justify="right")
    if inverted := any("inversion" in record["notes"] for record in records):
        table.add_column("share captured", justify="right", style="dim")
    table.add_column("s per text", justify="right", style="dim")
    for name in dict.fromkeys(record["method"]["name"] for record in records):
        rows = [record for record in records if record["method"]["name"] == name]
        calls = sum(record["calls"] for record in rows)
        wins = sum(record["success"] and record["verified"] for record in rows)
        shares = [record["notes"]["inversion"]["share"] for record in rows if "inversion" in record["notes"]]
        table.add_row(name, str(len(rows)), *([str(wins)] if judged else []), str(calls),
                      *([f"{100 * wins / calls:.1f}"] if judged else []),
                      f"{sum(record['value'] for record in rows) / len(rows):.3g}",
                      *([f"{100 * sum(shares) / len(shares):.2g} %" if shares else ""] if inverted else []),
                      f"{sum(record['seconds'] for record in rows) / len(rows):.1f}")
    return table


def counted(number: int, thing: str) -> str:
    """A number of things.

    >>> counted(1, "text"), counted(2, "text")
    ('1 text', '2 texts')
    """
    return f"{number} {thing}" + ("" if number == 1 else "s")
