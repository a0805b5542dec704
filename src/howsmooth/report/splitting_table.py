"""Mass splitting on the terminal: heads and layers, repeated tokens, which maps split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from howsmooth.lipschitz.splitting import SPLITS, UNDECIDED
from howsmooth.report.rows import interval, model_name, number, token
from howsmooth.report.table import plain_table


def splitting_table(records: Sequence[dict[str, Any]]) -> Table:
    """One row per layer and length: how many maps split, and the one that comes nearest or goes furthest."""
    first = records[0]
    what = {"head": "heads", "attention": "attention layers", "layer": "Transformer layers", "block": "blocks",
            "normed": "normed attention layers"}[first["map"]]
    table = plain_table(Text(f"{model_name(first['model'])}: mass splitting in its {what} on {_text(first)}",
                             style="bold cyan"))
    table.add_column("layer", justify="right")
    table.add_column("n", justify="right", style="bold")
    table.add_column("split", justify="right", style="bold green")
    table.add_column("undecided", justify="right", style="dim")
    table.add_column("largest ratio", justify="right", style="bold")
    table.add_column("between", no_wrap=True)
    table.add_column("‖D‖", justify="right")
    table.add_column("own", justify="right")
    table.add_column("at")
    groups: dict[tuple, list[dict]] = {}
    for record in records:
        groups.setdefault((record["layer"], record["n"]), []).append(record)
    for (layer, n), group in sorted(groups.items()):
        top = max(group, key=lambda record: record["ratio"])
        head = "" if top["head"] is None else f"head {top['head']}, "
        table.add_row(str(layer), str(n), f"{_count(group, SPLITS)} of {len(group)}", str(_count(group, UNDECIDED)),
                      number(top["ratio"]), interval(top["ratio_lower"], top["ratio_upper"], 4),
                      number(top["norm"]["value"]), number(top["own"]),
                      Text(head).append(token(top["token"]), style="magenta").append(f" @{top['atom']}", style="dim"))
    total = _count(records, SPLITS)
    table.caption = Text(f"{total} of {len(records)} split. Ratio: max over tokens of ‖∂₁G(x_i, μ)‖ (own) to ‖D‖; "
                         "above 1, repeated tokens are rougher", style="dim")
    table.caption_justify = "left"
    return table


def repeated_table(records: Sequence[dict[str, Any]]) -> Table:
    """What repeating one token does to the constant: over all tokens of a text, layer by layer."""
    first = records[0]
    table = plain_table(Text(f"{model_name(first['model'])}: one token said {first['copies']} times, Lip of the "
                             f"{first['map']} on {_text(first)}", style="bold cyan"))
    for name in ("layer", "n"):
        table.add_column(name, justify="right")
    table.add_column("Lip before", justify="right", style="bold green")
    for name in ("next position", "kept position"):
        table.add_column(f"{name}: most", justify="right", style="bold")
        table.add_column("token")
        table.add_column("mean", justify="right")
        table.add_column("least", justify="right", style="dim")
    groups: dict[tuple, list[dict]] = {}
    for record in records:
        groups.setdefault((record["layer"], record["n"]), []).append(record)
    for (layer, n), group in sorted(groups.items()):
        cells: list[str | Text] = [str(layer), str(n), number(group[0]["before"]["value"])]
        for which in ("next_over_before", "kept_over_before"):
            top = max(group, key=lambda record: record[which])
            values = [record[which] for record in group]
            cells += [f"× {top[which]:.4f}", Text(token(top["token"]), style="magenta").append(f" @{top['position']}"),
                      f"× {sum(values) / len(values):.4f}", f"× {min(values):.4f}"]
        table.add_row(*cells)
    return table


def which_table(records: Sequence[dict[str, Any]]) -> Table:
    """Which maps split at all."""
    table = plain_table(Text("Which maps split? ratio = max_i ‖∂₁G(x_i, μ)‖ / ‖D‖", style="bold cyan"))
    table.add_column("map")
    table.add_column("measure")
    for name in ("‖D‖", "after splitting"):
        table.add_column(name, justify="right")
    table.add_column("ratio", justify="right", style="bold green")
    table.add_column("limit", no_wrap=True)
    for index, record in enumerate(records):
        last = index + 1 == len(records) or records[index + 1]["kind"] != record["kind"]
        ratio = "∞" if record["ratio"] > 1e9 else number(record["ratio"], 5)
        table.add_row(record["kind"], record["where"], number(record["norm"]), number(record["after"]), ratio,
                      record["limit"], end_section=last)
    return table


def _count(records: Sequence[dict[str, Any]], verdict: str) -> int:
    return sum(record["verdict"] == verdict for record in records)


def _text(record: dict[str, Any]) -> str:
    return "the embedded text" if record["text"] == "embedded" else record["text"]
