"""Flows and depth on the terminal: tokens as particles, Gaussian flows, densities, rates, the layers of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from howsmooth.dynamics.instruments import plateaus
from howsmooth.report.measurement_tables import MOVED
from howsmooth.report.rows import FINE, confidence_text, counted, interval, model_name, number, places, text_name, token
from howsmooth.report.table import Column, Table

if TYPE_CHECKING:
    from howsmooth.dynamics.runs import DensityRun, GaussianRun, ParticleRun

_DEPTHS, _TIMES = 12, 10  # rows of a table of a flow
# key of the record, heading, digits (None: a whole number)
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
    """About a dozen of the saved depths, evenly spread, with what the instruments see there.

    Renormalised tokens z move by ż, not by Γ: the local constant is that of ż.
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
        [records[k] for k in _spread(len(records), _DEPTHS)],
    )


def particle_tables(run: ParticleRun, records: Sequence[dict[str, Any]]) -> Group:
    """The depths of a flow of particles, how it ended and what forms, and below how a perturbation grows."""
    depths, grown = of_kind(records, "depth"), of_kind(records, "growth")
    trajectory, (n, d) = run.trajectory, run.trajectory.last.shape
    ending = Text(
        f"{n} tokens in dimension {d}, {'e^{−tV}x' if run.renormalised else 'x'}: {trajectory.ending}, "
        f"{trajectory.steps} steps of {trajectory.solver}, {trajectory.evaluations} evaluations, "
        f"{trajectory.seconds:.2g} s; tokens closer than {run.declared.watch.tol:g} are together",
        style="dim",
    )
    return Group(
        flow_table(depths, run.title, run.renormalised),
        ending,
        *map(Text, plateau_lines(depths)),
        *([growth_of_perturbations_table(grown, run.renormalised)] if grown else []),
    )


def plateau_lines(records: Sequence[dict[str, Any]]) -> list[str]:
    """How many clusters there are from which depth to which, where their number stays the same for long."""
    if records[0]["clusters"] is None or len(records) < 3:
        return []
    found = plateaus([r["t"] for r in records], [r["clusters"] for r in records], least=0.1)
    return [
        f"{counted(p.count, 'cluster')} from depth {p.start:.4g} to {p.end:.4g}"
        for p in found
        if p.count < records[0]["clusters"]
    ]


def growth_of_perturbations_table(records: Sequence[dict[str, Any]], renormalised: bool = False) -> Table:
    """σ₁ of the flow's derivative beside the product of its layers' constants."""
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
            Column("Π σ₁ of layers", lambda r: number(r["product"])),
            Column("log σ₁ / depth", lambda r: number(r["exponent"], 3)),
            Column("Lip of the velocity", lambda r: number(r["local"])),
        ],
        records,
    )


def moments_table(record: dict[str, Any], title: str, beside: dict[str, Any] | None = None) -> Table:
    """About ten of the saved times: the mean's norm, the eigenvalues of the covariance, the distance of particles."""
    import numpy

    values = numpy.linalg.eigvalsh(numpy.array(record["covariances"]))[:, ::-1]
    particles = beside or {"n": 0, "coupled": [], "moments": []}

    def distance(key: str) -> Callable[[int], str]:
        return lambda k: number(particles[key][k], 3) if k < len(particles["coupled"]) else ""

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
            Column(f"{particles['n']} particles: to the flow", distance("coupled"), when=beside is not None),
            Column("W₂ of moments", distance("moments"), when=beside is not None),
        ],
        _spread(len(record["times"]), _TIMES),
        wrap_title=False,
    )


def gaussian_tables(run: GaussianRun, record: dict[str, Any]) -> Group:
    """The moments of a Gaussian flow, and below how it ended, its blow-up in closed form, its limiting rank."""
    flow, exact, rank = run.flow, run.closed_form, run.rank
    lines = (
        []
        if exact is None
        else ["V = I in closed form: " + (f"blow-up at t = {exact:.6g}" if exact < 1e300 else "no blow-up")]
    )
    lines.append(
        "eigenvalues of the covariance: " + ", ".join(rank.fates) + f"; rank {rank.rank} in the limit, "
        f"{rank.shape_rank} in shape" + ("" if rank.settled else "; not settled yet, follow it for longer")
    )
    return Group(
        moments_table(record, run.title, record["particles"]),
        Text(f"{flow.ending}, {flow.steps} steps, {flow.seconds:.2g} s", style="dim"),
        *map(Text, lines),
    )


def density_tables(run: DensityRun, records: Sequence[dict[str, Any]]) -> Group:
    """The moments of a density and how its flow ended, and below how far particles are from it."""
    flow, runs = run.flow, of_kind(records, "particles")
    parts: list[Table | Text] = [
        moments_table(records[0], run.title),
        Text(
            f"{flow.status} at t = {float(flow.times[-1]):.4g} on {flow.grid}, {flow.steps} steps of order {flow.order}, "
            f"mass lost {flow.mass_error:.1g}, against the walls {flow.leaked:.1g}, {flow.seconds:.2g} s",
            style="dim",
        ),
    ]
    for found in rates(records):
        repeats = counted(1 + max(one["repeat"] for one in runs), "draw")
        parts += [
            rate_table(found, f"Particles to the density, mean of {repeats}"),
            Text(
                f"{found['distance']} ≈ {found['rate']['constant']:.3g} "
                f"n^({round(found['rate']['exponent'], 2) + 0.0:.2f})"
            ),
        ]
    if len({one["n"] for one in runs}) == 1:
        gap, name = sum(one["distance"] for one in runs) / len(runs), "d₂" if run.first.is_masked else "W₂"
        parts.append(Text(f"{runs[0]['n']} particles: {name} to the density {gap:.3g}, mean of {len(runs)}"))
    return Group(*parts)


def of_kind(records: Sequence[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """The records of one kind among those of a flow."""
    return [record for record in records if record["record"] == kind]


def rates(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rate with its runs of particles, where it is known: an interrupted run has none."""
    return [{**rate, "runs": of_kind(records, "particles")} for rate in of_kind(records, "rate")]


def rate_table(record: dict[str, Any], title: str) -> Table:
    """Distances of particles to the limit, in the mean over repeats, beside what sampling alone leaves."""
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
        wrap_title=False,
    )


def depth_tables(records: Sequence[dict[str, Any]]) -> Group:
    """Two tables for each piece of text: how tokens are spread after each layer, how a perturbation grows."""
    parts: list[Table] = []
    for _, group in groupby(records, key=piece):
        run = list(group)
        parts.append(_spread_table(run))
        if any(record["own"] is not None for record in run):
            parts.append(_depth_growth_table(run))
    return Group(*parts)


def piece(record: dict[str, Any]) -> tuple:
    """Which piece of text a record is of."""
    return record["model"], record["n"], record["sample"]


def stage(record: dict[str, Any]) -> str:
    """How deep: the number of layers passed, or the norm after the last.

    >>> stage({"depth": 6, "normed": True})
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

    def column(heading: str, key: str, digits: int = 3, **looks: Any) -> Column:
        return Column(heading, _number(key, digits), wrap=False, **looks)

    return Table(
        f"{model_name(first['model'])}: {first['n']} tokens of {text_name(first)}{sample}, {first['distinct']} "
        f"different ones, through {first['layers']} layers",
        [
            Column("layers", stage, style="bold", key=True),
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

    def where(key: str) -> Callable[[dict[str, Any]], str]:
        def cell(record: dict[str, Any]) -> str:
            if record[key] is None:
                return ""
            (word, position, share), *_ = places({"top_tokens": record[key]})
            return f"{word} @{position} {share:.0%}".replace("%", " %")

        return cell

    return Table(
        f"{model_name(run[0]['model'])}: growth of a perturbation of the first tokens{MOVED[run[0]['tokens']]}",
        [
            Column("layers", stage, style="bold", key=True),
            Column("this layer", lambda r: number(r["own"])),
            Column(
                "σ₁ of all so far",
                lambda r: ("" if r["status"] in FINE else "! ") + ("" if r["value"] is None else number(r["value"])),
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
            Column("it sits on", where("top_tokens"), "left"),
            Column("and arrives at", where("top_responses"), "left"),
        ],
        run[1:],
    )


def _number(key: str, digits: int | None) -> Callable[[dict[str, Any]], str]:
    """The cell of a field that may be None; digits None is a whole number."""
    return lambda record: (
        "" if record[key] is None else str(record[key]) if digits is None else number(record[key], digits)
    )


def _spread(count: int, most: int) -> list[int]:
    """About `most` places among `count`, evenly spread, the first and the last among them."""
    return list(dict.fromkeys(round((count - 1) * k / (most - 1)) for k in range(most)))
