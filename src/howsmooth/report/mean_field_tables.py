"""Terminal tables for attention on measures: regimes, masked constants, distances, mass splitting."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from rich.text import Text

from howsmooth.lipschitz.splitting import SPLITS, UNDECIDED
from howsmooth.report.mean_field_charts import ratio, title
from howsmooth.report.rows import (
    interval,
    magnitude,
    model_name,
    none_first,
    number,
    plural_of,
    ratio_text,
    scientific,
    special_tokens_text,
    text_name,
    token,
)
from howsmooth.report.table import Column, Table

_SHOWN_LENGTHS = 2
_VERDICTS = {"true": "green", "false": "bold red", "open": "yellow"}
_KINDS = {"W": "tokens without positions", "d": "tokens with times"}


def regimes_tables(records: Sequence[dict[str, Any]]) -> list[Table]:
    """Return the table of regimes, with a row for each γR²: the constant at a few lengths, its plateau, and bounds."""
    sign = "−1" if records[0]["scores"] == "negative" else "+1"
    lengths = sorted({record["log_n"] for record in records})
    last = len(lengths) - 1
    shown = sorted({lengths[round(i * last / _SHOWN_LENGTHS)] for i in range(_SHOWN_LENGTHS + 1)})
    rows: dict[float, dict[float, dict[str, Any]]] = {}
    for record in records:
        rows.setdefault(record["gamma_r2"], {})[record["log_n"]] = record

    def length(log_n: float) -> Column:
        return Column(
            f"n = {magnitude(log_n)}",
            lambda row: scientific(row[log_n]["log_value"]) if log_n in row else "",
            wrap=False,
        )

    def common(heading: str, name: str, style: str = "") -> Column:
        return Column(heading, lambda row: scientific(_any(row)[name]), style=style, wrap=False)

    return [
        Table(
            f"Largest constant of n tokens at two points in the ball, exact (d = 1, A = {sign}, V = 1)",
            [
                Column("γR²", lambda row: f"{_any(row)['gamma_r2']:g}", style="bold", wrap=False, min_width=3),
                *map(length, shown),
                common("plateau", "log_plateau", "bold green"),
                common("from n* on", "log_crossover"),
                common("≥ two Diracs", "log_two_dirac", "dim"),
                common("≥ three points", "log_three_points"),
                common("≤ for all n", "log_n_free", "dim"),
                Column(
                    "ratio",
                    lambda row: ratio_text(_any(row)["log_n_free"] - _any(row)["log_three_points"]),
                    wrap=False,
                    min_width=5,
                ),
            ],
            list(rows.values()),
        )
    ]


def _any(row: dict[float, dict[str, Any]]) -> dict[str, Any]:
    return next(iter(row.values()))


def masked_tables(records: Sequence[dict[str, Any]]) -> list[Table]:
    """Return the table of masked attention with a row for each a and p: attained, proved, and the stated bound."""
    return [
        Table(
            f"Masked attention in d_p (d = 1, A = −a, V = 1, R = 1): {records[0]['n']} atoms, or a limit of more",
            [
                Column("a", lambda r: f"{r['a']:g}", style="bold", key=True),
                Column("p", lambda r: "∞" if r["p"] == "inf" else f"{r['p']:g}", style="bold", key=True),
                Column("running mean", lambda r: number(r["running_mean"]), style="dim"),
                Column("≥ attained", lambda r: number(r["attained"]), style="bold green"),
                Column(
                    "≤ proved",
                    lambda r: "none" if r["log_bound"] is None else magnitude(r["log_bound"], 4),
                    style="bold green",
                ),
                Column(
                    "ratio",
                    lambda r: "" if r["log_bound"] is None else ratio_text(r["log_bound"] - math.log(r["attained"])),
                ),
                Column("unmasked", lambda r: number(r["unmasked"]), style="dim"),
                Column("as stated", lambda r: magnitude(math.log(r["stated"]), 4)),
                Column("which is", lambda r: Text(r["verdict"], style=_VERDICTS[r["verdict"]]), "left", wrap=False),
            ],
            records,
            group=lambda r: r["a"],
        )
    ]


def distance_tables(records: Sequence[dict[str, Any]]) -> list[Table]:
    """Return a table for each pair: before and after attention, with a row for each layer, length and exponent."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault((record["model"], *_pair(record), record["distance"]), []).append(record)
    return [_distance_table(group) for group in groups.values()]


def _pair(record: dict[str, Any]) -> tuple[str, str]:
    first, second = record.get("texts") or record["files"]
    return first, second


def _distance_table(records: Sequence[dict[str, Any]]) -> Table:
    first = records[0]
    names = _pair(first)
    pair = f"{names[0]} and {names[1]}" if names[0] != names[1] else f"two chunks of {names[0]}"
    model = "" if first["model"] is None else f"{model_name(first['model'])}: "
    after = any(record["after"] for record in records)
    reasons = sorted({record["before"]["reason"] for record in records if record["before"].get("reason")})
    return Table(
        f"{model}how far apart are {pair}, {_KINDS[first['distance']]}{special_tokens_text(first)}",
        [
            Column("layer", lambda r: r["layer"], when=first["layer"] is not None, key=True),
            Column("n", lambda r: str(r["n"]) if r["n"] == r["m"] else f"{r['n']}, {r['m']}", style="bold", key=True),
            Column("distance", lambda r: symbol(r["distance"], r["p"]), "left", wrap=False),
            Column("before" if after else "value", lambda r: _distance(r["before"]), style="bold green"),
            Column("after attention", lambda r: _distance(r["after"]), style="bold green", when=after),
            Column("quotient", lambda r: "" if r["quotient"] is None else number(r["quotient"]), when=after),
            Column(
                "by",
                lambda r: _found(r)[0].get("method") or f"{_found(r)[0]['slices']} slices",
                "left",
                style="dim",
                wrap=False,
            ),
            Column("gap", _gap, style="dim"),
        ],
        records,
        group=lambda r: r["layer"],
        caption=f"∞: their times differ ({'; '.join(reasons)})" if reasons else "",
        caption_style="yellow",
    )


def symbol(distance: str, p: float | str) -> str:
    """Return the symbol of a distance.

    Example:
        >>> symbol("W", 2.0), symbol("d", "inf"), symbol("W", 1.5)
        ('W₂', 'd_∞', 'W_1.5')
    """
    if isinstance(p, str):
        return f"{distance}_∞"
    return f"{distance}{'₀₁₂₃₄₅₆₇₈₉'[int(p)]}" if p == int(p) and p < 10 else f"{distance}_{p:g}"


def _distance(part: dict[str, Any] | None) -> str:
    return "" if not part else "∞" if part["value"] == "inf" else number(part["value"], 6)


def _found(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [part for part in (record["before"], record["after"]) if part]


def _gap(record: dict[str, Any]) -> str:
    gap = max((part["gap"] for part in _found(record)), default=0.0)
    return "" if math.isnan(gap) else f"{gap:.0e}"


def splitting_tables(records: Sequence[dict[str, Any]]) -> list[Table]:
    """Return the table of splitting with a row for each layer and length: number of split maps, largest ratio."""
    first = records[0]

    def of_top(get: Callable[[dict[str, Any]], Any]) -> Callable[[list[dict[str, Any]]], Any]:
        return lambda group: get(max(group, key=ratio))

    return [
        Table(
            f"{model_name(first['model'])}: mass splitting in its {plural_of(first['map'])} on {text_name(first)}",
            [
                Column("layer", lambda group: group[0]["layer"], key=True),
                Column("n", lambda group: group[0]["n"], style="bold", key=True),
                Column("split", lambda group: f"{_count(group, SPLITS)} of {len(group)}", style="bold green"),
                Column("undecided", lambda group: _count(group, UNDECIDED), style="dim"),
                Column("largest ratio", of_top(lambda r: number(ratio(r))), style="bold"),
                Column(
                    "between", of_top(lambda r: interval(r["ratio_lower"], r["ratio_upper"], 4)), "left", wrap=False
                ),
                Column("‖D‖", of_top(lambda r: number(r["norm"]["value"]))),
                Column("own", of_top(lambda r: number(r["own"]))),
                Column(
                    "at",
                    of_top(
                        lambda r: (
                            Text("" if r["head"] is None else f"head {r['head']}, ")
                            .append(token(r["token"]), style="magenta")
                            .append(f" @{r['atom']}", style="dim")
                        )
                    ),
                    "left",
                ),
            ],
            _by_layer(records),
            caption=f"{_count(records, SPLITS)} of {len(records)} split. Ratio: max over tokens of ‖∂₁G(x_i, μ)‖ (own) "
            "to ‖D‖; above 1, repeated tokens are rougher",
        )
    ]


def copies_tables(records: Sequence[dict[str, Any]]) -> list[Table]:
    """Return the table of what repeating one token does to the constant, with a row for each layer and length."""
    first = records[0]

    def columns(name: str, which: str) -> list[Column]:
        def top(group: list[dict[str, Any]]) -> dict[str, Any]:
            return max(group, key=lambda record: record[which])

        return [
            Column(f"{name}: most", lambda group: f"× {top(group)[which]:.4f}", style="bold"),
            Column(
                "token",
                lambda group: Text(token(top(group)["token"]), style="magenta").append(f" @{top(group)['position']}"),
                "left",
            ),
            Column("mean", lambda group: f"× {sum(record[which] for record in group) / len(group):.4f}"),
            Column("least", lambda group: f"× {min(record[which] for record in group):.4f}", style="dim"),
        ]

    return [
        Table(
            f"{model_name(first['model'])}: one token repeated {first['copies']} times, Lip of the {first['map']} on "
            f"{text_name(first)}",
            [
                Column("layer", lambda group: group[0]["layer"], key=True),
                Column("n", lambda group: group[0]["n"], key=True),
                Column("Lip before", lambda group: number(group[0]["before"]["value"]), style="bold green"),
                *columns("next position", "next_over_before"),
                *columns("kept position", "kept_over_before"),
            ],
            _by_layer(records),
        )
    ]


def cases_tables(records: Sequence[dict[str, Any]]) -> list[Table]:
    """Return the table of which kinds of maps split."""
    return [
        Table(
            "Which maps split? ratio = max_i ‖∂₁G(x_i, μ)‖ / ‖D‖",
            [
                Column("map", lambda r: r["map"], "left"),
                Column("measure", lambda r: r["where"], "left"),
                Column("‖D‖", lambda r: number(r["norm"])),
                Column("after splitting", lambda r: number(r["after"])),
                Column("ratio", lambda r: "∞" if ratio(r) > 1e9 else number(r["ratio"], 5), style="bold green"),
                Column("limit", lambda r: r["limit"], "left", wrap=False),
            ],
            records,
            group=lambda r: r["map"],
        )
    ]


def line_tables(records: Sequence[dict[str, Any]]) -> list[Text]:
    """Describe each square of positions of two atoms on a line in a sentence."""
    return [
        Text(
            f"{title(r)}: {100 * r['share']:.3g} % of [−{r['extent']:g}, {r['extent']:g}]² splits; the "
            f"largest ratio is {r['ratio']:.6g}, at x = {r['x']:.4g}, y = {r['y']:.4g}"
        )
        for r in records
    ]


def _by_layer(records: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    groups: dict[tuple, list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault((record["layer"], record["n"]), []).append(record)
    return [groups[key] for key in sorted(groups, key=none_first)]


def _count(records: Sequence[dict[str, Any]], verdict: str) -> int:
    return sum(record["verdict"] == verdict for record in records)
