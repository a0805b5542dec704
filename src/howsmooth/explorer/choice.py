"""The settings of a visitor, converted to those of the command line."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace

from howsmooth.errors import InputError
from howsmooth.explorer.catalog import ModelCatalog
from howsmooth.models import MAPS, Model
from howsmooth.questions.inputs import resolve
from howsmooth.questions.spec import ModelSpec, spec_of
from howsmooth.studies.plan import prepare_model
from howsmooth.texts.corpora import Corpus

# Heads and the whole model are not offered: the tab shows a layer.
LAYER_MAPS = tuple(name for name in MAPS if name not in ("head", "model"))
TOKENS = ("all", "no-special", "no-first")
SHORTEST_LENGTH = 8


@dataclass(frozen=True)
class Choice:
    """The values of the form: model, text, layers, map, length in tokens, and which tokens are perturbed."""

    model: str
    text: str
    layers: str = "all"
    map: str = "attention"
    length: int = 64
    tokens: str = "all"

    @property
    def command(self) -> str:
        """The command that computes the same, with the text in a file."""
        words = [
            "howsmooth",
            "measure",
            self.model,
            "--text",
            "text.txt",
            "--layers",
            self.layers.replace(" ", ""),
            "--lengths",
            str(self.length),
            "--samples",
            "1",
        ]
        words += [] if self.map == "attention" else ["--map", self.map]
        words += [] if self.tokens == "all" else ["--tokens", self.tokens]
        return shlex.join(words)


@dataclass(frozen=True)
class Work:
    """A checked choice that can be computed.

    Attributes:
        choice: The choice, with the length in tokens that is measured.
        model: The loaded model.
        text: The text.
        settings: The settings for `howsmooth.studies`.
        note: Which part of the text is measured.
    """

    choice: Choice
    model: Model
    text: Corpus
    settings: ModelSpec
    note: str

    def layer(self, layer: int, *, each_head: bool = False) -> Work:
        """Return the same work for one layer, or for each of its heads alone."""
        heads = tuple(range(self.model.heads)) if each_head else None
        return replace(
            self,
            settings=self.settings.model_copy(
                update={"layers": (layer,), "heads": heads, "map": "head" if each_head else self.settings.map}
            ),
        )

    def lengths(self) -> Work:
        """Return the same work at lengths that double up to the chosen one."""
        return replace(
            self, settings=self.settings.model_copy(update={"lengths": doubling_lengths(self.settings.lengths[0])})
        )


def prepare(choice: Choice, catalog: ModelCatalog) -> Work:
    """Load the model, check the choice against it and the limits, and truncate the text.

    Raises:
        InputError: With a message for the visitor, if the choice cannot be computed.
    """
    limits = catalog.limits
    if len(choice.text) > limits.max_characters:
        raise InputError(
            f"expected a text of at most {limits.max_characters:,} characters, got {len(choice.text):,}; "
            "paste a part of it"
        )
    if choice.map not in LAYER_MAPS:
        raise InputError(f"expected a map among {', '.join(LAYER_MAPS)}, got {choice.map!r}")
    model = catalog.load(choice.model)
    text = Corpus("pasted", (choice.text,))
    cutter = model.cutter(text)
    total = cutter.tokens + cutter.special_count
    n = min(total, int(choice.length), limits.max_tokens)
    if model.positions is not None:
        n = min(n, model.positions)
    spec = spec_of(
        {
            "name": "explorer",
            "models": [choice.model],
            "layers": choice.layers.replace(" ", "").lower(),
            "map": choice.map,
            "lengths": [n],
            "samples": 1,
            "tokens": choice.tokens,
            "max_memory": limits.max_memory,
        },
        name=str,
    )
    settings = resolve(model, text, spec)
    prepare_model(settings, model, text)  # raises before anything is computed
    note = f"all {total:,} tokens" if n == total else f"the first {n:,} of {total:,} tokens"
    if n < min(total, int(choice.length)):
        reason = f"{model.name} has {n:,} positions" if n == model.positions else "the limit of this server"
        note += f" ({reason})"
    return Work(replace(choice, length=n), model, text, settings, note)


def parse_numbers(text: str, name: str, limit: int = 8) -> tuple[float, ...]:
    """Parse up to `limit` distinct positive numbers separated by commas; `name` is for the error message.

    Example:
        >>> parse_numbers("0.5, 2", "γR²")
        (0.5, 2.0)
    """
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if not values or len(values) > limit or not all(0 < value < 1e5 for value in values):
        raise InputError(
            f"expected up to {limit} positive numbers below 100,000 such as 0.5,2,8 for {name}, got {text[:40]!r}"
        )
    return tuple(dict.fromkeys(values))


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
