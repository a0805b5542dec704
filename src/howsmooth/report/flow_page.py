"""Flows to play with: one HTML file that needs nothing else, tokens on a canvas beside their instruments."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from howsmooth.errors import InputError
from howsmooth.report.flow_figures import COUNTS, SIZES, SMALLEST, depth_of
from howsmooth.report.flow_tables import of_kind, plateau_lines, stage
from howsmooth.report.rows import model_name, token
from howsmooth.report.web_page import embedded, rendered

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from howsmooth.dynamics.runs import ParticleRun
    from howsmooth.studies.depth import DepthTrajectory

MOST = 600  # tokens that are drawn; of more every so-manyth
_WIDE = 40.0  # a spread so many times that of the start is drawn as asinh
_CLUSTER_COLOURS = 6
_DASHES = {"-": 0, "--": 1, "-.": 1, ":": 2}


def check_page_path(path: str, option: str = "--page") -> None:
    """Refuse a page under a name that no browser would open."""
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise InputError(f"expected a file ending in .html for {option}, got {path!r}")


def flow_page(scenes: Sequence[dict[str, Any]]) -> str:
    """The page of one scene, or of several to choose among; `particle_scene` and `depth_scene` make them."""
    if not scenes:
        raise InputError("expected at least one flow to show, got none")
    return rendered("flow.html", data=embedded(list(scenes)))


def particle_page(run: ParticleRun, records: Sequence[dict[str, Any]]) -> str:
    """The page of a flow of particles; from dimension 3 on it can be turned."""
    from howsmooth.dynamics.instruments import principal_view, view_and_labels

    declared, trajectory, (n, d) = run.declared, run.trajectory, run.trajectory.last.shape
    seen, labels = view_and_labels(trajectory, run.field, declared.watch.tol)
    if d > 2:
        seen = principal_view(trajectory.tokens, 3)
    facts = (
        f"{n} tokens in dimension {d}, {declared.flow.coordinates}: {trajectory.ending}, {trajectory.steps} steps "
        f"of {trajectory.solver}; tokens closer than {declared.watch.tol:g} are together. Seed "
        f"{declared.tokens.seed}."
    )
    return flow_page(
        [
            particle_scene(
                of_kind(records, "depth"),
                seen(trajectory.tokens).numpy(),
                seen.names,
                labels,
                title=run.title,
                about=declared.about,
                facts=facts,
            )
        ]
    )


def depth_page(trajectories: Sequence[DepthTrajectory], records: Sequence[dict[str, Any]]) -> str:
    """The page of the pieces of text that went through a model, as far as there are records of them."""
    from howsmooth.studies.depth import principal_coordinates

    scenes = []
    for trajectory in trajectories:
        seen = [r for r in records if (r["n"], r["sample"]) == (trajectory.n, trajectory.sample)]
        if seen:
            scenes.append(depth_scene(seen, *principal_coordinates(trajectory), trajectory.chunk.words))
    return flow_page(scenes)


def particle_scene(
    records: Sequence[dict[str, Any]],
    paths: NDArray,
    names: Sequence[str],
    labels: Sequence[int],
    *,
    title: str,
    about: str = "",
    facts: str = "",
) -> dict[str, Any]:
    """A flow of particles: paths (T, n, 1 to 3) coloured by the cluster that a token ends in."""
    import numpy

    depths = [record["t"] for record in records]
    trace = paths.shape[2] == 1
    if trace:  # on the line: depth runs to the right
        times = numpy.broadcast_to(numpy.asarray(depths)[:, None, None], paths.shape)
        paths, names = numpy.concatenate([times, paths], -1), ("depth", names[0])
    every = max(1, -(-paths.shape[1] // MOST))
    words = [f"token {i}" for i in range(0, paths.shape[1], every)]
    paths, labels, many = paths[:, ::every], list(labels)[::every], max(labels) + 1
    shades = [label / max(many - 1, 1) for label in labels] if many > _CLUSTER_COLOURS else labels
    formed = "; ".join(plateau_lines(records))
    about = " ".join([*about.split(), f"{formed[0].upper()}{formed[1:]}." if formed else ""]).strip()
    if every > 1:
        facts += f" One token of every {every} is drawn."
    return _scene(
        paths,
        names,
        depths,
        [f"depth {t:.4g}" for t in depths],
        words,
        shades,
        many > _CLUSTER_COLOURS,
        [
            _chart("How many", _curves(records, COUNTS), log=True, steps=True),
            _chart("How large", _curves(records, SIZES), log=True, least=SMALLEST),
        ],
        title=title,
        choice=title,
        about=about,
        facts=facts,
        trace=trace,
        sink=None,
    )


def depth_scene(
    records: Sequence[dict[str, Any]], paths: NDArray, names: Sequence[str], words: Sequence[str]
) -> dict[str, Any]:
    """The tokens of a text through the layers of a model: directions (T, n, 3), coloured by their place in the text.

    Fewer records than depths, as an interrupted run leaves them, show so many depths.
    """
    first, n = records[0], len(words)
    paths = paths[: len(records)]
    name = model_name(first["model"])
    sink = (
        ""
        if first["sink"] is None
        else (
            f" Most attention goes to the token “{token(first['sink_token'])}”, place "
            f"{first['sink']}; dashed curves leave it out."
        )
    )
    text = "the embedded text" if first["text"] == "embedded" else first["text"]
    clock = [f"{stage(r)} of {first['layers']} layers" if not r["normed"] else "after the norm" for r in records]
    shown = [f"{token(word)}  @{i}" for i, word in enumerate(words)]
    return _scene(
        paths,
        names,
        [depth_of(r) for r in records],
        clock,
        shown,
        [i / max(n - 1, 1) for i in range(n)],
        True,
        _depth_charts(records),
        title=f"{name}: {n} tokens through {first['layers']} layers",
        choice=f"{name}, n = {n}, piece {first['sample'] + 1}",
        about=f"Directions x/|x| of the tokens of {text} after each layer, seen along the axes on which they "
        f"vary most; colour is the place in the text.{sink}",
        facts=f"Text: {text} (sha256 {first['text_sha256'][:12]}…), weights "
        f"{first['weights'] or 'as loaded'}, {first['dtype']}, seed {first['seed']}, "
        f"howsmooth {first['versions']['howsmooth']}.",
        trace=False,
        sink=first["sink"],
    )


def _depth_charts(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    def curve(key: str, name: str, colour: int, dash: int = 0) -> dict[str, Any]:
        return _curve(name, [record[key] for record in records], colour, dash)

    tolerances = records[0]["tolerances"]
    charts = [
        _chart(
            "Growth of a perturbation",
            [
                curve("value", "σ₁ of all layers so far", 0),
                curve("product", "product of layers", 1, 1),
                curve("own", "each layer alone", 3, 2),
                curve("relative", "relative to the tokens", 2),
            ],
            log=True,
        ),
        _chart(
            "Directions",
            [
                curve("cosine", "mean cosine of two tokens", 0),
                curve("cosine_without_sink", "without the sink", 0, 1),
                curve("to_mean", "distance from mean", 1),
                curve("to_mean_without_sink", "without the sink", 1, 1),
            ],
        ),
        _chart(
            "Clusters of directions",
            [
                _curve(f"closer than {tol:g}", [r["clusters"][i] for r in records], i % 6, 0)
                for i, tol in enumerate(tolerances)
            ],
        ),
        _chart(
            "Size of tokens",
            [curve("norm", "median norm", 0), curve("largest_norm", "largest", 0, 2), curve("sink_norm", "sink", 1, 1)],
            log=True,
        ),
        _chart("Attention", [curve("to_sink", "weight on the sink", 1), curve("sharpness", "largest weight", 2)]),
    ]
    return [chart for chart in charts if chart["curves"]]


def _curves(records: Sequence[dict[str, Any]], wanted: Sequence[tuple[str, str, str]]) -> list[dict[str, Any]]:
    return [
        _curve(name, [record[key] for record in records], index, _DASHES[dashes])
        for index, (key, name, dashes) in enumerate(wanted)
    ]


def _curve(name: str, values: Sequence[float | None], colour: int, dash: int) -> dict[str, Any]:
    short = [None if v is None or not math.isfinite(v) else float(f"{v:.5g}") for v in values]
    return {"name": name, "values": short, "colour": colour, "dash": dash}


def _chart(
    title: str, curves: Sequence[dict[str, Any]], *, log: bool = False, steps: bool = False, least: float = 0.0
) -> dict[str, Any]:
    shown = [curve for curve in curves if any(value is not None for value in curve["values"])]
    return {"title": title, "curves": shown, "log": log, "steps": steps, "least": least}


def _scene(
    paths: NDArray,
    names: Sequence[str],
    depths: Sequence[float],
    clock: Sequence[str],
    words: Sequence[str],
    shades: Sequence[float],
    ordered: bool,
    charts: list,
    **more: Any,
) -> dict[str, Any]:
    """Paths as 16-bit numbers between the lowest and the highest value of each coordinate."""
    import numpy

    paths, bent = numpy.asarray(paths, dtype=float), None
    start = abs(paths[0]).max() or 1.0
    if not more["trace"] and abs(paths).max() > _WIDE * start:
        paths, bent = numpy.arcsinh(paths / start), float(start)
        names = [f"{name} (asinh scale)" for name in names]
    low, high = paths.min((0, 1)), paths.max((0, 1))
    span = numpy.where(high > low, high - low, 1.0)
    packed = numpy.round((paths - low) / span * 65535).astype("<u2")
    spread = high - low
    return {
        "names": list(names),
        "depths": [float(t) for t in depths],
        "clock": list(clock),
        "words": list(words),
        "shades": list(shades),
        "ordered": ordered,
        "charts": charts,
        "count": paths.shape[1],
        "dim": paths.shape[2],
        "low": low.tolist(),
        "high": high.tolist(),
        "bent": bent,
        "equal": not more["trace"] and bool(max(spread) < 4 * min(spread)),
        "paths": base64.b64encode(packed.tobytes()).decode("ascii"),
        **more,
    }
