"""Terminal tables of measurements, bounds and studies: Lip with its interval, bounds, fitted growth laws."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from howsmooth.fits import POINT, growth_laws, laws_of_points
from howsmooth.records import CURVE
from howsmooth.records.columns import fields
from howsmooth.report.ladder import ladder_tables
from howsmooth.report.rows import (
    ACCEPTED_STATUSES,
    BoundRow,
    Row,
    Samples,
    bound_rows,
    bound_title,
    by_quantity,
    confidence_text,
    exponent,
    exponent_interval,
    interval,
    largest_shares,
    laws_by_quantity,
    magnitude,
    map_name,
    measured_with_bounds,
    measurement_rows,
    model_name,
    none_first,
    number,
    plural_of,
    ratio_text,
    refusals,
    scope_text,
    signed_title,
    special_tokens_text,
    symbol,
    text_name,
)
from howsmooth.report.table import Column, Table
from howsmooth.report.training import split_training, training_tables

if TYPE_CHECKING:
    from howsmooth.fits import Law

FIXED_TOKENS_TEXT = {"all": "", "no-special": ", special tokens held fixed", "no-first": ", first token held fixed"}
_MAX_LENGTHS = 6
_CURVE_HEADINGS = {
    "checkpoint": "checkpoint",
    "text": "text",
    "map": "map",
    "layer": "layer",
    "head": "head",
    "tokens": "moved",
    "quantity": "quantity",
    "cutting": "cutting",
}
_FIELD_TEXTS = {
    "all": "all tokens",
    "no-first": "without the first",
    "no-special": "without special",
    "lipschitz": "as described",
    "released": "as released",
    None: "–",
}


def summary(records: Sequence[dict[str, Any]], laws: dict[tuple, Law]) -> RenderableType:
    """Return the output of `howsmooth measure`: for each model and quantity a table, and the growth laws below it."""
    return Group(*summary_parts(records, laws))


def measure_tables(records: Sequence[dict[str, Any]]) -> list[RenderableType]:
    """Return the tables of `howsmooth measure`: the constants of each model and quantity, and their growth laws."""
    return summary_parts(records, growth_laws(records))


def constants_tables(records: Sequence[dict[str, Any]]) -> list[RenderableType]:
    """Return the constants without laws, which are fitted once, at the end."""
    return summary_parts(records, {})


def summary_parts(records: Sequence[dict[str, Any]], laws: dict[tuple, Law]) -> list[RenderableType]:
    """Return for each model and quantity a table, and its growth laws, or a line of text where there is none."""
    of_monitor, records = split_training(records)
    parts: list[RenderableType] = [*training_tables(of_monitor)]
    grouped_laws = laws_by_quantity(laws)
    for key, group in by_quantity(records).items():
        parts.append(measurements_table(group))
        if key in grouped_laws:
            parts.append(growth_table(grouped_laws[key], symbol(key[1])))
    return parts


def measurements_table(records: Sequence[dict[str, Any]]) -> Table:
    """Return the table of one model: the median of the samples with its interval, and their range.

    The radius and the worst direction are those of the largest sample.

    An exclamation mark means that a sample of the row did not reach the tolerance. If rows have different numbers of
    samples, as after an interrupted run, the number is a column of its own.
    """
    rows, first = measurement_rows(records), records[0]
    name = symbol(first.get("quantity"))
    counts = {len(row.values) for row in rows}
    single = counts == {1}
    statistic = name if single else f"median of {counts.pop()}" if len(counts) == 1 else "median"
    each = "" if single else "each "
    weights = f" ({first['weights']})" if first.get("weights") else ""
    starred = not single and any(row.worst.get("top_tokens") or row.worst.get("radius") is not None for row in rows)
    unfinished = sorted({status for row in rows for status in row.unfinished})
    return Table(
        f"{model_name(first['model'])}{weights}: {name} of its {plural_of(first['map'])} on {text_name(first)}"
        f"{FIXED_TOKENS_TEXT.get(first.get('tokens', 'all'), '')}",
        [
            Column("layer", lambda row: "all" if row.layer is None else row.layer, key=True),
            Column("head", lambda row: row.head, when=any(row.head is not None for row in rows), key=True),
            Column("n", lambda row: row.n, style="bold", key=True),
            Column(statistic, _median, style="bold green", wrap=False),
            Column("of", lambda row: len(row.values), style="dim", when=statistic == "median"),
            Column(
                f"interval, {each}{confidence_text(records)}",
                lambda row: interval(*row.median_ends),
                "left",
                wrap=False,
                when=any(row.median_ends[0] is not None for row in rows),
            ),
            Column(
                "residual",
                lambda row: number(row.worst.get("residual"), 2),
                wrap=False,
                when=all(record.get("certificate") == "residual" for record in records),
            ),
            Column("range", lambda row: row.range_text(), "left", wrap=False, when=not single),
            Column(
                "R" if single else "R*",
                lambda row: number(row.worst.get("radius"), 3),
                wrap=False,
                when=any(row.worst.get("radius") is not None for row in rows),
            ),
            Column(
                "worst direction: top tokens" if single else "worst direction*",
                _largest_shares,
                "left",
                min_width=16,  # the only column that may wrap
                when=any(row.worst.get("top_tokens") for row in rows),
            ),
        ],
        rows,
        group=lambda row: (row.layer, row.head),
        caption="; ".join(
            [
                *([f"! not within the tolerance: {', '.join(unfinished)}"] if unfinished else []),
                *(["* of the largest sample"] if starred else []),
            ]
        ),
        caption_style="yellow" if unfinished else "dim",
    )


def _median(row: Row) -> Text:
    mark = Text("! ", style="yellow") if row.unfinished else Text()
    return mark.append(number(row.median))


def _largest_shares(row: Row) -> Text:
    text = Text()
    for index, (word, position, share) in enumerate(largest_shares(row.worst)):
        text.append("  " if index else "")
        text.append(word, style="magenta")
        text.append(f" @{position} ", style="dim")
        text.append(f"{share:.0%}".replace("%", " %"))
    return text


def growth_table(laws: dict[tuple, Law], name: str = "Lip") -> RenderableType:
    """Return the table of fitted laws Lip ≈ C n^α: the exponent with its interval, and the verdict on the power law."""
    title, verdicts = f"Growth with length, {name} ≈ C nᵅ", {law.verdict for law in laws.values()}
    if len(verdicts) == 1 and all(law.exponent is None for law in laws.values()):
        line = Text(title, style="bold cyan", no_wrap=True, overflow="ignore")
        return line.append(f": {verdicts.pop()}", style="not bold default")
    layer, head = CURVE.index("layer"), CURVE.index("head")
    ordered = sorted(laws.items(), key=lambda item: none_first(item[0][i] for i in (layer, head)))
    return Table(
        title,
        [
            Column("layer", lambda item: "all" if item[0][layer] is None else item[0][layer], key=True),
            Column("head", lambda item: item[0][head], when=any(key[head] is not None for key in laws), key=True),
            *_law_columns(laws.values(), lambda item: item[1], name=name),
        ],
        ordered,
    )


def _law_columns(
    laws: Iterable[Law], law_of: Callable[[Any], Law | None], width: int | None = None, name: str = "Lip"
) -> list[Column]:
    """Return the columns of the exponent, its interval and the verdict; `law_of` returns the law of a row."""

    def verdict(row: Any) -> str | None:
        law = law_of(row)
        return None if law is None else law.verdict

    confidence = next((law.confidence for law in laws), 0.95)
    return [
        Column("α", lambda row: exponent(law_of(row)), style="bold green", wrap=False),
        Column(f"{100 * confidence:g} %", lambda row: exponent_interval(law_of(row)), "left", wrap=False),
        Column(f"is it {name} ≈ C nᵅ?", verdict, "left", min_width=width),
    ]


def bounds_tables(records: Sequence[dict[str, Any]]) -> list[RenderableType]:
    """Return the tables of `howsmooth bound`: measured constants, bounds of each map, refused bounds, and the ladder.

    A bound is compared with the sample that has the largest constant, since it holds for every sample.
    """
    parts: list[RenderableType] = []
    for model in dict.fromkeys(record["model"] for record in records):
        group = [record for record in records if record["model"] == model]
        parts.append(measurements_table(list(measured_with_bounds(group))))
        samples = len({record["sample"] for record in group})
        which = f", largest of {samples}" if samples > 1 else ""
        for key, rows in bound_rows(group).items():
            parts.append(_bounds_table(model, key, rows, which))
        for reason, names in refusals(group).items():
            line = Text("Refused: ", style="yellow").append(reason, style="default")
            parts.append(line.append("\n  " + "; ".join(names), style="dim"))
    return [*parts, *ladder_tables(records)]


def _bounds_table(model: str, key: tuple[int, int | None], rows: list[BoundRow], which: str) -> Table:
    lengths = sorted({n for row in rows for n in row.cells})
    cells = {n: next(row.cells[n] for row in rows if n in row.cells) for n in lengths}
    radii = sorted({number(cell["R"], 3) for cell in cells.values()})
    rows, repeated = _without_repeated(rows)
    below = [row for row in rows if row.is_local and row.side == "lower"]
    measured = f"measured{which}, {confidence_text([cells[lengths[0]]['measured']])}"
    here = scope_text(cells[lengths[0]], "at X")

    def value(n: int) -> Column:
        return Column(
            f"n = {n}",
            lambda row: (
                number(cells[n]["measured"]["value"])
                if row is None
                else magnitude(row.cells[n]["log_value"])
                if n in row.cells
                else ""
            ),
            wrap=False,
        )

    def over(n: int) -> Column:
        return Column(
            "",
            lambda row: ratio_text(row.cells[n]["log_ratio"]) if row and n in row.cells else "",
            style="dim",
            wrap=False,
        )

    shares = cells[lengths[-1]].get("argmax_share") or []
    decided = []
    if shares:
        mean = f"{sum(shares) / len(shares):.0%} of rows at n = {lengths[-1]} put 0.99 or more on one token"
        heads = f" (mean of {len(shares)} heads, {max(shares):.0%} in the most decided)" if len(shares) > 1 else ""
        decided = [f"near the large-radius limit: {mean}{heads}".replace("%", " %")]
    return Table(
        f"{model_name(model)} {map_name(*key)}: bounds {here}, and on the worst case in the ball of radius R = "
        f"{' … '.join(dict.fromkeys((radii[0], radii[-1])))}{special_tokens_text(cells[lengths[0]])}",
        [
            Column("bound", lambda row: measured if row is None else row.title, "left", wrap=False, key=True),
            Column(
                "holds",
                lambda row: here if row is None else scope_text(cells[lengths[0]], row.holds),
                "left",
                style="dim",
                wrap=False,
            ),
            *(column(n) for n in lengths for column in (value, over)),
        ],
        [*below, None, *rows[len(below) :]],  # None: the row of the measured constant
        group=lambda row: row is None or row.is_local,
        row_style=lambda row: "bold green" if row is None else "",
        caption="\n".join([*decided, *repeated]),
    )


def _without_repeated(rows: list[BoundRow]) -> tuple[list[BoundRow], list[str]]:
    """Return the rows whose values are not those of a row above with the same side and scope, and what was left out."""
    kept: list[BoundRow] = []
    repeated = []
    for row in rows:
        same = next((other for other in kept if _are_equal(row, other)), None)
        if same is None:
            kept.append(row)
        else:
            repeated.append(f"the same values as “{same.title}”: “{row.title}”")
    return kept, repeated


def _are_equal(row: BoundRow, other: BoundRow) -> bool:
    return (row.side, row.holds, row.cells.keys()) == (other.side, other.holds, other.cells.keys()) and all(
        math.isclose(cell["log_value"], other.cells[n]["log_value"], rel_tol=1e-12, abs_tol=1e-12)
        for n, cell in row.cells.items()
    )


def tightness_table(records: Sequence[dict[str, Any]]) -> Table:
    """Return the table of bound / measured constant of each bound, over all maps, lengths and samples.

    Bounds at the measured tokens come first, then those on the worst case, then those that never apply.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault(record["bound"], []).append(record)
    finite = {
        name: [
            record["log_ratio"]
            for record in group
            if record["log_ratio"] is not None and record["log_ratio"] < math.inf
        ]
        for name, group in groups.items()
    }
    applied = {name: next((r for r in group if r["refused"] is None), None) for name, group in groups.items()}

    def order(name: str) -> tuple[Any, ...]:
        record, logs = applied[name], finite[name]
        if record is None or not logs:
            return (True,)
        return (False, record["holds"] != "at X", record["side"] == "upper", abs(median(logs)))

    def title(name: str) -> str:
        record = applied[name]
        return bound_title(groups[name][0]) if record is None else signed_title(record)

    def scope(name: str) -> str:
        record = applied[name]
        return "" if record is None else scope_text(record)

    def ends(name: str) -> str:
        return f"{ratio_text(min(finite[name]))} … {ratio_text(max(finite[name]))}" if finite[name] else ""

    return Table(
        "Tightness: each bound over the measured constant, in all maps, lengths and samples",
        [
            Column("bound", title, "left", key=True),
            Column("holds", scope, "left"),
            Column("median", lambda name: ratio_text(median(finite[name])) if finite[name] else ""),
            Column("from … to", ends),
            Column("cases", lambda name: len(finite[name]) or ""),
            Column("outside its conditions", lambda name: sum(r["refused"] is not None for r in groups[name]) or ""),
        ],
        sorted(groups, key=order),
        caption="At this text, ×1 is as tight as can be; the worst case may be far above the measured constant.",
    )


class Summary:
    """Values of a study by curve and length, and their fitted laws, collected in one pass over the records.

    Attributes:
        samples: All samples by curve and length.
        confidence: The smallest confidence of an interval, None without intervals.
        unfinished: How often each status occurs that needs a warning.
        fits: The fitted law of each curve.
    """

    def __init__(self, records: Iterable[dict[str, Any]], **fit_options: Any) -> None:
        """Read the records once and fit the laws; `fit_options` are those of `howsmooth.fits.growth_laws`."""
        self.samples: dict[tuple, dict[int, Samples]] = {}
        self.confidence: float | None = None
        self.unfinished: dict[str, int] = {}
        self.fits: dict[tuple, Law] = laws_of_points(
            self._collect(fields(records, *POINT, "status", "confidence")), **fit_options
        )

    def _collect(self, found: Iterable[tuple[Any, ...]]) -> Iterable[tuple[Any, ...]]:
        for *point, status, confidence in found:
            *key, n, _, value, lower, upper = point
            samples = self.samples.setdefault(tuple(key), {}).setdefault(n, Samples(values=[], lowers=[], uppers=[]))
            for name, end in (("values", value), ("lowers", lower), ("uppers", upper)):
                getattr(samples, name).append(end)
            if confidence is not None:
                self.confidence = min(confidence, self.confidence or 1.0)
            if status not in (*ACCEPTED_STATUSES, "as released"):
                self.unfinished[status] = self.unfinished.get(status, 0) + 1
            yield tuple(point)


def study_tables(summary: Summary) -> list[Table]:
    """Return the medians of each model with a row for each curve, and below them the ranges of several samples.

    Fields that do not vary are in the title.
    """
    models = dict.fromkeys(key[0] for key in summary.samples)
    checkpoints = {key[0]: key[1] for key in summary.samples}
    if len(models) > 1 and all(checkpoints.values()):  # checkpoints of one model share a table
        return _study_tables(list(summary.samples), summary, "checkpoints")
    return [
        table
        for model in models
        for table in _study_tables([key for key in summary.samples if key[0] == model], summary, model_name(model))
    ]


def _study_tables(keys: list[tuple], summary: Summary, title: str) -> list[Table]:
    varying = [name for name in _CURVE_HEADINGS if len({key[CURVE.index(name)] for key in keys}) > 1 or name == "layer"]
    fixed = {name: keys[0][CURVE.index(name)] for name in _CURVE_HEADINGS if name not in varying}
    subtitle = [
        f"{fixed['map']} on {fixed['text']}" if "map" in fixed and "text" in fixed else "",
        *(_field_text(fixed[name]) for name in ("tokens", "cutting") if name in fixed),
        *(["as released"] if fixed.get("quantity") == "released" else []),
    ]
    all_samples = [samples for key in keys for samples in summary.samples[key].values()]
    counts = sorted({len(samples.values) for samples in all_samples})
    several = f"median of {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))}"

    def field(name: str) -> Column:
        return Column(
            _CURVE_HEADINGS[name],
            lambda key: _field_text(key[CURVE.index(name)]),
            "right" if name in ("layer", "head") else "left",
            wrap=False,
            key=True,
        )

    def length(n: int, cell: Callable[[Samples], str], **more: Any) -> Column:
        return Column(
            f"n={n}", lambda key: cell(summary.samples[key][n]) if n in summary.samples[key] else "", wrap=False, **more
        )

    order = {key: i for i, key in enumerate(keys)}
    sorted_fields = [CURVE.index(name) for name in ("text", "layer", "head")]
    rows = sorted(keys, key=lambda key: (*((str(type(key[i])), key[i]) for i in sorted_fields), order[key]))
    lengths = _evenly_spaced(sorted({n for key in keys for n in summary.samples[key]}))
    medians = Table(
        f"{title}: {', '.join(filter(None, ['Lip', several if counts[-1] > 1 else '', *subtitle]))}",
        [
            *map(field, varying),
            *(length(n, lambda samples: number(samples.median, 3)) for n in lengths),
            *_law_columns(summary.fits.values(), summary.fits.get, width=18),
        ],
        rows,
        caption=_ends_text(all_samples, summary.confidence),
    )
    ranges = Table(
        f"{title}: Lip, the range of the samples",
        [*map(field, varying), *(length(n, lambda samples: samples.range_text(3), align="left") for n in lengths)],
        rows,
    )
    return [medians, ranges] if counts[-1] > 1 else [medians]


def _ends_text(samples: Sequence[Samples], confidence: float | None) -> str:
    """Return how far the certified ends of medians are from them, in one line for a whole table."""
    ends = [(of.median, *of.median_ends) for of in samples]
    closed = [
        (1e2 * (high / m - 1), 1e2 * (1 - low / m))
        for m, low, high in ends
        if low is not None and high is not None and m > 0 and 1e4 * high / m < math.inf
    ]
    parts = []
    if closed:
        percent = math.ceil(1e2 * max(map(max, closed))) / 1e2
        each = "" if max(len(of.values) for of in samples) == 1 else "each "
        sure = confidence_text([{"confidence": confidence}])
        parts.append(f"certified ends: within {percent:g} % of the value shown, {each}{sure}")
    if open_ended := sum(low is not None and (high is None or high == math.inf) for _, low, high in ends):
        parts.append(f"{open_ended} of {len(ends)} have no upper end")
    return "; ".join(parts)


def _field_text(value: Any) -> str:
    return _FIELD_TEXTS.get(value) or str(value)


def _evenly_spaced(lengths: list[int]) -> list[int]:
    """Return at most `_MAX_LENGTHS` of the lengths, evenly spaced, including the first and the last."""
    if len(lengths) <= _MAX_LENGTHS:
        return lengths
    step = (len(lengths) - 1) / (_MAX_LENGTHS - 1)
    return [lengths[round(i * step)] for i in range(_MAX_LENGTHS)]
