"""`howsmooth attack layer`: perturb the tokens that enter a layer."""

from __future__ import annotations

import click

from howsmooth.cli.attack.perturbing import budget_options, run_attacks
from howsmooth.cli.choosing import (
    MODEL,
    confidence_option,
    csv_option,
    heads_option,
    json_option,
    layers_option,
    lengths_option,
    loading_options,
    samples_option,
    special_tokens_option,
    text_option,
    tol_option,
)
from howsmooth.errors import InputError


@click.command(
    name="layer",
    short_help="Perturb the features that enter a layer, within a budget.",
    help="Perturb the features that enter a layer, to change what it puts out: what each attack gains, beside σ₁, "
    "random noise and what is certified.\n\n"
    f"    {MODEL}",
)
@click.argument("model", default="minilm")
@text_option
@layers_option
@heads_option
@click.option("--kind", type=click.Choice(["attention", "normed", "block", "layer"]), default="attention",
              show_default=True, help="Attention alone, behind its norm, with its residual, or the whole layer.")
@lengths_option("64")
@samples_option(1)
@budget_options
@special_tokens_option
@tol_option(1e-2)
@confidence_option
@loading_options
@json_option
@csv_option
def command(model, text_path, kind, heads, json_path, csv_path, sizes, norm, touch, attacks, steps, folder,
            **chosen) -> int:
    if heads is not None and kind != "attention":
        raise InputError(f"expected --heads with --kind attention and only there, got --kind {kind}")
    return run_attacks(model, text_path, json_path, csv_path, sizes, norm, touch, attacks, steps, folder, heads=heads,
                       kind=None if kind == "attention" else kind, objective="output", **chosen)
