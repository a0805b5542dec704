"""Records as tables with one row each: the downloads of the HTML report, and `--tables`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from howsmooth.fits import growth_laws
from howsmooth.records import CURVE
from howsmooth.records.columns import Records, fields, group_by, where
from howsmooth.records.lines import PER_TOKEN, replace_non_finite
from howsmooth.records.provenance import provenance
from howsmooth.report.rows import bound_title, measured_with_bounds, scope_text
from howsmooth.report.table import Column, Table

_MEASUREMENT_FIELDS = (
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
_MAP_FIELDS = ("model", "text", "map", "layer", "head", "n")
_MAX_SHARES = 120_000  # in one page, to limit its size
_OWN_TABLES = ("measurement", "bound", "worst case", "ball")  # kinds whose tables have chosen columns
_PER_RECORD = ("kind", "schema", "task", "source")  # fields that say nothing about the result


def tables_of(records: Sequence[dict[str, Any]]) -> dict[str, Table]:
    """Return the tables that the records fill, by name: measurements, laws, bounds, worst-cases, balls, directions.

    Records of other questions have a table for each kind.

    Args:
        records: Records in any mixture, as `howsmooth.read` returns them.
    """
    kinds = {kind: group for (kind,), group in group_by(records, "kind").items()}
    bounds, measured = kinds.get("bound", []), kinds.get("measurement", [])
    if bounds:
        measured = Records(chain(measured, measured_with_bounds(bounds, measured)))
    of_measured = Table.of_fields(measured, (*CURVE, *_MEASUREMENT_FIELDS))
    tables = {
        "measurements": replace(of_measured, columns=[*of_measured.columns, *_TOP_TOKENS]),
        "laws": _laws(measured),
        "bounds": Table.of_fields(
            [_bound(record) for record in bounds],
            (
                *_MAP_FIELDS,
                "sample",
                "bound",
                "title",
                "side",
                "holds",
                "scope",
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
                *_MAP_FIELDS,
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
                *_MAP_FIELDS,
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
    return {name: table for name, table in tables.items() if len(table)} | record_tables(records)


def _top_token(rank: int, what: str) -> Column:
    """Return the column of the position, the token or the share with so many larger shares."""

    def cell(record: dict[str, Any]) -> Any:
        top = record.get("top_tokens") or []
        return replace_non_finite(top[rank].get(what)) if rank < len(top) else None

    return Column(f"{what}_{rank + 1}", cell)


_TOP_TOKENS = [_top_token(rank, what) for rank in range(3) for what in ("position", "token", "share")]


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
        "title": bound_title(record),
        "scope": None if record["holds"] is None else scope_text(record),
        "measured": measured["value"],
        "measured_lower": measured["lower"],
        "measured_upper": measured["upper"],
        "conditions": "; ".join(record.get("conditions", [])),
    }


def _worst_case(record: dict[str, Any]) -> dict[str, Any]:
    bound = record["upper_bound"]
    return {
        **record,
        "on_text": record["on_text"]["value"],
        "upper_bound": bound["name"],
        "upper_bound_value": bound["value"],
        "log_upper_bound": bound["log_value"],
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
    """Return for each curve the sample with the largest constant at the greatest length, with tokens and shares.

    If they exceed `_MAX_SHARES` tokens in all, those with the largest constants are kept.
    """
    chunk = ("model", "text_sha256", "special_tokens", "n", "sample")
    with_shares = where(measurements, bool, "shares")
    with_words = where(measurements, bool, "words")
    index_of = {key: index for index, key in enumerate(fields(with_words, *chunk))}
    worst: dict[tuple, tuple[tuple[int, float], int, int]] = {}
    found = zip(
        fields(with_shares, *CURVE), fields(with_shares, "n", "value"), fields(with_shares, *chunk), strict=True
    )
    for index, (key, (n, value), where_from) in enumerate(found):
        rank = (n, value or 0.0)
        if where_from in index_of and (key not in worst or rank > worst[key][0]):
            worst[key] = rank, index, index_of[where_from]
    kept: dict[tuple, dict[str, Any]] = {}
    size = 0
    for key, (_, index, words_index) in sorted(worst.items(), key=lambda item: -item[1][0][1]):
        record = {**with_shares[index], "words": with_words[words_index]["words"]}
        if len(record["words"]) == len(record["shares"]):
            size += len(record["shares"])
            if size <= _MAX_SHARES or not kept:
                kept[key] = record
    return [kept[key] for key in worst if key in kept]


def one_row_per_token(directions: Table) -> Table:
    """Return the table of directions without nested lists, with a row for each token."""
    rows = []
    for row in directions.rows:
        rows += [
            {**row, "position": i, "token": word, "share": share}
            for i, (word, share) in enumerate(zip(row["words"], row["shares"], strict=True))
        ]
    return Table.of_fields(
        rows, (*(name for name in directions.headings if name not in PER_TOKEN), "position", "token", "share")
    )


def record_tables(records: Sequence[dict[str, Any]]) -> dict[str, Table]:
    """Return a table of numbers, words and truth values for each kind of record that has none of its own."""
    hidden = {*_PER_RECORD, *provenance()}
    others = where(records, lambda kind: kind not in _OWN_TABLES, "kind")
    return {
        kind.replace(" ", "-").removesuffix("s") + "s": Table.of_fields(group, _flat_fields(group, hidden))
        for (kind,), group in group_by(others, "kind").items()
    }


def _flat_fields(records: Sequence[dict[str, Any]], hidden: set[str]) -> list[str]:
    names = dict.fromkeys(name for record in records for name in record if name not in hidden)
    return [name for name in names if not any(isinstance(record.get(name), (list, dict, tuple)) for record in records)]
