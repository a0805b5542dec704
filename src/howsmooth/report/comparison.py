"""Comparisons of two models: constants with their intervals, what changed beyond them, and the worst directions."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from howsmooth.records.columns import group_by
from howsmooth.report.chart import LIPSCHITZ, Axis, Chart, Picture, Series
from howsmooth.report.rows import interval, largest_shares, model_name, none_first, number, plural_of, text_name
from howsmooth.report.table import Column, Table

_GROUP = ("model", "against", "map", "text")


def comparison_tables(records: Sequence[dict[str, Any]]) -> list[Table]:
    """Return a table for each pair of models: a row for each map and length, of the sample with the largest ratio."""
    return [_table(group) for group in group_by(records, *_GROUP).values()]


def _table(records: Sequence[dict[str, Any]]) -> Table:
    first = records[0]
    groups = group_by(records, "layer", "head", "n")
    rows = [groups[key] for key in sorted(groups, key=none_first)]
    a, b = model_name(first["model"]), model_name(first["against"])
    several = any(len(row) > 1 for row in rows)

    def both(row: Sequence[dict[str, Any]], of: str) -> str:
        return number(median(record[of]["value"] for record in row))

    return Table(
        f"{b} against {a}: Lip of their {plural_of(first['map'])} on {text_name(first)}",
        [
            Column("layer", lambda row: "all" if row[0]["layer"] is None else row[0]["layer"], key=True),
            Column("head", lambda row: row[0]["head"], when=any(row[0]["head"] is not None for row in rows), key=True),
            Column("n", lambda row: row[0]["n"], style="bold", key=True),
            Column("A", lambda row: both(row, "first"), wrap=False),
            Column("B", lambda row: both(row, "second"), wrap=False),
            Column("B/A", lambda row: number(_shown(row)["ratio"]["value"], 3), style="bold green", wrap=False),
            Column("interval", lambda row: _ratio_ends(_shown(row)), "left", wrap=False),
            Column("changed", _changed, "left", wrap=False),
            Column("angle", lambda row: f"{median(record['angle'] for record in row):.0f}°", wrap=False),
            Column("along", lambda row: f"{_along(row):.0%}".replace("%", " %"), wrap=False),
            Column("tokens", _tokens, "left", min_width=10),
        ],
        rows,
        group=lambda row: (row[0]["layer"], row[0]["head"]),
        caption=f"A is {a}, B is {b}"
        + ("; medians, and the ratio and tokens of the sample that changed most" if several else "")
        + "; changed: the intervals are apart; angle: between the worst directions; along: what B gains along that of "
        "A, as a share of B's constant.",
    )


def _shown(row: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the sample whose constants differ most."""
    return max(row, key=lambda record: max(record["ratio"]["value"], 1 / max(record["ratio"]["value"], 1e-300)))


def _ratio_ends(record: dict[str, Any]) -> str:
    return str(interval(record["ratio"]["lower"], record["ratio"]["upper"], 3))


def _changed(row: Sequence[dict[str, Any]]) -> str:
    count = sum(record["changed"] for record in row)
    if len(row) > 1:
        return f"{count} of {len(row)}"
    return "no" if not count else "larger" if row[0]["ratio"]["value"] > 1 else "smaller"


def _along(row: Sequence[dict[str, Any]]) -> float:
    return median(record["along"] / max(record["second"]["value"], 1e-300) for record in row)


def _tokens(row: Sequence[dict[str, Any]]) -> str:
    record = _shown(row)
    tops = [record["top_tokens"], record["other_tokens"]]
    words = [f"{word} @{place}" for top in tops for word, place, _ in largest_shares({"top_tokens": top}, 1)]
    return " → ".join(dict.fromkeys(words))


def comparison_picture(records: Sequence[dict[str, Any]]) -> Picture:
    """Return for each pair of models the constants of both by layer, and the angles, at the greatest length."""
    charts = []
    for group in group_by(records, *_GROUP).values():
        longest = max(record["n"] for record in group)
        shown = [record for record in group if record["n"] == longest]
        charts += _charts(shown, longest)
    return Picture(charts, columns=2, height=4.4)


def _charts(records: Sequence[dict[str, Any]], n: int) -> list[Chart]:
    a, b = model_name(records[0]["model"]), model_name(records[0]["against"])
    maps = sorted({(record["layer"], record["head"]) for record in records}, key=none_first)
    names = ["all" if layer is None else f"{layer}" if head is None else f"{layer}.{head}" for layer, head in maps]
    at = {place: index for index, place in enumerate(maps)}
    x = [at[record["layer"], record["head"]] for record in records]
    axis = Axis("layer" if maps[0][1] is None else "layer.head", tick_labels=names)
    series = [
        Series(
            x,
            [record[of]["value"] for record in records],
            [record[of]["lower"] for record in records],
            [record[of]["upper"] for record in records],
            label=name,
            has_samples=True,
            show_markers=True,
            linestyle="solid",
        )
        for of, name in (("first", a), ("second", b))
    ]
    angles = Series(
        x, [record["angle"] for record in records], label="", has_samples=True, show_markers=True, linestyle="solid"
    )
    return [
        Chart(
            f"{a} and {b}, n = {n}",
            axis,
            Axis(LIPSCHITZ, "log"),
            series,
            caption="The constants of both models, each at the tokens that enter it there; bars are their intervals.",
        ),
        Chart(
            "Between the worst directions",
            axis,
            Axis("angle (degrees)", lower_limit=0.0, upper_limit=95.0),
            [angles],
            caption="90° means that the directions have nothing in common.",
        ),
    ]
