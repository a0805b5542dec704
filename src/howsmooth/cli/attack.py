"""`howsmooth attack`: inputs that are worse than text, and what is certified around a text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from howsmooth.cli.choosing import (
    MODEL,
    confidence_option,
    csv_option,
    heads_option,
    json_option,
    layers_option,
    lengths_option,
    load_chosen,
    loading_options,
    read_text,
    special_tokens_option,
    text_option,
    tol_option,
)
from howsmooth.cli.parsing import NumberList, Radius
from howsmooth.errors import InputError

def restarts_option(default: int) -> Callable:
    return click.option("--restarts", type=click.IntRange(min=1), metavar="COUNT", default=default, show_default=True,
                        help="Starting points, all moved at once; the best is kept.")


def steps_option(default: int) -> Callable:
    return click.option("--steps", type=click.IntRange(min=1), metavar="COUNT", default=default, show_default=True,
                        help="Steps of ascent.")


@click.group(name="attack", short_help="Worst cases: search for them, certify against them.")
def command() -> None:
    """Find inputs on which attention is far less smooth than on text, or certify that none is near."""


@command.command(
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
@click.option("--eps", type=click.FloatRange(min=0, min_open=True), metavar="NUMBER",
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
def worst_case(model, text_path, within, radius, eps, restarts, steps, json_path, csv_path, folder, **chosen) -> int:
    from howsmooth.report.attack_table import worst_case_table
    from howsmooth.studies import worst_cases

    if (eps is None) == (within == "near"):
        raise InputError(f"expected --eps with --within near and only there, got --within {within} "
                         + ("without it" if eps is None else "with it"))
    keep = None if folder is None else _Keeper(folder)

    def produce(loaded, text, settings, step):
        return worst_cases(loaded, text, settings, within=within, radius=radius, eps=eps, restarts=restarts,
                           steps=steps, step=step, keep=keep)

    return _run(model, text_path, json_path, csv_path, produce, worst_case_table, 1, "worst case", **chosen)


@command.command(
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
def ball(model, text_path, eps, restarts, steps, json_path, csv_path, **chosen) -> int:
    from howsmooth.report.attack_table import ball_table
    from howsmooth.studies import balls

    def produce(loaded, text, settings, step):
        return balls(loaded, text, settings, eps=eps, restarts=restarts, steps=steps, step=step)

    return _run(model, text_path, json_path, csv_path, produce, ball_table, len(eps), "ball", **chosen)


def _run(model, text_path, json_path, csv_path, produce, table, per_map, thing, *, layers, heads, lengths,
         special_tokens, tol, confidence, seed, **loading) -> int:
    """What both commands do around their loop: files, model, progress, table."""
    from howsmooth.cli.outputs import record_files, refuse_one_file_twice
    from howsmooth.cli.running import Run, announce, console

    outputs = {"--json": json_path, "--csv": csv_path}
    refuse_one_file_twice({"--text": None if text_path == "-" else text_path, **outputs})
    files = record_files(json_path, csv_path)
    text = read_text(text_path)

    from howsmooth.studies import resolve

    notes = console(stderr=True)
    loaded = load_chosen(model, seed=seed, **loading)
    settings = resolve(loaded, text, layers=layers, heads=heads, lengths=lengths, samples=1,
                       special_tokens=special_tokens == "add", tol=tol, confidence=confidence, seed=seed)
    announce(loaded, text, settings, notes)
    run = Run(files, notes, thing=thing)
    try:
        run.collect(loaded.name, settings.estimates * per_map, lambda step: produce(loaded, text, settings, step))
    finally:
        if run.records:
            shown = notes if "-" in (json_path, csv_path) else console()
            with run.writing("-", "the table"):
                shown.print(table(run.records))
        code = run.finish()
    return code


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
