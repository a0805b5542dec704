"""`howsmooth meanfield distance`: how far apart two texts are as measures of tokens, before and after attention."""

from __future__ import annotations

import click

from howsmooth.cli.choosing import (
    MODEL,
    csv_option,
    json_option,
    layers_option,
    lengths_option,
    load_chosen,
    loading_options,
    read_text,
    special_tokens_option,
    text_option,
)
from howsmooth.cli.meanfield.numbers import Numbers, plot_option, run_and_show
from howsmooth.errors import InputError


@click.command(
    name="distance",
    short_help="Exact distances between token measures, before and after attention.",
    help="The exact Wasserstein distance between the tokens of two texts as they enter attention, and as they leave it:"
    " W_p without places, or d_p, which moves nothing in time, with them. Their quotient is a lower bound on the"
    " Lipschitz constant of the layer in that distance (W_p: of a layer without mask and places). Also between two"
    " measures from files (.npz, .safetensors, .csv with points and, if wanted, weights and times).\n\n"
    f"    {MODEL}",
)
@click.argument("model", required=False)
@text_option
@click.option("--other", "other_path", metavar="FILE", help="The other text.  [default: the next piece of --text]")
@click.option("--files", nargs=2, metavar="FILE FILE", help="Two measures in place of texts; with MODEL also after it.")
@click.option("--normalise", is_flag=True, help="Divide the weights in --files by their sum.")
@layers_option
@lengths_option("64")
@click.option("--p", "exponents", type=Numbers(least=1, infinite=True, example="1,2,inf"), default="1,2,inf",
              show_default=True, help="Exponents p ≥ 1.")
@click.option("--distance", "distance", type=click.Choice(["auto", "W", "d"]), default="auto", show_default=True,
              help="Of texts: without places, with places as times, or what suits the layer's mask.")
@special_tokens_option
@loading_options
@json_option
@csv_option
@plot_option
def command(model, text_path, other_path, files, normalise, layers, lengths, exponents, distance, special_tokens, seed,
            json_path, csv_path, plot_path, **loading) -> int:
    from howsmooth.report.distance_table import distance_table
    from howsmooth.report.mean_field_figure import distance_figure
    from howsmooth.studies import file_distances, text_distances

    if files and (text_path or other_path or distance != "auto"):
        raise InputError("expected --files, or texts (--text, --other, --distance), got both; leave one out")
    if normalise and not files:
        raise InputError("expected --normalise only with --files, got it with texts, whose tokens weigh the same")
    named = {"--files": files[0], "--files ": files[1]} if files else {}
    inputs = {"--text": None if text_path == "-" else text_path, "--other": other_path}

    def work():
        if files:
            first, second = (_read(path, normalise) for path in files)
            loaded = None if model is None else load_chosen(model, seed=seed, **loading)
            maps = 1 if loaded is None else loaded.layers if layers == "all" else len(layers)
            return "files" if loaded is None else loaded.name, maps * len(exponents), lambda step: file_distances(
                first, second, files, exponents=exponents, model=loaded, layers=layers, step=step)
        text, other = read_text(text_path), None if other_path is None else read_text(other_path)
        loaded = load_chosen(model or "minilm", seed=seed, **loading)
        maps = len(lengths) * (loaded.layers if layers == "all" else len(layers))
        return loaded.name, maps * len(exponents), lambda step: text_distances(
            loaded, text, other, layers=layers, lengths=lengths, exponents=exponents, distance=distance,
            special_tokens=special_tokens == "add", step=step)

    return run_and_show(json_path, csv_path, plot_path, work=work, table=distance_table, figure=distance_figure,
                        thing="distance", inputs={**named, **inputs})


def _read(path: str, normalise: bool):
    from howsmooth.transport import read_measure

    try:
        return read_measure(path, normalise=normalise)
    except InputError as error:
        raise InputError(str(error).replace("normalise=True", "--normalise")) from None
