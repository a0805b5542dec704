"""Records as tables: what the page draws, what its buttons save and what `--csv` writes are these and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from howsmooth.fits import growth_laws
from howsmooth.records import CURVE, PER_TOKEN
from howsmooth.report.table import Table

_MEASURED = (
    "n",
    "sample",
    "value",
    "lower",
    "upper",
    "confidence",
    "residual",
    "status",
    "steps",
    "radius",
    "mean_radius",
    "relative",
    "seconds",
    "dtype",
    "seed",
)
_NAMED = 3  # tokens of a direction in the table of measurements
_MAP = ("model", "text", "map", "layer", "head", "n")
_MOST_SHARES = 120_000  # of the directions in one page, which keeps it small
_NOWHERE = {"position": None, "token": None, "share": None}


def packed(table: Table) -> dict[str, Any]:
    """The columns as the page reads them: one value for all rows, numbers of distinct values, or a plain list.

    >>> packed(Table.of_fields([{"n": 8, "x": 1.5}, {"n": 8, "x": 2.5}], ["n", "x"]))
    {'rows': 2, 'columns': {'n': {'all': 8}, 'x': [1.5, 2.5]}}
    """
    return {"rows": len(table), "columns": {name: _packed(table.values(name)) for name in table.headings}}


def _packed(cells: list[Any]) -> Any:
    def key(cell):
        return (type(cell), tuple(cell) if isinstance(cell, list) else cell)

    numbers: dict[tuple, int] = {}
    at = [numbers.setdefault(key(cell), len(numbers)) for cell in cells]
    if len(numbers) == 1:
        return {"all": cells[0]}
    return {"of": [value for _, value in numbers], "at": at} if len(numbers) <= len(cells) / 3 else cells


def tables_of(records: Sequence[dict[str, Any]]) -> dict[str, Table]:
    """All tables that the records fill: measurements, laws, bounds, worst-cases, balls, directions."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        kinds.setdefault(record["kind"], []).append(record)
    bounds = kinds.get("bound", [])
    measured = [*kinds.get("measurement", []), *_measured_beside(bounds, kinds.get("measurement", []))]
    tables = {
        "measurements": Table.of_fields(
            [_measurement(record) for record in measured],
            (*CURVE, *_MEASURED, *(f"{what}_{i + 1}" for i in range(_NAMED) for what in _NOWHERE)),
        ),
        "laws": _laws(measured),
        "bounds": Table.of_fields(
            [_bound(record) for record in bounds],
            (
                *_MAP,
                "sample",
                "bound",
                "side",
                "holds",
                "value",
                "log_value",
                "ratio",
                "log_ratio",
                "measured",
                "measured_lower",
                "measured_upper",
                "R",
                "radius_from",
                "refused",
                "reference",
                "conditions",
            ),
        ),
        "worst-cases": Table.of_fields(
            [_worst_case(record) for record in kinds.get("worst case", [])],
            (
                *_MAP,
                "within",
                "R",
                "eps",
                "on_text",
                "best_start",
                "value",
                "lower",
                "upper",
                "status",
                "over_text",
                "upper_bound",
                "upper_bound_value",
                "log_upper_bound",
                "masses",
            ),
        ),
        "balls": Table.of_fields(
            [_ball(record) for record in kinds.get("ball", [])],
            (
                *_MAP,
                "eps",
                "at_text",
                "found",
                "found_lower",
                "found_upper",
                "certified",
                "log_certified",
                "tightness",
                "method",
                "vacuous_eps",
                "status",
            ),
        ),
        "directions": Table.of_fields(
            directions_of(kinds.get("measurement", [])), (*CURVE, "n", "sample", "value", "words", "shares")
        ),
    }
    return {name: table for name, table in tables.items() if len(table)}


def _measured_beside(bounds: list[dict], measurements: list[dict]) -> Iterable[dict[str, Any]]:
    """The constants that stand beside bounds, each once, unless they were measured by themselves as well."""

    def place(record):
        return tuple(record.get(name) for name in (*CURVE, "n", "sample"))

    seen = {place(record) for record in measurements}
    for record in bounds:
        if place(record) not in seen:
            seen.add(place(record))
            yield {**{name: record.get(name) for name in (*CURVE, "n", "sample")}, **record["measured"]}


def _measurement(record: dict[str, Any]) -> dict[str, Any]:
    top = [*record.get("top_tokens", [])[:_NAMED], *[_NOWHERE] * _NAMED]
    return {**record, **{f"{what}_{i + 1}": top[i].get(what) for i in range(_NAMED) for what in _NOWHERE}}


def _laws(measured: Sequence[dict[str, Any]]) -> Table:
    rows = []
    for key, law in growth_laws(measured).items():
        ends = {"exponent": law.exponent_interval, "constant": law.constant_interval}
        rows.append(
            {
                **dict(zip(CURVE, key, strict=True)),
                **law.as_record(),
                "law": law,
                **{
                    f"{name}_{end}": pair and pair[i]
                    for name, pair in ends.items()
                    for i, end in enumerate(("low", "high"))
                },
            }
        )
    return Table.of_fields(
        rows,
        (
            *CURVE,
            "exponent",
            "exponent_low",
            "exponent_high",
            "constant",
            "constant_low",
            "constant_high",
            "confidence",
            "points",
            "lengths",
            "best",
            "is_power_law",
            "shown",
            "verdict",
        ),
    )


def _bound(record: dict[str, Any]) -> dict[str, Any]:
    measured = record["measured"]
    return {
        **record,
        "measured": measured["value"],
        "measured_lower": measured["lower"],
        "measured_upper": measured["upper"],
        "conditions": "; ".join(record.get("conditions", [])),
    }


def _worst_case(record: dict[str, Any]) -> dict[str, Any]:
    ceiling = record["upper_bound"]
    return {
        **record,
        "on_text": record["on_text"]["value"],
        "upper_bound": ceiling["name"],
        "upper_bound_value": ceiling["value"],
        "log_upper_bound": ceiling["log_value"],
        "masses": " + ".join(map(str, record.get("masses", []))),
    }


def _ball(record: dict[str, Any]) -> dict[str, Any]:
    found = record["found"]
    return {
        **record,
        "at_text": record["centre"]["value"],
        "found": found["value"],
        "found_lower": found["lower"],
        "found_upper": found["upper"],
    }


def directions_of(measurements: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each curve the most sensitive sample at the greatest length, with its words and the share of each.

    Where there are more than a page should hold, those with the largest constants stay.
    """

    def piece(record):
        return tuple(record.get(name) for name in ("model", "text_sha256", "special_tokens", "n", "sample"))

    words = {piece(record): record["words"] for record in measurements if record.get("words")}
    worst: dict[tuple, dict[str, Any]] = {}
    for record in measurements:
        if record.get("shares") and len(words.get(piece(record), ())) == len(record["shares"]):
            key = tuple(record.get(name) for name in CURVE)
            if key not in worst or _rank(record) > _rank(worst[key]):
                worst[key] = record
    kept: set[tuple] = set()
    size = 0
    for key, record in sorted(worst.items(), key=lambda item: -_rank(item[1])[1]):
        size += len(record["shares"])
        if size <= _MOST_SHARES or not kept:
            kept.add(key)
    return [{**record, "words": words[piece(record)]} for key, record in worst.items() if key in kept]


def one_row_per_token(directions: Table) -> Table:
    """The directions as a table without nesting: a row for each token of each."""
    rows = []
    for row in directions.rows:
        rows += [
            {**row, "position": i, "token": word, "share": share}
            for i, (word, share) in enumerate(zip(row["words"], row["shares"], strict=True))
        ]
    return Table.of_fields(
        rows, (*(name for name in directions.headings if name not in PER_TOKEN), "position", "token", "share")
    )


def _rank(record: dict[str, Any]) -> tuple[int, float]:
    return record["n"], record["value"] or 0.0
