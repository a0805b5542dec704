"""Charts of records: growth with length, bounds beside the constant, layer by layer, how tight bounds are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

from howsmooth.errors import InputError
from howsmooth.records import CURVE
from howsmooth.report.chart import FEW, Axis, Band, Chart, HeatMap, Label, Series, Slope
from howsmooth.report.rows import (
    BoundRow,
    bound_rows,
    by_quantity,
    counted,
    laws_by_quantity,
    magnitude,
    map_name,
    model_name,
    symbol,
)

if TYPE_CHECKING:
    from howsmooth.fits import Law

LENGTH, LIP = "length n (tokens)", "local Lipschitz constant  ‖D$_X$f‖$_2$"
DASHES = ("solid", "dashed", "dotted", "dashdot")
METRICS: dict[str, Callable[[Iterable[float]], float]] = {"median over samples": median, "largest sample": max}
_MOST_PANELS = 12
_NAMED = 12  # of many maps
_DRAWN = math.log(1e5)  # times the measured constant: a bound further away is named, not drawn
# The worst case at a fixed radius, and half its exponent.
_SLOPES = (Slope(0.5, "√n"), Slope(0.25, "n$^{1/4}$", "dotted"))


def growth_charts(records: Sequence[dict[str, Any]], laws: dict[tuple, Law]) -> list[Chart]:
    """One chart of `growth_chart` for each model, quantity and choice of tokens that move; titles tell them apart."""
    own, groups = laws_by_quantity(laws), by_quantity(records)
    several = len({quantity for _, quantity, _ in groups}) > 1
    charts = [growth_chart(chosen, own.get(key, {})) for key, chosen in groups.items()]
    return [
        replace(chart, title=f"{chart.title}, {symbol(quantity)}") if several else chart
        for chart, (_, quantity, _) in zip(charts, groups, strict=True)
    ]


def growth_chart(
    records: Sequence[dict[str, Any]], laws: dict[tuple, Law], *, named: int = _NAMED, slopes: bool = True
) -> Chart:
    """Lip against n of one model: samples with intervals, medians, laws that may be shown, the slopes of the theory."""
    place = CURVE.index("layer"), CURVE.index("head")
    by_map = {(key[place[0]], key[place[1]]): law for key, law in laws.items()}
    groups = grouped(records, "layer", "head")
    keys = sorted((key for key in groups if any(drawable(record) for record in groups[key])), key=_order)
    shown = set(_spread(keys, named))
    series = [curve(groups[key], map_name(*key) if key in shown else "", by_map.get(key)) for key in keys]
    lengths = sorted({n for one in series for n in one.x})
    omitted, counts = sum(not drawable(record) for record in records), samples_text(records)
    quantity, tokens = records[0].get("quantity"), records[0].get("tokens") or "all"
    title = ", ".join([model_name(records[0]["model"]), *([] if tokens == "all" else [tokens])])
    height = LIP if symbol(quantity) == "Lip" else symbol(quantity)
    return Chart(
        title,
        Axis(LENGTH, "log", lengths),
        Axis(height, "log"),
        series,
        slopes=_SLOPES if slopes else (),
        legend_title="" if len(shown) == len(keys) or not shown else f"{len(shown)} of {len(keys)} maps named",
        notes=_omitted(omitted),
        caption=f"Marks are samples with their intervals ({counts}), lines their medians, dashed lines the "
        "fitted laws.",
        caption_of_many=f"Lines are medians over samples ({counts}), their colours from the first layer to "
        "the last; choose a layer or head to see samples, intervals and laws.",
    )


def curve(
    records: Sequence[dict[str, Any]], name: str, law: Law | None = None, y: str = "value", **looks: Any
) -> Series:
    """The samples of one map at all lengths; values that are zero or missing are counted, not drawn."""
    points = [record for record in records if drawable(record, y)]
    interval = y == "value"
    return Series(
        [record["n"] for record in points],
        [record[y] for record in points],
        [record["lower"] for record in points] if interval else (),
        [_end(record["upper"]) for record in points] if interval else (),
        **{
            "name": name,
            "samples": True,
            "marks": True,
            "line": "solid",
            "law": law,
            "omitted": len(records) - len(points),
            **looks,
        },
    )


def drawable(record: dict[str, Any], y: str = "value") -> bool:
    """Whether a value has a place on a log scale."""
    return record[y] is not None and 0 < record[y] < math.inf


def samples_text(records: Sequence[dict[str, Any]]) -> str:
    """How many samples each length has.

    >>> samples_text([{"n": 8}, {"n": 8}, {"n": 16}])
    '1 to 2 samples at each length'
    """
    counts = {len(group) for group in grouped(records, *CURVE, "n").values()} or {0}
    least, most = min(counts), max(counts)
    return f"{counted(most, 'sample') if least == most else f'{least} to {most} samples'} at each length"


def _omitted(count: int) -> list[str]:
    return [f"{count} values are zero or missing and have no place on this scale."] if count else []


def check_panels(maps: int) -> None:
    """Refuse a figure with more panels than can be read."""
    if maps > _MOST_PANELS:
        raise InputError(
            f"expected at most {_MOST_PANELS} maps in one figure, got {maps}; choose some with --layers or --heads"
        )


def bounds_charts(records: Sequence[dict[str, Any]]) -> list[Chart]:
    """One chart of `bounds_chart` for each map of one model; a bound looks the same in all of them."""
    maps = bound_rows(records)
    names = list(dict.fromkeys(row.bound for rows in maps.values() for row in rows if _near(row)))
    return [bounds_chart(rows, map_name(*key), names) for key, rows in maps.items()]


def bounds_chart(rows: Sequence[BoundRow], title: str, names: Sequence[str] = ()) -> Chart:
    """The measured constant with its interval, upper bounds above it, lower ones beneath; those far away in words."""
    cells = {n: cell for row in rows for n, cell in row.cells.items()}
    lengths = sorted(cells)
    names = names or list(dict.fromkeys(row.bound for row in rows if _near(row)))
    measured = [cells[n]["measured"] for n in lengths]
    series = [
        Series(
            lengths,
            [one["value"] for one in measured],
            [one["lower"] for one in measured],
            [_end(one["upper"]) for one in measured],
            name="measured on the text",
            marks=True,
            marker=0,
            line="solid",
            colour="ink",
        )
    ]
    for row in rows:
        if _near(row):  # neighbours differ in colour and in dashes: some bounds coincide
            at, index = sorted(row.cells), names.index(row.bound)
            series.append(
                Series(
                    at,
                    [math.exp(row.cells[n]["log_value"]) for n in at],
                    line=DASHES[index % 4],
                    name=f"{'≥' if row.side == 'lower' else '≤'} {row.bound}, {row.holds}",
                    width=1.6,
                    colour=index % FEW,
                )
            )
    low, high = _sharpest(rows, lengths, "lower", max), _sharpest(rows, lengths, "upper", min)
    away = [f"{row.bound} {magnitude(row.cells[max(row.cells)]['log_value'])}" for row in rows if not _near(row)]
    return Chart(
        title,
        Axis(LENGTH, "log", lengths),
        Axis(LIP, "log"),
        series,
        bands=[Band(lengths, low, high, "the constant on B_R^n lies here")] if low and high else [],
        notes=[f"off the scale, at n = {lengths[-1]}:", *away] if away else [],
        caption=f"{title}{f'; off the scale, and in the table alone: {len(away)}' if away else ''}.",
    )


def _near(row: BoundRow) -> bool:
    return all(abs(cell["log_ratio"]) < _DRAWN and abs(cell["log_value"]) < 700 for cell in row.cells.values())


def _sharpest(rows: Sequence[BoundRow], lengths: list[int], side: str, which: Any) -> list[float] | None:
    """The sharpest bound of one side on the whole ball at each length; None where there is none to draw."""
    chosen = [row for row in rows if row.side == side and row.holds == "on B_R^n" and _near(row)]
    if not all(any(n in row.cells for row in chosen) for n in lengths):
        return None
    return [math.exp(which(row.cells[n]["log_value"] for row in chosen if n in row.cells)) for n in lengths]


def heat_maps(records: Sequence[dict[str, Any]], metric: str = "median over samples") -> dict[str, list[HeatMap]]:
    """ "heads": layer × head, one map per length; "lengths": layer × length, of heads the largest. As far as filled."""
    shown = [record for record in records if drawable(record) and record["layer"] is not None]
    lengths = sorted({record["n"] for record in shown})
    heads = {record["head"] for record in shown} - {None}
    maps: dict[str, list[HeatMap]] = {"heads": [], "lengths": []}
    if len(heads) > 1:
        maps["heads"] = [
            _heat_map(
                [r for r in shown if r["n"] == n and r["head"] is not None],
                "head",
                f"Lip of each head at n = {n}, {metric}",
                metric,
            )
            for n in lengths
        ]
    if len(lengths) > 1:
        whose = ", of the largest head" if len(heads) > 1 else ""
        maps["lengths"] = [_heat_map(shown, "n", f"Lip at each length, {metric}{whose}", metric)]
    return maps


def _heat_map(records: Sequence[dict[str, Any]], column: str, title: str, metric: str) -> HeatMap:
    cells: dict[tuple, float] = {}
    for (layer, at, _), group in grouped(records, "layer", column, "head").items():
        cells[layer, at] = max(METRICS[metric](record["value"] for record in group), cells.get((layer, at), 0.0))
    layers, columns = (sorted({key[i] for key in cells}) for i in (0, 1))
    return HeatMap(
        title,
        Axis(LENGTH if column == "n" else "head"),
        Axis("layer"),
        columns,
        layers,
        [[cells.get((layer, at)) for at in columns] for layer in layers],
    )


def tightness_chart(records: Sequence[dict[str, Any]]) -> Chart | None:
    """Each bound over the measured constant: median and range over maps, lengths and samples."""
    ratios: dict[tuple[str, str], list[float]] = {}
    for record in records:
        if record["log_ratio"] is not None and math.isfinite(record["log_ratio"]):
            ratios.setdefault((record["side"], record["bound"]), []).append(record["log_ratio"])
    if not ratios:
        return None
    order = sorted(ratios, key=lambda key: (key[0] == "lower", median(ratios[key])))
    drawn = [key for key in order if max(ratios[key]) < math.log(1e12)]
    right = max([math.exp(max(ratios[key])) for key in drawn], default=10.0)
    series, labels = [Series([1, 1], [-0.5, len(order) - 0.5], line="solid", width=0.7, colour="ink")], []
    for row, key in enumerate(order):
        colour, found = int(key[0] == "lower"), ratios[key]
        if key in drawn:
            low, middle, high = (math.exp(value) for value in (min(found), median(found), max(found)))
            series.append(
                Series(
                    [middle], [row], [low], [high], marks=True, marker=2 if colour else 4, colour=colour, sideways=True
                )
            )
        else:
            labels.append(Label(right, row, f"$10^{{{median(found) / math.log(10):.0f}}}$ →", "right", colour))
    names = [f"{'≥' if side == 'lower' else '≤'} {name.removeprefix('this_project.')}" for side, name in order]
    return Chart(
        model_name(records[0]["model"]),
        Axis("bound over the measured constant", "log"),
        Axis("", names=names),
        series,
        labels=labels,
    )


def rate_chart(records: Sequence[dict[str, Any]], title: str) -> Chart:
    """Distances of particles to their limit against n: runs, their geometric means, the fitted law, n^−1/2."""
    runs = [run for record in records for run in record["runs"]]
    ends = [min(run["n"] for run in runs), max(run["n"] for run in runs)]
    base = 0.6 * min(run["distance"] for run in runs) * (ends[1] / ends[0]) ** 0.5
    series = []
    for index, record in enumerate(records):
        rate, own = record["rate"], [run["n"] for run in record["runs"]]
        span = [min(own), max(own)]
        groups = {n: [run["distance"] for run in record["runs"] if run["n"] == n] for n in sorted(set(own))}
        series += [
            Series(
                own, [run["distance"] for run in record["runs"]], marks=True, hollow=True, marker=index, colour=index
            ),
            Series(
                list(groups),
                [math.exp(sum(map(math.log, g)) / len(g)) for g in groups.values()],
                marks=True,
                marker=index,
                colour=index,
            ),
            Series(
                span,
                [rate["constant"] * n ** rate["exponent"] for n in span],
                line="solid",
                colour=index,
                name=f"{record.get('label') or record['distance']}:  n$^{{{rate['exponent']:.2f}}}$",
            ),
        ]
    series.append(
        Series(
            ends,
            [base, base * (ends[0] / ends[1]) ** 0.5],
            line="dashed",
            width=1.2,
            colour="faint",
            name="n$^{-1/2}$, to compare",
        )
    )
    return Chart(
        title,
        Axis("number n of particles", "log", sorted({run["n"] for run in runs})),
        Axis("distance to the limit", "log"),
        series,
    )


def grouped(records: Sequence[dict[str, Any]], *names: str) -> dict[tuple, list[dict[str, Any]]]:
    """The records by the values of the named fields."""
    groups: dict[tuple, list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault(tuple(record.get(name) for name in names), []).append(record)
    return groups


def _end(upper: float | None) -> float | None:
    return upper if upper is not None and upper < 1e300 else None


def _order(key: tuple) -> tuple:
    return tuple(-1 if part is None else part for part in key)


def _spread(items: list, limit: int) -> list:
    """At most `limit` of the items, evenly spread, the first and the last among them."""
    if len(items) <= limit:
        return items
    return [items[round(index * (len(items) - 1) / (limit - 1))] for index in range(limit)] if limit > 1 else []
