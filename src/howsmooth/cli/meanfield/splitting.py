"""`howsmooth meanfield splitting`: does a measure get rougher when its atoms are split? In pictures, models, kinds."""

from __future__ import annotations

from typing import Any

import click

from howsmooth.cli.options import (
    CHUNKS,
    MODEL,
    SOLVER,
    loading_options,
    one_model,
    output_options,
    spec_from,
    spec_options,
)
from howsmooth.cli.parameter_types import Count, Number, NumberList
from howsmooth.errors import InputError

DEFAULTS = {"lengths": "64", "samples": 1, "tol": 1e-2}
OUTPUTS = {"json_path", "csv_path", "plot_path"}
OF_THE_PICTURE = {"a", "masses", "third", "extent", "points", "masked"}


@click.command(
    name="splitting",
    short_help="Mass splitting: where tokens that are repeated are rougher.",
    help="Say whether a text's measure splits in a model's heads: whether repeated tokens may move apart further than "
    "the text's own constant says.\n\n"
    "    Instead of a model: --picture draws where two or three atoms on a line split, --which lists the kinds of maps "
    "that split at all.\n\n"
    f"    {MODEL} A .safetensors file of GPT-2's attention is read at random tokens behind its LayerNorm.",
)
@click.argument("model", default="minilm")
@click.option("--picture", is_flag=True, help="Draw the plane of two atoms on a line (d = 1, V = 1).")
@click.option("--which", is_flag=True, help="List which kinds of maps split.")
@click.option("--a", type=Number(), default=-1.0, show_default=True, help="The score a·x·y of the picture.")
@click.option(
    "--masses", type=NumberList(example="1,3", duplicates=True), help="Masses of the picture's atoms.  [default: equal]"
)
@click.option("--third", type=Number(), help="Where a third atom of the picture stands.")
@click.option(
    "--extent",
    type=Number(0, 1e3, open=True),
    metavar="NUMBER",
    default=4.0,
    show_default=True,
    help="Half the width of the plane or line that is covered: the picture's.",
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
@click.option("--masked", is_flag=True, help="In the picture an atom sees those up to its own place: x, y, the third.")
@spec_options("inputs", *CHUNKS, "map", "layers", "heads", *SOLVER, **DEFAULTS)
@click.option(
    "--repeat",
    type=Count(2),
    metavar="COPIES",
    help="Copies of one token: instead, run the model on the text with it said so often, for each token.",
)
@loading_options
@output_options("json", "csv", "plot", plot="heads × layers, or the picture")
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
    **given: Any,
) -> int:
    from howsmooth.cli.run import run_and_show

    if picture + which + (repeat is not None) > 1:
        raise InputError("expected one of --picture, --which and --repeat, got several; leave out the others")
    if plot_path and (which or repeat is not None):
        raise InputError("expected --plot with a model or with --picture, got --which or --repeat; leave it out")
    _refuse_idle_options(ctx, picture, which, repeat is not None)
    shown: dict[str, Any]
    if picture:
        from howsmooth.lipschitz.criterion import LineSplittingGrid
        from howsmooth.report.mean_field_figures import picture_figure
        from howsmooth.report.mean_field_tables import picture_line

        line = LineSplittingGrid(extent, points, a, masses, third, masked)
        shown = {
            "work": lambda notes, kept: ("picture", 1, lambda progress: [line.record()]),
            "table": picture_line,
            "plot": lambda records: picture_figure(line),
        }
    elif which:
        from howsmooth.report.mean_field_tables import which_table
        from howsmooth.studies.splitting import SPLITTING_CASES, evaluate_splitting_cases

        shown = {
            "work": lambda notes, kept: ("maps", len(SPLITTING_CASES), lambda progress: evaluate_splitting_cases()),
            "table": which_table,
        }
    else:
        shown = _of_model(given, repeat)
    return run_and_show(
        {"--json": json_path, "--csv": csv_path, "--plot": plot_path},
        thing="record",
        inputs={"--text": given["texts"]},
        **shown,
    )


def _of_model(given: dict[str, Any], copies: int | None) -> dict[str, Any]:
    """What is computed and shown of a model: its heads or whole maps, or its text with tokens repeated."""
    from howsmooth.report.mean_field_figures import heads_figure
    from howsmooth.report.mean_field_tables import repeated_table, splitting_table

    if copies is not None and given["map"] == "head":
        raise InputError("expected a whole map with --repeat, got --map head; take attention, normed, block or layer")
    spec = spec_from(given, **DEFAULTS, **({"map": "head"} if copies is None and not given["map"] else {}))
    if copies is not None and spec.inputs == "normalised":
        raise InputError("expected a model that reads text with --repeat, got random tokens; give a whole model")

    def work(notes: Any, kept: Any) -> tuple:
        from howsmooth.studies.splitting import splittings
        from howsmooth.studies.token_effects import repeated_tokens

        model, corpus, resolved = one_model(spec)
        if copies is None:
            return (
                model.name,
                resolved.estimates,
                lambda progress: splittings(model, corpus, resolved, progress=progress),
            )
        assert corpus is not None  # random tokens were refused
        return (
            model.name,
            sum(resolved.lengths) * len(resolved.layers),
            lambda progress: repeated_tokens(model, corpus, resolved, copies=copies, progress=progress),
        )

    return {"work": work, "table": splitting_table if copies is None else repeated_table, "plot": heads_figure}


def _refuse_idle_options(ctx: click.Context, picture: bool, which: bool, repeat: bool) -> None:
    """Options that were given and would do nothing."""
    everything = {param.name: param for param in ctx.command.params}
    if picture:
        mode, idle = "--picture", set(everything) - OF_THE_PICTURE - OUTPUTS - {"picture"}
    elif which:
        mode, idle = "--which", set(everything) - OUTPUTS - {"which"}
    elif repeat:
        mode, idle = "--repeat", OF_THE_PICTURE | {"heads", "samples"}
    else:
        mode, idle = "a model", OF_THE_PICTURE
    for name, param in everything.items():
        if name in idle and ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            said = "MODEL" if isinstance(param, click.Argument) else param.opts[0]
            raise InputError(f"expected no {said} with {mode}, where it would do nothing; leave it out")
