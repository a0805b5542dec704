"""`howsmooth measure`: the local Lipschitz constants of a model's attention on a text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from howsmooth.cli.parsing import Bytes, IntegerList
from howsmooth.errors import InputError

if TYPE_CHECKING:
    from howsmooth.studies import Text


@click.command(name="measure", short_help="Measure the attention layers of a model on a text.")
@click.argument("model", default="minilm")
@click.option(
    "--text", "text_path", metavar="FILE|-", help="UTF-8 text, - reads stdin.  [default: the embedded one]"
)
@click.option("--layers", type=IntegerList(word="all", example="0,6"), default="all", show_default=True)
@click.option("--heads", type=IntegerList(word="all", example="0,3"), help="Measure these heads, each alone.")
@click.option(
    "--lengths",
    type=IntegerList(least=1, example="64,128,256"),
    default="64,128,256",
    show_default=True,
    help="Numbers of tokens, special tokens included.",
)
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    metavar="COUNT",
    default=4,
    show_default=True,
    help="Consecutive pieces of the text per length.",
)
@click.option(
    "--map",
    "map_name",
    type=click.Choice(["attention", "head"]),
    help="The whole layer, or each head alone.  [default: attention, or head with --heads]",
)
@click.option(
    "--tokens",
    type=click.Choice(["all", "no-special", "no-first"]),
    default="all",
    show_default=True,
    help="Which tokens a perturbation may move.",
)
@click.option(
    "--special-tokens",
    type=click.Choice(["add", "none"]),
    default="add",
    show_default=True,
    help="Whether each piece gets the model's special tokens.",
)
@click.option(
    "--tol",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=1e-3,
    show_default=True,
    help="Relative width of the interval to reach.",
)
@click.option(
    "--confidence",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.999,
    show_default=True,
    help="Probability that the interval's upper end holds.",
)
@click.option("--max-memory", type=Bytes(), metavar="4G", help="Memory that one solve may take.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float64", "bfloat16", "float16"]),
    default="float32",
    show_default=True,
    help="Of the model; one in half precision is measured with products in float32.",
)
@click.option("--device", metavar="cpu|cuda", default="cpu", show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), metavar="NUMBER", default=0, show_default=True)
@click.option("--revision", metavar="NAME", help="Branch, tag or commit of a model on the Hub.")
@click.option("--tokenizer", metavar="NAME", help="Another place to take the tokenizer from.")
@click.option("--trust-remote-code", is_flag=True, help="Run code that comes with the model.")
@click.option("--allow-pickle", is_flag=True, help="Load weights that are not safetensors.")
@click.option("--json", "json_path", metavar="FILE|-", help="One JSON object per estimate; - is stdout.")
@click.option("--csv", "csv_path", metavar="FILE|-", help="The same as CSV.")
@click.option("--plot", "plot_path", metavar="FILE", help="Growth with length as a figure (png, svg, pdf).")
def command(
    model,
    text_path,
    heads,
    map_name,
    special_tokens,
    dtype,
    device,
    seed,
    revision,
    tokenizer,
    trust_remote_code,
    allow_pickle,
    json_path,
    csv_path,
    plot_path,
    **chosen,
) -> int:
    """Measure the local Lipschitz constant of a model's attention layers on a text.

    MODEL is minilm (the default) or smollm2, a local folder, a GGUF file, a name on the Hugging Face Hub, or
    random:NAME for an architecture with random weights.
    """
    from howsmooth.cli.outputs import RecordFile, check_writable, refuse_one_file_twice
    from howsmooth.cli.running import Run, announce, console, say
    from howsmooth.report.figure import check_plot_path, growth_figure, save_figure
    from howsmooth.report.table import summary

    if heads is not None and map_name == "attention":
        raise InputError(
            "expected --heads only with --map head, got --map attention; leave one of the two out"
        )
    if map_name == "head" and heads is None:
        heads = "all"
    outputs = {"--json": json_path, "--csv": csv_path, "--plot": plot_path}
    # stdin and stdout may both be -, but no result may overwrite the text it came from.
    refuse_one_file_twice({"--text": None if text_path == "-" else text_path, **outputs})
    files = [
        RecordFile(path, option, form=form)
        for path, option, form in ((json_path, "--json", "json"), (csv_path, "--csv", "csv"))
        if path
    ]
    if plot_path:
        check_plot_path(plot_path)
        check_writable(Path(plot_path), "--plot")
    text = read_text(text_path)

    import torch

    from howsmooth.models import load
    from howsmooth.studies import growth_of, resolve

    notes = console(stderr=True)
    loaded = load(
        model,
        dtype=getattr(torch, dtype),
        device=device,
        revision=revision,
        seed=seed,
        tokenizer=tokenizer,
        trust_remote_code=trust_remote_code,
        allow_pickle=allow_pickle,
    )
    settings = resolve(loaded, text, heads=heads, special_tokens=special_tokens == "add", seed=seed, **chosen)
    announce(loaded, text, settings, notes)
    run = Run(files, notes)
    try:
        run.measure(loaded, text, settings)
    finally:
        # Whatever ended the loop, what was computed is shown.
        growth = growth_of(run.records)
        if run.records:
            shown = notes if "-" in (json_path, csv_path) else console()
            with run.writing("-", "the table"):
                shown.print(summary(run.records, growth))
        if run.records and plot_path:
            with run.writing(plot_path, "--plot"):
                save_figure(growth_figure(run.records, growth), plot_path)
                say(notes, f"drew {plot_path}")
        code = run.finish()
    return code


def read_text(path: str | None) -> Text:
    """The text to measure on: the embedded one, a file, or stdin."""
    from howsmooth.studies import Text

    if path is None:
        return Text.embedded()
    name = "stdin" if path == "-" else Path(path).name
    try:
        raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        content = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"expected UTF-8 text, got other bytes in {path} (at byte {error.start}); convert it first, "
            "for example with iconv"
        ) from None
    except OSError as error:
        raise InputError(
            f"expected a readable text file, got {path} ({(error.strerror or '').lower()}); "
            "check the path given to --text"
        ) from None
    if not content.strip():
        raise InputError(
            f"expected some text, got nothing in {path if path != '-' else 'stdin'}; "
            "give a text that is not empty"
        )
    return Text(name, content)
