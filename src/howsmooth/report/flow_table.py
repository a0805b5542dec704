"""Instruments over depth on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from howsmooth.report.rows import interval, number
from howsmooth.report.table import confidence_text, plain_table

_ROWS = 12
# key of the record, heading, digits (None: a whole number)
_COLUMNS = (
    ("clusters", "clusters", None), ("vertices", "hull vertices", None), ("hyperplanes", "hyperplanes", None),
    ("leading_clusters", "leading clusters", None), ("leading_vertices", "leading vertices", None),
    ("rank", "rank P", None), ("undecided", "P from 0/1", 2), ("diameter", "diameter", 4),
    ("w2_to_last", "W₂ to last", 3), ("log_energy", "log energy", 4), ("local", "Lip of Γ", 4),
)


def flow_table(records: Sequence[dict[str, Any]], title: str, renormalised: bool = False) -> Table:
    """About a dozen of the saved depths, evenly spread, with what the instruments see there.

    Renormalised tokens z move by ż, not by Γ: the local constant is that of ż.
    """
    table = plain_table(Text(title, style="bold cyan"))
    table.add_column("depth", justify="right", style="bold")
    columns = [column for column in _COLUMNS if any(record[column[0]] is not None for record in records)]
    for key, heading, _ in columns:
        heading = "Lip of ż" if key == "local" and renormalised else heading
        table.add_column(heading, justify="right", style="bold green" if key == "clusters" else "")
    last = len(records) - 1
    for index in dict.fromkeys(round(last * k / (_ROWS - 1)) for k in range(_ROWS)):
        record = records[index]
        table.add_row(f"{record['t']:.4g}", *(_cell(record[key], digits) for key, _, digits in columns))
    return table


def growth_of_perturbations_table(records: Sequence[dict[str, Any]], renormalised: bool = False) -> Table:
    """σ₁ of the flow's derivative beside the product of its layers' constants."""
    title = f"Growth of a perturbation through {records[-1]['maps']} residual layers" + (
        ", in x = e^{tV}z" if renormalised else "")
    table = plain_table(Text(title, style="bold cyan"))
    table.add_column("depth", justify="right", style="bold")
    table.add_column("σ₁ of the flow", justify="right", style="bold green")
    table.add_column(f"interval, {confidence_text(records)}", no_wrap=True)
    table.add_column("Π σ₁ of layers", justify="right")
    table.add_column("log σ₁ / depth", justify="right")
    table.add_column("Lip of the velocity", justify="right")
    for record in records:
        table.add_row(f"{record['depth']:.4g}", number(record["value"]), interval(record["lower"], record["upper"]),
                      number(record["product"]), number(record["exponent"], 3), number(record["local"]))
    return table


def _cell(value: Any, digits: int | None) -> str:
    return "" if value is None else str(value) if digits is None else number(value, digits)
