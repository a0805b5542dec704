"""Charts of flows and of the layers of a model: paths of tokens, and statistics along depth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy

from howsmooth.errors import InputError
from howsmooth.questions.flows import of_kind
from howsmooth.report.chart import PALETTE_SIZE, Axis, Band, Chart, LineStyle, Picture, Series
from howsmooth.report.flow_tables import depth_runs, flows_of
from howsmooth.report.rows import model_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

DEPTH = "depth t"
MAX_PATHS = 400  # about so many tokens are drawn: with more, every k-th
_SYMLOG_RATIO = 40.0  # a coordinate that grows by more than this factor gets a symlog scale
# Field of the records, legend entry, line style.
COUNTS: tuple[tuple[str, str, LineStyle], ...] = (
    ("clusters", "clusters", "solid"),
    ("vertices", "hull vertices", "dashed"),
    ("hyperplanes", "hyperplanes", "solid"),
    ("leading_clusters", "leading clusters", "solid"),
    ("rank", "rank of P", "dotted"),
)
SIZES: tuple[tuple[str, str, LineStyle], ...] = (
    ("diameter", "diameter", "solid"),
    ("w2_to_last", "W₂ to the last depth", "dashed"),
    ("undecided", "distance of P from 0/1", "dotted"),
    ("local", "local Lipschitz constant of Γ", "dashdot"),
)
_FINAL_NORM_OFFSET = 0.6  # distance on the depth axis between the last layer and the state after the final norm
SMALLEST_SIZE = 1e-12  # smaller values are rounding errors and are not drawn
_TRAIL_LENGTH = 8  # saved depths in the trail behind a token


def particle_picture(records: Sequence[dict[str, Any]]) -> Picture:
    """Return the paths of the tokens, coloured by their final cluster, next to counts and sizes along depth.

    Args:
        records: Records of flows of particles; the first flow is drawn.
    """
    depths = first_flow(records)
    return Picture(
        [
            paths_chart(depths),
            _curves_chart(depths, COUNTS, Axis(""), "how many", are_counts=True),
            _curves_chart(depths, SIZES, Axis("depth t"), "how large"),
        ],
        width=5.5,
        height=2.6,
        title=depths[0]["title"],
        mosaic="AB;AC",
        width_ratios=(1.25, 1),
    )


def first_flow(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the depths of the first flow among records."""
    depths = of_kind(records, "particles")
    if not depths:
        raise InputError("expected the tokens of a flow to draw, got records of growth alone; measure the flow again")
    return flows_of(depths)[0]


def paths_of(records: Sequence[dict[str, Any]], *, space: bool = False) -> tuple[NDArray, list[str], list[int]]:
    """Return the paths of tokens (T, n, 1 to 3), the names of the axes, and the final cluster of each token.

    Args:
        records: The depths of one flow.
        space: Whether there are three coordinates, of tokens in three dimensions or more.
    """
    first, space = records[0], space and records[0]["space"] is not None
    paths = numpy.array([record["space" if space else "plane"] for record in records], dtype=float)
    names = first.get("space_axes" if space else "axes") or [f"coordinate {i + 1}" for i in range(paths.shape[2])]
    return paths, names, first.get("labels") or [0] * paths.shape[1]


def paths_chart(records: Sequence[dict[str, Any]], title: str = "") -> Chart:
    """Return the tokens of one flow against depth in one dimension, or their paths with first and last points in two.

    Args:
        records: The depths of one flow.
        title: Title of the chart.
    """
    paths, names, clusters = _drawn_paths(records)
    thin = {"linestyle": "solid", "linewidth": 1.0 if paths.shape[1] < 100 else 0.5}
    if names[0] == DEPTH:
        lines = _series(paths, clusters, opacity=0.8, **thin)
        return Chart(title, Axis(names[0]), Axis(names[1]), lines)
    dots: dict[str, Any] = {"show_markers": True, "marker_index": 0, "opacity": 1.0}
    series = [
        *_series(paths, clusters, opacity=0.35, **thin),
        series_at(paths[0], colour="muted", marker_size=3.0, **dots),
        *_series(paths[-1:], clusters, marker_size=6.0, **dots),
    ]
    x_axis, y_axis, equal = _scaled_axes(paths, names)
    return Chart(title, x_axis, y_axis, series, equal_scales=equal)


def _drawn_paths(records: Sequence[dict[str, Any]]) -> tuple[NDArray, list[str], list[int]]:
    """Return the paths that are drawn (T, n, 2), the names of both axes and the clusters; in d = 1 against depth."""
    paths, names, clusters = paths_of(records)
    step = max(1, paths.shape[1] // MAX_PATHS)
    paths, clusters = paths[:, ::step], clusters[::step]
    if paths.shape[2] == 1:
        times = numpy.array([record["t"] for record in records], dtype=float)
        paths = numpy.concatenate([numpy.broadcast_to(times[:, None, None], paths.shape), paths], -1)
        names = [DEPTH, names[0]]
    return paths, names, clusters


def _series(paths: NDArray, clusters: Sequence[int], **style: Any) -> list[Series]:
    """Return one series for each cluster, with the paths of its tokens (T, n, 2)."""
    count = max(clusters) + 1
    return [
        series_at(paths[:, numpy.array(clusters) == one], colour=_cluster_colour(one, count), **style)
        for one in sorted(set(clusters))
    ]


def series_at(points: NDArray, **style: Any) -> Series:
    """Return points in the plane (n, 2), or paths (T, n, 2) with NaN between them, as a series."""
    if points.ndim == 3:
        gap = numpy.full((int(len(points) > 1), *points.shape[1:]), numpy.nan)
        points = numpy.concatenate([points, gap]).swapaxes(0, 1).reshape(-1, 2)
    x, y = points.T.tolist()
    return Series(x, y, **style)


def _cluster_colour(cluster: int, count: int) -> int | float:
    """Return the colour of a cluster: of the palette for a few, on a sequential colour map for many."""
    return cluster if count <= PALETTE_SIZE else cluster / (count - 1)


def _scaled_axes(paths: NDArray, names: Sequence[str]) -> tuple[Axis, Axis, bool]:
    """Return both axes, symlog for a coordinate that grows by more than `_SYMLOG_RATIO`, and if scales are equal."""
    largest, start = abs(paths).max((0, 1)), abs(paths[0]).max(0)
    grows = largest > _SYMLOG_RATIO * start
    axes = [
        Axis(name, "symlog" if symlog else "linear", linear_below=float(start.max()) or 1.0)
        for name, symlog in zip(names, grows, strict=True)
    ]
    return axes[0], axes[1], bool(not grows.any() and max(largest) < 4 * min(largest))


def _curves_chart(
    records: Sequence[dict[str, Any]],
    curves: Sequence[tuple[str, str, LineStyle]],
    x_axis: Axis,
    y_label: str,
    *,
    are_counts: bool = False,
) -> Chart:
    series = []
    for index, (key, name, linestyle) in enumerate(curves):
        points = [(r["t"], r[key]) for r in records if r[key] is not None and (are_counts or r[key] > SMALLEST_SIZE)]
        if points:
            xs, ys = zip(*points, strict=True)
            series.append(Series(xs, ys, label=name, linestyle=linestyle, colour=index, steps=are_counts))
    return Chart(
        "",
        replace(x_axis, lower_limit=records[0]["t"], upper_limit=records[-1]["t"] or 1.0),
        Axis(y_label, "log" if series else "linear", lower_limit=0.8 if are_counts and series else None),
        series,
        legend_inside=True,
    )


def particle_frames(records: Sequence[dict[str, Any]]) -> Iterator[Chart]:
    """Yield one chart for each saved depth: tokens with short trails, coloured by final cluster.

    Args:
        records: Records of flows of particles; the first flow is drawn.
    """
    depths = first_flow(records)
    paths, names, clusters = _drawn_paths(depths)
    low, high = paths.min((0, 1)), paths.max((0, 1))
    margin = 0.06 * (high - low) + 1e-9
    x_axis, y_axis, equal = _scaled_axes(paths, names)
    x_axis, y_axis = (
        replace(
            axis if names[0] != DEPTH else Axis(axis.label),
            lower_limit=float(low[k] - margin[k]),
            upper_limit=float(high[k] + margin[k]),
        )
        for k, axis in enumerate((x_axis, y_axis))
    )
    for frame, record in enumerate(depths):
        trails = paths[max(0, frame - _TRAIL_LENGTH) : frame + 1]
        dots = _series(paths[frame : frame + 1], clusters, show_markers=True, marker_index=0, opacity=1.0)
        lines = _series(trails, clusters, linestyle="solid", linewidth=0.9, opacity=0.45) if frame else []
        yield Chart(
            f"{depths[0]['title']}\nt = {record['t']:.3g}",
            x_axis,
            y_axis,
            [*lines, *dots],
            equal_scales=equal and names[0] != DEPTH,
        )


def depth_picture(records: Sequence[dict[str, Any]]) -> Picture:
    """Return the picture of `depth_charts`, one row for each model."""
    charts = depth_charts(records)
    models = list(dict.fromkeys(record["model"] for record in records))
    return Picture(
        charts,
        columns=len(charts) // len(models),
        width=4.1,
        height=4.2,
        many_panels=True,
        title=f"{model_name(models[0])}, n = {_lengths_text(records)}" if len(models) == 1 else "",
    )


def _lengths_text(records: Sequence[dict[str, Any]]) -> str:
    return ", ".join(map(str, sorted({record["n"] for record in records})))


def depth_charts(records: Sequence[dict[str, Any]]) -> list[Chart]:
    """Return three or four charts for each model; several chunks of text share a chart."""
    has_growth = any(record["own"] is not None for record in records)
    charts = []
    models = list(dict.fromkeys(record["model"] for record in records))
    for model in models:
        runs = depth_runs([record for record in records if record["model"] == model])
        lengths = sorted({record["n"] for run in runs for record in run})
        x = Axis("layers passed" + (", then the final norm" if runs[0][-1]["normed"] else ""), integer_ticks=True)
        name = "" if len(models) == 1 else f"{model_name(model)}, n = {', '.join(map(str, lengths))}: "
        lines = [
            [series for run in runs for series in part(run, labelled=run is runs[0])]
            for part in (_sizes, _directions, _clusters, _growth)
        ]
        low = min((value for series in lines[1] for value in series.y), default=0.0)
        charts += [
            Chart(f"{name}size of tokens", x, Axis("norm of a token", "log"), lines[0]),
            Chart(
                f"{name}directions of tokens",
                x,
                Axis("cosine, distance or share", lower_limit=min(0.0, low - 0.05), upper_limit=1.05),
                lines[1],
            ),
            Chart(
                f"{name}clusters of directions",
                x,
                Axis("number of clusters", lower_limit=0, upper_limit=1.08 * lengths[-1], integer_ticks=True),
                lines[2],
            ),
        ]
        if has_growth:
            charts.append(
                Chart(
                    f"{name}growth of a perturbation",
                    x,
                    Axis("output change / input change", "log"),
                    lines[3],
                    bands=[
                        Band(
                            [depth_of(r) for r in run if r["value"] is not None],
                            [r["lower"] for r in run if r["value"] is not None],
                            [min(r["upper"], 1e300) for r in run if r["value"] is not None],
                            "its interval" * (run is runs[0]),
                        )
                        for run in runs
                    ],
                )
            )
    return charts


def depth_of(record: dict[str, Any]) -> float:
    """Return the position of a record on the depth axis; the state after the final norm follows the last layer."""
    return record["depth"] + (_FINAL_NORM_OFFSET if record["normed"] else 0.0)


def _depth_series(
    run: Sequence[dict[str, Any]],
    values: Sequence[float | None],
    colour: int | str,
    label: str = "",
    linestyle: LineStyle = "solid",
    show_markers: bool = False,
    marker_index: int = 0,
) -> Series:
    points = [(depth_of(record), value) for record, value in zip(run, values, strict=True) if value is not None]
    return Series(
        [x for x, _ in points],
        [y for _, y in points],
        label=label if points else "",
        linestyle=linestyle,
        show_markers=show_markers,
        marker_index=marker_index,
        colour=colour,
        linewidth=1.7,
    )


def _sizes(run: Sequence[dict[str, Any]], labelled: bool) -> list[Series]:
    lines = [
        _depth_series(run, [r["norm"] for r in run], 0, "median norm" * labelled, show_markers=True),
        _depth_series(run, [r["largest_norm"] for r in run], 0, "largest norm" * labelled, "dotted"),
    ]
    if run[0]["sink"] is not None:
        lines.append(_depth_series(run, [r["sink_norm"] for r in run], 1, "sink of attention" * labelled, "dashed"))
    return lines


def _directions(run: Sequence[dict[str, Any]], labelled: bool) -> list[Series]:
    lines = []
    for colour, (key, name) in enumerate(
        (
            ("cosine", "mean cosine of two tokens"),
            ("to_mean", "distance from mean"),
            ("effective_rank", "effective rank / n"),
        )
    ):
        for suffix in ("", "_without_sink"):
            values = [r[key + suffix] for r in run]
            if key == "effective_rank":
                values = [None if v is None else v / (run[0]["n"] - (suffix != "")) for v in values]
            lines.append(
                _depth_series(
                    run,
                    values,
                    colour,
                    name * (labelled and not suffix),
                    "dashed" if suffix else "solid",
                    show_markers=not suffix,
                )
            )
    if labelled and run[0]["sink"] is not None:
        lines.append(Series((), (), label="without the sink", linestyle="dashed", colour="muted"))
    return lines


def _clusters(run: Sequence[dict[str, Any]], labelled: bool) -> list[Series]:
    return [
        *(
            _depth_series(
                run, [r["clusters"][index] for r in run], index, f"closer than {tol:g}" * labelled, show_markers=True
            )
            for index, tol in enumerate(run[0]["tolerances"])
        ),
        _depth_series(run, [r["distinct"] for r in run], "muted", "different tokens" * labelled, "dotted"),
    ]


def _growth(run: Sequence[dict[str, Any]], labelled: bool) -> list[Series]:
    return [
        _depth_series(run, [r["product"] for r in run], 1, "product of layers" * labelled, "dashed"),
        _depth_series(run, [r["value"] for r in run], 0, "σ₁ of all layers so far" * labelled, show_markers=True),
        _depth_series(
            run, [r["relative"] for r in run], 2, "relative to the tokens" * labelled, show_markers=True, marker_index=1
        ),
        _depth_series(run, [r["own"] for r in run], 3, "each layer alone" * labelled, "", show_markers=True),
    ]
