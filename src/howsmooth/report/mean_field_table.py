"""Attention on measures on the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from howsmooth.report.bound_rows import LOG10, magnitude, times
from howsmooth.report.rows import number
from howsmooth.report.table import plain_table

_SHOWN_LENGTHS = 2
_VERDICTS = {"true": "green", "false": "bold red", "open": "yellow"}


def regimes_table(records: Sequence[dict[str, Any]]) -> Table:
    """One row per γR²: the constant at a few lengths, where growth ends, and between which bounds it does."""
    sign = "−1" if records[0]["scores"] == "negative" else "+1"
    table = plain_table(Text("Largest constant of n tokens at two places in the ball, exact "
                             f"(d = 1, A = {sign}, V = 1)", style="bold cyan"))
    lengths = sorted({record["log_n"] for record in records})
    last = len(lengths) - 1
    shown = sorted({lengths[round(i * last / _SHOWN_LENGTHS)] for i in range(_SHOWN_LENGTHS + 1)})
    table.add_column("γR²", justify="right", style="bold", no_wrap=True, min_width=3)
    for log_n in shown:
        table.add_column(f"n = {magnitude(log_n)}", justify="right", no_wrap=True)
    table.add_column("plateau", justify="right", style="bold green", no_wrap=True)
    table.add_column("from n* on", justify="right", no_wrap=True)
    table.add_column("≥ two Diracs", justify="right", style="dim", no_wrap=True)
    table.add_column("≤ for all n", justify="right", style="dim", no_wrap=True)
    table.add_column("apart", justify="right", no_wrap=True, min_width=5)
    for size in dict.fromkeys(record["gamma_r2"] for record in records):
        chosen = {record["log_n"]: record for record in records if record["gamma_r2"] == size}
        one = next(iter(chosen.values()))
        cells = [scientific(chosen[log_n]["log_value"]) if log_n in chosen else "" for log_n in shown]
        ends = (one[name] for name in ("log_plateau", "log_crossover", "log_two_dirac", "log_n_free"))
        table.add_row(f"{size:g}", *cells, *(scientific(end) for end in ends),
                      times(one["log_n_free"] - one["log_plateau"]))
    return table


def masked_table(records: Sequence[dict[str, Any]]) -> Table:
    """One row per a and p: attained, proved, and what becomes of "the same bound as unmasked"."""
    table = plain_table(Text(f"Masked attention in d_p (d = 1, A = −a, V = 1, R = 1), up to {records[0]['n']} atoms",
                             style="bold cyan"))
    table.add_column("a", justify="right", style="bold")
    table.add_column("p", justify="right", style="bold")
    table.add_column("running mean", justify="right", style="dim")
    table.add_column("≥ attained", justify="right", style="bold green")
    table.add_column("≤ proved", justify="right", style="bold green")
    table.add_column("apart", justify="right")
    table.add_column("unmasked says", justify="right", style="dim")
    table.add_column("as stated", justify="right")
    table.add_column("which is", no_wrap=True)
    for index, record in enumerate(records):
        last = index + 1 == len(records) or records[index + 1]["a"] != record["a"]
        bound, p = record["log_bound"], "∞" if record["p"] == "inf" else f"{record['p']:g}"
        apart = "" if bound is None else times(bound - math.log(record["attained"]))
        verdict = Text(record["verdict"], style=_VERDICTS[record["verdict"]])
        table.add_row(f"{record['a']:g}", p, number(record["running_mean"]), number(record["attained"]),
                      "none" if bound is None else magnitude(bound, 4), apart, number(record["unmasked"]),
                      magnitude(math.log(record["stated"]), 4), verdict, end_section=last)
    return table


def scientific(log_value: float) -> str:
    """A number given by its logarithm: plain up to a million, then with the power of ten.

    >>> scientific(math.log(65.3)), scientific(100.0), scientific(0.0)
    ('65.3', '2.69·10^43', '1.00')
    """
    if log_value < math.log(1e6):
        return magnitude(log_value)
    power = math.floor(log_value / LOG10)
    return f"{math.exp(log_value - power * LOG10):.2f}·10^{power}"
