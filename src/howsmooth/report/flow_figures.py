"""Figures and animations of flows and of the layers of a model: paths of tokens, and statistics along depth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from howsmooth.errors import InputError
from howsmooth.questions.flows import of_kind
from howsmooth.report.chart import Axis, Band, Chart, LineStyle, Picture, Series
from howsmooth.report.figure import draw
from howsmooth.report.flow_tables import depth_runs, flows_of
from howsmooth.report.rows import model_name
from howsmooth.report.style import (
    THEMES,
    Theme,
    apply_theme,
    finish_figure,
    legend_options,
    new_animation_figure,
    new_figure,
)
from howsmooth.report.ticks import set_log_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

MAX_PATHS = 400  # about so many tokens are drawn: with more, every k-th
_SYMLOG_RATIO = 40.0  # a coordinate that grows by more than this factor gets a symlog scale
# Field of the records, legend entry, line style of matplotlib.
COUNTS = (
    ("clusters", "clusters", "-"),
    ("vertices", "hull vertices", "--"),
    ("hyperplanes", "hyperplanes", "-"),
    ("leading_clusters", "leading clusters", "-"),
    ("rank", "rank of P", ":"),
)
SIZES = (
    ("diameter", "diameter", "-"),
    ("w2_to_last", "W₂ to the last depth", "--"),
    ("undecided", "distance of P from 0/1", ":"),
    ("local", "local Lipschitz constant of Γ", "-."),
)
_FINAL_NORM_OFFSET = 0.6  # distance on the depth axis between the last layer and the state after the final norm
SMALLEST_SIZE = 1e-12  # smaller values are rounding errors and are not drawn
_TRAIL_LENGTH = 8  # saved depths in the trail behind a token
_FRAMES_PER_SECOND = 12
_LAST_FRAME_REPEATS = 12


def particle_figure(records: Sequence[dict[str, Any]], *, theme: str = "light") -> Figure:
    """Draw the paths of the tokens, coloured by their final cluster, next to counts and sizes along depth.

    Args:
        records: Records of flows of particles; the first flow is drawn.
        theme: Key of `THEMES`.
    """
    colours, depths = THEMES[theme], first_flow(records)
    figure = new_figure(11.0, 5.2, colours)
    grid = figure.add_gridspec(2, 2, width_ratios=(1.25, 1))
    draw_paths(figure.add_subplot(grid[:, 0]), depths, colours)
    counts, sizes = figure.add_subplot(grid[0, 1]), figure.add_subplot(grid[1, 1])
    _draw_curves(counts, depths, COUNTS, colours, are_counts=True)
    counts.set_ylabel("how many")
    _draw_curves(sizes, depths, SIZES, colours, are_counts=False)
    sizes.set_ylabel("how large")
    sizes.set_xlabel("depth t")
    return finish_figure(figure, depths[0]["title"], colours)


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
    import numpy

    first, space = records[0], space and records[0]["space"] is not None
    paths = numpy.array([record["space" if space else "plane"] for record in records], dtype=float)
    names = first.get("space_axes" if space else "axes") or [f"coordinate {i + 1}" for i in range(paths.shape[2])]
    return paths, names, first.get("labels") or [0] * paths.shape[1]


def draw_paths(panel: Axes, records: Sequence[dict[str, Any]], colours: Theme) -> None:
    """Draw the tokens of one flow against depth in one dimension, or their paths with first and last points in two."""
    times, (paths, names, labels) = [record["t"] for record in records], paths_of(records)
    step = max(1, paths.shape[1] // MAX_PATHS)
    paths, token_colours = paths[:, ::step], cluster_colours(labels, colours)[::step]
    linewidth = 1.0 if paths.shape[1] < 100 else 0.5
    if paths.shape[2] == 1:
        for k, colour in enumerate(token_colours):
            panel.plot(times, paths[:, k, 0], color=colour, linewidth=linewidth, alpha=0.8)
        panel.set_xlabel("depth t")
        panel.set_ylabel(names[0])
    else:
        for k, colour in enumerate(token_colours):
            panel.plot(paths[:, k, 0], paths[:, k, 1], color=colour, linewidth=linewidth, alpha=0.35, zorder=1)
        panel.scatter(
            paths[0, :, 0], paths[0, :, 1], s=9, color=colours["muted"], linewidth=0, zorder=2, label="first tokens"
        )
        panel.scatter(
            paths[-1, :, 0],
            paths[-1, :, 1],
            s=42,
            c=token_colours,
            edgecolors=colours["background"],
            linewidth=0.6,
            zorder=3,
            label="last tokens",
        )
        panel.set_xlabel(names[0])
        panel.set_ylabel(names[1])
        fit_scales(panel, paths)
    apply_theme(panel, colours)


def fit_scales(panel: Axes, paths: NDArray, adjustable: Literal["box", "datalim"] = "datalim") -> None:
    """Set equal scales, or a symlog scale for a coordinate that grows by more than `_SYMLOG_RATIO`."""
    largest, start = abs(paths).max((0, 1)), abs(paths[0]).max(0)
    needs_symlog = largest > _SYMLOG_RATIO * start
    if not needs_symlog.any() and max(largest) < 4 * min(largest):
        panel.set_aspect("equal", adjustable=adjustable)
    for axis, symlog in zip("xy", needs_symlog, strict=True):
        if symlog:
            getattr(panel, f"set_{axis}scale")("symlog", linthresh=float(start.max()))


def cluster_colours(labels: Sequence[int], colours: Theme) -> list[Any]:
    """Return the colour of each token by its cluster: from the palette for a few, a sequential colour map for many."""
    count = max(labels) + 1
    if count <= len(colours["palette"]):
        return [colours["palette"][label] for label in labels]
    from matplotlib import colormaps

    return [colormaps["viridis"](0.05 + 0.9 * label / (count - 1)) for label in labels]


def _draw_curves(
    panel: Axes,
    records: Sequence[dict[str, Any]],
    curves: Sequence[tuple[str, str, str]],
    colours: Theme,
    are_counts: bool,
) -> None:
    drawn = 0
    for (key, name, linestyle), colour in zip(curves, colours["palette"], strict=False):
        points = [(r["t"], r[key]) for r in records if r[key] is not None and (are_counts or r[key] > SMALLEST_SIZE)]
        if points:
            panel.plot(
                *zip(*points, strict=True),
                linestyle,
                color=colour,
                linewidth=1.8,
                label=name,
                drawstyle="steps-post" if are_counts else "default",
            )
            drawn += 1
    apply_theme(panel, colours)
    panel.set_xlim(records[0]["t"], records[-1]["t"] or 1.0)
    if drawn:
        panel.set_yscale("log")
        if are_counts:
            panel.set_ylim(bottom=0.8)
        set_log_ticks(panel.yaxis, *panel.get_ylim())
        panel.legend(**legend_options(colours))


def save_particle_animation(path: str | Path, records: Sequence[dict[str, Any]], *, theme: str = "light") -> None:
    """Write an animation with one frame for each saved depth: tokens with short trails, coloured by final cluster.

    Args:
        path: The file, a gif.
        records: Records of flows of particles; the first flow is drawn.
        theme: Key of `THEMES`.
    """
    from matplotlib.collections import LineCollection

    depths, colours = first_flow(records), THEMES[theme]
    times, (paths, names, labels) = [record["t"] for record in depths], paths_of(depths)
    step = max(1, paths.shape[1] // MAX_PATHS)
    paths, token_colours = paths[:, ::step], cluster_colours(labels, colours)[::step]
    if paths.shape[2] == 1:  # depth on the x-axis
        paths, names = _against_depth(times, paths), ["depth t", names[0]]
    figure, panel = new_animation_figure(depths[0]["title"], colours)
    low, high = paths.min((0, 1)), paths.max((0, 1))
    margin = 0.06 * (high - low) + 1e-9
    panel.set(xlim=(low[0] - margin[0], high[0] + margin[0]), ylim=(low[1] - margin[1], high[1] + margin[1]))
    if names[0] != "depth t":
        fit_scales(panel, paths, "box")  # "box" keeps the limits, which cover all frames
    panel.set_xlabel(names[0])
    panel.set_ylabel(names[1])
    trails = LineCollection([], colors=token_colours, linewidths=0.9, alpha=0.45)
    panel.add_collection(trails)
    x, y = paths[0].T
    dots = panel.scatter(x, y, s=30, c=token_colours, edgecolors=colours["background"], linewidth=0.5, zorder=3)
    depth_text = panel.text(
        1.0, -0.085, "", transform=panel.transAxes, color=colours["foreground"], ha="right", va="top"
    )

    def draw(frame: int) -> None:
        dots.set_offsets(paths[frame])
        trails.set_segments(list(paths[max(0, frame - _TRAIL_LENGTH) : frame + 1].swapaxes(0, 1)))
        depth_text.set_text(f"t = {times[frame]:.3g}")

    save_frames(figure, draw, len(times), path)


def save_frames(figure: Figure, draw: Callable[[int], None], count: int, path: str | Path) -> None:
    """Write a gif whose frame `i` is the figure after `draw(i)`; the last frame is repeated."""
    from matplotlib import animation

    writer = animation.PillowWriter(_FRAMES_PER_SECOND)
    with writer.saving(figure, str(path), figure.dpi):
        for frame in range(count + _LAST_FRAME_REPEATS):
            draw(min(frame, count - 1))
            writer.grab_frame(facecolor=figure.get_facecolor())


def _against_depth(times: Sequence[float], paths: NDArray) -> NDArray:
    import numpy

    depth = numpy.broadcast_to(numpy.asarray(times)[:, None, None], paths.shape)
    return numpy.concatenate([depth, paths], -1)


def depth_figure(records: Sequence[dict[str, Any]], *, theme: str = "light") -> Figure:
    """Draw `depth_charts`, one row for each model."""
    charts = depth_charts(records)
    models = list(dict.fromkeys(record["model"] for record in records))
    return draw(
        Picture(
            charts,
            columns=len(charts) // len(models),
            width=4.1,
            height=4.2,
            many_panels=True,
            title=f"{model_name(models[0])}, n = {_lengths_text(records)}" if len(models) == 1 else "",
        ),
        theme=theme,
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
                Axis("number of clusters", lower_limit=0, upper_limit=1.08 * lengths[-1]),
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
