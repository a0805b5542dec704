"""The interactive page of a flow: one self-contained HTML file with moving tokens and charts along depth."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy

from howsmooth.errors import InputError
from howsmooth.questions.flows import of_kind
from howsmooth.report.chart import PALETTE_SIZE, Axis, Chart, LineStyle, Series, drawable
from howsmooth.report.embedding import embed_json, panel_html
from howsmooth.report.flow_charts import COUNTS, SIZES, SMALLEST_SIZE, depth_of, paths_of
from howsmooth.report.flow_tables import depth_label, depth_runs, flows_of, plateau_lines
from howsmooth.report.rows import model_name, token
from howsmooth.report.web_page import render

if TYPE_CHECKING:
    from numpy.typing import NDArray


_ASINH_RATIO = 40.0  # coordinates that grow by more than this factor are drawn on an asinh scale
_CHART_HEIGHT = 2.2  # inches, of 5.4 inches of width


def flow_page(scenes: Sequence[dict[str, Any]]) -> str:
    """Return the HTML page of one or several scenes, as `particle_scene` and `depth_scene` return them."""
    if not scenes:
        raise InputError("expected at least one flow to show, got none")
    drawn = [
        [
            panel_html(chart, _CHART_HEIGHT, name=f"scene-{place}-chart-{index}")
            for index, chart in enumerate(scene["charts"])
        ]
        for place, scene in enumerate(scenes)
    ]
    data = [{**scene, "charts": [_curves_of(chart) for chart in scene["charts"]]} for scene in scenes]
    return render("flow.html", ("report.js", "flow.js"), data=embed_json(data), scenes=drawn)


def particle_page(records: Sequence[dict[str, Any]]) -> str:
    """Return the HTML page of flows of particles, one scene for each; from dimension 3 on the view can be rotated."""
    return flow_page([particle_scene(depths) for flow in flows_of(records) if (depths := of_kind(flow, "particles"))])


def depth_page(records: Sequence[dict[str, Any]]) -> str:
    """Return the HTML page of chunks of text passing through models, one scene for each chunk."""
    return flow_page([depth_scene(run) for run in depth_runs(records)])


def particle_scene(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the scene of a flow of particles, coloured by their final cluster, for `flow_page`.

    Args:
        records: Records of kind "particles", one for each saved depth.
    """
    first, last, depths = records[0], records[-1], [record["t"] for record in records]
    paths, names, labels = paths_of(records, space=True)
    full_trails = paths.shape[2] == 1
    if full_trails:  # depth on the x-axis, and the path from the first depth on stays visible
        times = numpy.broadcast_to(numpy.asarray(depths)[:, None, None], paths.shape)
        paths, names = numpy.concatenate([times, paths], -1), ["depth", names[0]]
    step = -(-first["n"] // paths.shape[1])
    words = [f"token {i}" for i in range(0, first["n"], step)]
    n_clusters = max(labels) + 1
    sequential = n_clusters > PALETTE_SIZE
    token_colours = [label / max(n_clusters - 1, 1) for label in labels] if sequential else labels
    plateaus = "; ".join(plateau_lines(records))
    about = f"{first.get('about', '')} {plateaus[:1].upper()}{plateaus[1:]}{'.' * bool(plateaus)}".strip()
    facts = (
        f"{last['n']} tokens in dimension {last['d']}, {last['coordinates']}: {last['ending']}, {last['steps']} steps "
        f"of {last['solver']}; tokens closer than {last['tol']:g} are together. Seed {last['seed']}."
    )
    if step > 1:
        facts += f" One token of every {step} is drawn."
    return _scene(
        paths,
        names,
        depths,
        [f"depth {t:.4g}" for t in depths],
        words,
        token_colours,
        sequential,
        [
            _chart("How many", _curves(records, COUNTS, steps=True), depths, log=True),
            _chart("How large", _curves(records, SIZES, minimum=SMALLEST_SIZE), depths, log=True),
        ],
        title=last["title"],
        choice=last["title"],
        about=about,
        facts=facts,
        full_trails=full_trails,
        sink=None,
    )


def depth_scene(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the scene of a text passing through the layers of a model, coloured by position, for `flow_page`.

    Args:
        records: One record for each depth.
    """
    first, n, words = records[0], records[0]["n"], records[0]["words"]
    step = -(-n // len(words))
    name = model_name(first["model"])
    sink = (
        ""
        if first["sink"] is None
        else (
            f" Most attention goes to the token “{token(first['sink_token'])}” at position "
            f"{first['sink']}; dashed curves leave it out."
        )
    )
    text = "the embedded text" if first["text"] == "embedded" else first["text"]
    depth_texts = [
        f"{depth_label(r)} of {first['layers']} layers" if not r["normed"] else "after the norm" for r in records
    ]
    labelled_words = [f"{token(word)}  @{i * step}" for i, word in enumerate(words)]
    return _scene(
        numpy.array([record["coordinates"] for record in records]),
        first["axes"],
        [depth_of(r) for r in records],
        depth_texts,
        labelled_words,
        [i / max(len(words) - 1, 1) for i in range(len(words))],
        True,
        _depth_charts(records),
        title=f"{name}: {n} tokens through {first['layers']} layers",
        choice=f"{name}, n = {n}, piece {first['sample'] + 1}",
        about=f"Directions x/|x| of the tokens of {text} after each layer, seen along the axes on which they "
        f"vary most; colour is the position in the text.{sink}",
        facts=f"Text: {text} (sha256 {first['text_sha256'][:12]}…), weights "
        f"{first['weights'] or 'as loaded'}, {first['dtype']}, seed {first['seed']}, "
        f"howsmooth {first['versions']['howsmooth']}." + (f" One token of every {step} is drawn." if step > 1 else ""),
        full_trails=False,
        sink=None if first["sink"] is None or first["sink"] % step else first["sink"] // step,
    )


def _depth_charts(records: Sequence[dict[str, Any]]) -> list[Chart]:
    def curve(key: str, name: str, colour: int, linestyle: LineStyle = "solid") -> Series:
        return _curve(depths, name, [record[key] for record in records], colour, linestyle)

    depths, tolerances = [depth_of(record) for record in records], records[0]["tolerances"]
    charts = [
        _chart(
            "Growth of a perturbation",
            [
                curve("value", "σ₁ of all layers so far", 0),
                curve("product", "product of layers", 1, "dashed"),
                curve("own", "each layer alone", 3, "dotted"),
                curve("relative", "relative to the tokens", 2),
            ],
            depths,
            log=True,
        ),
        _chart(
            "Directions",
            [
                curve("cosine", "mean cosine of two tokens", 0),
                curve("cosine_without_sink", "without the sink", 0, "dashed"),
                curve("to_mean", "distance from mean", 1),
                curve("to_mean_without_sink", "without the sink", 1, "dashed"),
            ],
            depths,
        ),
        _chart(
            "Clusters of directions",
            [
                _curve(depths, f"closer than {tol:g}", [r["clusters"][i] for r in records], i % PALETTE_SIZE)
                for i, tol in enumerate(tolerances)
            ],
            depths,
        ),
        _chart(
            "Size of tokens",
            [
                curve("norm", "median norm", 0),
                curve("largest_norm", "largest", 0, "dotted"),
                curve("sink_norm", "sink", 1, "dashed"),
            ],
            depths,
            log=True,
        ),
        _chart(
            "Attention", [curve("to_sink", "weight on the sink", 1), curve("sharpness", "largest weight", 2)], depths
        ),
    ]
    return [chart for chart in charts if chart.series]


def _curves(
    records: Sequence[dict[str, Any]], columns: Sequence[tuple[str, str, LineStyle]], **more: Any
) -> list[Series]:
    depths = [record["t"] for record in records]
    return [
        _curve(depths, name, [record[key] for record in records], index, linestyle, **more)
        for index, (key, name, linestyle) in enumerate(columns)
    ]


def _curve(
    depths: Sequence[float],
    name: str,
    values: Sequence[float | None],
    colour: int,
    linestyle: LineStyle = "solid",
    *,
    steps: bool = False,
    minimum: float = -math.inf,
) -> Series:
    shown = [math.nan if v is None or not math.isfinite(v) or v <= minimum else float(f"{v:.5g}") for v in values]
    return Series(depths, shown, label=name, linestyle=linestyle, colour=colour, steps=steps)


def _chart(title: str, curves: Sequence[Series], depths: Sequence[float], *, log: bool = False) -> Chart:
    shown = [curve for curve in curves if any(math.isfinite(value) for value in curve.y)]
    x = Axis("depth", lower_limit=depths[0], upper_limit=depths[-1] if depths[-1] > depths[0] else depths[0] + 1)
    return Chart(title, x, Axis("", "log" if log else "linear", lower_limit=None if log else _lowest(shown)), shown)


def _lowest(curves: Sequence[Series]) -> float:
    return min([0.0, *(value for curve in curves for value in curve.y if math.isfinite(value))])


def _curves_of(chart: Chart) -> list[list[float | None]]:
    """Return the values of the curves of a chart at each depth, for the numbers in its legend."""
    return [drawable(series.y, None) for series in chart.series]


def _scene(
    paths: NDArray,
    names: Sequence[str],
    depths: Sequence[float],
    depth_texts: Sequence[str],
    words: Sequence[str],
    token_colours: Sequence[float],
    sequential: bool,
    charts: list[Chart],
    **more: Any,
) -> dict[str, Any]:
    """Return a scene: charts, and JSON with paths as 16-bit integers between the ends of each coordinate."""
    paths, asinh_scale = numpy.asarray(paths, dtype=float), None
    start = abs(paths[0]).max() or 1.0
    if not more["full_trails"] and abs(paths).max() > _ASINH_RATIO * start:
        paths, asinh_scale = numpy.arcsinh(paths / start), float(start)
        names = [f"{name} (asinh scale)" for name in names]
    low, high = paths.min((0, 1)), paths.max((0, 1))
    span = numpy.where(high > low, high - low, 1.0)
    quantised = numpy.round((paths - low) / span * 65535).astype("<u2")
    return {
        "names": list(names),
        "depths": [float(t) for t in depths],
        "depth_texts": list(depth_texts),
        "words": list(words),
        "token_colours": list(token_colours),
        "sequential": sequential,
        "charts": charts,
        "count": paths.shape[1],
        "dim": paths.shape[2],
        "low": low.tolist(),
        "high": high.tolist(),
        "asinh_scale": asinh_scale,
        "equal": not more["full_trails"] and bool(max(high - low) < 4 * min(high - low)),
        "paths": base64.b64encode(quantised.tobytes()).decode("ascii"),
        **more,
    }
