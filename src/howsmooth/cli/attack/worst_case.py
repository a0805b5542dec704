"""`howsmooth attack worst-case`: tokens that are worse than text."""

from __future__ import annotations

from pathlib import Path

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
from howsmooth.cli.parsing import Number, Radius
from howsmooth.errors import InputError


@click.command(
    name="worst-case",
    short_help="The largest constant that ascent finds in a set of tokens.",
    help="Maximise the local Lipschitz constant over all tokens in a set, by gradient ascent from many starts.\n\n"
    f"    {MODEL}",
)
@click.argument("model", default="minilm")
@text_option
@layers_option
@heads_option
@lengths_option("64")
@click.option(
    "--within",
    type=click.Choice(["norm", "ball", "sphere", "near"]),
    default="norm",
    show_default=True,
    help="What the normalisation in front can put out, a ball or sphere (--radius), or near the text (--eps).",
)
@click.option("--radius", type=Radius(), default="norm", show_default=True, help="Of the ball or sphere.")
@click.option("--eps", type=Number(0, open=True), metavar="NUMBER",
              help="How far each token may move with --within near.")
@restarts_option(16)
@steps_option(100)
@special_tokens_option
@tol_option(1e-3)
@confidence_option
@loading_options
@json_option
@csv_option
@click.option("--save", "folder", metavar="DIR", help="Keep the tokens that were found, as safetensors.")
def command(model, text_path, within, radius, eps, restarts, steps, json_path, csv_path, folder, **chosen) -> int:
    from howsmooth.report.attack_table import worst_case_table
    from howsmooth.studies import worst_cases

    if (eps is None) == (within == "near"):
        raise InputError(f"expected --eps with --within near and only there, got --within {within} "
                         + ("without it" if eps is None else "with it"))
    keep = None if folder is None else _Keeper(folder)

    def produce(loaded, text, settings, step):
        return worst_cases(loaded, text, settings, within=within, radius=radius, eps=eps, restarts=restarts,
                           steps=steps, step=step, keep=keep)

    return run_over_maps(model, text_path, json_path, csv_path, produce, worst_case_table, 1, "worst case", **chosen)


class _Keeper:
    """Writes the tokens of each worst case into a folder, one safetensors file per map and length."""

    def __init__(self, folder: str):
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"expected a folder that can be made for --save, got {folder} "
                             f"({(error.strerror or str(error)).lower()}); name another one") from None

    def __call__(self, record: dict, found) -> None:
        from safetensors.torch import save_file

        head = "" if record["head"] is None else f"-head{record['head']}"
        name = f"layer{record['layer']}{head}-n{record['n']}.safetensors"
        facts = {key: str(record[key]) for key in ("model", "layer", "head", "n", "within", "value")}
        save_file({"tokens": found.x.contiguous(), "direction": found.estimate.direction.contiguous()},
                  self.folder / name, metadata=facts)
