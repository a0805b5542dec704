"""`howsmooth attack worst-case`: tokens with a constant far above that of text."""

from __future__ import annotations

from pathlib import Path
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
from howsmooth.cli.parameter_types import Number, ascent_options, radius_option
from howsmooth.cli.runtime import runtime_options
from howsmooth.errors import InputError
from howsmooth.lazy import deferred

if TYPE_CHECKING:
    from rich.console import Console

    from howsmooth.attack import Ascent
    from howsmooth.cli.outputs import Record

DEFAULTS = {"lengths": "64", "samples": 1}


@click.command(
    name="worst-case",
    short_help="Maximise the constant over a set of tokens by gradient ascent.",
    help="Maximise the local Lipschitz constant over all tokens in a set, by gradient ascent from many starts.\n\n"
    f"    {MODEL_HELP}",
)
@model_argument()
@spec_options(
    "inputs", *(name for name in CHUNK_FIELDS if name != "samples"), "layers", "heads", *SOLVER_FIELDS, **DEFAULTS
)
@click.option(
    "--within",
    type=click.Choice(["norm", "ball", "sphere", "near"]),
    default="norm",
    show_default=True,
    help="Set of allowed tokens: the outputs of the normalisation in front, a ball or sphere (--radius), or near those "
    "of the text (--eps).",
)
@radius_option
@click.option(
    "--eps", type=Number(0, exclusive=True), metavar="NUMBER", help="How far each token may move; with --within near."
)
@ascent_options(restarts=16, steps=100)
@loading_options
@output_options("json", "csv")
@click.option(
    "--artefacts", "folder_name", metavar="DIR", help="Tensors to save, as safetensors: the tokens that were found."
)
@runtime_options()
def command(
    within: str,
    radius: str | float,
    eps: float | None,
    restarts: int,
    steps: int,
    json_path: str | None,
    csv_path: str | None,
    folder_name: str | None,
    **options: Any,
) -> int:
    """Run `howsmooth attack worst-case` and return its exit code."""
    from howsmooth.cli.outputs import make_folder
    from howsmooth.cli.run import Computation, print_overview, run_command

    worst_case_table = deferred("howsmooth.report.attack_tables:worst_case_table")

    if (eps is None) == (within == "near"):
        raise InputError(
            f"expected --eps with --within near and only there, got --within {within} "
            + ("without it" if eps is None else "with it")
        )
    spec = spec_from_options(options, **DEFAULTS)
    folder = None if folder_name is None else make_folder(folder_name, "--artefacts")

    def prepare(stderr: Console, existing_records: list[Record]) -> Computation:
        from howsmooth.cli.loading import load_model_and_text

        model, corpus, resolved = load_model_and_text(spec, needs_weights=True)

        from howsmooth.studies import worst_cases

        print_overview(resolved, model, stderr)
        return Computation(
            model.name,
            resolved.estimates,
            lambda progress: worst_cases(
                model,
                corpus,
                resolved,
                within=within,
                radius=radius,
                eps=eps,
                restarts=restarts,
                steps=steps,
                progress=progress,
                keep=None if folder is None else lambda record, found: _save_tokens(folder, record, found),
            ),
        )

    return run_command(
        outputs={"--json": json_path, "--csv": csv_path},
        inputs={"--text": options["texts"]},
        prepare=prepare,
        record_noun="worst case",
        table=worst_case_table,
    )


def _save_tokens(folder: Path, record: Record, found: Ascent) -> None:
    """Save the tokens of a worst case, one safetensors file per map and length."""
    from safetensors.torch import save_file

    head = "" if record["head"] is None else f"-head{record['head']}"
    name = f"layer{record['layer']}{head}-n{record['n']}.safetensors"
    metadata = {key: str(record[key]) for key in ("model", "layer", "head", "n", "within", "value")}
    save_file(
        {"tokens": found.x.contiguous(), "direction": found.estimate.direction.contiguous()},
        folder / name,
        metadata=metadata,
    )
