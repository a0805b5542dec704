"""`howsmooth attack worst-case`: tokens that are worse than text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from howsmooth.cli.options import CHUNKS, MODEL, SOLVER, loading_options, output_options, spec_from, spec_options
from howsmooth.cli.parameter_types import Number, ascent_options, radius_option
from howsmooth.errors import InputError

DEFAULTS = {"lengths": "64", "samples": 1}


@click.command(
    name="worst-case",
    short_help="The largest constant that ascent finds in a set of tokens.",
    help="Maximise the local Lipschitz constant over all tokens in a set, by gradient ascent from many starts.\n\n"
    f"    {MODEL}",
)
@click.argument("model", default="minilm")
@spec_options("inputs", *(name for name in CHUNKS if name != "samples"), "layers", "heads", *SOLVER, **DEFAULTS)
@click.option(
    "--within",
    type=click.Choice(["norm", "ball", "sphere", "near"]),
    default="norm",
    show_default=True,
    help="The set of tokens: what the normalisation in front can put out, a ball or sphere (--radius), or near the "
    "text (--eps).",
)
@radius_option
@click.option(
    "--eps", type=Number(0, open=True), metavar="NUMBER", help="How far each token may move; with --within near."
)
@ascent_options(restarts=16, steps=100)
@loading_options
@output_options("json", "csv")
@click.option(
    "--artefacts", "folder", metavar="DIR", help="Tensors to keep, as safetensors: the tokens that were found."
)
def command(
    within: str,
    radius: str | float,
    eps: float | None,
    restarts: int,
    steps: int,
    json_path: str | None,
    csv_path: str | None,
    folder: str | None,
    **given: Any,
) -> int:
    from howsmooth.cli.options import one_model
    from howsmooth.cli.outputs import writable_folder
    from howsmooth.cli.run import announce, run_and_show
    from howsmooth.report.attack_tables import worst_case_table

    if (eps is None) == (within == "near"):
        raise InputError(
            f"expected --eps with --within near and only there, got --within {within} "
            + ("without it" if eps is None else "with it")
        )
    spec = spec_from(given, **DEFAULTS)
    place = None if folder is None else writable_folder(folder, "--artefacts")

    def work(notes, kept):
        from howsmooth.studies import worst_cases

        model, corpus, resolved = one_model(spec)
        announce(resolved, model, notes)
        return (
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
                keep=None if place is None else lambda record, found: _keep(place, record, found),
            ),
        )

    return run_and_show(
        {"--json": json_path, "--csv": csv_path},
        inputs={"--text": given["texts"]},
        work=work,
        thing="worst case",
        table=worst_case_table,
    )


def _keep(folder: Path, record: dict[str, Any], found: Any) -> None:
    """Write the tokens of a worst case, one safetensors file per map and length."""
    from safetensors.torch import save_file

    head = "" if record["head"] is None else f"-head{record['head']}"
    name = f"layer{record['layer']}{head}-n{record['n']}.safetensors"
    facts = {key: str(record[key]) for key in ("model", "layer", "head", "n", "within", "value")}
    save_file(
        {"tokens": found.x.contiguous(), "direction": found.estimate.direction.contiguous()},
        folder / name,
        metadata=facts,
    )
