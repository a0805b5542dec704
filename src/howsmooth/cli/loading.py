"""Load the model and the text of a command; what can be checked without torch is checked before it is imported."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from howsmooth.cli.run import make_console, print_line, print_warning
from howsmooth.cli.runtime import current_runtime, use_default_threads
from howsmooth.errors import InputError
from howsmooth.extras import require
from howsmooth.models.files import check_positions, check_tokenizer, list_files, missing_tokenizer, read_model_files
from howsmooth.models.map_types import check_layers, parse_map
from howsmooth.questions.spec import ModelSpec, load_arguments, read_texts, select_indices

if TYPE_CHECKING:
    from rich.console import Console

    from howsmooth.models.model import Model
    from howsmooth.texts.corpora import Corpus


def load_model_and_text(
    spec: ModelSpec, *, needs_text: bool = False, needs_weights: bool = False, allow_short_text: bool = False
) -> tuple[Model, Corpus | None, ModelSpec]:
    """Load the one model and the text of a command.

    Args:
        spec: The spec of the command.
        needs_text: Whether the command takes no other inputs than a text.
        needs_weights: Whether the command reads the weights of attention, which needs an adapter of the family.
        allow_short_text: Whether random token ids take the place of the default text if that is too short.

    Returns:
        The model, the text (None with other inputs), and the spec with its layers and heads as numbers, checked
        against both.

    Raises:
        InputError: The model or the text does not exist, or they do not go with the options.
    """
    check_models(spec)
    corpora = check_texts(spec)
    corpus = next(iter(corpora), None)
    model = load_model(spec)

    from howsmooth.questions.inputs import adapt_to_model, fit_lengths, resolve

    if needs_text and (not model.reads_text or model.modality != "text"):
        takes = "a file of attention layers" if not model.reads_text else f"which takes {model.modality}"
        raise InputError(f"expected a model that reads text, got {model.name}, {takes}; use a whole text model")
    adapted, notes = (fit_lengths if needs_text else adapt_to_model)(model, corpora, spec)
    try:
        resolved = resolve(model, corpus, adapted)
    except InputError:
        if not allow_short_text or adapted.inputs != "text" or spec.chooses_inputs:
            raise
        resolved = resolve(model, None, adapted.model_copy(update={"inputs": "ids"}))  # raises for another reason
        notes = [f"the embedded text is too short for n = {max(spec.lengths)}: random token ids are timed in its place"]
    if needs_weights and resolved.is_attention:
        _check_weights(model, resolved)
    for note in notes:
        print_warning(make_console(stderr=True), f"note: {note}")
    return model, corpus if resolved.inputs == "text" else None, resolved


def _check_weights(model: Model, spec: ModelSpec) -> None:
    """Raise InputError unless the attention of a model is available as weights, and not only as a module."""
    from howsmooth.attention.heads import SelfAttention

    attention = model.attention(int(spec.layers[0]), spec.lengths[0], extrapolate=spec.inputs == "normalised")
    if not isinstance(attention, SelfAttention):
        raise InputError(
            f"expected a model of a family with an adapter, which reads the weights of attention, got {model.name}, a "
            f"{model.family}; measure it with `howsmooth measure`, or see `howsmooth models`"
        )


def load_model(spec: ModelSpec) -> Model:
    """Load the one model of a command."""
    stderr = make_console(stderr=True)
    require("transformers", purpose="to load a model")
    use_default_threads(max(spec.lengths))
    start = time.perf_counter()
    with show_loading(stderr, spec.models[0].label):
        from howsmooth.models.loading import cached_model

        model = cached_model(load_arguments(spec, spec.models[0]))
    if current_runtime().verbose:
        import torch

        took = f"loaded in {time.perf_counter() - start:.1f} s, threads: {torch.get_num_threads()}"
        print_line(stderr, f"{model!r}, {took}", style="dim")
    return model


def check_models(spec: ModelSpec, *, devices: bool = True) -> None:
    """Raise InputError if the files of a model show that it cannot be measured as asked.

    Nothing slow is imported: the name, the numbers of layers and heads, the lengths and whether there is a tokenizer.
    Only a device other than the CPU needs torch.

    Args:
        spec: The spec.
        devices: Whether this machine has to have the devices.
    """
    for name, path in (("images", spec.images), ("audio", spec.audio)):
        if path is not None:
            list_files(name, spec.path(path))
    for declared in (member for model in spec.chosen_models for member in model.members()):
        if devices and declared.device != "cpu":
            from howsmooth.models.memory import check_device

            check_device(declared.device)
        if declared.tokenizer is not None:
            check_tokenizer(spec.path(declared.tokenizer))
        random = "random:" if declared.weights == "random" else ""
        files = read_model_files(random + spec.path(declared.name), declared.revision)
        if files is None:
            continue
        layers = declared.layers or spec.layers
        if layers != "all" and files.layers is not None and spec.map_type.per_layer:
            select_indices(layers, tuple(range(files.layers)), f"layers of {declared.name}")
        if files.layers is not None:
            check_layers(parse_map(spec.map_name), files.layers, declared.name)
        if spec.heads is not None and files.heads is not None:
            select_indices(spec.heads, tuple(range(files.heads)), f"heads of {declared.name}")
        if spec.inputs in ("images", "audio") and spec.inputs not in files.takes:
            raise InputError(
                f"expected a model that takes {spec.inputs}, got {declared.name}, which takes "
                f"{' and '.join(sorted(files.takes))}; name another model, or leave --{spec.inputs} out"
            )
        if spec.inputs in ("text", "ids") and "lengths" in spec.model_fields_set and not spec.takes_short_texts:
            check_positions(declared.name, files.positions, max(spec.lengths))
        own_tokenizer = declared.tokenizer is None and files.takes == {"text"}
        if own_tokenizer and not files.has_tokenizer and spec.inputs == "text" and spec.chooses_inputs:
            raise missing_tokenizer(declared.name, "its folder has no file of one")


def check_texts(spec: ModelSpec) -> tuple[Corpus, ...]:
    """Return the texts of a spec; raise InputError that names the option if one cannot be read."""
    try:
        return read_texts(spec)
    except InputError as error:
        raise InputError(f"--text: {error}") from None


def load_torch(stderr: Console) -> None:
    """Import torch, which takes seconds, and show that; for commands that load no model, after checking options."""
    with show_loading(stderr, "torch"):
        importlib.import_module("torch")


@contextmanager
def show_loading(stderr: Console, name: str) -> Iterator[None]:
    """Show what is being loaded: while it is, on a terminal, else as a line."""
    if stderr.is_terminal and not stderr.quiet:
        with stderr.status(f"loading {name} …"):
            yield
    else:
        print_line(stderr, f"loading {name}", style="dim")
        yield
