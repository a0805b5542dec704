"""`howsmooth attack ball`: a certificate on the ball around a text, and an attack within it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from howsmooth.cli.options import (
    CHUNK_FIELDS,
    MODEL_HELP,
    SOLVER_FIELDS,
    loading_options,
    model_argument,
    output_options,
    spec_from_options,
    spec_options,
)
from howsmooth.cli.parameter_types import NumberList, ascent_options
from howsmooth.cli.runtime import runtime_options
from howsmooth.lazy import deferred

if TYPE_CHECKING:
    from rich.console import Console

    from howsmooth.cli.outputs import Record

DEFAULTS = {"lengths": "64", "samples": 1}


@click.command(
    name="ball",
    short_help="Certify the constant for all tokens within ε of a text.",
    help="Certify the Lipschitz constant on the ball of all tokens within ε of a text's, and attack within it.\n\n"
    "    The certificate is an upper bound on the constant of the ball, and gradient ascent gives a lower bound.\n\n"
    f"    {MODEL_HELP}",
)
@model_argument()
@spec_options(
    "inputs", *(name for name in CHUNK_FIELDS if name != "samples"), "layers", "heads", *SOLVER_FIELDS, **DEFAULTS
)
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
@runtime_options()
def command(
    eps: tuple[float, ...], restarts: int, steps: int, json_path: str | None, csv_path: str | None, **options: Any
) -> int:
    """Run `howsmooth attack ball` and return its exit code."""
    from howsmooth.cli.run import Computation, print_overview, run_command

    ball_table = deferred("howsmooth.report.attack_tables:ball_table")

    spec = spec_from_options(options, **DEFAULTS)

    def prepare(stderr: Console, existing_records: list[Record]) -> Computation:
        from howsmooth.cli.loading import load_model_and_text

        model, corpus, resolved = load_model_and_text(spec, needs_weights=True)

        from howsmooth.studies import balls

        print_overview(resolved, model, stderr)
        return Computation(
            model.name,
            resolved.estimates * len(eps),
            lambda progress: balls(model, corpus, resolved, eps=eps, restarts=restarts, steps=steps, progress=progress),
        )

    return run_command(
        outputs={"--json": json_path, "--csv": csv_path},
        inputs={"--text": options["texts"]},
        prepare=prepare,
        record_noun="ball",
        table=ball_table,
    )
