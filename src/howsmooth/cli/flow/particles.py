"""`howsmooth flow particles`: tokens as particles under attention, from a named example or a TOML file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from howsmooth.cli.flow.options import POSITIVE, animation_options, dim_option, kind_option, until_option
from howsmooth.cli.options import output_options, spec_from_options, spec_options
from howsmooth.cli.parameter_types import Count, Number, seed_option
from howsmooth.cli.runtime import runtime_options
from howsmooth.dynamics.solver_settings import SOLVERS
from howsmooth.errors import InputError
from howsmooth.lazy import deferred

if TYPE_CHECKING:
    from rich.console import Console

    from howsmooth.cli.outputs import Record
    from howsmooth.cli.run import ProgressCallback
    from howsmooth.dynamics.runs import ParticleRun
    from howsmooth.studies.model_flows import ModelFlow

# Parameters that the weights of a model determine, and their options.
MODEL_PARAMETERS = {
    "dim": "--dim",
    "size": "--size",
    "kind": "--attention",
    "causal": "--causal",
    "coordinates": "--coordinates",
}


@click.command(
    name="particles",
    short_help="Tokens as particles: clusters, hulls, growth of perturbations.",
    help="Integrate tokens along depth, x' = Γ(x); see clusters, a polytope, hyperplanes or a collapse form.\n\n"
    "    EXAMPLE is polytope (the default), hyperplanes, polytope_times_subspace, collapse, low_rank, sphere, or your "
    "own TOML file; options override its values.",
)
@click.argument("example", required=False)
@click.option(
    "--weights",
    metavar="MODEL:LAYER[/HEAD]",
    help="Use the attention of a real model: one layer or head, applied repeatedly to the tokens of a text.",
)
@click.option("--depth-weights", metavar="MODEL", help="Use all attention layers of a real model, one after the other.")
@spec_options("texts")
@click.option(
    "--particles",
    "count",
    type=Count(),
    metavar="COUNT",
    help="Number of particles: tokens of the example, or of the text.  [default: the file's, or 32 of a text]",
)
@dim_option("the file's")
@click.option("--size", type=POSITIVE, metavar="NUMBER", help="Spread of the initial tokens.")
@seed_option(None)
@kind_option(["softmax", "l2", "sinkhorn", "linear", "sigmoid"], "the file's")
@click.option("--causal/--no-causal", default=None, help="Whether attention is causal.")
@click.option(
    "--coordinates",
    type=click.Choice(["tokens", "renormalised"]),
    help="Coordinates of the flow: x, or z with x = exp(tV) z.",
)
@click.option("--sphere/--no-sphere", default=None, help="Whether tokens stay on the unit sphere: layer normalisation.")
@until_option("the file's, or one for each layer")
@click.option("--solver", type=click.Choice(SOLVERS), metavar="NAME", help=f"Integrator: {', '.join(SOLVERS)}.")
@click.option("--solver-steps", "steps", type=Count(), metavar="COUNT", help="Steps of rk4, or layers of residual.")
@click.option(
    "--rtol", type=POSITIVE, metavar="NUMBER", help="Relative tolerance of the integrator.  [default: the file's]"
)
@click.option("--noise", type=Number(0), metavar="NUMBER", help="Size of Brownian noise; with --solver residual.")
@click.option("--frames", type=Count(2), metavar="COUNT", help="Number of depths to keep.  [default: the file's]")
@click.option(
    "--together",
    "tol",
    type=POSITIVE,
    metavar="DISTANCE",
    help="Tokens closer than this form a cluster.  [default: the file's]",
)
@click.option(
    "--lipschitz", is_flag=True, default=None, help="Also measure the local Lipschitz constant of Γ at each depth."
)
@click.option(
    "--growth",
    type=Count(),
    metavar="DEPTHS",
    help="Also measure the growth of perturbations at this many depths, through residual layers (--residual-layers).",
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
@animation_options(animate="the tokens in motion")
@click.option("--artefacts", "tokens_path", metavar="FILE", help="Tensors to save, as safetensors: depths and tokens.")
@runtime_options()
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
    """Run `howsmooth flow particles` and return its exit code."""
    from howsmooth.cli.run import Computation, print_line, run_command

    particle_figure = deferred("howsmooth.report.flow_figures:particle_figure")
    save_particle_animation = deferred("howsmooth.report.flow_figures:save_particle_animation")
    particle_page = deferred("howsmooth.report.flow_page:particle_page")
    particle_tables = deferred("howsmooth.report.flow_tables:particle_tables")

    _check_option_combinations(example, weights, depth_weights, texts, changes)
    _check_output_names(report_path, tokens_path)
    runs: list[ParticleRun] = []

    def prepare(stderr: Console, existing_records: list[Record]) -> Computation:
        from howsmooth.cli.loading import load_torch
        from howsmooth.dynamics.declaration import read_example
        from howsmooth.dynamics.overrides import override_example

        model_tokens: dict[str, Any] = {}
        if weights or depth_weights:
            count = changes.pop("count") or 32
            override_example(read_example("sphere"), changes)  # checks the options before the model is loaded
            found = _flow_of_model(weights, depth_weights, texts, count)
            flow_example, model_tokens = found.example, {"layers": found.layers, "x": found.x}
        else:
            flow_example = read_example(example or "polytope")
        flow_example = override_example(flow_example, changes)
        if growth is not None and flow_example.flow.noise:
            raise InputError(
                "expected --growth without noise, got both: growth is measured through deterministic layers; "
                "leave one out"
            )
        if not model_tokens:
            load_torch(stderr)

        from howsmooth.dynamics.runs import run_particles

        def records(progress: ProgressCallback) -> Iterator[Record]:
            final_depth = flow_example.flow.until
            run = run_particles(flow_example, lambda t: progress(f"depth {t:.4g} of {final_depth:g}"), **model_tokens)
            runs.append(run)
            if tokens_path is not None:  # before the measurements, which may take long
                run.save(tokens_path)
                print_line(stderr, f"wrote {len(run.trajectory.times)} depths to {tokens_path}", style="dim")
            yield from run.records(growth, residual_layers)

        return Computation(flow_example.name, flow_example.flow.frames + min(growth or 0, residual_layers), records)

    return run_command(
        outputs={
            "--json": json_path,
            "--csv": csv_path,
            "--plot": plot_path,
            "--animate": animation_path,
            "--report": report_path,
            "--artefacts": tokens_path,
        },
        prepare=prepare,
        record_noun="record",
        describe=str,
        inputs={"EXAMPLE": example if (example or "").endswith(".toml") else None, "--text": texts},
        table=lambda records: particle_tables(runs[0], records),
        caveats=lambda records: runs[0].caveats(records),
        plot=lambda records: particle_figure(runs[0], records, theme=theme),
        page=lambda records: particle_page(runs[0], records),
        writers={"--animate": lambda path, _: save_particle_animation(path, runs[0], theme=theme)},
    )


def _flow_of_model(weights: str | None, depth_weights: str | None, texts: str | None, count: int) -> ModelFlow:
    """Load the model of --weights or --depth-weights and return its flow on a text."""
    from howsmooth.cli.loading import load_model_with_text
    from howsmooth.studies.model_flows import model_flow, parse_weights

    name, layer, head = parse_weights(weights) if weights else (depth_weights, None, None)
    chosen = {"layers": None if layer is None else [layer], "lengths": [count], "samples": 1}
    model, text, _ = load_model_with_text(spec_from_options({"model": name, "texts": texts, **chosen}))
    return model_flow(model, text, count, layer, head)


def _check_option_combinations(
    example: str | None, weights: str | None, depth_weights: str | None, texts: str | None, changes: dict[str, Any]
) -> None:
    """Raise InputError for options that exclude each other."""
    named = {"EXAMPLE": example, "--weights": weights, "--depth-weights": depth_weights}
    given = [name for name, value in named.items() if value is not None]
    if len(given) > 1:
        raise InputError(f"expected one of {', '.join(named)}, got {' and '.join(given)}; leave the others out")
    from_model = weights is not None or depth_weights is not None
    conflicting = (
        [option for name, option in MODEL_PARAMETERS.items() if changes[name] is not None] if from_model else []
    )
    if conflicting:
        raise InputError(f"expected no option that the model's weights determine, got {conflicting[0]}; leave it out")
    if texts is not None and not from_model:
        raise InputError("expected --text only with --weights or --depth-weights, got it alone; leave it out")


def _check_output_names(report_path: str | None, tokens_path: str | None) -> None:
    """Raise InputError for a file name with the wrong suffix."""
    from howsmooth.report.output_paths import check_page_path

    if report_path:
        check_page_path(report_path, "--report")
    if tokens_path and not tokens_path.endswith(".safetensors"):
        raise InputError(f"expected a file ending in .safetensors for --artefacts, got {tokens_path!r}")
