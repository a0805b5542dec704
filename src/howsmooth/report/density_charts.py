"""Charts of Gaussian flows and densities, and of the convergence rate of particles."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy

from howsmooth.errors import InputError
from howsmooth.questions.flows import of_kind
from howsmooth.records.arrays import unpack
from howsmooth.report.chart import Annotation, Axis, Band, Chart, HeatMap, Picture, Series
from howsmooth.report.flow_charts import series_at
from howsmooth.report.flow_tables import rate_records

if TYPE_CHECKING:
    from numpy.typing import NDArray

_N_CURVES, _N_SNAPSHOTS, _N_ELLIPSES = 6, 4, 6
_MAX_PATHS = 60  # of particles in one dimension
_MAX_GROWTH = 5.0  # times at which the Gaussian is larger than this multiple of the first are not drawn
_DOTS: dict[str, Any] = {"show_markers": True, "marker_index": 0}


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


def gaussian_picture(records: Sequence[dict[str, Any]]) -> Picture:
    """Return a Gaussian flow: two standard deviations around the mean, next to the eigenvalues of S.

    Args:
        records: Records of Gaussian flows; the first is drawn, in its first two coordinates.
    """
    record = records[0]
    particles = _particles_beside(record)
    shape = _band_chart(record, particles) if record["d"] == 1 else _ellipses_chart(record, particles)
    return Picture(
        [shape, _eigenvalues_chart(record)],
        width=5.5,
        height=_ellipses_height(record) if record["d"] > 1 else 4.8,
        title=record["title"],
        mosaic="AB",
        width_ratios=(1.2, 1),
    )


def _ellipses_height(record: dict[str, Any]) -> float:
    """Return the height in inches of a panel that is as wide, relative to its height, as the ellipses, and a legend."""
    outlines = numpy.concatenate(_outlines(record))
    width, height = numpy.ptp(outlines, 0)
    return float(numpy.clip(1.9 + 5.0 * height / width, 4.3, 6.1))


def _outlines(record: dict[str, Any]) -> list[NDArray]:
    """Return the outline of the Gaussian at each time that is drawn."""
    means, covariances = numpy.array(record["means"]), numpy.array(record["covariances"])
    return [_gaussian_outline(means[k], covariances[k]) for k in drawable_frames(record)]


def gaussian_frames(records: Sequence[dict[str, Any]]) -> Iterator[Chart]:
    """Yield one chart for each saved time: the ellipse and the particles; in d = 1 the density."""
    record = records[0]
    particles, outlines, plane = _particles_beside(record), _outlines(record), record["d"] > 1
    low, high = numpy.min([o.min(0) for o in outlines], 0), numpy.max([o.max(0) for o in outlines], 0)
    margin = 0.15 * (high - low) + 1e-9
    if plane:  # a square, with equal scales
        margin = 0.6 * (high - low).max() - (high - low) / 2
    x_axis, y_axis = (
        Axis(name, lower_limit=float(low[k] - margin[k]), upper_limit=float(high[k] + margin[k]))
        for k, name in enumerate(("$x_1$", "$x_2$") if plane else ("x", "density"))
    )
    for k, outline in zip(drawable_frames(record), outlines, strict=True):
        t = record["times"][k]
        series = [series_at(outline, linestyle="solid", linewidth=2.2, colour=1)]
        if particles is not None and plane:
            series.append(series_at(particles.at(t), marker_size=2.8, opacity=0.5, colour=0, **_DOTS))
        yield Chart(f"{record['title']}\nt = {t:.3g}", x_axis, y_axis, series, equal_scales=plane)


def drawable_frames(record: dict[str, Any]) -> list[int]:
    """Return the indices of the saved times at which the Gaussian is at most `_MAX_GROWTH` times its first size."""

    def size(k: int) -> float:
        d = record["d"]
        return math.sqrt(max(record["covariances"][k][i][i] for i in range(d))) + max(map(abs, record["means"][k]))

    first = max(size(0), 1e-12)
    return [k for k in range(len(record["times"])) if size(k) <= _MAX_GROWTH * first]


def _gaussian_outline(mean: NDArray, covariance: NDArray) -> NDArray:
    """Return the ellipse of two standard deviations in the first two coordinates; in d = 1 the graph of the density."""
    if len(mean) == 1:
        spread = max(math.sqrt(covariance[0, 0]), 1e-12)
        x = numpy.linspace(-4, 4, 161)
        return numpy.stack([mean[0] + spread * x, numpy.exp(-x * x / 2) / (spread * math.sqrt(2 * math.pi))], 1)
    values, vectors = numpy.linalg.eigh(covariance[:2, :2])
    angle = numpy.linspace(0, 2 * math.pi, 121)
    circle = numpy.stack([numpy.cos(angle), numpy.sin(angle)])
    return mean[:2] + (2 * vectors * numpy.sqrt(numpy.clip(values, 0, None)) @ circle).T


def _ellipses_chart(record: dict[str, Any], particles: Particles | None) -> Chart:
    frames = drawable_frames(record)
    outlines = dict(zip(frames, _outlines(record), strict=True))
    chosen = list(dict.fromkeys(frames[round((len(frames) - 1) * k / (_N_ELLIPSES - 1))] for k in range(_N_ELLIPSES)))
    means = numpy.array(record["means"])[frames][:, :2]
    series = []
    if particles is not None:
        last = min(particles.times[-1], record["times"][frames[-1]])
        for t, colour, name in ((0.0, "muted", "first"), (last, 1, "last")):
            label = particles.label(f"{name} particles, t = {t:.3g}")
            dots = {"marker_size": 2.6, "opacity": 0.45, **_DOTS}
            series.append(series_at(particles.at(t), colour=colour, label=label, **dots))
    series.append(series_at(means, linestyle="solid", linewidth=1.2, colour="muted"))
    for index, k in enumerate(chosen):
        share, label = index / max(len(chosen) - 1, 1), f"t = {record['times'][k]:.3g}"
        series.append(series_at(outlines[k], linestyle="solid", linewidth=2.0, colour=0.9 * share, label=label))
    return Chart("", Axis("$x_1$"), Axis("$x_2$   (two standard deviations)"), series, equal_scales=True)


def _band_chart(record: dict[str, Any], particles: Particles | None) -> Chart:
    frames = drawable_frames(record)
    times = numpy.array(record["times"])[frames].tolist()
    mean, spread = numpy.array(record["means"])[frames, 0], numpy.sqrt(numpy.array(record["covariances"])[frames, 0, 0])
    band = Band(
        times, (mean - 2 * spread).tolist(), (mean + 2 * spread).tolist(), "two standard deviations", 0, opacity=0.25
    )
    series = [] if particles is None else [_paths(particles, "muted")]
    series.append(Series(times, mean.tolist(), linestyle="solid", linewidth=2.0, colour=0, label="mean"))
    return Chart("", Axis("time t"), Axis("x"), series, bands=[band])


def _paths(particles: Particles, colour: str) -> Series:
    """Return the paths of particles on a line against time, with NaN between them."""
    paths = particles.tokens[:, :_MAX_PATHS, 0]
    points = numpy.stack(numpy.broadcast_arrays(particles.times[:, None], paths), -1)
    return series_at(points, linestyle="solid", linewidth=0.6, opacity=0.6, colour=colour)


def _eigenvalues_chart(record: dict[str, Any]) -> Chart:
    values = numpy.linalg.eigvalsh(numpy.array(record["covariances"]))[:, ::-1]
    floor = 1e-12 * values.max()
    series = []
    for index in range(min(values.shape[1], 6)):
        line = values[:, index]
        if line.max() > floor:
            shown = numpy.where(line > floor, line, numpy.nan).tolist()
            label = f"$\\lambda_{{{index + 1}}}$"
            series.append(Series(record["times"], shown, linestyle="solid", linewidth=2.0, colour=index, label=label))
    annotations, blow_up = [], record["blow_up"]
    if blow_up is not None:
        t, ends = blow_up["time"], [float(values[values > floor].min()), float(values.max())]
        series.append(Series([t, t], ends, linestyle="dashed", linewidth=1.2, colour="muted"))
        annotations.append(Annotation(t, ends[1], f"blow-up at t = {t:.4g}", "right", "foreground"))
    y_axis = Axis("eigenvalues of the covariance", "log")
    return Chart("", Axis("time t"), y_axis, series, annotations=annotations)


def density_picture(records: Sequence[dict[str, Any]]) -> Picture:
    """Return the density of a mean-field flow, with particles if they were compared with it.

    Args:
        records: Records of densities and particles; the first flow is drawn.
    """
    record, times, values, particles = _first_density(records)
    title = _density_title(record)
    if record["d"] == 1:
        panels = [_curves_chart(record, times, values, particles), _time_map(record, times, values, particles)]
        return Picture(panels, width=5.5, height=4.6, title=title, mosaic="AB", width_ratios=(1, 1.1))
    shown = [round((len(values) - 1) * share / (_N_SNAPSHOTS - 1)) for share in range(_N_SNAPSHOTS)]
    maps = [
        _density_map(record, values, k, float(values[k].max()), particles, times, f"t = {times[k]:.3g}") for k in shown
    ]
    return Picture(maps, width=2.75, height=2.9, title=title, mosaic="ABCD"[:_N_SNAPSHOTS])


def _density_title(record: dict[str, Any]) -> str:
    """Return the title of a figure; it says if only some of the saved times are in the record."""
    kept, saved = len(record["frames"]), len(record["times"])
    return record["title"] + ("" if kept == saved else f", {kept} of {saved} saved times")


def _first_density(records: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], NDArray, NDArray, Particles | None]:
    """Return the record of the first density, the times and values that it has, and the particles beside it.

    The values are mass per volume, (T, *cells).
    """
    record = next(iter(of_kind(records, "density flow")), None)
    if record is None:
        raise InputError("expected a density to draw, got none; solve for it again")
    compared = [r for r in of_kind(records, "particle comparison") if r["flow"] == record["flow"]]
    drawn = next((r for r in compared if r.get("positions")), None)
    most = max((r["n"] for r in compared), default=0)
    particles = None if drawn is None else Particles.of(drawn, record["times"], most)
    return record, numpy.array(record["times"])[record["frames"]], unpack(record["densities"]), particles


def rate_picture(records: Sequence[dict[str, Any]]) -> Picture | None:
    """Return the picture of the convergence rate; None if the run was interrupted before the rate was fitted."""
    fitted = rate_records(records)
    if not fitted:
        return None
    chart = rate_chart(fitted, fitted[0]["title"])
    return Picture([chart], width=7.0, height=4.6 + 0.22 * (len(fitted) + 2))


def rate_chart(records: Sequence[dict[str, Any]], title: str) -> Chart:
    """Return the chart of distances of particles to their limit against n.

    It shows the geometric means over runs, the fitted power law, the slope n^(-1/2), and each run if there is only one
    law.
    """
    runs = [run for record in records for run in record["runs"]]
    n_min, n_max = min(run["n"] for run in runs), max(run["n"] for run in runs)
    start = 0.6 * min(run["distance"] for run in runs) * (n_max / n_min) ** 0.5
    series = []
    for index, record in enumerate(records):
        rate, counts = record["rate"], [run["n"] for run in record["runs"]]
        ends = [min(counts), max(counts)]
        groups = {n: [run["distance"] for run in record["runs"] if run["n"] == n] for n in sorted(set(counts))}
        if len(records) == 1:
            distances = [run["distance"] for run in record["runs"]]
            series.append(Series(counts, distances, show_markers=True, hollow_markers=True, marker_index=0, colour=0))
        series += [
            Series(
                list(groups),
                [math.exp(sum(map(math.log, g)) / len(g)) for g in groups.values()],
                show_markers=True,
                marker_index=index,
                colour=index,
            ),
            Series(
                ends,
                [rate["constant"] * n ** rate["exponent"] for n in ends],
                linestyle="solid",
                colour=index,
                label=f"{record.get('label') or record['distance']}:  n$^{{{rate['exponent']:.2f}}}$",
            ),
        ]
    series.append(
        Series(
            [n_min, n_max],
            [start, start * (n_min / n_max) ** 0.5],
            linestyle="dashed",
            linewidth=1.2,
            colour="muted",
            label="n$^{-1/2}$, to compare",
        )
    )
    return Chart(
        title,
        Axis("number n of particles", "log", sorted({run["n"] for run in runs})),
        Axis("distance to the limit", "log"),
        series,
        notes=["Filled marks: geometric means of the runs; lines: fitted powers."],
    )


def density_frames(records: Sequence[dict[str, Any]]) -> Iterator[Chart | HeatMap]:
    """Yield one panel for each time that the record of a density has; see `density_picture`."""
    record, times, values, particles = _first_density(records)
    for k, t in enumerate(times):
        title = f"{_density_title(record)}\nt = {t:.3g}"
        if record["d"] > 1:
            yield _density_map(record, values, k, float(values.max()), particles, times, title)
        else:
            low, high = _axis_limits(record, values, 0)
            line = Series(_cell_centres(record, 0).tolist(), values[k].tolist(), linestyle="solid", colour=0)
            y_axis = Axis("density", lower_limit=0, upper_limit=1.05 * float(values.max()))
            yield Chart(title, Axis("x", lower_limit=low, upper_limit=high), y_axis, [line])


def _curves_chart(record: dict[str, Any], times: NDArray, values: NDArray, particles: Particles | None) -> Chart:
    """Return the density at some times as curves, and the last particles as a histogram."""
    x, shares, bands = _cell_centres(record, 0).tolist(), [k / (_N_CURVES - 1) for k in range(_N_CURVES)], []
    shown = [round((len(times) - 1) * share) for share in shares]
    series = [
        Series(x, values[k].tolist(), linestyle="solid", colour=0.9 * share, label=f"t = {times[k]:.3g}")
        for k, share in zip(shown, shares, strict=True)
    ]
    if particles is not None:
        last = particles.at(times[-1])[:, 0]
        counts, edges = numpy.histogram(last, bins=_bins(len(last)), density=True)
        steps, heights = numpy.repeat(edges, 2)[1:-1].tolist(), numpy.repeat(counts, 2).tolist()
        bands.append(Band(steps, [0.0] * len(steps), heights, f"{len(last)} particles", 0.9, opacity=0.25))
    low, high = _axis_limits(record, values, 0)
    x_axis = Axis("x", lower_limit=low, upper_limit=high)
    return Chart("", x_axis, Axis("density", lower_limit=0), series, bands=bands, legend_inside=True)


def _time_map(record: dict[str, Any], times: NDArray, values: NDArray, particles: Particles | None) -> HeatMap:
    """Return the density on a line against time."""
    low, high = _axis_limits(record, values, 0)
    return HeatMap(
        "",
        Axis("time t"),
        Axis("x", lower_limit=low, upper_limit=high),
        (),
        (),
        values.T.tolist(),
        scale="linear",
        limits=(float(values.min()), float(numpy.quantile(values, 0.995))),
        extent=(float(times[0]), float(times[-1]), record["low"][0], record["high"][0]),
        bar_label="density",
        series=[] if particles is None else [_paths(particles, "white")],
    )


def _bins(count: int) -> int:
    """Return the number of bins of a histogram of so many particles."""
    return min(40, max(8, round(math.sqrt(count))))


def _density_map(
    record: dict[str, Any],
    values: NDArray,
    k: int,
    most: float,
    particles: Particles | None,
    times: NDArray,
    title: str,
) -> HeatMap:
    """Return the density in the plane at the k-th time."""
    (x0, y0), (x1, y1) = record["low"], record["high"]
    limits = [_axis_limits(record, values, axis) for axis in (0, 1)]
    x_axis, y_axis = (
        Axis(name, lower_limit=low, upper_limit=high) for name, (low, high) in zip("xy", limits, strict=True)
    )
    dots = {"marker_size": 2.2, "opacity": 0.7, "colour": "white", **_DOTS}
    return HeatMap(
        title,
        x_axis,
        y_axis,
        (),
        (),
        values[k].T.tolist(),
        scale="linear",
        limits=(0.0, most),
        extent=(x0, x1, y0, y1),
        equal_scales=True,
        bar_label="",
        series=[] if particles is None else [series_at(particles.at(times[k]), **dots)],
    )


def _axis_limits(record: dict[str, Any], values: NDArray, axis: int) -> tuple[float, float]:
    """Return axis limits around the cells with visible mass, of equal length for both axes so that maps are square."""
    x, spans = [_cell_centres(record, k) for k in range(record["d"])], []
    for k in range(record["d"]):
        others = tuple(j for j in range(values.ndim) if j != k + 1)
        visible = x[k][values.max(others) > 1e-3 * values.max()]
        spans.append((visible.min(), visible.max()))
    half = 0.55 * max(high - low for low, high in spans)
    middle = numpy.mean(spans[axis])
    return float(max(middle - half, record["low"][axis])), float(min(middle + half, record["high"][axis]))


def _cell_centres(record: dict[str, Any], axis: int) -> NDArray:
    edges = numpy.linspace(record["low"][axis], record["high"][axis], record["cells"][axis] + 1)
    return (edges[1:] + edges[:-1]) / 2
