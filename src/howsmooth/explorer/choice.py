"""What a visitor asks of a model, within the limits of the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from howsmooth.errors import InputError
from howsmooth.explorer.catalog import ModelCatalog
from howsmooth.models.model import Model
from howsmooth.questions.command_line import command_line
from howsmooth.questions.inputs import resolve
from howsmooth.questions.spec import ModelSpec
from howsmooth.studies.plan import prepare_model
from howsmooth.texts.corpora import Corpus

SHORTEST_LENGTH = 8


@dataclass(frozen=True)
class Choice:
    """A spec that was checked and can be computed.

    Attributes:
        asked: What the visitor asked, with the lengths that are measured.
        model: The loaded model.
        text: The text.
        settings: The same with the memory limit, for `howsmooth.studies`.
        note: Which part of the text is measured.
    """

    asked: Any
    model: Model
    text: Corpus
    settings: Any
    note: str

    @property
    def command(self) -> str:
        """The command that computes the same, with the text in a file."""
        return command_line(self.asked.replace(texts="text.txt"))

    def layer(self, layer: int, *, each_head: bool = False) -> Choice:
        """Return the same work for one layer, or for each of its heads alone."""
        heads = tuple(range(self.model.heads)) if each_head else None
        changes = {"layers": (layer,), "heads": heads, "map": "head" if each_head else self.settings.map}
        return replace(self, settings=self.settings.model_copy(update=changes))


def prepare(
    spec: ModelSpec,
    text: str,
    catalog: ModelCatalog,
    lengths: Callable[[int], tuple[int, ...]] = lambda longest: (longest,),
) -> Choice:
    """Load the model, check the spec against it and the limits, and truncate the text.

    Args:
        spec: A question about one model on offer, with the longest length.
        text: The text.
        catalog: The models on offer.
        lengths: Returns the lengths to measure for the longest that the text, the model and the limits allow.

    Raises:
        InputError: With a message for the visitor, if it cannot be computed.
    """
    limits = catalog.limits
    if len(text) > limits.max_characters:
        raise InputError(
            f"expected a text of at most {limits.max_characters:,} characters, got {len(text):,}; paste a part of it"
        )
    model = catalog.load(spec.models[0].name)
    corpus = Corpus("pasted", (text,))
    cutter = model.cutter(corpus)
    total = cutter.tokens + cutter.special_count
    wanted = min(total, max(spec.lengths))
    n = min(wanted, limits.max_tokens)
    if model.positions is not None:
        n = min(n, model.positions)
    asked = spec.replace(lengths=lengths(n), samples=1)
    # Whatever is asked, its solves take about as much memory as a measurement: this raises before anything is computed.
    measured = asked.asking("measure", name=asked.name, max_memory=limits.max_memory)
    settings = resolve(model, corpus, measured)
    prepare_model(settings, model, corpus)
    if asked.question != "measure":
        settings = asked.model_copy(update={"max_memory": limits.max_memory})
    note = f"all {total:,} tokens" if n == total else f"the first {n:,} of {total:,} tokens"
    if n < wanted:
        reason = f"{model.name} has {n:,} positions" if n == model.positions else "the limit of this server"
        note += f" ({reason})"
    return Choice(asked, model, corpus, settings, note)


def doubling_lengths(longest: int) -> tuple[int, ...]:
    """Return lengths that double from 8, and the longest itself.

    Example:
        >>> doubling_lengths(50), doubling_lengths(64)
        ((8, 16, 32, 50), (8, 16, 32, 64))
    """
    lengths = [longest]
    n = SHORTEST_LENGTH
    while n < longest:
        lengths.append(n)
        n *= 2
    return tuple(sorted(lengths))
