"""Figures and animations of Gaussian flows and densities, and of the convergence rate of particles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from howsmooth.report.charts import rate_chart
from howsmooth.report.figure import draw, save_figure
from howsmooth.report.flow_figures import save_frames
from howsmooth.report.flow_tables import rate_records
from howsmooth.report.output_paths import check_animation_path
from howsmooth.report.style import (
    THEMES,
    Theme,
    apply_theme,
    current_style,
    figure_style,
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

_N_CURVES, _N_SNAPSHOTS, _N_ELLIPSES = 6, 4, 6
_MAX_PARTICLES_ON_DENSITY = 400
_MAX_PARTICLES = 500  # next to a Gaussian
_MAX_GROWTH = 5.0  # times at which the Gaussian is larger than this multiple of the first are not drawn


def gaussian_flow_figure(
    record: dict[str, Any], tokens: NDArray | None = None, *, title: str, theme: str = "light"
) -> Figure:
    """Draw a Gaussian flow: on the left two standard deviations around the mean, on the right the eigenvalues of S.

    Args:
        record: Record of a Gaussian flow; the first two coordinates are drawn.
        tokens: Particles at the record's first T times, of shape (T, n, d).
        title: Title above the panels.
        theme: Key of `THEMES`.
    """
    colours = THEMES[theme]
    figure = new_figure(11.0, _ellipses_height(record) if record["d"] > 1 else 4.8, colours)
    left, right = figure.subplots(1, 2, width_ratios=(1.2, 1))
    if record["d"] == 1:
        _draw_band(left, record, tokens, colours)
    else:
        _draw_ellipses(left, record, tokens, colours)
    _draw_eigenvalues(right, record, colours)
    return finish_figure(figure, title, colours)


def _ellipses_height(record: dict[str, Any]) -> float:
    """Return the height in inches of a figure whose left panel is as wide, relative to its height, as the ellipses."""
    import numpy

    means, covariances = numpy.array(record["means"]), numpy.array(record["covariances"])
    outlines = numpy.concatenate([_gaussian_outline(means[k], covariances[k]) for k in drawable_frames(record)])
    width, height = numpy.ptp(outlines, 0)
    return float(numpy.clip(1.0 + 5.0 * height / width, 3.4, 5.2))


def save_gaussian_animation(
    path: str | Path, record: dict[str, Any], tokens: NDArray | None = None, *, title: str, theme: str = "light"
) -> None:
    """Write an animation with one frame for each saved time: the ellipse and the particles; in d = 1 the density."""
    import numpy

    check_animation_path(str(path))
    colours = THEMES[theme]
    frames = drawable_frames(record)
    means, covariances = numpy.array(record["means"]), numpy.array(record["covariances"])
    figure, panel = new_animation_figure(title, colours)
    outlines = [_gaussian_outline(means[k], covariances[k]) for k in frames]
    low, high = numpy.min([o.min(0) for o in outlines], 0), numpy.max([o.max(0) for o in outlines], 0)
    margin = 0.15 * (high - low) + 1e-9
    if record["d"] > 1:  # a square, with equal scales
        margin = 0.6 * (high - low).max() - (high - low) / 2
    panel.set(xlim=(low[0] - margin[0], high[0] + margin[0]), ylim=(low[1] - margin[1], high[1] + margin[1]))
    panel.set_xlabel("$x_1$" if record["d"] > 1 else "x")
    panel.set_ylabel("$x_2$" if record["d"] > 1 else "density")
    if record["d"] > 1:
        panel.set_aspect("equal", adjustable="box")
    (line,) = panel.plot([], [], color=colours["palette"][1], linewidth=2.2, zorder=4)
    dots = panel.scatter([], [], s=8, color=colours["palette"][0], alpha=0.5, linewidth=0)
    time_text = panel.text(
        0.98, 0.02, "", transform=panel.transAxes, color=colours["foreground"], fontsize=11, ha="right"
    )

    def show_frame(frame: int) -> None:
        line.set_data(*outlines[frame].T)
        if tokens is not None and record["d"] > 1:
            dots.set_offsets(tokens[min(frames[frame], len(tokens) - 1), :_MAX_PARTICLES, :2])
        time_text.set_text(f"t = {record['times'][frames[frame]]:.3g}")

    save_frames(figure, show_frame, len(frames), path)


def drawable_frames(record: dict[str, Any]) -> list[int]:
    """Return the indices of the saved times at which the Gaussian is at most `_MAX_GROWTH` times its first size."""

    def size(k: int) -> float:
        d = record["d"]
        return math.sqrt(max(record["covariances"][k][i][i] for i in range(d))) + max(map(abs, record["means"][k]))

    first = max(size(0), 1e-12)
    return [k for k in range(len(record["times"])) if size(k) <= _MAX_GROWTH * first]


def _gaussian_outline(mean: NDArray, covariance: NDArray) -> NDArray:
    """Return the ellipse of two standard deviations in the first two coordinates; in d = 1 the graph of the density."""
    import numpy

    if len(mean) == 1:
        spread = max(math.sqrt(covariance[0, 0]), 1e-12)
        x = numpy.linspace(-4, 4, 161)
        return numpy.stack([mean[0] + spread * x, numpy.exp(-x * x / 2) / (spread * math.sqrt(2 * math.pi))], 1)
    values, vectors = numpy.linalg.eigh(covariance[:2, :2])
    angle = numpy.linspace(0, 2 * math.pi, 121)
    circle = numpy.stack([numpy.cos(angle), numpy.sin(angle)])
    return mean[:2] + (2 * vectors * numpy.sqrt(numpy.clip(values, 0, None)) @ circle).T


def _draw_ellipses(panel: Axes, record: dict[str, Any], tokens: NDArray | None, colours: Theme) -> None:
    import numpy
    from matplotlib import colormaps

    frames = drawable_frames(record)
    chosen = list(dict.fromkeys(frames[round((len(frames) - 1) * k / (_N_ELLIPSES - 1))] for k in range(_N_ELLIPSES)))
    means, covariances = numpy.array(record["means"]), numpy.array(record["covariances"])
    panel.plot(*means[frames][:, :2].T, color=colours["muted"], linewidth=1.2, zorder=2)
    if tokens is not None:
        for k, colour, name in (
            (0, colours["muted"], "first"),
            (min(len(tokens) - 1, frames[-1]), colours["palette"][1], "last"),
        ):
            panel.scatter(
                tokens[k, :_MAX_PARTICLES, 0],
                tokens[k, :_MAX_PARTICLES, 1],
                s=7,
                color=colour,
                alpha=0.45,
                linewidth=0,
                zorder=1,
                label=f"{name} particles, t = {record['times'][k]:.3g}",
            )
    for k in chosen:
        share = chosen.index(k) / max(len(chosen) - 1, 1)
        panel.plot(
            *_gaussian_outline(means[k], covariances[k]).T,
            color=colormaps["viridis"](0.85 * share),
            linewidth=2,
            zorder=3,
            label=f"t = {record['times'][k]:.3g}",
        )
    panel.set_xlabel("$x_1$")
    panel.set_ylabel("$x_2$   (two standard deviations)")
    panel.set_aspect("equal", adjustable="datalim")
    apply_theme(panel, colours)
    panel.legend(**legend_options(colours), loc="center left", bbox_to_anchor=(1.0, 0.5))


def _draw_band(panel: Axes, record: dict[str, Any], tokens: NDArray | None, colours: Theme) -> None:
    import numpy

    frames = drawable_frames(record)
    times = numpy.array(record["times"])[frames]
    mean, spread = numpy.array(record["means"])[frames, 0], numpy.sqrt(numpy.array(record["covariances"])[frames, 0, 0])
    if tokens is not None:
        panel.plot(record["times"][: len(tokens)], tokens[:, :60, 0], color=colours["muted"], linewidth=0.6, alpha=0.6)
    panel.fill_between(
        times,
        mean - 2 * spread,
        mean + 2 * spread,
        color=colours["palette"][0],
        alpha=0.25,
        linewidth=0,
        label="two standard deviations",
    )
    panel.plot(times, mean, color=colours["palette"][0], linewidth=2, label="mean")
    panel.set_xlabel("time t")
    panel.set_ylabel("x")
    apply_theme(panel, colours)
    panel.legend(**legend_options(colours))


def _draw_eigenvalues(panel: Axes, record: dict[str, Any], colours: Theme) -> None:
    import numpy

    values = numpy.linalg.eigvalsh(numpy.array(record["covariances"]))[:, ::-1]
    floor = 1e-12 * values.max()
    for index in range(min(values.shape[1], 6)):
        line = values[:, index]
        if line.max() > floor:
            panel.plot(
                record["times"],
                numpy.where(line > floor, line, numpy.nan),
                linewidth=2,
                color=colours["palette"][index],
                label=f"$\\lambda_{{{index + 1}}}$",
            )
    blow_up = record["blow_up"]
    if blow_up is not None:
        panel.axvline(blow_up["time"], color=colours["muted"], linewidth=1.2, linestyle="--")
        panel.annotate(
            f"blow-up at t = {blow_up['time']:.4g}",
            (blow_up["time"], 0.97),
            xytext=(-8, 0),
            ha="right",
            va="top",
            textcoords="offset points",
            xycoords=("data", "axes fraction"),
            color=colours["foreground"],
            fontsize=current_style().legend_size,
        )
    panel.set_yscale("log")
    set_log_ticks(panel.yaxis, *panel.get_ylim())
    panel.set_xlabel("time t")
    panel.set_ylabel("eigenvalues of the covariance")
    apply_theme(panel, colours)
    panel.legend(**legend_options(colours))


def density_figure(
    record: dict[str, Any], values: NDArray, *, tokens: NDArray | None = None, title: str, theme: str = "light"
) -> Figure:
    """Draw the density of a mean-field flow.

    Args:
        record: Record of the flow of a density, with its grid and times.
        values: Mass per volume at the record's times, of shape (T, *cells).
        tokens: Particles at the same times, of shape (T, n, d).
        title: Title above the panels.
        theme: Key of `THEMES`.
    """
    colours = THEMES[theme]
    figure = new_figure(11.0, 4.6 if record["d"] == 1 else 3.4, colours)
    (_draw_density_1d if record["d"] == 1 else _draw_density_2d)(figure, record, values, tokens, colours)
    return finish_figure(figure, title, colours)


def rate_figure(records: Sequence[dict[str, Any]], *, title: str, theme: str = "light") -> Figure:
    """Draw `rate_chart`."""
    return draw([rate_chart(records, title)], theme=theme, width=7.0, height=4.6 + 0.22 * (len(records) + 1))


def save_rate_figure(
    path: str | Path, records: Sequence[dict[str, Any]], *, title: str, theme: str = "light", style: str = "screen"
) -> None:
    """Write the figure of the convergence rate; does nothing if the run was interrupted before the rate was fitted."""
    fitted = rate_records(records)
    if not fitted:
        return
    with figure_style(style):
        save_figure(rate_figure(fitted, title=title, theme=theme), path)


def save_density_animation(
    path: str | Path,
    record: dict[str, Any],
    values: NDArray,
    *,
    tokens: NDArray | None = None,
    title: str,
    theme: str = "light",
) -> None:
    """Write an animation of a density with one frame for each saved time; see `density_figure`."""
    check_animation_path(str(path))
    colours = THEMES[theme]
    figure, panel = new_animation_figure(title, colours)
    time_text = panel.text(
        0.98,
        0.02,
        "",
        transform=panel.transAxes,
        ha="right",
        fontsize=11,
        color=colours["foreground"] if record["d"] == 1 else "white",
    )
    dots = None
    if record["d"] == 1:
        x = _cell_centres(record, 0)
        (line,) = panel.plot(x, values[0], color=colours["palette"][0], linewidth=2)
        panel.set(ylim=(0, 1.05 * values.max()), xlim=_axis_limits(record, values, 0))
        panel.set_xlabel("x")
        panel.set_ylabel("density")
        apply_theme(panel, colours)

        def show(frame: int) -> None:
            line.set_ydata(values[frame])
    else:
        image = _draw_density(panel, record, values[0], values.max(), colours)
        panel.set(xlim=_axis_limits(record, values, 0), ylim=_axis_limits(record, values, 1))
        if tokens is not None:
            first, second = tokens[0, :_MAX_PARTICLES_ON_DENSITY].T
            dots = panel.scatter(first, second, s=4, color="white", alpha=0.7, linewidth=0)

        def show(frame: int) -> None:
            image.set_data(values[frame].T)

    def show_frame(frame: int) -> None:
        show(frame)
        if dots is not None and tokens is not None:
            dots.set_offsets(tokens[frame, :_MAX_PARTICLES_ON_DENSITY])
        time_text.set_text(f"t = {record['times'][frame]:.3g}")

    save_frames(figure, show_frame, len(values), path)


def _draw_density_1d(
    figure: Figure, record: dict[str, Any], values: NDArray, tokens: NDArray | None, colours: Theme
) -> None:
    import numpy
    from matplotlib import colormaps

    left, right = figure.subplots(1, 2, width_ratios=(1, 1.1))
    x, times = _cell_centres(record, 0), record["times"]
    for share in range(_N_CURVES):
        k = round((len(times) - 1) * share / (_N_CURVES - 1))
        colour = colormaps["viridis"](0.85 * share / (_N_CURVES - 1))
        left.plot(x, values[k], color=colour, linewidth=1.8, label=f"t = {times[k]:.3g}")
        if tokens is not None and share == _N_CURVES - 1:
            counts, edges = numpy.histogram(tokens[k, :, 0], bins=_bins(tokens.shape[1]), density=True)
            left.stairs(counts, edges, fill=True, color=colour, alpha=0.25, label=f"{tokens.shape[1]} particles")
    left.set_xlabel("x")
    left.set_ylabel("density")
    left.set_ylim(bottom=0)
    left.set_xlim(*_axis_limits(record, values, 0))
    apply_theme(left, colours)
    left.legend(**legend_options(colours))
    image = right.imshow(
        values.T,
        origin="lower",
        aspect="auto",
        cmap="viridis",
        extent=(times[0], times[-1], record["low"][0], record["high"][0]),
        vmax=numpy.quantile(values, 0.995),
    )
    if tokens is not None:
        right.plot(times, tokens[:, :40, 0], color="white", linewidth=0.5, alpha=0.7)
    right.set_ylim(*_axis_limits(record, values, 0))
    right.set_xlabel("time t")
    right.set_ylabel("x")
    apply_theme(right, colours, grid=False)
    bar = figure.colorbar(image, ax=right, label="density")
    apply_theme(bar.ax, colours, grid=False)


def _bins(count: int) -> int:
    """Return the number of bins of a histogram of so many particles."""
    return min(40, max(8, round(math.sqrt(count))))


def _draw_density_2d(
    figure: Figure, record: dict[str, Any], values: NDArray, tokens: NDArray | None, colours: Theme
) -> None:
    panels = figure.subplots(1, _N_SNAPSHOTS, sharex=True, sharey=True)
    for share, panel in enumerate(panels):
        k = round((len(values) - 1) * share / (_N_SNAPSHOTS - 1))
        _draw_density(panel, record, values[k], values[k].max(), colours)
        if tokens is not None:
            panel.scatter(*tokens[k, :_MAX_PARTICLES_ON_DENSITY].T, s=2.5, color="white", alpha=0.7, linewidth=0)
        panel.set_title(
            f"t = {record['times'][k]:.3g}", color=colours["foreground"], fontsize=current_style().label_size
        )
        panel.set_ylabel("y" if share == 0 else "")
        panel.set(xlim=_axis_limits(record, values, 0), ylim=_axis_limits(record, values, 1))


def _draw_density(panel: Axes, record: dict[str, Any], values: NDArray, value_max: float, colours: Theme) -> Any:
    (x0, y0), (x1, y1) = record["low"], record["high"]
    image = panel.imshow(values.T, origin="lower", cmap="viridis", extent=(x0, x1, y0, y1), vmin=0, vmax=value_max)
    panel.set_xlabel("x")
    panel.set_ylabel("y")
    apply_theme(panel, colours, grid=False)
    return image


def _axis_limits(record: dict[str, Any], values: NDArray, axis: int) -> tuple[float, float]:
    """Return axis limits around the cells with visible mass, of equal length for both axes so that maps are square."""
    import numpy

    x, spans = [_cell_centres(record, k) for k in range(record["d"])], []
    for k in range(record["d"]):
        others = tuple(j for j in range(values.ndim) if j != k + 1)
        visible = x[k][values.max(others) > 1e-3 * values.max()]
        spans.append((visible.min(), visible.max()))
    half = 0.55 * max(high - low for low, high in spans)
    middle = numpy.mean(spans[axis])
    return max(middle - half, record["low"][axis]), min(middle + half, record["high"][axis])


def _cell_centres(record: dict[str, Any], axis: int) -> NDArray:
    import numpy

    edges = numpy.linspace(record["low"][axis], record["high"][axis], record["cells"][axis] + 1)
    return (edges[1:] + edges[:-1]) / 2
