"""Flows and depth as pictures and animations: where tokens go, and what the instruments see along depth."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from howsmooth.errors import InputError
from howsmooth.report.chart import Axis, Band, Chart, Series
from howsmooth.report.figure import THEMES, draw, plain
from howsmooth.report.flow_tables import of_kind, piece
from howsmooth.report.rows import model_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from howsmooth.dynamics.runs import ParticleRun

MANY = 400  # tokens whose paths are drawn; of more every so-manyth
_WIDE = 40.0  # a spread so many times that of the start is drawn on a scale that is linear only near 0
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
_GAP = 0.6  # how far the state after the final norm stands from the last layer
SMALLEST = 1e-12  # of a size that is drawn: below, rounding is all there is
_TAIL = 8  # saved depths that a token's tail reaches back
_RATE = 12  # frames per second
_HELD = 12  # frames that the last picture stays


def particle_figure(run: ParticleRun, records: Sequence[dict[str, Any]], *, theme: str = "light") -> Figure:
    """`flow_figure` of a run and its records."""
    return flow_figure(of_kind(records, "depth"), *_drawing(run), title=run.title, theme=theme)


def save_particle_animation(path: str | Path, run: ParticleRun, *, theme: str = "light") -> None:
    """`save_animation` of a run."""
    save_animation(path, run.trajectory.times.tolist(), *_drawing(run), title=run.title, theme=theme)


def _drawing(run: ParticleRun) -> tuple[NDArray, Sequence[str], Sequence[int]]:
    """Paths in the plane or on the line, the names of the axes, and the cluster that each token ends in."""
    from howsmooth.dynamics.instruments import view_and_labels

    seen, labels = view_and_labels(run.trajectory, run.field, run.declared.watch.tol)
    return seen(run.trajectory.tokens).numpy(), seen.names, labels


def flow_figure(
    records: Sequence[dict[str, Any]],
    paths: NDArray,
    names: Sequence[str],
    labels: Sequence[int],
    *,
    title: str,
    theme: str = "light",
) -> Figure:
    """Paths (T, n, 1 or 2) of the tokens, coloured by the cluster they end in, beside counts and sizes along depth."""
    from matplotlib.figure import Figure

    colours = THEMES[theme]
    figure = Figure(figsize=(11.0, 5.2), dpi=160, layout="constrained", facecolor=colours["paper"])
    grid = figure.add_gridspec(2, 2, width_ratios=(1.25, 1))
    draw_paths(figure.add_subplot(grid[:, 0]), [r["t"] for r in records], paths, names, labels, colours)
    counts, sizes = figure.add_subplot(grid[0, 1]), figure.add_subplot(grid[1, 1])
    _lines(counts, records, COUNTS, colours, positive=False)
    counts.set_ylabel("how many", color=colours["ink"])
    _lines(sizes, records, SIZES, colours, positive=True)
    sizes.set_ylabel("how large", color=colours["ink"])
    sizes.set_xlabel("depth t", color=colours["ink"])
    figure.suptitle(title, color=colours["ink"], fontsize=13, fontweight="bold", x=0.01, ha="left")
    return figure


def draw_paths(
    panel: Any, times: Sequence[float], paths: NDArray, names: Sequence[str], labels: Sequence[int], colours: dict
) -> None:
    """On the line: tokens against depth; in the plane: paths with their ends."""
    every = max(1, paths.shape[1] // MANY)
    paths, tints = paths[:, ::every], palette(labels, colours)[::every]
    thin = 1.0 if paths.shape[1] < 100 else 0.5
    if paths.shape[2] == 1:
        for k, tint in enumerate(tints):
            panel.plot(times, paths[:, k, 0], color=tint, linewidth=thin, alpha=0.8)
        panel.set_xlabel("depth t", color=colours["ink"])
        panel.set_ylabel(names[0], color=colours["ink"])
    else:
        for k, tint in enumerate(tints):
            panel.plot(paths[:, k, 0], paths[:, k, 1], color=tint, linewidth=thin, alpha=0.35, zorder=1)
        panel.scatter(*paths[0].T, s=9, color=colours["faint"], linewidth=0, zorder=2, label="first tokens")
        panel.scatter(
            *paths[-1].T, s=42, c=tints, edgecolors=colours["paper"], linewidth=0.6, zorder=3, label="last tokens"
        )
        panel.set_xlabel(names[0], color=colours["ink"])
        panel.set_ylabel(names[1], color=colours["ink"])
        fit_scales(panel, paths)
    plain(panel, colours)


def fit_scales(panel: Any, paths: NDArray, adjustable: str = "datalim") -> None:
    """Equal scales in the plane, unless one coordinate runs away from the other."""
    spread, start = abs(paths).max((0, 1)), abs(paths[0]).max(0)
    far = spread > _WIDE * start
    if not far.any() and max(spread) < 4 * min(spread):
        panel.set_aspect("equal", adjustable=adjustable)
    for axis, runs in zip("xy", far, strict=True):
        if runs:
            getattr(panel, f"set_{axis}scale")("symlog", linthresh=float(start.max()))


def palette(labels: Sequence[int], colours: dict) -> list:
    """A colour for each token by its cluster: a few that everyone can tell apart, an ordered scale for many."""
    count = max(labels) + 1
    if count <= len(colours["maps"]):
        return [colours["maps"][label] for label in labels]
    from matplotlib import colormaps

    return [colormaps["viridis"](0.05 + 0.9 * label / (count - 1)) for label in labels]


def _lines(panel: Any, records: Sequence[dict[str, Any]], wanted: tuple, colours: dict, positive: bool) -> None:
    drawn = 0
    for (key, name, dashes), colour in zip(wanted, colours["maps"], strict=False):
        points = [(r["t"], r[key]) for r in records if r[key] is not None and (not positive or r[key] > SMALLEST)]
        if points:
            panel.plot(
                *zip(*points, strict=True),
                dashes,
                color=colour,
                linewidth=1.8,
                label=name,
                drawstyle="default" if positive else "steps-post",
            )
            drawn += 1
    plain(panel, colours)
    panel.set_xlim(records[0]["t"], records[-1]["t"] or 1.0)
    if drawn:
        panel.set_yscale("log")
        panel.legend(frameon=False, labelcolor=colours["ink"], fontsize=8.5)
    if not positive:
        from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

        panel.set_ylim(bottom=0.8)
        panel.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
        panel.yaxis.set_minor_locator(NullLocator())
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def check_animation_path(path: str, option: str = "--animate") -> None:
    """Refuse an animation that could not be made later, before anything is computed."""
    try:
        from matplotlib import animation
    except ImportError:
        raise InputError(
            f"expected matplotlib for {option}, got none installed; pip install 'howsmooth[plot]'"
        ) from None
    suffix = Path(path).suffix.lower()
    if suffix not in (".gif", ".mp4"):
        raise InputError(f"expected a file ending in .gif or .mp4 for {option}, got {path!r}")
    if suffix == ".mp4" and not animation.writers.is_available("ffmpeg"):
        raise InputError(f"expected ffmpeg for an .mp4, got none installed; install it, or name a .gif for {option}")


def save_animation(
    path: str | Path,
    times: Sequence[float],
    paths: NDArray,
    names: Sequence[str],
    labels: Sequence[int],
    *,
    title: str,
    theme: str = "light",
) -> None:
    """One frame for each saved depth: tokens (T, n, 1 or 2) with short tails, coloured by the cluster they end in."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure

    check_animation_path(str(path))
    colours = THEMES[theme]
    every = max(1, paths.shape[1] // MANY)
    paths, tints = paths[:, ::every], palette(labels, colours)[::every]
    if paths.shape[2] == 1:  # on the line: depth runs to the right
        paths, names = _against_depth(times, paths), ("depth t", names[0])
    figure = Figure(figsize=(5.6, 5.2), dpi=110, layout="constrained", facecolor=colours["paper"])
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    low, high = paths.min((0, 1)), paths.max((0, 1))
    margin = 0.06 * (high - low) + 1e-9
    panel.set(xlim=(low[0] - margin[0], high[0] + margin[0]), ylim=(low[1] - margin[1], high[1] + margin[1]))
    if names[0] != "depth t":
        fit_scales(panel, paths, "box")  # limits are those of all frames
    panel.set_xlabel(names[0], color=colours["ink"])
    panel.set_ylabel(names[1], color=colours["ink"])
    plain(panel, colours)
    panel.set_title(textwrap.fill(title, 56), color=colours["ink"], fontsize=10.5, fontweight="bold", loc="left")
    tails = LineCollection([], colors=tints, linewidths=0.9, alpha=0.45)
    panel.add_collection(tails)
    x, y = paths[0].T
    dots = panel.scatter(x, y, s=30, c=tints, edgecolors=colours["paper"], linewidth=0.5, zorder=3)
    clock = panel.text(1.0, -0.085, "", transform=panel.transAxes, color=colours["ink"], ha="right", va="top")

    def draw(frame: int) -> None:
        dots.set_offsets(paths[frame])
        tails.set_segments(list(paths[max(0, frame - _TAIL) : frame + 1].swapaxes(0, 1)))
        clock.set_text(f"t = {times[frame]:.3g}")

    save_frames(figure, draw, len(times), path)


def save_frames(figure: Figure, draw: Callable[[int], None], count: int, path: str | Path) -> None:
    """Write the figure after each draw(0) … draw(count − 1); the last picture stays for a while."""
    from matplotlib import animation

    writer = animation.PillowWriter(_RATE) if Path(path).suffix.lower() == ".gif" else animation.FFMpegWriter(_RATE)
    with writer.saving(figure, str(path), figure.dpi):
        for frame in range(count + _HELD):
            draw(min(frame, count - 1))
            writer.grab_frame(facecolor=figure.get_facecolor())


def _against_depth(times: Sequence[float], paths: NDArray) -> NDArray:
    import numpy

    depth = numpy.broadcast_to(numpy.asarray(times)[:, None, None], paths.shape)
    return numpy.concatenate([depth, paths], -1)


def depth_figure(records: Sequence[dict[str, Any]], *, theme: str = "light") -> Figure:
    """`depth_charts`, drawn: a row for each model."""
    charts = depth_charts(records)
    models = len({record["model"] for record in records})
    return draw(charts, theme=theme, columns=len(charts) // models, width=4.1, height=4.2, size="small")


def depth_charts(records: Sequence[dict[str, Any]]) -> list[Chart]:
    """Three or four charts for each model; several pieces of text are drawn over each other."""
    grown = any(record["own"] is not None for record in records)
    charts = []
    for model in dict.fromkeys(record["model"] for record in records):
        runs = [list(group) for _, group in groupby((r for r in records if r["model"] == model), key=piece)]
        lengths = sorted({record["n"] for run in runs for record in run})
        x = Axis("layers passed" + (", norm" if runs[0][-1]["normed"] else ""), whole=True)
        name = f"{model_name(model)}, n = {', '.join(map(str, lengths))}"
        lines = [
            [series for run in runs for series in part(run, named=run is runs[0])]
            for part in (_sizes, _directions, _clusters, _growth)
        ]
        low = min((value for series in lines[1] for value in series.y), default=0.0)
        charts += [
            Chart("Size of tokens", x, Axis(name, "log"), lines[0]),
            Chart("Directions", x, Axis("", low=min(0.0, low - 0.05), high=1.05), lines[1]),
            Chart("Clusters of directions", x, Axis("", low=0, high=1.08 * lengths[-1]), lines[2]),
        ]
        if grown:
            charts.append(
                Chart(
                    "Growth of a perturbation",
                    x,
                    Axis("", "log"),
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
    """Where a record stands on the axis of depth; the state after the final norm stands a little behind the last."""
    return record["depth"] + (_GAP if record["normed"] else 0.0)


def _line(
    run: Sequence[dict],
    values: Sequence[float | None],
    colour: int | str,
    name: str = "",
    line: str = "solid",
    marks: bool = False,
    marker: int = 0,
) -> Series:
    points = [(depth_of(record), value) for record, value in zip(run, values, strict=True) if value is not None]
    return Series(
        [x for x, _ in points],
        [y for _, y in points],
        name=name if points else "",
        line=line,
        marks=marks,
        marker=marker,
        colour=colour,
        width=1.7,
    )


def _sizes(run: Sequence[dict], named: bool) -> list[Series]:
    lines = [
        _line(run, [r["norm"] for r in run], 0, "median norm" * named, marks=True),
        _line(run, [r["largest_norm"] for r in run], 0, "largest norm" * named, "dotted"),
    ]
    if run[0]["sink"] is not None:
        lines.append(_line(run, [r["sink_norm"] for r in run], 1, "sink of attention" * named, "dashed"))
    return lines


def _directions(run: Sequence[dict], named: bool) -> list[Series]:
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
                _line(
                    run,
                    values,
                    colour,
                    name * (named and not suffix),
                    "dashed" if suffix else "solid",
                    marks=not suffix,
                )
            )
    if named and run[0]["sink"] is not None:
        lines.append(Series((), (), name="without the sink", line="dashed", colour="faint"))
    return lines


def _clusters(run: Sequence[dict], named: bool) -> list[Series]:
    return [
        *(
            _line(run, [r["clusters"][index] for r in run], index, f"closer than {tol:g}" * named, marks=True)
            for index, tol in enumerate(run[0]["tolerances"])
        ),
        _line(run, [r["distinct"] for r in run], "faint", "different tokens" * named, "dotted"),
    ]


def _growth(run: Sequence[dict], named: bool) -> list[Series]:
    return [
        _line(run, [r["product"] for r in run], 1, "product of layers" * named, "dashed"),
        _line(run, [r["value"] for r in run], 0, "σ₁ of all layers so far" * named, marks=True),
        _line(run, [r["relative"] for r in run], 2, "relative to the tokens" * named, marks=True, marker=1),
        _line(run, [r["own"] for r in run], 3, "each layer alone" * named, "", marks=True),
    ]
