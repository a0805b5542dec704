"""`howsmooth meanfield splitting`: whether a measure gets a larger constant when its atoms are split."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from howsmooth.cli.options import (
    CHUNK_FIELDS,
    MODEL_HELP,
    SOLVER_FIELDS,
    loading_options,
    model_argument,
    output_options,
    spec_from_options,
    spec_option,
    spec_options,
)
from howsmooth.cli.parameter_types import Count, Number, NumberList
from howsmooth.cli.runtime import runtime_options
from howsmooth.errors import InputError
from howsmooth.lazy import deferred

if TYPE_CHECKING:
    from rich.console import Console

    from howsmooth.cli.outputs import Record
    from howsmooth.cli.run import Computation
    from howsmooth.lipschitz.criterion import LineSplittingGrid

DEFAULTS = {"lengths": "64", "samples": 1, "tol": 1e-2}
OUTPUT_PARAMETERS = {"json_path", "csv_path", "plot_path", "threads", "quiet", "verbose"}  # used in every mode
PICTURE_PARAMETERS = {"a", "masses", "third", "extent", "points", "masked"}


@click.command(
    name="splitting",
    short_help="Mass splitting: where repeated tokens have a larger constant.",
    help="Decide whether the measure of a text splits in the heads of a model: whether the constant grows if tokens "
    "are repeated and the copies may move apart.\n\n"
    "    Instead of a model, --picture draws where two or three atoms on a line split, and --which lists the kinds of "
    "maps that split.\n\n"
    f"    {MODEL_HELP} A .safetensors file of GPT-2's attention is evaluated at random outputs of its LayerNorm.",
)
@model_argument()
@click.option("--picture", is_flag=True, help="Draw the plane of two atoms on a line (d = 1, V = 1).")
@click.option("--which", is_flag=True, help="List which kinds of maps split.")
@click.option(
    "--a", type=Number(), default=-1.0, show_default=True, help="Coefficient a of the score a·x·y in the picture."
)
@click.option(
    "--masses",
    type=NumberList(example="1,3", keep_duplicates=True),
    help="Masses of the atoms in the picture.  [default: equal]",
)
@click.option("--third", type=Number(), help="Position of a third atom in the picture.")
@click.option(
    "--extent",
    type=Number(0, 1e3, exclusive=True),
    metavar="NUMBER",
    default=4.0,
    show_default=True,
    help="Half the width of the domain: of the picture.",
)
@click.option(
    "--resolution",
    "points",
    type=Count(2, 4000),
    metavar="COUNT",
    default=400,
    show_default=True,
    help="Points along each axis of the picture.",
)
@click.option("--masked", is_flag=True, help="Masked attention in the picture: the atoms are ordered x, y, third.")
@spec_options("inputs", *CHUNK_FIELDS, **DEFAULTS)
@spec_option("map", refused=("model",))
@spec_options("layers", "heads", *SOLVER_FIELDS, **DEFAULTS)
@click.option(
    "--repeat",
    type=Count(2),
    metavar="COPIES",
    help="Number of copies of one token: run the model on the text with each token in turn repeated this often.",
)
@loading_options
@output_options("json", "csv", "plot", plot="heads × layers, or the picture")
@runtime_options()
@click.pass_context
def command(
    ctx: click.Context,
    picture: bool,
    which: bool,
    a: float,
    masses: tuple[float, ...] | None,
    third: float | None,
    extent: float,
    points: int,
    masked: bool,
    repeat: int | None,
    json_path: str | None,
    csv_path: str | None,
    plot_path: str | None,
    **options: Any,
) -> int:
    """Run `howsmooth meanfield splitting` and return its exit code."""
    from howsmooth.cli.run import run_command

    if picture + which + (repeat is not None) > 1:
        raise InputError("expected one of --picture, --which and --repeat, got several; leave out the others")
    if plot_path and (which or repeat is not None):
        raise InputError("expected --plot with a model or with --picture, got --which or --repeat; leave it out")
    _check_applicable_options(ctx, picture, which, repeat is not None)
    if picture:
        arguments = _picture_arguments(extent, points, a, masses, third, masked)
    elif which:
        arguments = {"prepare": _prepare_cases, "table": deferred("howsmooth.report.mean_field_tables:which_table")}
    else:
        arguments = _model_arguments(options, repeat)
    return run_command(
        outputs={"--json": json_path, "--csv": csv_path, "--plot": plot_path},
        record_noun="record",
        inputs={"--text": options["texts"]},
        **arguments,
    )


def _picture_arguments(
    extent: float, points: int, a: float, masses: tuple[float, ...] | None, third: float | None, masked: bool
) -> dict[str, Any]:
    """Return the arguments of `run_command` for the plane of two atoms on a line."""
    picture_figure = deferred("howsmooth.report.mean_field_figures:picture_figure")
    picture_line = deferred("howsmooth.report.mean_field_tables:picture_line")
    atoms = 2 if third is None else 3
    if masses is not None and len(masses) != atoms:
        raise InputError(f"expected --masses with a number for each of {atoms} atoms, got {len(masses)}; change them")
    lines: list[LineSplittingGrid] = []

    def prepare(stderr: Console, existing_records: list[Record]) -> Computation:
        from howsmooth.cli.loading import load_torch
        from howsmooth.cli.run import Computation

        load_torch(stderr)

        from howsmooth.lipschitz.criterion import LineSplittingGrid

        lines.append(LineSplittingGrid(extent, points, a, masses, third, masked))
        return Computation("picture", 1, lambda progress: [lines[0].record()])

    return {"prepare": prepare, "table": picture_line, "plot": lambda records: picture_figure(lines[0])}


def _prepare_cases(stderr: Console, existing_records: list[Record]) -> Computation:
    """Return the computation of --which."""
    from howsmooth.cli.loading import load_torch
    from howsmooth.cli.run import Computation

    load_torch(stderr)

    from howsmooth.studies.splitting import SPLITTING_CASES, evaluate_splitting_cases

    return Computation("maps", len(SPLITTING_CASES), lambda progress: evaluate_splitting_cases())


def _model_arguments(options: dict[str, Any], copies: int | None) -> dict[str, Any]:
    """Return the arguments of `run_command` for a model: its heads or maps, or its text with repeated tokens."""
    from howsmooth.cli.run import Computation

    heads_figure = deferred("howsmooth.report.mean_field_figures:heads_figure")
    repeated_table = deferred("howsmooth.report.mean_field_tables:repeated_table")
    splitting_table = deferred("howsmooth.report.mean_field_tables:splitting_table")

    if copies is not None and options["map"] == "head":
        raise InputError("expected a whole map with --repeat, got --map head; take attention, normed, block or layer")
    spec = spec_from_options(options, **DEFAULTS, **({"map": "head"} if copies is None and not options["map"] else {}))
    if copies is not None and spec.inputs == "normalised":
        raise InputError("expected a model that reads text with --repeat, got random tokens; give a whole model")

    def prepare(stderr: Console, existing_records: list[Record]) -> Computation:
        from howsmooth.cli.loading import load_model_and_text, load_model_with_text

        splittings = deferred("howsmooth.studies.splitting:splittings")
        repeated_tokens = deferred("howsmooth.studies.token_effects:repeated_tokens")
        if copies is None:
            model, corpus, resolved = load_model_and_text(spec, needs_weights=True)
            return Computation(
                model.name, resolved.estimates, lambda progress: splittings(model, corpus, resolved, progress=progress)
            )
        model, text, resolved = load_model_with_text(spec)
        return Computation(
            model.name,
            sum(resolved.lengths) * len(resolved.layers),
            lambda progress: repeated_tokens(model, text, resolved, copies=copies, progress=progress),
        )

    return {"prepare": prepare, "table": splitting_table if copies is None else repeated_table, "plot": heads_figure}


def _check_applicable_options(ctx: click.Context, picture: bool, which: bool, repeat: bool) -> None:
    """Raise InputError for an option that has no effect in this mode."""
    parameters = {param.name: param for param in ctx.command.params}
    if picture:
        mode, unused = "--picture", set(parameters) - PICTURE_PARAMETERS - OUTPUT_PARAMETERS - {"picture"}
    elif which:
        mode, unused = "--which", set(parameters) - OUTPUT_PARAMETERS - {"which"}
    elif repeat:
        mode, unused = "--repeat", PICTURE_PARAMETERS | {"heads", "samples"}
    else:
        mode, unused = "a model", PICTURE_PARAMETERS
    for name, param in parameters.items():
        if name in unused and ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            option = "MODEL" if isinstance(param, click.Argument) else param.opts[0]
            raise InputError(f"expected no {option} with {mode}, where it has no effect; leave it out")
