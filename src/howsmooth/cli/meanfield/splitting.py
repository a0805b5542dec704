"""`howsmooth meanfield splitting`: does a measure get rougher when its atoms are split? In pictures, models, kinds."""

from __future__ import annotations

import click

from howsmooth.cli.choosing import (
    MODEL,
    confidence_option,
    csv_option,
    heads_option,
    json_option,
    layers_option,
    lengths_option,
    load_chosen,
    loading_options,
    read_text,
    samples_option,
    special_tokens_option,
    text_option,
    tol_option,
)
from howsmooth.cli.meanfield.numbers import run_and_show
from howsmooth.cli.parsing import Count, Number, NumberList
from howsmooth.errors import InputError

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
@click.option("--masses", type=NumberList(example="1,3", duplicates=True), help="Of its atoms.  [default: equal]")
@click.option("--third", type=Number(), help="Where a third atom of the picture stands.")
@click.option("--extent", type=Number(0, 1e3, open=True), default=4.0, show_default=True,
              help="Half the picture's width.")
@click.option("--points", type=Count(2, 4000), default=400, show_default=True, help="Of each axis.")
@click.option("--masked", is_flag=True, help="In the picture an atom sees those up to its own place: x, y, the third.")
@text_option
@layers_option
@heads_option
@lengths_option("64")
@samples_option(1)
@click.option("--map", "map_name", type=click.Choice(["attention", "head", "normed", "block", "layer"]),
              help="What is asked to split.  [default: head, all of them]")
@click.option("--repeat", type=Count(2), metavar="COPIES",
              help="Instead: run the model on the text with one token said so many times, for each token.")
@special_tokens_option
@tol_option(1e-2)
@confidence_option
@loading_options
@json_option
@csv_option
@click.option("--plot", "plot_path", metavar="FILE", help="Heads × layers, or the picture (png, svg, pdf).")
@click.pass_context
def command(ctx, model, picture, which, a, masses, third, extent, points, masked, json_path, csv_path, plot_path,
            text_path, layers, heads, lengths, samples, map_name, repeat, special_tokens, tol, confidence, seed,
            **loading) -> int:
    from howsmooth.report import splitting_figure, splitting_table

    if picture + which + (repeat is not None) > 1:
        raise InputError("expected one of --picture, --which and --repeat, got several; leave out the others")
    if plot_path and (which or repeat is not None):
        raise InputError("expected --plot with a model or with --picture, got --which or --repeat; leave it out")
    _refuse_idle_options(ctx, picture, which, repeat is not None)
    if heads is not None and map_name not in (None, "head"):
        raise InputError(f"expected --heads only with --map head, got --map {map_name}; leave one of the two out")
    if repeat is not None and map_name == "head":
        raise InputError("expected a whole map with --repeat, got --map head; take attention, normed, block or layer")
    drawn: list[dict] = []
    if picture:
        table, figure = _picture_line, lambda _: splitting_figure.line_figure(drawn)

        def work():
            return "picture", 1, lambda _step: _picture(drawn, extent, points, a, masses, third, masked)
    elif which:
        from howsmooth.studies.which_split import CASES, which_split

        table, figure = splitting_table.which_table, None

        def work():
            return "maps", len(CASES), lambda _step: (record | {"status": "converged"} for record in which_split())
    else:
        table = splitting_table.splitting_table if repeat is None else splitting_table.repeated_table
        figure = splitting_figure.heads_figure

        def work():
            return _model(model, text_path, layers, heads, lengths, samples, map_name, repeat, special_tokens, tol,
                          confidence, seed, loading)

    return run_and_show(json_path, csv_path, plot_path, work=work, table=table, figure=figure, thing="record",
                        inputs={"--text": None if text_path == "-" else text_path})


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


def _picture(drawn: list[dict], extent, points, a, masses, third, masked):
    """The one record of --picture; what is to be drawn is added to `drawn`."""
    from howsmooth.lipschitz.line import picture
    from howsmooth.report.splitting_figure import title

    masses = (1.0,) * (2 if third is None else 3) if masses is None else masses
    axis, found = picture(extent, points, a, masses, third, masked=masked)
    share, top = float(found.splits.double().mean()), int(found.ratio.argmax())
    drawn.append({"title": title(a, masses, third, masked), "axis": axis, "ratio": found.ratio})
    yield {"a": a, "masses": list(masses), "third": third, "masked": masked, "extent": extent, "points": points,
           "share": share, "ratio": float(found.ratio.max()), "x": float(axis[top % points]),
           "y": float(axis[top // points]), "status": "converged", "dtype": "float64"}


def _picture_line(records) -> str:
    from howsmooth.report.splitting_figure import title

    r = records[0]
    square = f"[−{r['extent']:g}, {r['extent']:g}]²"
    return (f"{title(r['a'], r['masses'], r['third'], r['masked'])}: {100 * r['share']:.3g} % of {square} splits; the "
            f"largest ratio is {r['ratio']:.6g}, at x = {r['x']:.4g}, y = {r['y']:.4g}")


def _model(model, text_path, layers, heads, lengths, samples, map_name, repeat, special_tokens, tol, confidence, seed,
           loading):
    """Name, number of records and what produces them, for a model."""
    from howsmooth.studies import resolve
    from howsmooth.studies.splitting import file_splittings, repeated_tokens, splittings

    kind = map_name if map_name in ("normed", "block", "layer") else None
    if map_name in (None, "head") and heads is None and repeat is None:
        heads = "all"
    if model.endswith(".safetensors"):
        if kind is not None or repeat is not None or text_path is not None:
            raise InputError("expected attention or heads of a file of attention layers, at random tokens, got --map "
                             f"{kind}, --repeat or --text; give a whole model")
        from howsmooth.models.gpt2_file import HEADS, AttentionFile

        count = len(AttentionFile(model).layers) if layers == "all" else len(layers)
        each = 1 if heads is None else HEADS if heads == "all" else len(heads)
        return "gpt2", count * each * len(lengths) * samples, lambda step: file_splittings(
            model, layers=layers, heads=heads, lengths=lengths, samples=samples, tol=tol, confidence=confidence,
            seed=seed, step=step)
    text = read_text(text_path)
    loaded = load_chosen(model, seed=seed, **loading)
    settings = resolve(loaded, text, layers=layers, heads=heads, kind=kind, lengths=lengths, samples=samples,
                       special_tokens=special_tokens == "add", tol=tol, confidence=confidence, seed=seed)
    if repeat is None:
        return loaded.name, settings.estimates, lambda step: splittings(loaded, text, settings, step=step)
    return loaded.name, sum(settings.lengths) * len(settings.layers), lambda step: repeated_tokens(
        loaded, text, settings, copies=repeat, step=step)
