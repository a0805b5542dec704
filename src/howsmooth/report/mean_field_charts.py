"""Charts of attention on measures: regimes, masked constants, distances, mass splitting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from howsmooth.lipschitz.criterion import line_splitting_grid
from howsmooth.lipschitz.splitting import SPLITS
from howsmooth.records.columns import group_by
from howsmooth.report.chart import PALETTE_SIZE, Annotation, Axis, Chart, HeatMap, LineStyle, Picture, Series
from howsmooth.report.charts import LENGTH_LABEL, legend_height
from howsmooth.report.rows import LOG10, model_name

SCORE_MATRICES = {"negative": "A = −1", "positive": "A = +1", "rotation": "A a quarter turn"}
# Range of the colour scale for the splitting ratio: of two atoms on a line, and of the heads of a model.
LINE_RATIO_RANGE = (0.5, 1.5)
HEADS_RATIO_RANGE = (0.0, 2.0)
_RATIO_LABEL = "max$_i$ ‖∂₁G(x$_i$, μ)‖ / ‖D‖:  splits above 1"
_REGIME_CURVES: tuple[tuple[str, LineStyle, float], ...] = (  # field, line style, line width
    ("log_value", "solid", 2.2),
    ("log_upper", "dashed", 1.1),
    ("log_at_radius", "dotted", 1.1),
)


def regimes_picture(records: Sequence[dict[str, Any]]) -> Picture:
    """Return the chart of Lip against n on log scales, one colour for each γR².

    Solid: exact for tokens at two points; dashed: upper bound; dotted: one token on the sphere, as published; dot: n*.
    """
    sizes = list(dict.fromkeys(record["gamma_r2"] for record in records))
    x_max = max(record["log_n"] for record in records) / LOG10
    y_max = max(record["log_upper"] for record in records) / LOG10
    series, annotations = [], []
    for index, size in enumerate(sizes):
        chosen = sorted((r for r in records if r["gamma_r2"] == size), key=lambda r: r["log_n"])
        xs, colour = [record["log_n"] / LOG10 for record in chosen], _colour(index, len(sizes))
        for name, linestyle, linewidth in _REGIME_CURVES:
            series.append(
                Series(
                    xs,
                    [record[name] / LOG10 for record in chosen],
                    linestyle=linestyle,
                    linewidth=linewidth,
                    colour=colour,
                    label=f"γR² = {size:g}" if linestyle == "solid" else "",
                )
            )
        crossover, plateau = chosen[0]["log_crossover"] / LOG10, chosen[0]["log_plateau"] / LOG10
        if 0 < crossover <= x_max:
            series.append(Series([crossover], [plateau], show_markers=True, marker_index=0, colour=colour))
            annotations.append(Annotation(crossover, plateau - 0.03 * y_max, "n*"))
    end = min(x_max, 2 * y_max)
    series += [
        Series([0, end], [0, end / 2], linestyle="dotted", linewidth=1.2, colour="muted"),
        _legend_entry("largest on two points, exact", "solid", 2.2),
        _legend_entry("upper bound", "dashed"),
        _legend_entry("one token on the sphere, as published", "dotted"),
    ]
    return _picture(
        Chart(
            f"From √n to the plateau, {SCORE_MATRICES[records[0]['scores']]}",
            Axis(LENGTH_LABEL, "exponents"),
            Axis("Lipschitz constant", "exponents"),
            series,
            annotations=[*annotations, Annotation(0.7 * end, 0.35 * end - 0.03 * y_max, "√n")],
        )
    )


def masked_picture(records: Sequence[dict[str, Any]]) -> Picture:
    """Return the chart of the constants of masked attention against a, one colour for each p.

    Lines: proved; points: attained; dashed: as stated in the paper.
    """
    exponents = [
        p
        for p in dict.fromkeys(record["p"] for record in records)
        if any(r["bound"] is not None for r in records if r["p"] == p)
    ]
    series = []
    for index, p in enumerate(exponents):
        chosen = sorted((r for r in records if r["p"] == p), key=lambda r: r["a"])
        xs, colour = [record["a"] for record in chosen], _colour(index, len(exponents))
        series += [
            Series(
                xs,
                [math.exp(r["log_bound"]) for r in chosen],
                linestyle="solid",
                linewidth=2,
                colour=colour,
                label=f"p = {_exponent(p)}",
            ),
            Series(xs, [r["attained"] for r in chosen], show_markers=True, marker_index=index, colour=colour),
        ]
    stated = sorted({record["a"]: record["stated"] for record in records}.items())
    series += [
        Series(
            [a for a, _ in stated],
            [value for _, value in stated],
            linestyle="dashed",
            linewidth=1.4,
            colour="muted",
            label="as stated, for all p",
        ),
        Series((), (), label="attained", show_markers=True, marker_index=0, colour="foreground"),
    ]
    return _picture(
        Chart(
            "Masked attention: proved and attained",
            Axis("a = ‖A‖R²"),
            Axis("Lipschitz constant in $d_p$", "log"),
            series,
        )
    )


def distance_picture(records: Sequence[dict[str, Any]]) -> Picture:
    """Return the chart of distance after / before attention against the layer, a line for each exponent and length.

    Records of measures without a model have no layer; their chart shows the distance against the exponent.
    """
    letter = records[0]["distance"]
    shown = [r for r in records if r["layer"] is None or r["quotient"] is not None]
    exponents = list(dict.fromkeys(r["p"] for r in shown))
    first, second = (
        "the embedded text" if name == "embedded" else Path(name).name
        for name in records[0].get("texts") or records[0]["files"]
    )
    model = "" if records[0]["model"] is None else f"{model_name(records[0]['model'])}: "
    title = f"{model}how far apart are " + (f"{first} and {second}" if first != second else f"two chunks of {first}")
    if records[0]["layer"] is None:
        values = [math.inf if r["before"]["value"] == "inf" else r["before"]["value"] for r in shown]
        finite = [i for i, value in enumerate(values) if math.isfinite(value)]
        high = max((values[i] for i in finite), default=1.0) or 1.0  # equal measures
        names = [_exponent(r["p"]) for r in shown]
        return _picture(
            Chart(
                title,
                Axis("exponent p", tick_labels=names, lower_limit=-0.5, upper_limit=len(names) - 0.5),
                Axis(f"distance ${letter}_p$", lower_limit=0, upper_limit=1.1 * high or 1.0),
                [Series(finite, [values[i] for i in finite], show_markers=True, marker_index=0, colour=0)],
                annotations=[
                    Annotation(
                        i,
                        value if math.isfinite(value) else 0.0,
                        f" {value:.4g}" if math.isfinite(value) else " ∞",
                        colour="foreground",
                    )
                    for i, value in enumerate(values)
                ],
            )
        )
    lengths = list(dict.fromkeys(r["n"] for r in shown))
    series = []
    for index, p in enumerate(exponents):
        for marker_index, n in enumerate(lengths):
            chosen = sorted((r for r in shown if (r["p"], r["n"]) == (p, n)), key=lambda r: r["layer"])
            series.append(
                Series(
                    [r["layer"] for r in chosen],
                    [r["quotient"] for r in chosen],
                    linestyle="solid",
                    show_markers=True,
                    marker_index=marker_index,
                    colour=_colour(index, len(exponents)),
                    label=f"p = {_exponent(p)}" + (f", n = {n}" if len(lengths) > 1 else ""),
                )
            )
    return _picture(
        Chart(
            title,
            Axis("layer", integer_ticks=True),
            Axis(f"${letter}_p$ after attention / before", lower_limit=0),
            series,
        )
    )


def _picture(chart: Chart) -> Picture:
    return Picture([chart], width=7.2, height=legend_height([chart]))


def _colour(index: int, count: int) -> int | float:
    """Return a palette index for a few series, a position on the sequential colour map for many."""
    return index if count <= PALETTE_SIZE else index / (count - 1)


def _legend_entry(label: str, linestyle: LineStyle, linewidth: float = 1.1) -> Series:
    """Return a series without points, which only adds an entry to the legend."""
    return Series((), (), label=label, linestyle=linestyle, linewidth=linewidth, colour="foreground")


def _exponent(p: float | str) -> str:
    return "∞" if isinstance(p, str) else f"{p:g}"


def title(record: dict[str, Any]) -> str:
    """Return the title of a record of atoms on a line.

    Example:
        >>> title({"a": -1.0, "masses": [1.0, 3.0], "third": None, "masked": False})
        'a = −1, masses 1 : 3'
    """
    at = "" if record["third"] is None else f", third atom at {record['third']:g}"
    mask = ", masked" if record["masked"] else ""
    masses = " : ".join(f"{mass:g}" for mass in record["masses"])
    return f"a = {record['a']:g}, masses {masses}{at}{mask}".replace("-", "−")


def ratio(record: dict[str, Any]) -> float:
    """Return the splitting ratio of a record, which JSON writes as null where it is infinite."""
    return math.inf if record["ratio"] is None else float(record["ratio"])


def line_picture(records: Sequence[dict[str, Any]]) -> Picture:
    """Return the splitting ratio of two atoms on a line, one panel for each record; contours are at ratio 1.

    The ratio at each point of the square is computed again, in closed form, from the parameters in the record.
    """
    one = len(records) == 1
    maps = [_line_map(record) for record in records]
    return Picture(maps, width=4.6, height=5.4 if one else 4.2, many_panels=not one)


def _line_map(record: dict[str, Any]) -> HeatMap:
    axis, found = line_splitting_grid(
        *(record[name] for name in ("extent", "points", "a", "masses", "third")), masked=record["masked"]
    )
    edge = float(axis[-1] + (axis[1] - axis[0]) / 2)
    return HeatMap(
        f"{title(record)}\n{100 * record['share']:.2g} % splits, ratio up to {record['ratio']:.5g}",
        Axis("first atom x"),
        Axis("second atom y"),
        (),
        (),
        found.ratio.tolist(),
        caption="Blue: no splitting; orange: mass splits; the line between them is at ratio 1.",
        scale="linear",
        limits=LINE_RATIO_RANGE,
        centre=1.0,
        contour=1.0,
        extent=(-edge, edge, -edge, edge),
        equal_scales=True,
        bar_label=_RATIO_LABEL,
    )


def heads_picture(records: Sequence[dict[str, Any]]) -> Picture:
    """Return the largest splitting ratio over samples for each layer and head, one panel for each length.

    Circles mark heads whose ratio is certified to be above 1.
    """
    lengths = sorted({record["n"] for record in records})
    layers = sorted({record["layer"] for record in records})
    heads = sorted({record["head"] for record in records}, key=lambda head: -1 if head is None else head)
    cell = max(0.22, min(0.45, 9 / max(len(layers), len(heads))))
    return Picture(
        [_heads_map([r for r in records if r["n"] == n], n, layers, heads) for n in lengths],
        columns=1 if len(layers) > 15 else 3,
        width=max(4.0, cell * len(layers) + 1.5),
        height=max(2.4, cell * len(heads) + 1.3),
        title=f"{model_name(records[0]['model'])}: does it split?",
    )


def _heads_map(records: Sequence[dict[str, Any]], n: int, layers: list[int], heads: list[int | None]) -> HeatMap:
    values: list[list[float | None]] = [[None] * len(layers) for _ in heads]
    certified: dict[tuple[int, int], None] = {}
    for record in records:
        row, column = heads.index(record["head"]), layers.index(record["layer"])
        known = values[row][column]
        values[row][column] = ratio(record) if known is None else max(known, ratio(record))
        if record["verdict"] == SPLITS:
            certified[column, row] = None
    circles = Series(
        [column for column, _ in certified],
        [row for _, row in certified],
        show_markers=True,
        hollow_markers=True,
        marker_size=9,
        marker_index=0,
        colour="foreground",
    )
    return HeatMap(
        f"n = {n}",
        Axis("layer"),
        Axis("" if heads == [None] else "head"),
        layers,
        ["all heads" if head is None else head for head in heads],
        values,
        caption="Largest ratio of the samples; circles: certified to be above 1.",
        scale="linear",
        limits=HEADS_RATIO_RANGE,
        centre=1.0,
        upwards=True,
        bar_label=_RATIO_LABEL,
        series=[circles] if certified else [],
    )


Records = Sequence[dict[str, Any]]
_LARGEST_RATIO = 1e9  # a larger ratio stands for ∞


def cases_charts(records: Records) -> list[Chart]:
    """Return the ratio of each case, in the order of the table; those that split are right of 1."""
    rows = list(reversed(records))
    finite = [(row, r) for row, r in enumerate(rows) if r["ratio"] is not None and 0 < r["ratio"] <= _LARGEST_RATIO]
    left, right = min(r["ratio"] for _, r in finite), max(r["ratio"] for _, r in finite)
    series = [Series([1, 1], [-0.5, len(rows) - 0.5], linestyle="solid", linewidth=0.7, colour="foreground")]
    for splits in (True, False):
        drawn = [(r["ratio"], row) for row, r in finite if r["splits"] == splits]
        series.append(
            Series(
                [ratio for ratio, _ in drawn],
                [row for _, row in drawn],
                label="splits" if splits else "does not split",
                show_markers=True,
                colour=0 if splits else "muted",
                marker_index=0 if splits else 1,
            )
        )
    off_scale = [
        Annotation(left, row, "0", "left") if r["ratio"] == 0 else Annotation(right, row, "∞", "right")
        for row, r in enumerate(rows)
        if (row, r) not in finite
    ]
    labels = [f"{r['map']}: {r['where']}" for r in rows]
    x = Axis("max$_i$ ‖∂$_1$G(x$_i$, μ)‖ / ‖D‖", "log")
    return [Chart("Which maps split?", x, Axis("", tick_labels=labels), series, annotations=off_scale)]


def copies_charts(records: Records) -> list[Chart]:
    """Return the change of the constant against the position of the repeated token, one chart for each layer."""
    names = {"next_over_before": "next position", "kept_over_before": "kept position"}
    charts = []
    for (model, layer, n), group in group_by(records, "model", "layer", "n").items():
        positions = [record["position"] for record in group]
        series = [Series([0, max(positions)], [1, 1], linestyle="solid", linewidth=0.7, colour="foreground")]
        series += [
            Series(positions, [record[which] for record in group], label=label, has_samples=True, show_markers=True)
            for which, label in names.items()
        ]
        x = Axis("position of the repeated token", integer_ticks=True)
        y = Axis(f"Lip with {group[0]['copies']} copies / Lip before")
        charts.append(Chart(f"{model_name(model)}, layer {layer}, n = {n}", x, y, series))
    return charts
