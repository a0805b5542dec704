"""`howsmooth attack model`: perturb the embeddings of a text, and look at what the whole model makes of it."""

from __future__ import annotations

import click

from howsmooth.cli.attack.perturbing import budget_options, run_attacks
from howsmooth.cli.choosing import (
    MODEL,
    confidence_option,
    csv_option,
    json_option,
    lengths_option,
    loading_options,
    samples_option,
    special_tokens_option,
    text_option,
    tol_option,
)


@click.command(
    name="model",
    short_help="Perturb a text's embeddings to change the model's output.",
    help="Perturb what enters the first layer, to change the last hidden states, the next token or the text's "
    "embedding.\n\n"
    f"    {MODEL}",
)
@click.argument("model", default="minilm")
@text_option
@click.option("--objective", type=click.Choice(["output", "next-token", "cosine"]), default="output", show_default=True,
              help="Last hidden states, KL of the next token's distribution, or cosine of the mean embedding.")
@lengths_option("32")
@samples_option(1)
@budget_options
@special_tokens_option
@tol_option(1e-1)
@confidence_option
@loading_options
@json_option
@csv_option
def command(model, text_path, objective, json_path, csv_path, sizes, norm, touch, attacks, steps, folder,
            **chosen) -> int:
    return run_attacks(model, text_path, json_path, csv_path, sizes, norm, touch, attacks, steps, folder,
                       kind="model", objective=objective, layers="all", heads=None, **chosen)
