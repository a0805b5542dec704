"""The table on the terminal: one row per map and length, then the growth with length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from howsmooth.report.rows import Row, exponent, interval, law, model_name, number, places, rows_of

if TYPE_CHECKING:
    from howsmooth.lipschitz import Growth


def measurements_table(records: Sequence[dict[str, Any]]) -> Table:
    """Lip with its interval, the radius and the place of the worst direction; of several samples the largest.

    A mark on a value says that a sample of this row did not reach the tolerance.
    """
    rows = rows_of(records)
    with_heads = any(row.head is not None for row in rows)
    samples = max((len(row.values) for row in rows), default=1)
    table = plain_table(_title(records))
    table.add_column("layer", justify="right")
    if with_heads:
        table.add_column("head", justify="right")
    table.add_column("n", justify="right", style="bold")
    if samples > 1:
        table.add_column("mean", justify="right", style="dim", no_wrap=True)
    table.add_column(
        "Lip" if samples == 1 else f"max of {samples}", justify="right", style="bold green", no_wrap=True
    )
    table.add_column(f"interval, {confidence_text(records)}", no_wrap=True)
    table.add_column("R", justify="right", no_wrap=True)
    table.add_column("worst direction sits on", min_width=16)  # the one column that may wrap
    doubts = sorted({status for row in rows for status in row.unfinished})
    if doubts:
        table.caption = Text(f"! not within the tolerance: {', '.join(doubts)}", style="yellow")
        table.caption_justify = "left"

    for index, row in enumerate(rows):
        last = index + 1 == len(rows)
        table.add_row(
            *_cells(row, with_heads, samples),
            end_section=last or (rows[index + 1].layer, rows[index + 1].head) != (row.layer, row.head),
        )
    return table


def plain_table(title: Text) -> Table:
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", title_justify="left",
                 title=title)


def growth_table(growth: dict[tuple, Growth]) -> Table:
    """Lip ~ C n^alpha for each map: the exponent with its standard error, and the fitted law."""
    # The table may be narrower than its title, which stays on one line all the same.
    table = plain_table(Text("Growth with length, Lip ≈ C nᵅ", style="bold cyan", no_wrap=True, overflow="ignore"))
    with_heads = any(head is not None for _, _, head in growth)
    table.add_column("layer", justify="right")
    if with_heads:
        table.add_column("head", justify="right")
    table.add_column("α", justify="right", style="bold green", no_wrap=True)
    table.add_column("fit", no_wrap=True)
    for (_, layer, head), fit in sorted(growth.items(), key=lambda item: (item[0][1], item[0][2] or 0)):
        head_cell = [str(head)] if with_heads else []
        table.add_row(str(layer), *head_cell, exponent(fit), law(fit))
    return table


def summary(records: Sequence[dict[str, Any]], growth: dict[tuple, Growth]) -> RenderableType:
    """Everything the terminal shows of a run: a table per model, the growth beneath it."""
    parts: list[RenderableType] = []
    for model in dict.fromkeys(record["model"] for record in records):
        parts.append(measurements_table([record for record in records if record["model"] == model]))
        fits = {key: fit for key, fit in growth.items() if key[0] == model}
        if fits:
            parts.append(growth_table(fits))
    return Group(*parts)


def confidence_text(records: Sequence[dict[str, Any]]) -> str:
    """The confidence of the intervals.

    >>> confidence_text([{"confidence": 0.999}])
    '99.9 % sure'
    """
    return f"{100 * min((record['confidence'] for record in records), default=1):.10g} % sure"


def _title(records: Sequence[dict[str, Any]]) -> Text:
    first = records[0]
    weights = f" ({first['weights']})" if first.get("weights") else ""
    what = {"attention": "attention layers", "head": "attention heads", "normed": "normed attention",
            "block": "attention blocks", "layer": "Transformer layers"}[first["map"]]
    moved = {"all": "", "no-special": ", special tokens held fixed", "no-first": ", first token held fixed"}
    text = "the embedded text" if first["text"] == "embedded" else first["text"]
    return Text(
        f"{model_name(first['model'])}{weights}: Lip of its {what} on {text}{moved[first['tokens']]}",
        style="bold cyan",
    )


def _cells(row: Row, with_heads: bool, samples: int) -> list[str | Text]:
    cells: list[str | Text] = [str(row.layer)]
    if with_heads:
        cells.append(str(row.head))
    cells.append(str(row.n))
    if samples > 1:
        cells.append(number(row.mean))
    worst = row.worst
    value = Text("! ", style="yellow") if row.unfinished else Text()
    cells += [
        value.append(number(worst["value"])),
        interval(worst["lower"], worst["upper"]),
        number(worst["radius"], 3),
        _where(worst),
    ]
    return cells


def _where(record: dict[str, Any]) -> Text:
    text = Text()
    for index, (word, position, share) in enumerate(places(record)):
        text.append("  " if index else "")
        text.append(word, style="magenta")
        text.append(f" @{position} ", style="dim")
        text.append(f"{share:.0%}".replace("%", " %"))
    return text
