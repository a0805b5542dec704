"""`howsmooth flow particles`: tokens as particles under attention, from a named example or a TOML file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from howsmooth.cli.flow.protocol import POSITIVE, dim_option, kind_option, picture_options, until_option
from howsmooth.cli.options import output_options, spec_options
from howsmooth.cli.parsing import Count, Number, seed_option
from howsmooth.errors import InputError

if TYPE_CHECKING:
    from howsmooth.cli.outputs import RecordFile
    from howsmooth.dynamics.runs import ParticleRun

# Options that change a value of the example or file, by the section they belong to.
SECTIONS = {
    "tokens": ("count", "dim", "size", "seed"),
    "attention": ("kind", "causal"),
    "flow": ("coordinates", "sphere", "until", "solver", "steps", "rtol", "noise", "saves"),
    "watch": ("tol", "lipschitz"),
}
OF_THE_MODEL = {"dim": "--dim", "size": "--size", "kind": "--attention", "causal": "--causal",
                "coordinates": "--coordinates"}


@click.command(
    name="particles",
    short_help="Tokens as particles: clusters, hulls, growth of perturbations.",
    help="Follow tokens along depth, x' = Γ(x), and say what forms: clusters, a polytope, hyperplanes, a collapse.\n\n"
    "    EXAMPLE is polytope (the default), hyperplanes, polytope_times_subspace, collapse, low_rank, sphere, or a "
    "TOML file of your own; options change its values.",
)
@click.argument("example", required=False)
@click.option("--weights", metavar="MODEL:LAYER[/HEAD]",
              help="Follow a real model's attention instead: a layer, or a head of it, repeated, on its own tokens.")
@click.option("--depth-weights", metavar="MODEL",
              help="Follow all attention layers of a real model, one after the other.")
@spec_options("texts")
@click.option("--particles", "count", type=Count(), metavar="COUNT",
              help="How many particles: tokens of the example, or of the text.  [default: the file's, or 32 of a text]")
@dim_option("the file's")
@click.option("--size", type=POSITIVE, metavar="NUMBER", help="How far the first tokens are spread.")
@seed_option(None)
@kind_option(["softmax", "l2", "sinkhorn", "linear", "sigmoid"], "the file's")
@click.option("--causal/--no-causal", default=None, help="Whether a token sees only those before it.")
@click.option("--coordinates", type=click.Choice(["tokens", "renormalised"]),
              help="Coordinates of the flow: x, or z with x = exp(tV) z.")
@click.option("--sphere/--no-sphere", default=None, help="Whether tokens stay on the unit sphere: layer normalisation.")
@until_option("the file's, or one for each layer")
@click.option("--solver", metavar="NAME", help="Integrator: rk45, dop853, lsoda, radau, torchdiffeq, rk4 or residual.")
@click.option("--solver-steps", "steps", type=Count(), metavar="COUNT", help="Steps of rk4, or layers of residual.")
@click.option("--rtol", type=POSITIVE, metavar="NUMBER",
              help="Relative tolerance of the integrator.  [default: the file's]")
@click.option("--noise", type=Number(0), metavar="NUMBER", help="Brownian motion; with --solver residual.")
@click.option("--frames", "saves", type=Count(2), metavar="COUNT", help="Depths to keep.  [default: the file's]")
@click.option("--together", "tol", type=POSITIVE, metavar="DISTANCE",
              help="Tokens closer than this are together.  [default: the file's]")
@click.option("--lipschitz", is_flag=True, default=None, help="Also the local Lipschitz constant of Γ at each depth.")
@click.option("--growth", type=Count(), metavar="DEPTHS",
              help="Also how a perturbation grows, at so many depths, through residual layers (--residual-layers).")
@click.option("--residual-layers", type=Count(), metavar="COUNT", default=128, show_default=True,
              help="Residual layers for --growth.")
@output_options("json", "csv", "plot", "report", plot="paths and instruments", report="the tokens in motion")
@picture_options(animate="the tokens in motion")
@click.option("--artefacts", "tokens_path", metavar="FILE", help="Tensors to keep, as safetensors: depths and tokens.")
def command(example: str | None, weights: str | None, depth_weights: str | None, texts: str | None, growth: int | None,
            residual_layers: int, json_path: str | None, csv_path: str | None, plot_path: str | None,
            report_path: str | None, animation_path: str | None, tokens_path: str | None, theme: str,
            **changes: Any) -> int:
    from howsmooth.cli.flow.protocol import bar_along, check_files
    from howsmooth.cli.main import EXIT_INTERRUPTED
    from howsmooth.cli.outputs import record_files
    from howsmooth.cli.running import console, say

    _refuse_contradictions(example, weights, depth_weights, texts, changes)
    check_files({"--json": json_path, "--csv": csv_path, "--plot": plot_path, "--animate": animation_path,
                 "--report": report_path, "--artefacts": tokens_path},
                {"EXAMPLE": example if (example or "").endswith(".toml") else None,
                 "--text": None if texts == "-" else texts})
    files, notes = record_files(json_path, csv_path), console(stderr=True)

    from howsmooth.dynamics import read_example
    from howsmooth.dynamics.example import unmet
    from howsmooth.dynamics.runs import run_particles

    given: dict[str, Any] = {}
    if weights or depth_weights:
        from howsmooth.studies.weights import read_model_flow

        found = read_model_flow(weights, depth_weights, texts or "embedded", changes.pop("count") or 32)
        declared, given = found.example, {"layers": found.layers, "x": found.x}
    else:
        declared = read_example(example or "polytope")
    for section, names in SECTIONS.items():
        declared = declared.but(section, **{name: changes.get(name) for name in names})
    if growth is not None and declared.flow.noise:
        raise InputError("expected --growth without noise, got both: a perturbation is followed through layers that "
                         "draw nothing; leave one out")
    with bar_along(notes, "depth ", declared.flow.until) as progress:
        run = run_particles(declared, progress, **given)
    if tokens_path is not None:
        run.save(tokens_path)
        say(notes, f"wrote {len(run.trajectory.times)} depths to {tokens_path}", style="dim")
    records, shown = [], None if "-" in (json_path, csv_path) else console()
    for seen in run.depths():
        records.append(seen)
        for file in files:
            file.write({"record": "depth", **run.facts, **seen})
    if shown is not None:
        _show(run, records, shown)
    if run.trajectory.status != "finished":
        say(notes, f"howsmooth: warning: {run.trajectory.ending}; {run.trajectory.remedy}", style="yellow")
    for line in unmet(declared.expect, records[-1]):
        say(notes, f"howsmooth: warning: {line} (stated in {declared.name})", style="yellow")
    if growth is not None and not run.interrupted:
        _grow(run, growth, residual_layers, files, shown)
    for file in files:
        file.close()
    _draw(run, records, plot_path, animation_path, theme)
    if report_path is not None:
        _write_page(report_path, run, records)
        say(notes, f"wrote {report_path}", style="dim")
    return EXIT_INTERRUPTED if run.interrupted else 0


def _refuse_contradictions(example: str | None, weights: str | None, depth_weights: str | None, texts: str | None,
                           changes: dict[str, Any]) -> None:
    named = {"EXAMPLE": example, "--weights": weights, "--depth-weights": depth_weights}
    several = [name for name, value in named.items() if value is not None]
    if len(several) > 1:
        raise InputError(f"expected one of {', '.join(named)}, got {' and '.join(several)}; leave the others out")
    from_model = weights is not None or depth_weights is not None
    wrong = [option for name, option in OF_THE_MODEL.items() if changes[name] is not None] if from_model else []
    if wrong:
        raise InputError(f"expected the model to decide, got {wrong[0]} with its weights; leave it out")
    if texts is not None and not from_model:
        raise InputError("expected --text only with --weights or --depth-weights, got it alone; leave it out")


def _show(run: ParticleRun, records: list[dict[str, Any]], shown: Any) -> None:
    from howsmooth.cli.running import say
    from howsmooth.dynamics.runs import what_forms
    from howsmooth.report.flow_tables import flow_table

    trajectory, (n, d) = run.trajectory, run.trajectory.last.shape
    shown.print(flow_table(records, run.title, run.renormalised))
    say(shown, f"{n} tokens in dimension {d}, {'e^{−tV}x' if run.renormalised else 'x'}: {trajectory.ending}, "
        f"{trajectory.steps} steps of {trajectory.solver}, {trajectory.evaluations} evaluations, "
        f"{trajectory.seconds:.2g} s; tokens closer than {run.declared.watch.tol:g} are together", style="dim")
    for line in what_forms(records):
        say(shown, line)


def _grow(run: ParticleRun, depths: int, layers: int, files: list[RecordFile], shown: Any) -> None:
    from howsmooth.report.flow_tables import growth_of_perturbations_table

    records = run.growth(depths, layers)
    for file in files:
        for record in records if file.form == "json" else []:
            file.write({"record": "growth", "example": run.declared.name, **record})
    if shown is not None:
        shown.print(growth_of_perturbations_table(records, run.renormalised))


def _draw(run: ParticleRun, records: list[dict[str, Any]], plot_path: str | None, animation_path: str | None,
          theme: str) -> None:
    if plot_path is None and animation_path is None:
        return
    from howsmooth.dynamics.instruments import drawing
    from howsmooth.report.figure import save_figure
    from howsmooth.report.flow_figures import flow_figure, save_animation

    trajectory = run.trajectory
    seen, labels = drawing(trajectory, run.field, run.declared.watch.tol)
    paths = seen(trajectory.tokens).numpy()
    if plot_path is not None:
        save_figure(flow_figure(records, paths, seen.names, labels, title=run.title, theme=theme), plot_path)
    if animation_path is not None:
        save_animation(animation_path, trajectory.times.tolist(), paths, seen.names, labels, title=run.title,
                       theme=theme)


def _write_page(path: str, run: ParticleRun, records: list[dict[str, Any]]) -> None:
    from pathlib import Path

    from howsmooth.dynamics.instruments import drawing, principal_view
    from howsmooth.report.flow_page import flow_page, particle_scene

    declared, trajectory, (n, d) = run.declared, run.trajectory, run.trajectory.last.shape
    seen, labels = drawing(trajectory, run.field, declared.watch.tol)
    if d > 2:  # a page can be turned
        seen = principal_view(trajectory.tokens, 3)
    facts = (f"{n} tokens in dimension {d}, {declared.flow.coordinates}: {trajectory.ending}, {trajectory.steps} steps "
             f"of {trajectory.solver}; tokens closer than {declared.watch.tol:g} are together. Seed "
             f"{declared.tokens.seed}.")
    scene = particle_scene(records, seen(trajectory.tokens).numpy(), seen.names, labels, title=run.title,
                           about=declared.about, facts=facts)
    Path(path).write_text(flow_page([scene]), encoding="utf-8")
