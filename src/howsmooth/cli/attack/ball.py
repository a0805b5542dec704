"""`howsmooth attack ball`: what is certified around a text."""

from __future__ import annotations

import click

from howsmooth.cli.attack.searching import restarts_option, run_over_maps, steps_option
from howsmooth.cli.choosing import (
    MODEL,
    confidence_option,
    csv_option,
    heads_option,
    json_option,
    layers_option,
    lengths_option,
    loading_options,
    special_tokens_option,
    text_option,
    tol_option,
)
from howsmooth.cli.parsing import NumberList


@click.command(
    name="ball",
    short_help="What is certified for all tokens within ε of a text.",
    help="Certify the Lipschitz constant on the ball of all tokens within ε of a text's, and attack it inside.\n\n"
    "    The certificate is an upper bound, what ascent finds is a lower bound: the truth lies between the two.\n\n"
    f"    {MODEL}",
)
@click.argument("model", default="minilm")
@text_option
@layers_option
@heads_option
@lengths_option("64")
@click.option("--eps", type=NumberList(example="0.001,0.01,0.1"), default="0.001,0.01,0.1", show_default=True,
              help="How far each token may move.")
@restarts_option(4)
@steps_option(30)
@special_tokens_option
@tol_option(1e-3)
@confidence_option
@loading_options
@json_option
@csv_option
def command(model, text_path, eps, restarts, steps, json_path, csv_path, **chosen) -> int:
    from howsmooth.report.attack_table import ball_table
    from howsmooth.studies import balls

    def produce(loaded, text, settings, step):
        return balls(loaded, text, settings, eps=eps, restarts=restarts, steps=steps, step=step)

    return run_over_maps(model, text_path, json_path, csv_path, produce, ball_table, len(eps), "ball", **chosen)
