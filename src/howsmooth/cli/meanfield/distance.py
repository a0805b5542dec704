"""`howsmooth meanfield distance`: how far apart two texts are as measures of tokens, before and after attention."""

from __future__ import annotations

from typing import Any

import click

from howsmooth.cli.options import MODEL, loading_options, output_options, spec_from, spec_options
from howsmooth.cli.parameter_types import exponents_option
from howsmooth.errors import InputError

DEFAULTS = {"lengths": "64", "samples": 1}


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
@spec_options("texts", "special_tokens", "lengths", "layers", "seed", **DEFAULTS)
@click.option("--other", "other_path", metavar="FILE", help="The other text.  [default: the next chunk of --text]")
@click.option("--files", nargs=2, metavar="FILE FILE", help="Two measures in place of texts; with MODEL also after it.")
@click.option("--normalise", is_flag=True, help="Divide the weights in --files by their sum.")
@exponents_option("1,2,inf")
@click.option(
    "--distance",
    "distance",
    type=click.Choice(["auto", "W", "d"]),
    default="auto",
    show_default=True,
    help="Distance of texts: without places (W), with places as times (d), or what suits the layer's mask.",
)
@loading_options
@output_options("json", "csv", "plot")
def command(
    model: str | None,
    other_path: str | None,
    files: tuple[str, str] | None,
    normalise: bool,
    exponents: tuple[float, ...],
    distance: str,
    json_path: str | None,
    csv_path: str | None,
    plot_path: str | None,
    **given: Any,
) -> int:
    from howsmooth.cli.run import run_and_show
    from howsmooth.report.mean_field_figures import distance_figure
    from howsmooth.report.mean_field_tables import distance_table

    if files and (given["texts"] or other_path or distance != "auto"):
        raise InputError("expected --files, or texts (--text, --other, --distance), got both; leave one out")
    if normalise and not files:
        raise InputError("expected --normalise only with --files, got it with texts, whose tokens weigh the same")
    spec = spec_from({**given, "model": model or "minilm"}, **DEFAULTS)
    named = {"--files": files[0], "--files ": files[1]} if files else {}

    def work(notes, kept):
        from howsmooth.cli.options import one_model
        from howsmooth.studies import file_distances, text_distances
        from howsmooth.studies.plan import load_arguments
        from howsmooth.studies.worker import cached_model
        from howsmooth.texts.corpora import read_corpus

        if files:
            first, second = (_read(path, normalise) for path in files)
            loaded = None if model is None else cached_model(load_arguments(spec, spec.models[0]))
            maps = 1 if loaded is None else loaded.layers if spec.layers == "all" else len(spec.layers)
            return (
                "files" if loaded is None else loaded.name,
                maps * len(exponents),
                lambda progress: file_distances(
                    first, second, files, exponents=exponents, model=loaded, layers=spec.layers, progress=progress
                ),
            )
        other = None if other_path is None else read_corpus(other_path)
        loaded, text, resolved = one_model(spec)
        return (
            loaded.name,
            resolved.estimates * len(exponents),
            lambda progress: text_distances(
                loaded,
                text,
                other,
                layers=resolved.layers,
                lengths=resolved.lengths,
                exponents=exponents,
                distance=distance,
                special_tokens=resolved.adds_special_tokens,
                progress=progress,
            ),
        )

    return run_and_show(
        {"--json": json_path, "--csv": csv_path, "--plot": plot_path},
        work=work,
        table=distance_table,
        plot=distance_figure,
        thing="distance",
        inputs={**named, "--text": given["texts"], "--other": other_path},
    )


def _read(path: str, normalise: bool) -> Any:
    from howsmooth.transport import read_measure

    try:
        return read_measure(path, normalise=normalise)
    except InputError as error:
        raise InputError(str(error).replace("normalise=True", "--normalise")) from None
