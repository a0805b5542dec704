"""`howsmooth meanfield distance`: distances between two texts as measures of tokens, before and after attention."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from howsmooth.cli.options import (
    MODEL_HELP,
    loading_options,
    model_argument,
    output_options,
    spec_from_options,
    spec_options,
)
from howsmooth.cli.parameter_types import exponents_option
from howsmooth.cli.runtime import runtime_options
from howsmooth.errors import InputError
from howsmooth.lazy import deferred

if TYPE_CHECKING:
    from rich.console import Console

    from howsmooth.cli.outputs import Record
    from howsmooth.texts.corpora import Corpus

DEFAULTS = {"lengths": "64", "samples": 1}
MEASURE_SUFFIXES = (".npz", ".safetensors", ".csv")  # as howsmooth.transport.files.SUFFIXES


@click.command(
    name="distance",
    short_help="Exact distances between token measures, before and after attention.",
    help="Compute the exact Wasserstein distance between the tokens of two texts, before and after attention: W_p, "
    "without positions, or d_p, with positions, between which nothing is transported. The quotient of the two is a "
    "lower bound on the Lipschitz constant of the layer in that distance (W_p: of a layer without mask and positions). "
    "Also between two measures from files (.npz, .safetensors, .csv with points and, optionally, weights and times)."
    "\n\n"
    f"    {MODEL_HELP}",
)
@model_argument(None)
@spec_options("texts", "special_tokens", "lengths", "layers", "seed", **DEFAULTS)
@click.option("--other", "other_path", metavar="FILE", help="The other text.  [default: the next chunk of --text]")
@click.option(
    "--files",
    nargs=2,
    metavar="FILE FILE",
    help="Files of two measures, instead of texts; with MODEL, also the distance after its attention.",
)
@click.option("--normalise", is_flag=True, help="Divide the weights in --files by their sum.")
@exponents_option("1,2,inf")
@click.option(
    "--distance",
    "distance",
    type=click.Choice(["auto", "W", "d"]),
    default="auto",
    show_default=True,
    help="Distance between texts: without positions (W), with positions as times (d), or by the layer's mask (auto).",
)
@loading_options
@output_options("json", "csv", "plot")
@runtime_options()
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
    **options: Any,
) -> int:
    """Run `howsmooth meanfield distance` and return its exit code."""
    from howsmooth.cli.run import Computation, run_command

    distance_figure = deferred("howsmooth.report.mean_field_figures:distance_figure")
    distance_table = deferred("howsmooth.report.mean_field_tables:distance_table")

    if files and (options["texts"] or other_path or distance != "auto"):
        raise InputError("expected --files, or texts (--text, --other, --distance), got both; leave one out")
    if normalise and not files:
        raise InputError("expected --normalise only with --files, got it with texts, whose tokens have equal weights")
    for path in files or ():
        if not path.endswith(MEASURE_SUFFIXES):
            raise InputError(f"expected --files that end in {', '.join(MEASURE_SUFFIXES)}, got {path}; rename it")
        if not os.path.isfile(path):
            raise InputError(f"expected --files that exist, got {path}; check the path")
    spec = spec_from_options({**options, "model": model or "minilm"}, **DEFAULTS)
    file_inputs = {"--files": files[0], "--files ": files[1]} if files else {}

    def prepare(stderr: Console, existing_records: list[Record]) -> Computation:
        from howsmooth.cli.loading import check_models, load_model, load_model_with_text, load_torch

        text_distances = deferred("howsmooth.studies.distances:text_distances")
        file_distances = deferred("howsmooth.studies.distances:file_distances")
        if files:
            loaded = None
            if model is None:
                load_torch(stderr)
            else:
                check_models(spec)
                loaded = load_model(spec)

            from howsmooth.transport import read_measure

            first, second = (read_measure(path, normalise=normalise) for path in files)
            maps = 1 if loaded is None else loaded.layers if spec.layers == "all" else len(spec.layers)
            return Computation(
                "files" if loaded is None else loaded.name,
                maps * len(exponents),
                lambda progress: file_distances(
                    first, second, files, exponents=exponents, model=loaded, layers=spec.layers, progress=progress
                ),
            )
        other = None if other_path is None else _read_other(other_path)
        loaded, text, resolved = load_model_with_text(spec)
        return Computation(
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

    return run_command(
        outputs={"--json": json_path, "--csv": csv_path, "--plot": plot_path},
        prepare=prepare,
        table=distance_table,
        plot=distance_figure,
        record_noun="distance",
        inputs={**file_inputs, "--text": options["texts"], "--other": other_path},
    )


def _read_other(path: str) -> Corpus:
    """Read the other text; errors name the option."""
    from howsmooth.texts.corpora import read_corpus

    try:
        return read_corpus(path)
    except InputError as error:
        raise InputError(f"--other: {error}") from None
