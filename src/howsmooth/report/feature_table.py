"""Feature-space attacks on the terminal: what each gained, beside σ₁, noise and what is certified."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from howsmooth.report.rows import model_name, number
from howsmooth.report.table import plain_table

_WHAT = {"output": "the output", "next-token": "the next token", "cosine": "the embedding"}
_UNIT = {"output": "change", "next-token": "KL, nats", "cosine": "cosine"}


def feature_table(records: Sequence[dict[str, Any]]) -> Table:
    """One row per attack, those of one place and budget together."""
    first = records[0]
    unit = "‖X‖" if first["budget"]["norm"] == "frobenius" else "the mean |x_i|, for each token"
    few = "" if first["budget"]["tokens"] is None else f", on {first['budget']['tokens']} tokens at most"
    aim = _WHAT[first["objective"]["name"]]
    title = f"{model_name(first['model'])}, {first['map']}: attacks on {aim}; budgets are shares of {unit}{few}"
    table = plain_table(Text(title, style="bold cyan"))
    shown = [name for name in ("layer", "head", "n", "sample") if _differs(records, name) or name in ("layer", "n")]
    shown = [name for name in shown if any(record[name] is not None for record in records)]
    for name in shown:
        table.add_column(name, justify="right")
    table.add_column("budget", justify="right", style="bold")
    table.add_column("attack", no_wrap=True)
    table.add_column("gain", justify="right", style="bold green")
    table.add_column("σ₁", justify="right", style="dim")
    table.add_column("of σ₁", justify="right")
    table.add_column("over noise", justify="right")
    certified = any(record["certified"] is not None for record in records)
    if certified:
        table.add_column("≤ certified", justify="right", style="dim")
    table.add_column(_UNIT[first["objective"]["name"]], justify="right")
    table.add_column("calls", justify="right", style="dim")
    for index, record in enumerate(records):
        last = index + 1 == len(records) or _place(records[index + 1]) != _place(record)
        sigma = record["sigma"]["value"]
        split = f", n = {record['attacked_n']}" if record["attacked_n"] != record["n"] else ""
        mark = " !" if record["status"] != "fine" else ""
        table.add_row(
            *(str(record[name]) for name in shown), f"{record['share']:g}", record["attack"]["name"] + split,
            number(record["gain"]) + mark, number(sigma), f"{100 * record['gain'] / sigma:.0f} %" if sigma else "",
            f"× {number(record['gain'] / record['noise_gain'], 3)}" if record["noise_gain"] else "",
            *([number(record["certified"])] if certified else []), _reading(record), str(record["calls"]),
            end_section=last)
    return table


def _reading(record: dict[str, Any]) -> str:
    text = number(record["attacked"])
    flips = record.get("flips")
    return text if not flips else f"{text}, flipped" if record["positions"] == 1 else f"{text}, {flips} flips"


def _differs(records: Sequence[dict[str, Any]], name: str) -> bool:
    return len({record[name] for record in records}) > 1


def _place(record: dict[str, Any]) -> tuple:
    return tuple(record[name] for name in ("layer", "head", "n", "sample", "share"))
