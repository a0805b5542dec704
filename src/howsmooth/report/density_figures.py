"""Figures and animations of Gaussian flows and densities, and of the convergence rate of particles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from howsmooth.errors import InputError
from howsmooth.questions.flows import of_kind
from howsmooth.records.arrays import unpack
from howsmooth.report.chart import Picture
from howsmooth.report.charts import rate_chart
from howsmooth.report.figure import draw, save_figure
from howsmooth.report.flow_figures import save_frames
from howsmooth.report.flow_tables import rate_records
from howsmooth.report.style import (
    THEMES,
    Theme,
    apply_theme,
    current_style,
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
_MAX_PATHS = 60  # of particles in one dimension
_MAX_GROWTH = 5.0  # times at which the Gaussian is larger than this multiple of the first are not drawn


class Particles(NamedTuple):
    """Particles of a record.

    Attributes:
        times: The times, (T,).
        tokens: At most two coordinates of each particle, (T, n, 1 or 2).
        n: Number of particles that were integrated.
    """

    times: NDArray
    tokens: NDArray
    n: int

    @classmethod
    def of(cls, record: dict[str, Any], times: Sequence[float], n: int) -> Particles | None:
        """Return the particles of a record whose `positions` have frames among some times; None without them."""
        import numpy

        found = record.get("positions")
        return None if found is None else cls(numpy.array(times)[found["frames"]], unpack(found), n)

    def at(self, t: float) -> NDArray:
        """Return the particles at the saved time that is nearest, (n, 1 or 2)."""
        tokens: NDArray = self.tokens[abs(self.times - t).argmin()]
        return tokens

    def label(self, name: str) -> str:
        """Return the legend's entry for the particles that are drawn."""
        drawn = self.tokens.shape[1]
        return name if drawn == self.n else f"{name} ({drawn} of {self.n})"


def _particles_beside(record: dict[str, Any]) -> Particles | None:
    """Return the particles of a Gaussian flow."""
    compared = record["particles"]
    return None if compared is None else Particles.of(record, compared["times"], compared["n"])


def gaussian_figure(records: Sequence[dict[str, Any]], *, theme: str = "light") -> Figure:
    """Draw a Gaussian flow: on the left two standard deviations around the mean, on the right the eigenvalues of S.

    Args:
        records: Records of Gaussian flows; the first is drawn, in its first two coordinates.
        theme: Key of `THEMES`.
    """
    colours, record = THEMES[theme], records[0]
    particles = _particles_beside(record)
    figure = new_figure(11.0, _ellipses_height(record) if record["d"] > 1 else 4.8, colours)
    left, right = figure.subplots(1, 2, width_ratios=(1.2, 1))
    if record["d"] == 1:
        _draw_band(left, record, particles, colours)
    else:
        _draw_ellipses(left, record, particles, colours)
    _draw_eigenvalues(right, record, colours)
    return finish_figure(figure, record["title"], colours)


def _ellipses_height(record: dict[str, Any]) -> float:
    """Return the height in inches of a figure whose left panel is as wide, relative to its height, as the ellipses."""
    import numpy

    means, covariances = numpy.array(record["means"]), numpy.array(record["covariances"])
    outlines = numpy.concatenate([_gaussian_outline(means[k], covariances[k]) for k in drawable_frames(record)])
    width, height = numpy.ptp(outlines, 0)
    return float(numpy.clip(1.0 + 5.0 * height / width, 3.4, 5.2))


def save_gaussian_animation(path: str | Path, records: Sequence[dict[str, Any]], *, theme: str = "light") -> None:
    """Write an animation with one frame for each saved time: the ellipse and the particles; in d = 1 the density."""
    import numpy

    colours, record = THEMES[theme], records[0]
    particles = _particles_beside(record)
    frames = drawable_frames(record)
    means, covariances = numpy.array(record["means"]), numpy.array(record["covariances"])
    figure, panel = new_animation_figure(record["title"], colours)
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
        if particles is not None and record["d"] > 1:
            dots.set_offsets(particles.at(record["times"][frames[frame]]))
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


def _draw_ellipses(panel: Axes, record: dict[str, Any], particles: Particles | None, colours: Theme) -> None:
    import numpy
    from matplotlib import colormaps

    frames = drawable_frames(record)
    chosen = list(dict.fromkeys(frames[round((len(frames) - 1) * k / (_N_ELLIPSES - 1))] for k in range(_N_ELLIPSES)))
    means, covariances = numpy.array(record["means"]), numpy.array(record["covariances"])
    panel.plot(*means[frames][:, :2].T, color=colours["muted"], linewidth=1.2, zorder=2)
    if particles is not None:
        last = min(particles.times[-1], record["times"][frames[-1]])
        for t, colour, name in ((0.0, colours["muted"], "first"), (last, colours["palette"][1], "last")):
            x, y = particles.at(t).T
            panel.scatter(
                x,
                y,
                s=7,
                color=colour,
                alpha=0.45,
                linewidth=0,
                zorder=1,
                label=particles.label(f"{name} particles, t = {t:.3g}"),
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


def _draw_band(panel: Axes, record: dict[str, Any], particles: Particles | None, colours: Theme) -> None:
    import numpy

    frames = drawable_frames(record)
    times = numpy.array(record["times"])[frames]
    mean, spread = numpy.array(record["means"])[frames, 0], numpy.sqrt(numpy.array(record["covariances"])[frames, 0, 0])
    if particles is not None:
        paths = particles.tokens[:, :_MAX_PATHS, 0]
        panel.plot(particles.times, paths, color=colours["muted"], linewidth=0.6, alpha=0.6)
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


def density_figure(records: Sequence[dict[str, Any]], *, theme: str = "light") -> Figure:
    """Draw the density of a mean-field flow, with particles if they were compared with it.

    Args:
        records: Records of densities and particles; the first flow is drawn.
        theme: Key of `THEMES`.
    """
    colours, (record, times, values, particles) = THEMES[theme], _first_density(records)
    figure = new_figure(11.0, 4.6 if record["d"] == 1 else 3.4, colours)
    (_draw_density_1d if record["d"] == 1 else _draw_density_2d)(figure, record, times, values, particles, colours)
    return finish_figure(figure, _density_title(record), colours)


def _density_title(record: dict[str, Any]) -> str:
    """Return the title of a figure; it says if only some of the saved times are in the record."""
    kept, saved = len(record["frames"]), len(record["times"])
    return record["title"] + ("" if kept == saved else f", {kept} of {saved} saved times")


def _first_density(records: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], NDArray, NDArray, Particles | None]:
    """Return the record of the first density, the times and values that it has, and the particles beside it.

    The values are mass per volume, (T, *cells).
    """
    import numpy

    record = next(iter(of_kind(records, "density flow")), None)
    if record is None:
        raise InputError("expected a density to draw, got none; solve for it again")
    compared = [r for r in of_kind(records, "particle comparison") if r["flow"] == record["flow"]]
    drawn = next((r for r in compared if r.get("positions")), None)
    most = max((r["n"] for r in compared), default=0)
    particles = None if drawn is None else Particles.of(drawn, record["times"], most)
    return record, numpy.array(record["times"])[record["frames"]], unpack(record["densities"]), particles


def save_rate_figure(path: str | Path, records: Sequence[dict[str, Any]], *, theme: str = "light") -> None:
    """Write the figure of the convergence rate; does nothing if the run was interrupted before the rate was fitted."""
    fitted = rate_records(records)
    if fitted:
        save_figure(rate_figure(fitted, title=fitted[0]["title"], theme=theme), path)


def rate_figure(records: Sequence[dict[str, Any]], *, title: str, theme: str = "light") -> Figure:
    """Draw `rate_chart`."""
    return draw(Picture([rate_chart(records, title)], width=7.0, height=4.6 + 0.22 * (len(records) + 1)), theme=theme)


def save_density_animation(path: str | Path, records: Sequence[dict[str, Any]], *, theme: str = "light") -> None:
    """Write an animation of a density with one frame for each time that its record has; see `density_figure`."""
    colours, (record, times, values, particles) = THEMES[theme], _first_density(records)
    figure, panel = new_animation_figure(_density_title(record), colours)
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
        if particles is not None:
            x, y = particles.at(0.0).T
            dots = panel.scatter(x, y, s=4, color="white", alpha=0.7, linewidth=0)

        def show(frame: int) -> None:
            image.set_data(values[frame].T)

    def show_frame(frame: int) -> None:
        show(frame)
        if dots is not None and particles is not None:
            dots.set_offsets(particles.at(times[frame]))
        time_text.set_text(f"t = {times[frame]:.3g}")

    save_frames(figure, show_frame, len(values), path)


def _draw_density_1d(
    figure: Figure, record: dict[str, Any], times: NDArray, values: NDArray, particles: Particles | None, colours: Theme
) -> None:
    import numpy
    from matplotlib import colormaps

    left, right = figure.subplots(1, 2, width_ratios=(1, 1.1))
    x = _cell_centres(record, 0)
    for share in range(_N_CURVES):
        k = round((len(times) - 1) * share / (_N_CURVES - 1))
        colour = colormaps["viridis"](0.85 * share / (_N_CURVES - 1))
        left.plot(x, values[k], color=colour, linewidth=1.8, label=f"t = {times[k]:.3g}")
        if particles is not None and share == _N_CURVES - 1:
            last = particles.at(times[k])[:, 0]
            counts, edges = numpy.histogram(last, bins=_bins(len(last)), density=True)
            left.stairs(counts, edges, fill=True, color=colour, alpha=0.25, label=f"{len(last)} particles")
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
    if particles is not None:
        right.plot(particles.times, particles.tokens[:, :_MAX_PATHS, 0], color="white", linewidth=0.5, alpha=0.7)
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
    figure: Figure, record: dict[str, Any], times: NDArray, values: NDArray, particles: Particles | None, colours: Theme
) -> None:
    panels = figure.subplots(1, _N_SNAPSHOTS, sharex=True, sharey=True)
    for share, panel in enumerate(panels):
        k = round((len(values) - 1) * share / (_N_SNAPSHOTS - 1))
        _draw_density(panel, record, values[k], values[k].max(), colours)
        if particles is not None:
            x, y = particles.at(times[k]).T
            panel.scatter(x, y, s=2.5, color="white", alpha=0.7, linewidth=0)
        panel.set_title(f"t = {times[k]:.3g}", color=colours["foreground"], fontsize=current_style().label_size)
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
