"""Terminal tables of flows: particles, Gaussian flows, densities, convergence rates, the layers of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy
from rich.console import RenderableType
from rich.text import Text

from howsmooth.dynamics.grid import Grid
from howsmooth.dynamics.instruments.clusters import plateaus
from howsmooth.questions.flows import of_kind
from howsmooth.records.arrays import evenly_spaced
from howsmooth.report.measurement_tables import FIXED_TOKENS_TEXT
from howsmooth.report.rows import (
    ACCEPTED_STATUSES,
    confidence_text,
    counted,
    interval,
    largest_shares,
    model_name,
    number,
    text_name,
    token,
)
from howsmooth.report.table import Column, Table

_MAX_DEPTH_ROWS, _MAX_TIME_ROWS = 12, 10
# Field of the record, heading, significant digits (None: an integer).
_INSTRUMENTS = (
    ("clusters", "clusters", None),
    ("vertices", "hull vertices", None),
    ("hyperplanes", "hyperplanes", None),
    ("leading_clusters", "leading clusters", None),
    ("leading_vertices", "leading vertices", None),
    ("rank", "rank P", None),
    ("undecided", "P from 0/1", 2),
    ("diameter", "diameter", 4),
    ("w2_to_last", "W₂ to last", 3),
    ("log_energy", "log energy", 4),
    ("local", "Lip of Γ", 4),
)


def flow_table(records: Sequence[dict[str, Any]], title: str, renormalised: bool = False) -> Table:
    """Return the table of a flow of particles at up to `_MAX_DEPTH_ROWS` evenly spaced depths.

    Renormalised tokens z have the velocity ż instead of Γ, so their local constant is that of ż.
    """

    def instrument(key: str, heading: str, digits: int | None) -> Column:
        return Column(
            "Lip of ż" if key == "local" and renormalised else heading,
            _number(key, digits),
            style="bold green" if key == "clusters" else "",
            when=any(record[key] is not None for record in records),
        )

    return Table(
        title,
        [
            Column("depth", lambda r: f"{r['t']:.4g}", style="bold", key=True),
            *(instrument(*column) for column in _INSTRUMENTS),
        ],
        [records[k] for k in evenly_spaced(len(records), _MAX_DEPTH_ROWS)],
    )


def particle_tables(records: Sequence[dict[str, Any]]) -> list[RenderableType]:
    """Return the tables of each flow of particles: depths, final state, clusters, and growth of a perturbation."""
    parts: list[RenderableType] = []
    for flow in flows_of(records):
        depths, growth = of_kind(flow, "particles"), of_kind(flow, "perturbation growth")
        renormalised = flow[0]["coordinates"] == "renormalised"
        if depths:
            last = depths[-1]
            ending = (
                f"{last['n']} tokens in dimension {last['d']}, {'e^{−tV}x' if renormalised else 'x'}: "
                f"{last['ending']}, {last['steps']} steps of {last['solver']}, {last['evaluations']} evaluations, "
                f"{last['seconds']:.2g} s; tokens closer than {last['tol']:g} are together"
            )
            parts += [flow_table(depths, last["title"], renormalised), Text(ending, style="dim")]
            parts += map(Text, plateau_lines(depths))
        if growth:
            parts.append(growth_of_perturbations_table(growth, renormalised))
    return parts


def plateau_lines(records: Sequence[dict[str, Any]]) -> list[str]:
    """Describe the intervals of depth in which the number of clusters stays constant for long."""
    if records[0]["clusters"] is None or len(records) < 3:
        return []
    found = plateaus([r["t"] for r in records], [r["clusters"] for r in records], least=0.1)
    return [
        f"{counted(p.count, 'cluster')} from depth {p.start:.4g} to {p.end:.4g}"
        for p in found
        if p.count < records[0]["clusters"]
    ]


def growth_of_perturbations_table(records: Sequence[dict[str, Any]], renormalised: bool = False) -> Table:
    """Return the table of σ₁ of the flow's derivative and the product of its layers' constants."""
    title = f"Growth of a perturbation through {records[-1]['maps']} residual layers" + (
        ", in x = e^{tV}z" if renormalised else ""
    )
    return Table(
        title,
        [
            Column("depth", lambda r: f"{r['depth']:.4g}", style="bold", key=True),
            Column("σ₁ of the flow", lambda r: number(r["value"]), style="bold green"),
            Column(
                f"interval, {confidence_text(records)}", lambda r: interval(r["lower"], r["upper"]), "left", wrap=False
            ),
            Column("Π σ₁ of layers", _number("product", 4)),
            Column("log σ₁ / depth", lambda r: number(r["exponent"], 3)),
            Column("Lip of the velocity", lambda r: number(r["local"])),
        ],
        records,
    )


def moments_table(record: dict[str, Any], title: str, particles: dict[str, Any] | None = None) -> Table:
    """Return the table of a Gaussian or a density at up to `_MAX_TIME_ROWS` times: norm of the mean, eigenvalues.

    With `particles`, their distance to the flow and to its moments are further columns.
    """
    values = numpy.linalg.eigvalsh(numpy.array(record["covariances"]))[:, ::-1]
    compared = particles or {"n": 0, "coupled": [], "moments": []}

    def distance(key: str) -> Callable[[int], str]:
        return lambda k: number(compared[key][k], 3) if k < len(compared["coupled"]) else ""

    return Table(
        title,
        [
            Column("t", lambda k: f"{record['times'][k]:.4g}", style="bold"),
            Column("|mean|", lambda k: number(float(numpy.linalg.norm(record["means"][k])))),
            Column(
                "eigenvalues of the covariance",
                lambda k: (
                    "  ".join(number(float(value), 4) for value in values[k][:5]) + ("  …" if record["d"] > 5 else "")
                ),
                "left",
                style="bold green",
                wrap=False,
            ),
            Column(f"{compared['n']} particles: to the flow", distance("coupled"), when=particles is not None),
            Column("W₂ of moments", distance("moments"), when=particles is not None),
        ],
        evenly_spaced(len(record["times"]), _MAX_TIME_ROWS),
    )


def gaussian_tables(records: Sequence[dict[str, Any]]) -> list[RenderableType]:
    """Return the moments of each Gaussian flow, its final state, blow-up time in closed form and limiting rank."""
    parts: list[RenderableType] = []
    for record in records:
        exact, rank = record.get("closed_form_blow_up"), record["limiting_rank"]
        blow_up = "no blow-up" if exact is None or exact > 1e300 else f"blow-up at t = {exact:.6g}"
        ending = f"{record['ending']}, {record['steps']} steps, {record['seconds']:.2g} s"
        parts += [moments_table(record, record["title"], record["particles"]), Text(ending, style="dim")]
        parts += [Text(f"V = I in closed form: {blow_up}")] if record["has_closed_form"] else []
        parts.append(
            Text(
                "eigenvalues of the covariance: " + ", ".join(rank["fates"]) + f"; rank {rank['rank']} in the limit, "
                f"{rank['shape_rank']} in shape"
                + ("" if rank["settled"] else "; not settled yet, follow it for longer")
            )
        )
    return parts


def density_tables(records: Sequence[dict[str, Any]]) -> list[RenderableType]:
    """Return the moments of each density and its final state, and the distances of particles to it."""
    parts: list[RenderableType] = []
    for group in flows_of(records):
        for flow in of_kind(group, "density flow"):
            on = Grid(tuple(flow["low"]), tuple(flow["high"]), tuple(flow["cells"]))
            ending = (
                f"{flow['status']} at t = {flow['times'][-1]:.4g} on {on}, {flow['steps']} steps of order "
                f"{flow['order']}, mass lost {flow['mass_error']:.1g}, against the walls {flow['leaked']:.1g}, "
                f"{flow['seconds']:.2g} s"
            )
            parts += [moments_table(flow, flow["title"]), Text(ending, style="dim")]
        runs = of_kind(group, "particle comparison")
        for fitted in rate_records(group):
            repeats = counted(1 + max(one["repeat"] for one in runs), "draw")
            law = f"{fitted['rate']['constant']:.3g} n^({round(fitted['rate']['exponent'], 2) + 0.0:.2f})"
            parts += [
                rate_table(fitted, f"Particles to the density, mean of {repeats}"),
                Text(f"{fitted['distance']} ≈ {law}"),
            ]
        if len({one["n"] for one in runs}) == 1:
            gap, name = sum(one["distance"] for one in runs) / len(runs), "d₂" if runs[0]["slices"] else "W₂"
            parts.append(Text(f"{runs[0]['n']} particles: {name} to the density {gap:.3g}, mean of {len(runs)}"))
    return parts


def flows_of(records: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the records of each flow."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault(record["flow"], []).append(record)
    return list(groups.values())


def rate_records(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records of fitted rates, each with its runs; empty for an interrupted run."""
    runs = [{**rate, "runs": of_kind(records, "particle comparison")} for rate in of_kind(records, "rate")]
    return [rate for rate in runs if rate["runs"]]


def rate_table(record: dict[str, Any], title: str) -> Table:
    """Return the table of mean distances of particles to their limit, with the fitted power law."""
    rate = record["rate"]
    groups: dict[int, list[dict[str, Any]]] = {}
    for run in record["runs"]:
        groups.setdefault(run["n"], []).append(run)

    def mean(key: str) -> Callable[[list[dict[str, Any]]], str]:
        return lambda runs: number(sum(run[key] for run in runs) / len(runs), 3)

    return Table(
        title,
        [
            Column("n", lambda runs: runs[0]["n"], style="bold", key=True),
            Column(f"{record['distance']} at t = 0", mean("at_start"), when=record["runs"][0]["at_start"] is not None),
            Column(f"{record['distance']} at t = {record['until']:g}", mean("distance"), style="bold green"),
            Column("fit", lambda runs: number(rate["constant"] * runs[0]["n"] ** rate["exponent"], 3), style="dim"),
        ],
        list(groups.values()),
    )


def depth_tables(records: Sequence[dict[str, Any]]) -> list[Table]:
    """Return two tables for each chunk of text: statistics of the tokens after each layer, growth of a perturbation."""
    parts: list[Table] = []
    for run in depth_runs(records):
        parts.append(_spread_table(run))
        if any(record["own"] is not None for record in run):
            parts.append(_depth_growth_table(run))
    return parts


def depth_runs(records: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the records of each chunk of text, from its first depth to its last."""
    runs: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for record in records:
        runs.setdefault((record["model"], record["text"], record["n"], record["sample"]), []).append(record)
    return [sorted(run, key=lambda r: (r["depth"], r["normed"])) for run in runs.values()]


def depth_label(record: dict[str, Any]) -> str:
    """Return the number of layers passed, and whether the final norm was applied.

    Example:
        >>> depth_label({"depth": 6, "normed": True})
        '6, norm'
    """
    return f"{record['depth']}, norm" if record["normed"] else str(record["depth"])


def _spread_table(run: Sequence[dict[str, Any]]) -> Table:
    first, sink = run[0], run[0]["sink"] is not None
    sample = f" (piece {first['sample'] + 1})" if first["sample"] else ""
    without = (
        (f"; * without the sink, the token that draws most attention: {token(first['sink_token'])} at {first['sink']}")
        if sink
        else ""
    )

    tolerances = "/".join(f"{tol:g}" for tol in first["tolerances"])

    def column(heading: str, key: str, digits: int = 3, **options: Any) -> Column:
        return Column(heading, _number(key, digits), wrap=False, **options)

    return Table(
        f"{model_name(first['model'])}: {first['n']} tokens of {text_name(first)}{sample}, {first['distinct']} "
        f"different ones, through {first['layers']} layers",
        [
            Column("layers", depth_label, style="bold", key=True),
            column("norm", "norm"),
            column("largest", "largest_norm"),
            column("cosine", "cosine"),
            column("eff. rank", "effective_rank"),
            column("from mean", "to_mean"),
            Column("clusters", lambda r: " / ".join(map(str, r["clusters"])), style="bold green", wrap=False),
            column("cosine*", "cosine_without_sink", style="dim", when=sink),
            column("from mean*", "to_mean_without_sink", style="dim", when=sink),
            column("to sink", "to_sink", 2, style="dim", when=sink),
        ],
        run,
        caption=f"clusters of directions closer than {tolerances}{without}",
    )


def _depth_growth_table(run: Sequence[dict[str, Any]]) -> Table:
    known = [record for record in run if record["own"] is not None]

    def largest_share(key: str) -> Callable[[dict[str, Any]], str]:
        def cell(record: dict[str, Any]) -> str:
            if record[key] is None:
                return ""
            (word, position, share), *_ = largest_shares({"top_tokens": record[key]})
            return f"{word} @{position} {share:.0%}".replace("%", " %")

        return cell

    fixed_tokens = FIXED_TOKENS_TEXT[run[0]["tokens"]]
    return Table(
        f"{model_name(run[0]['model'])}: growth of a perturbation of the first tokens{fixed_tokens}",
        [
            Column("layers", depth_label, style="bold", key=True),
            Column("this layer", lambda r: number(r["own"])),
            Column(
                "σ₁ of all so far",
                lambda r: (
                    ("" if r["status"] in ACCEPTED_STATUSES else "! ")
                    + ("" if r["value"] is None else number(r["value"]))
                ),
                style="bold green",
            ),
            Column(
                f"interval, {confidence_text(known)}",
                lambda r: "" if r["value"] is None else interval(r["lower"], r["upper"], 4),
                "left",
                wrap=False,
            ),
            Column("Π of layers", _number("product", 3)),
            Column("relative", _number("relative", 3)),
            Column("input token", largest_share("top_tokens"), "left"),
            Column("output token", largest_share("top_responses"), "left"),
        ],
        run[1:],
    )


def _number(key: str, digits: int | None) -> Callable[[dict[str, Any]], str]:
    """Return the function from a record to the cell of a field that may be None; without `digits`, an integer."""
    return lambda record: (
        "" if record[key] is None else str(record[key]) if digits is None else number(record[key], digits)
    )
