"""Mitigations on the terminal: how much smoother, how much harder to attack, and the price."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from howsmooth.report.rows import model_name, number
from howsmooth.report.table import plain_table


def mitigation_table(records: Sequence[dict[str, Any]]) -> Table:
    """One row per layer and mitigation, the rows of all layers at once last."""
    first = records[0]
    table = plain_table(Text(f"{model_name(first['model'])}: mitigations, n = {first['n']}, attacked with "
                             f"{first['budget']:g} of ‖X‖", style="bold cyan"))
    table.add_column("layer", justify="right")
    table.add_column("mitigation", no_wrap=True)
    table.add_column("σ₁ before", justify="right", style="dim")
    table.add_column("after", justify="right", style="bold green")
    table.add_column("attack's change", justify="right")
    table.add_column("output apart", justify="right")
    table.add_column("cosine", justify="right")
    has_loss = any(record["loss_after"] is not None for record in records)
    if has_loss:
        table.add_column("loss", justify="right")
    for index, record in enumerate(records):
        last = index + 1 == len(records) or records[index + 1]["layer"] != record["layer"]
        layer = "together" if record["layer"] is None else str(record["layer"])
        apart = "" if record["output_apart"] is None else f"{100 * record['output_apart']:.0f} %"
        loss = [f"{record['loss_before']:.2f} → {record['loss_after']:.2f}"] if has_loss else []
        sigmas = ("", "") if record["constant_ratio"] is None else (number(record["before"]["value"]),
                                                                    number(record["after"]["value"]))
        table.add_row(layer, record["mitigation"], *sigmas, f"× {record['attack_ratio']:.2f}", apart,
                      f"{record['cosine']:.3f}", *loss, end_section=last)
    return table
