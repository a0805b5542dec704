"""`howsmooth attack ball`: what is certified around a text."""

from __future__ import annotations

from typing import Any

import click

from howsmooth.cli.options import CHUNKS, MODEL, SOLVER, loading_options, output_options, spec_from, spec_options
from howsmooth.cli.parameter_types import NumberList, ascent_options

DEFAULTS = {"lengths": "64", "samples": 1}


@click.command(
    name="ball",
    short_help="What is certified for all tokens within ε of a text.",
    help="Certify the Lipschitz constant on the ball of all tokens within ε of a text's, and attack it inside.\n\n"
    "    The certificate is an upper bound, what ascent finds is a lower bound: the truth lies between the two.\n\n"
    f"    {MODEL}",
)
@click.argument("model", default="minilm")
@spec_options("inputs", *(name for name in CHUNKS if name != "samples"), "layers", "heads", *SOLVER, **DEFAULTS)
@click.option(
    "--eps",
    type=NumberList(example="0.001,0.01,0.1"),
    default="0.001,0.01,0.1",
    show_default=True,
    help="How far each token may move.",
)
@ascent_options(restarts=4, steps=30)
@loading_options
@output_options("json", "csv")
def command(
    eps: tuple[float, ...], restarts: int, steps: int, json_path: str | None, csv_path: str | None, **given: Any
) -> int:
    from howsmooth.cli.options import one_model
    from howsmooth.cli.run import announce, run_and_show
    from howsmooth.report.attack_tables import ball_table

    spec = spec_from(given, **DEFAULTS)

    def work(notes, kept):
        from howsmooth.studies import balls

        model, corpus, resolved = one_model(spec)
        announce(resolved, model, notes)
        return (
            model.name,
            resolved.estimates * len(eps),
            lambda progress: balls(model, corpus, resolved, eps=eps, restarts=restarts, steps=steps, progress=progress),
        )

    return run_and_show(
        {"--json": json_path, "--csv": csv_path},
        inputs={"--text": given["texts"]},
        work=work,
        thing="ball",
        table=ball_table,
    )
