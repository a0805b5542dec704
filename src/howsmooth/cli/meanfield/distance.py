"""`howsmooth meanfield distance`: how far apart two texts are as measures of tokens, before and after attention."""

from __future__ import annotations

import math
from typing import Any

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
from howsmooth.errors import InputError


class Exponents(click.ParamType):
    """Comma-separated exponents p ≥ 1 such as 1,2,inf.

    >>> Exponents().convert("1,2.5,inf", None, None)
    (1.0, 2.5, inf)
    """

    name = "exponents"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return "1,2,inf"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None):
        if not isinstance(value, str):
            return value
        try:
            numbers = tuple(dict.fromkeys(math.inf if piece.strip() == "∞" else float(piece)
                                          for piece in value.split(",")))
        except ValueError:
            numbers = (math.nan,)
        if not all(number >= 1 for number in numbers):
            self.fail(f"expected comma-separated exponents p ≥ 1 such as 1,2,inf, got {value!r}", param, ctx)
        return numbers


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
@click.option("--p", "exponents", type=Exponents(), default="1,2,inf", show_default=True, help="Exponents p ≥ 1.")
@click.option("--distance", "distance", type=click.Choice(["auto", "W", "d"]), default="auto", show_default=True,
              help="Of texts: without places, with places as times, or what suits the layer's mask.")
@special_tokens_option
@loading_options
@json_option
@csv_option
def command(model, text_path, other_path, files, normalise, layers, lengths, exponents, distance, special_tokens, seed,
            json_path, csv_path, **loading) -> int:
    from howsmooth.cli.outputs import record_files, refuse_one_file_twice
    from howsmooth.cli.running import Run, console
    from howsmooth.report.distance_table import distance_table

    if files and (text_path or other_path or distance != "auto"):
        raise InputError("expected --files, or texts (--text, --other, --distance), got both; leave one out")
    if normalise and not files:
        raise InputError("expected --normalise only with --files, got it with texts, whose tokens weigh the same")
    named = {"--files": files[0], "--files ": files[1]} if files else {}
    inputs = {"--text": None if text_path == "-" else text_path, "--other": other_path}
    outputs = {"--json": json_path, "--csv": csv_path}
    for name, path in {**named, **inputs}.items():  # inputs may be one and the same, no output may be an input
        refuse_one_file_twice({name: path, **outputs})
    written = record_files(json_path, csv_path)
    notes = console(stderr=True)

    from howsmooth.studies import file_distances, text_distances

    if files:
        first, second = (_read(path, normalise) for path in files)
        loaded = None if model is None else load_chosen(model, seed=seed, **loading)
        maps = 1 if loaded is None else loaded.layers if layers == "all" else len(layers)

        def produce(step):
            return file_distances(first, second, files, exponents=exponents, model=loaded, layers=layers, step=step)
    else:
        text, other = read_text(text_path), None if other_path is None else read_text(other_path)
        loaded = load_chosen(model or "minilm", seed=seed, **loading)
        maps = len(lengths) * (loaded.layers if layers == "all" else len(layers))

        def produce(step):
            return text_distances(loaded, text, other, layers=layers, lengths=lengths, exponents=exponents,
                                  distance=distance, special_tokens=special_tokens == "add", step=step)

    run = Run(written, notes, thing="distance")
    try:
        run.collect("files" if loaded is None else loaded.name, maps * len(exponents), produce)
    finally:
        if run.records:
            shown = notes if "-" in (json_path, csv_path) else console()
            with run.writing("-", "the table"):
                shown.print(distance_table(run.records))
        code = run.finish()
    return code


def _read(path: str, normalise: bool):
    from howsmooth.transport import read_measure

    try:
        return read_measure(path, normalise=normalise)
    except InputError as error:
        raise InputError(str(error).replace("normalise=True", "--normalise")) from None
