"""`howsmooth flow particles`: tokens as particles under attention, from a named example or a TOML file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from howsmooth.cli.flow.options import POSITIVE, dim_option, kind_option, picture_options, until_option
from howsmooth.cli.options import output_options, spec_options
from howsmooth.cli.parameter_types import Count, Number, seed_option
from howsmooth.errors import InputError

if TYPE_CHECKING:
    from howsmooth.dynamics.runs import ParticleRun

OF_THE_MODEL = {
    "dim": "--dim",
    "size": "--size",
    "kind": "--attention",
    "causal": "--causal",
    "coordinates": "--coordinates",
}


@click.command(
    name="particles",
    short_help="Tokens as particles: clusters, hulls, growth of perturbations.",
    help="Follow tokens along depth, x' = Γ(x), and say what forms: clusters, a polytope, hyperplanes, a collapse.\n\n"
    "    EXAMPLE is polytope (the default), hyperplanes, polytope_times_subspace, collapse, low_rank, sphere, or a "
    "TOML file of your own; options change its values.",
)
@click.argument("example", required=False)
@click.option(
    "--weights",
    metavar="MODEL:LAYER[/HEAD]",
    help="Follow a real model's attention instead: a layer, or a head of it, repeated, on its own tokens.",
)
@click.option(
    "--depth-weights", metavar="MODEL", help="Follow all attention layers of a real model, one after the other."
)
@spec_options("texts")
@click.option(
    "--particles",
    "count",
    type=Count(),
    metavar="COUNT",
    help="How many particles: tokens of the example, or of the text.  [default: the file's, or 32 of a text]",
)
@dim_option("the file's")
@click.option("--size", type=POSITIVE, metavar="NUMBER", help="How far the first tokens are spread.")
@seed_option(None)
@kind_option(["softmax", "l2", "sinkhorn", "linear", "sigmoid"], "the file's")
@click.option("--causal/--no-causal", default=None, help="Whether a token sees only those before it.")
@click.option(
    "--coordinates",
    type=click.Choice(["tokens", "renormalised"]),
    help="Coordinates of the flow: x, or z with x = exp(tV) z.",
)
@click.option("--sphere/--no-sphere", default=None, help="Whether tokens stay on the unit sphere: layer normalisation.")
@until_option("the file's, or one for each layer")
@click.option("--solver", metavar="NAME", help="Integrator: rk45, dop853, lsoda, radau, torchdiffeq, rk4 or residual.")
@click.option("--solver-steps", "steps", type=Count(), metavar="COUNT", help="Steps of rk4, or layers of residual.")
@click.option(
    "--rtol", type=POSITIVE, metavar="NUMBER", help="Relative tolerance of the integrator.  [default: the file's]"
)
@click.option("--noise", type=Number(0), metavar="NUMBER", help="Brownian motion; with --solver residual.")
@click.option("--frames", type=Count(2), metavar="COUNT", help="Depths to keep.  [default: the file's]")
@click.option(
    "--together",
    "tol",
    type=POSITIVE,
    metavar="DISTANCE",
    help="Tokens closer than this are together.  [default: the file's]",
)
@click.option("--lipschitz", is_flag=True, default=None, help="Also the local Lipschitz constant of Γ at each depth.")
@click.option(
    "--growth",
    type=Count(),
    metavar="DEPTHS",
    help="Also how a perturbation grows, at so many depths, through residual layers (--residual-layers).",
)
@click.option(
    "--residual-layers",
    type=Count(),
    metavar="COUNT",
    default=128,
    show_default=True,
    help="Residual layers for --growth.",
)
@output_options("json", "csv", "plot", "report", plot="paths and instruments", report="the tokens in motion")
@picture_options(animate="the tokens in motion")
@click.option("--artefacts", "tokens_path", metavar="FILE", help="Tensors to keep, as safetensors: depths and tokens.")
def command(
    example: str | None,
    weights: str | None,
    depth_weights: str | None,
    texts: str | None,
    growth: int | None,
    residual_layers: int,
    json_path: str | None,
    csv_path: str | None,
    plot_path: str | None,
    report_path: str | None,
    animation_path: str | None,
    tokens_path: str | None,
    theme: str,
    **changes: Any,
) -> int:
    from howsmooth.cli.run import run_and_show, say
    from howsmooth.report.flow_figures import particle_figure, save_particle_animation
    from howsmooth.report.flow_page import particle_page
    from howsmooth.report.flow_tables import particle_tables

    _refuse_contradictions(example, weights, depth_weights, texts, changes)
    _refuse_names(report_path, tokens_path)
    runs: list[ParticleRun] = []

    def work(notes, kept):
        from howsmooth.dynamics.example import read_example
        from howsmooth.dynamics.runs import override_example, run_particles

        given: dict[str, Any] = {}
        if weights or depth_weights:
            from howsmooth.studies.model_flows import read_model_flow

            found = read_model_flow(weights, depth_weights, texts or "embedded", changes.pop("count") or 32)
            declared, given = found.example, {"layers": found.layers, "x": found.x}
        else:
            declared = read_example(example or "polytope")
        declared = override_example(declared, changes)
        if growth is not None and declared.flow.noise:
            raise InputError(
                "expected --growth without noise, got both: a perturbation is followed through layers "
                "that draw nothing; leave one out"
            )

        def produce(progress):
            run = run_particles(declared, lambda t: progress(f"depth {t:.4g} of {declared.flow.until:g}"), **given)
            runs.append(run)
            if tokens_path is not None:  # before the instruments, which may take long
                run.save(tokens_path)
                say(notes, f"wrote {len(run.trajectory.times)} depths to {tokens_path}", style="dim")
            yield from run.records(growth, residual_layers)

        return declared.name, declared.flow.frames + min(growth or 0, residual_layers), produce

    return run_and_show(
        {
            "--json": json_path,
            "--csv": csv_path,
            "--plot": plot_path,
            "--animate": animation_path,
            "--report": report_path,
            "--artefacts": tokens_path,
        },
        work=work,
        thing="record",
        describe=str,
        inputs={"EXAMPLE": example if (example or "").endswith(".toml") else None, "--text": texts},
        table=lambda records: particle_tables(runs[0], records),
        doubts=lambda records: runs[0].caveats(records),
        plot=lambda records: particle_figure(runs[0], records, theme=theme),
        page=lambda records: particle_page(runs[0], records),
        also={"--animate": lambda path, _: save_particle_animation(path, runs[0], theme=theme)},
    )


def _refuse_contradictions(
    example: str | None, weights: str | None, depth_weights: str | None, texts: str | None, changes: dict[str, Any]
) -> None:
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


def _refuse_names(report_path: str | None, tokens_path: str | None) -> None:
    from howsmooth.report.flow_page import check_page_path

    if report_path:
        check_page_path(report_path, "--report")
    if tokens_path and not tokens_path.endswith(".safetensors"):
        raise InputError(f"expected a file ending in .safetensors for --artefacts, got {tokens_path!r}")
