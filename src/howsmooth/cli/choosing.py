"""Options that several commands share: which model, which layers, which text."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from howsmooth.cli.parsing import Count, IntegerList, Number
from howsmooth.errors import InputError

if TYPE_CHECKING:
    from howsmooth.models import Model
    from howsmooth.models.gpt2_file import AttentionFile
    from howsmooth.studies import Text
    from howsmooth.studies.inputs import Inputs

MODEL = """MODEL is minilm (the default) or smollm2, a local folder, a GGUF file, a name on the Hugging Face Hub, or
    random:NAME for an architecture with random weights."""

_LOADING = (
    click.option(
        "--dtype",
        type=click.Choice(["float32", "float64", "bfloat16", "float16"]),
        default="float32",
        show_default=True,
        help="Of the model; one in half precision is measured with products in float32.",
    ),
    click.option("--device", metavar="cpu|cuda", default="cpu", show_default=True, help="Where to compute."),
    click.option("--seed", type=Count(0, 2**63 - 1), metavar="NUMBER", default=0, show_default=True,
                 help="Of everything that is drawn."),
    click.option("--revision", metavar="NAME", help="Branch, tag or commit of a model on the Hub."),
    click.option("--tokenizer", metavar="NAME", help="Another place to take the tokenizer from."),
    click.option("--trust-remote-code", is_flag=True, help="Run code that comes with the model."),
    click.option("--allow-pickle", is_flag=True, help="Load weights that are not safetensors."),
)

layers_option = click.option(
    "--layers", type=IntegerList(word="all", example="0,6"), default="all", show_default=True, help="Which layers."
)
heads_option = click.option(
    "--heads", type=IntegerList(word="all", example="0,3"), help="Measure these heads, each alone."
)
text_option = click.option(
    "--text",
    "text_path",
    metavar="FILE|-",
    help="UTF-8 text; also a folder, alice, ag_news, hf:NAME, or - for stdin.  [default: the embedded one]",
)
special_tokens_option = click.option(
    "--special-tokens",
    type=click.Choice(["add", "none"]),
    default="add",
    show_default=True,
    help="Whether each piece gets the model's special tokens.",
)
inputs_option = click.option(
    "--inputs",
    type=click.Choice(["text", "normalised"]),
    help="Tokens of the text, or random ones through each layer's own normalisation, of any length.  [default: text; "
    "normalised with a file of attention layers]",
)
products_option = click.option(
    "--products",
    type=click.Choice(["auto", "float64", "float32", "bfloat16", "float16"]),
    default="auto",
    show_default=True,
    help="On a GPU: float64 measures rounding against a twin, float32 allows for it, half precision searches faster. "
    "auto: float64 up to 4096 tokens, then float32.",
)
stop_option = click.option(
    "--stop",
    type=click.Choice(["interval", "residual"]),
    default="interval",
    show_default=True,
    help="On the certified width, or earlier, on the residual: half precision then certifies a lower end alone.",
)
max_steps_option = click.option(
    "--max-steps", type=Count(), metavar="COUNT",
    help="Lanczos steps at most.  [default: enough for --tol]",
)
confidence_option = click.option(
    "--confidence",
    type=Number(0, 1, open=True),
    default=0.999,
    show_default=True,
    help="Probability that the interval's upper end holds.",
)
json_option = click.option(
    "--json", "json_path", metavar="FILE|-", help="One JSON object per record; - is stdout."
)
csv_option = click.option("--csv", "csv_path", metavar="FILE|-", help="The same as CSV.")


def lengths_option(default: str) -> Callable:
    return click.option(
        "--lengths",
        type=IntegerList(least=1, example=default),
        default=default,
        show_default=True,
        help="Numbers of tokens, special tokens included.",
    )


def samples_option(default: int) -> Callable:
    return click.option(
        "--samples",
        type=Count(),
        metavar="COUNT",
        default=default,
        show_default=True,
        help="Consecutive pieces of the text per length.",
    )


def tol_option(default: float) -> Callable:
    return click.option(
        "--tol",
        type=Number(0, 1, open=True),
        default=default,
        show_default=True,
        help="Relative width of the interval to reach.",
    )


def loading_options(command: Callable) -> Callable:
    """The options of `load_chosen`, in the order that help shows."""
    for option in reversed(_LOADING):
        command = option(command)
    return command


def load_chosen(model: str, dtype: str, **loading: Any) -> Model:
    """The model that the arguments and options of a command name."""
    import torch

    from howsmooth.models import load

    return load(model, dtype=getattr(torch, dtype), **loading)


def load_weights(model: str, dtype: str, device: str, **loading: Any) -> Model | AttentionFile:
    """As `load_chosen`, or a file of attention layers alone."""
    if not model.endswith(".safetensors"):
        return load_chosen(model, dtype, device=device, **loading)
    import torch

    from howsmooth.models.gpt2_file import AttentionFile
    from howsmooth.models.load import working_type

    given = [name for name in ("revision", "tokenizer") if loading.get(name) is not None]
    if given:
        raise InputError(f"expected no --{given[0]} with a file of attention layers, which has none; leave it out")
    kind, place = working_type(getattr(torch, dtype), device)
    return AttentionFile(model, model, dtype=kind, device=place)


def choose_inputs(inputs: str | None, text_path: str | None, model: str, seed: int) -> Inputs:
    """The tokens to measure at: a text's, unless drawn ones are asked for or nothing else can be."""
    from howsmooth.studies import Normalised

    weights_alone = model.endswith(".safetensors")
    if inputs == "normalised" or (inputs is None and weights_alone and text_path is None):
        if text_path is not None:
            raise InputError("expected --text only with --inputs text, got --inputs normalised; leave one of them out")
        return Normalised(seed)
    if weights_alone:
        raise InputError(f"expected a model that reads text, got {model}, a file of attention layers alone; use "
                         "--inputs normalised")
    return read_text(text_path)


def read_text(path: str | None) -> Text:
    """The text to measure on: the embedded one, a file, a folder, stdin, a corpus by name."""
    from howsmooth.studies import Text
    from howsmooth.texts.corpora import read_corpus

    if path is None:
        return Text.embedded()
    try:
        corpus = read_corpus(path)
    except InputError as error:
        raise InputError(f"--text: {error}") from None
    return Text(corpus.name, corpus.content)
