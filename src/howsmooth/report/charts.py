"""Charts made from records: growth with length, bounds and the measured constant, heat maps, tightness, rates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

from howsmooth.errors import InputError
from howsmooth.fits import growth_laws
from howsmooth.records import CURVE
from howsmooth.records.arrays import evenly_spaced
from howsmooth.records.columns import column, fields, group_by, where
from howsmooth.report.chart import (
    PALETTE_SIZE,
    Axis,
    Band,
    Chart,
    HeatMap,
    LineStyle,
    Picture,
    ReferenceSlope,
    Series,
    Tokens,
)
from howsmooth.report.rows import (
    BoundRow,
    bound_rows,
    by_quantity,
    confidence_text,
    counted,
    laws_by_quantity,
    magnitude,
    map_name,
    model_name,
    none_first,
    number,
    scope_text,
    symbol,
    token,
)
from howsmooth.report.spectrum_charts import spectrum_charts

if TYPE_CHECKING:
    from howsmooth.fits import Law
    from howsmooth.report.style import Colouring

LENGTH_LABEL = "length n (tokens)"
LIPSCHITZ_LABEL = "local Lipschitz constant  ‖D$_X$f‖$_2$"
_LINESTYLES: tuple[LineStyle, ...] = ("solid", "dashed", "dotted", "dashdot")
_MAX_PANELS = 12
_MAX_BOUND_ROWS = 3  # maps, each with its two panels in a row; more maps are two to a row
_MAX_LEGEND_ENTRIES = 12
_MAX_LOG_RATIO = math.log(1e5)  # a bound further from the constant, or from other bounds, is listed in a note
_MAX_LOG = 700.0  # exp of more is not a float
_BALL_SCOPES = ("on B_R^n", "for all n")  # of bounds on the worst case at each n
# √n is the worst case at a fixed radius; n^(1/4) has half its exponent.
_REFERENCE_SLOPES = (ReferenceSlope(0.5, "√n"), ReferenceSlope(0.25, "n$^{1/4}$", "dotted"))


def growth_charts(records: Sequence[dict[str, Any]], laws: dict[tuple, Law]) -> list[Chart]:
    """Return a `growth_chart` for each model, quantity and choice of perturbed tokens.

    Args:
        records: Measurements, as `howsmooth.measure` returns them.
        laws: Fitted laws by curve, as `howsmooth.fits.growth_laws` returns them.

    Example:
        >>> curve = {"model": "tiny", "layer": 0, "head": None, "lower": 1.0, "upper": None}
        >>> records = [{**curve, "n": n, "value": n**0.5} for n in (8, 16)]
        >>> [(chart.title, chart.series[0].x) for chart in growth_charts(records, {})]
        [('tiny', [8, 16])]
    """
    from howsmooth.report.training import split_training, training_charts  # which groups records as this module does

    of_monitor, records = split_training(records)
    grouped_laws, groups = laws_by_quantity(laws), by_quantity(records)
    several_quantities = len({quantity for _, quantity, _ in groups}) > 1
    charts = [growth_chart(group, grouped_laws.get(key, {})) for key, group in groups.items()]
    return [
        *training_charts(of_monitor),
        *(
            replace(chart, title=f"{chart.title}, {symbol(quantity)}") if several_quantities else chart
            for chart, (_, quantity, _) in zip(charts, groups, strict=True)
        ),
    ]


def growth_picture(records: Sequence[dict[str, Any]], laws: dict[tuple, Law] | None = None) -> Picture:
    """Return the picture of `growth_charts`: one panel for each model, and those of spectra, if there are any.

    Args:
        records: Measurements, as `howsmooth.measure` returns them.
        laws: Fitted laws by curve; by default those that `howsmooth.fits.growth_laws` fits.
    """
    charts = [*growth_charts(records, growth_laws(records) if laws is None else laws), *spectrum_charts(records)]
    return Picture(charts, columns=len(charts), height=legend_height(charts))


def legend_height(charts: Sequence[Chart]) -> float:
    """Return the height in inches of panels whose legends are below them, with two entries in a line."""
    entries = [sum(bool(series.label) for series in chart.series) for chart in charts]
    lines = math.ceil(min(max(entries, default=0), _MAX_LEGEND_ENTRIES) / 2)
    return 4.6 + 0.22 * (lines + any(chart.samples for chart in charts))


def growth_chart(
    records: Sequence[dict[str, Any]],
    laws: dict[tuple, Law],
    *,
    max_labelled: int = _MAX_LEGEND_ENTRIES,
    with_reference_slopes: bool = True,
) -> Chart:
    """Return the chart of Lip against n for one model, one series per layer and head.

    Args:
        records: Measurements of one model and one quantity.
        laws: Fitted laws by curve, as `howsmooth.fits.growth_laws` returns them.
        max_labelled: Largest number of series with a legend entry.
        with_reference_slopes: Whether to draw the slopes of √n and n^(1/4) for comparison.
    """
    layer, head = CURVE.index("layer"), CURVE.index("head")
    law_by_map = {(key[layer], key[head]): law for key, law in laws.items()}
    groups = group_by(records, "layer", "head")
    drawable = [key for key, group in groups.items() if any(map(is_positive, column(group, "value")))]
    keys = sorted(drawable, key=none_first)
    labelled = set(keys) if len(keys) <= max_labelled else set()
    if 1 < max_labelled < len(keys):
        labelled = {keys[k] for k in evenly_spaced(len(keys), max_labelled)}
    series = [
        samples_series(groups[key], map_name(*key) if key in labelled else "", law_by_map.get(key), name=map_name(*key))
        for key in keys
    ]
    lengths = sorted({n for one in series for n in one.x})
    omitted = sum(not is_positive(value) for value in column(records, "value"))
    counts = sample_count_text(records)
    quantity, tokens = records[0].get("quantity"), records[0].get("tokens") or "all"
    title = ", ".join([model_name(records[0]["model"]), *([] if tokens == "all" else [tokens])])
    y_label = LIPSCHITZ_LABEL if symbol(quantity) == "Lip" else symbol(quantity)
    return Chart(
        title,
        Axis(LENGTH_LABEL, "log", lengths),
        Axis(y_label, "log"),
        series,
        reference_slopes=_REFERENCE_SLOPES if with_reference_slopes else (),
        legend_title="" if len(labelled) in (0, len(keys)) else f"{len(labelled)} of {len(keys)} maps named",
        notes=_omitted_note(omitted),
        samples=counts,
        confidence=confidence_text(records).removesuffix(" sure") if records[0].get("confidence") else "",
        caption=f"Marks are samples with their intervals ({counts}), lines their medians, dashed lines the "
        "fitted laws.",
        caption_without_details=f"Lines are medians over samples ({counts}), their colours from the first layer to "
        "the last.",
    )


def samples_series(
    records: Sequence[dict[str, Any]], label: str, law: Law | None = None, y: str = "value", **style: Any
) -> Series:
    """Return the samples of one map at all lengths as a series.

    Values that are zero or missing are counted in `omitted_count` and not drawn.

    Args:
        records: Measurements of one map.
        label: Legend entry.
        law: Law fitted to the samples.
        y: Field of the records that is drawn; only "value" has intervals.
        **style: Further fields of `Series`, which override the defaults.
    """
    points = [point for point in fields(records, "n", y, "lower", "upper", "sample", "status") if is_positive(point[1])]
    has_interval = y == "value"
    return Series(
        [point[0] for point in points],
        [point[1] for point in points],
        [point[2] for point in points] if has_interval else (),
        [_finite_or_none(point[3]) for point in points] if has_interval else (),
        label=label,
        law=law,
        omitted_count=len(records) - len(points),
        details=[_point_text(*point[4:]) for point in points],
        **{"has_samples": True, "show_markers": True, "linestyle": "solid", **style},
    )


def _point_text(sample: Any, status: Any) -> str:
    return ", ".join([*([] if sample is None else [f"sample {sample}"]), *([] if status is None else [str(status)])])


def is_positive(value: float | None) -> bool:
    """Return whether a value is positive and finite, so that a log scale can show it."""
    return value is not None and 0 < value < math.inf


def is_drawable(record: dict[str, Any], y: str = "value") -> bool:
    """Return whether a field of a record is positive and finite."""
    return is_positive(record[y])


def sample_count_text(records: Sequence[dict[str, Any]]) -> str:
    """Describe how many samples each length has.

    Example:
        >>> sample_count_text([{"n": 8}, {"n": 8}, {"n": 16}])
        '1 to 2 samples at each length'
    """
    counts = set(Counter(fields(records, *CURVE, "n")).values()) or {0}
    low, high = min(counts), max(counts)
    return f"{counted(high, 'sample') if low == high else f'{low} to {high} samples'} at each length"


def _omitted_note(count: int) -> list[str]:
    return [f"{count} values are zero or missing and cannot be drawn on a log scale."] if count else []


def check_panel_count(maps: int) -> None:
    """Raise InputError if a figure with a panel for each map would have too many panels to be readable."""
    if maps > _MAX_PANELS:
        raise InputError(
            f"expected at most {_MAX_PANELS} maps in one figure, got {maps}; choose some with --layers or --heads"
        )


def bounds_picture(records: Sequence[dict[str, Any]], *, columns: int | None = None) -> Picture:
    """Return the picture of `bounds_charts`: for each map, bounds at the measured tokens and on the worst case.

    Args:
        records: Bounds of one model, as `howsmooth.bound` returns them.
        columns: Panels in a row; by default the two panels of a map are side by side.
    """
    maps = len({(record["layer"], record["head"]) for record in records})
    check_panel_count(maps)
    return Picture(
        bounds_charts(records),
        columns=columns or (2 if maps <= _MAX_BOUND_ROWS else 4),
        height=4.0,
        shared_legend=True,
        title=f"{model_name(records[0]['model'])}: bounds and the measured constant",
    )


def bounds_charts(records: Sequence[dict[str, Any]]) -> list[Chart]:
    """Return the `map_bounds_charts` of each map of one model; a bound has the same colour and line style in all."""
    maps = bound_rows(records)
    titles = list(dict.fromkeys(row.title for rows in maps.values() for row in _drawn_rows(rows)))
    return [chart for key, rows in maps.items() for chart in map_bounds_charts(rows, map_name(*key), titles)]


def map_bounds_charts(rows: Sequence[BoundRow], name: str, titles: Sequence[str] = ()) -> list[Chart]:
    """Return the charts of one map: bounds at the measured tokens, and bounds on the worst case in the ball.

    The constants are different ones: a lower bound on the worst case may be far above the measured constant. Bounds
    too far from the others are listed in the notes instead of drawn; a chart without bounds is left out.

    Args:
        rows: Bounds of one map, as `bound_rows` returns them.
        name: Name of the map.
        titles: Titles of bounds in the order of their colours; by default in the order of the rows.
    """
    drawn = _drawn_rows(rows)
    titles = titles or [row.title for row in drawn]
    cells = {n: cell for row in rows for n, cell in row.cells.items()}
    lengths = sorted(cells)
    charts = [_local_bounds_chart(rows, [row for row in drawn if row.is_local], name, titles, lengths)]
    if any(not row.is_local for row in drawn):
        charts.append(_worst_case_chart(rows, [row for row in drawn if not row.is_local], name, titles, lengths))
    return charts


def _local_bounds_chart(
    rows: Sequence[BoundRow], drawn: Sequence[BoundRow], name: str, titles: Sequence[str], lengths: list[int]
) -> Chart:
    cells = {n: cell for row in rows for n, cell in row.cells.items()}
    measured = [cells[n]["measured"] for n in lengths]
    here = scope_text(cells[lengths[0]], "at X")
    constant = Series(
        lengths,
        [one["value"] for one in measured],
        [one["lower"] for one in measured],
        [_finite_or_none(one["upper"]) for one in measured],
        label=f"measured {here}",
        show_markers=True,
        marker_index=0,
        linestyle="solid",
        colour="foreground",
    )
    off_scale, short = _off_scale([row for row in rows if row.is_local and row not in drawn], lengths)
    return Chart(
        f"{name}, {here}",
        Axis(LENGTH_LABEL, "log", lengths),
        Axis(LIPSCHITZ_LABEL, "log"),
        [constant, *(_bound_series(row, titles) for row in drawn)],
        notes=off_scale,
        short_notes=short,
        caption=f"{name}: the constant {here} and its bounds there. {' '.join(off_scale)}".strip(),
    )


def _worst_case_chart(
    rows: Sequence[BoundRow], drawn: Sequence[BoundRow], name: str, titles: Sequence[str], lengths: list[int]
) -> Chart:
    lower, upper = _tightest(drawn, lengths, "lower"), _tightest(drawn, lengths, "upper")
    radii = [cell["R"] for row in drawn for cell in row.cells.values()]
    ends = " … ".join(dict.fromkeys((number(min(radii), 3), number(max(radii), 3))))
    off_scale, short = _off_scale([row for row in rows if row.holds in _BALL_SCOPES and row not in drawn], lengths)
    return Chart(
        f"{name}, worst case in the ball, R\u00a0=\u00a0{ends}",
        Axis(LENGTH_LABEL, "log", lengths),
        Axis("largest  ‖D$_X$f‖$_2$  with all  |x$_i$| ≤ R", "log"),
        [_bound_series(row, titles) for row in drawn],
        bands=[Band(lengths, lower, upper, "the worst case is in here")] if lower and upper else [],
        notes=off_scale,
        short_notes=short,
        caption=f"{name}: bounds on the largest constant over all inputs of n tokens of norm R at most, not on the "
        f"constant measured above. {' '.join(off_scale)}".strip(),
    )


def _bound_series(row: BoundRow, titles: Sequence[str]) -> Series:
    """Return the line of a bound; bounds may coincide, so that successive ones differ in colour and in line style."""
    lengths, index = sorted(row.cells), titles.index(row.title)
    return Series(
        lengths,
        [math.exp(row.cells[n]["log_value"]) for n in lengths],
        linestyle=_LINESTYLES[index % len(_LINESTYLES)],
        label=row.title,
        linewidth=1.6,
        colour=index % PALETTE_SIZE,
    )


def _drawn_rows(rows: Sequence[BoundRow]) -> list[BoundRow]:
    """Return the bounds that are drawn: those at the measured tokens and in the ball that are near enough.

    Left out are bounds on a supremum over n and on the limit of large radius, which are about other constants.
    """
    local = [row for row in rows if row.is_local and abs(_log_range(row, "log_ratio")[1]) < _MAX_LOG_RATIO]
    local = [row for row in local if _log_range(row, "log_value")[1] < _MAX_LOG]
    ball = [row for row in rows if row.holds in _BALL_SCOPES]
    least = min((_log_range(row, "log_value")[0] for row in ball), default=0.0)
    return [*local, *(row for row in ball if _log_range(row, "log_value")[1] < min(least + _MAX_LOG_RATIO, _MAX_LOG))]


def _log_range(row: BoundRow, name: str) -> tuple[float, float]:
    values = [cell[name] for cell in row.cells.values()]
    return min(values), max(values)


def _off_scale(rows: Sequence[BoundRow], lengths: Sequence[int]) -> tuple[list[str], list[str]]:
    """Return a line about the bounds that are too far away to be drawn, and a shorter one."""
    if not rows:
        return [], []
    logs = [row.cells[max(row.cells)]["log_value"] for row in rows]
    names = [row.title.replace(" ", "\u00a0", 1) for row in rows]  # no line ends after the sign
    far = ", ".join(f"{name}\u00a0{magnitude(log)}" for name, log in zip(names, logs, strict=True))
    ends = " to ".join(dict.fromkeys((magnitude(min(logs)), magnitude(max(logs)))))
    return [f"Off the scale at n = {lengths[-1]}: {far}."], [f"Off the scale: {counted(len(rows), 'bound')}, {ends}."]


def _tightest(rows: Sequence[BoundRow], lengths: list[int], side: str) -> list[float] | None:
    """Return the tightest bound of one side at each length; None if a length has none."""
    tightest = max if side == "lower" else min
    chosen = [row for row in rows if row.side == side]
    if not all(any(n in row.cells for row in chosen) for n in lengths):
        return None
    return [math.exp(tightest(row.cells[n]["log_value"] for row in chosen if n in row.cells)) for n in lengths]


def heat_maps(records: Sequence[dict[str, Any]]) -> dict[str, list[HeatMap]]:
    """Return the heat maps of medians over samples that the records allow.

    Args:
        records: Measurements of one model.

    Returns:
        Under "heads" a map of layer × head for each length, under "lengths" one map of layer × length with the largest
        value over heads. A list is empty if there is only one head or one length.
    """
    shown = where(records, lambda value, layer: is_positive(value) and layer is not None, "value", "layer")
    lengths = sorted(set(column(shown, "n")))
    heads = set(column(shown, "head")) - {None}
    maps: dict[str, list[HeatMap]] = {"heads": [], "lengths": []}
    if len(heads) > 1:
        by_length = group_by(where(shown, lambda head: head is not None, "head"), "n")
        maps["heads"] = [
            _heat_map(by_length.get((n,), []), "head", f"Lip of each head at n = {n}, median over samples")
            for n in lengths
        ]
    if len(lengths) > 1:
        suffix = ", of the largest head" if len(heads) > 1 else ""
        maps["lengths"] = [_heat_map(shown, "n", f"Lip at each length, median over samples{suffix}")]
    return maps


def _heat_map(records: Sequence[dict[str, Any]], across: str, title: str) -> HeatMap:
    cells: dict[tuple, float] = {}
    for (layer, j, _), group in group_by(records, "layer", across, "head").items():
        cells[layer, j] = max(median(column(group, "value")), cells.get((layer, j), 0.0))
    layers, columns = (sorted({key[i] for key in cells}) for i in (0, 1))
    return HeatMap(
        title,
        Axis(LENGTH_LABEL if across == "n" else "head"),
        Axis("layer"),
        columns,
        layers,
        [[cells.get((layer, j)) for j in columns] for layer in layers],
        show_values=True,
    )


def token_picture(words: Sequence[str], colourings: Sequence[Colouring], *, title: str = "") -> Picture:
    """Return the picture of a text, once for each colouring.

    Args:
        words: The tokens.
        colourings: What colours show, each with one number for each token.
        title: A line above all of it.

    Example:
        >>> from howsmooth.report.style import share_colouring
        >>> picture = token_picture(["the", " bridge"], [share_colouring([0.9, 0.1])], title="layer 0")
        >>> picture.panels[0].words
        ['the', 'bridge']
    """
    shown = [token(word, 30) for word in words]
    return Picture([Tokens(shown, colouring) for colouring in colourings], columns=1, width=10.0, title=title)


def _finite_or_none(upper: float | None) -> float | None:
    return upper if upper is not None and upper < 1e300 else None  # 1e300: close to overflow
