"""What a visitor asks for, made into the settings that the command line would have."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace

from howsmooth.errors import InputError
from howsmooth.explorer.catalog import ModelCatalog
from howsmooth.models import Model
from howsmooth.studies.inputs import resolve
from howsmooth.studies.plan import prepare_model
from howsmooth.studies.spec import Spec, spec_of
from howsmooth.texts.corpora import Corpus

MAPS = ("attention", "normed", "block", "layer")
SHORTEST = 8


@dataclass(frozen=True)
class Choice:
    """The fields of the page."""

    model: str
    text: str
    layers: str = "all"
    map: str = "attention"
    length: int = 64
    tokens: str = "all"

    @property
    def command(self) -> str:
        """The same on the command line, with the text in a file."""
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
    """A choice that can be computed: checked against the model, the text and the limits, cut where it is too long."""

    choice: Choice
    model: Model
    text: Corpus
    settings: Spec
    note: str

    def layer(self, layer: int, heads: str | None = None) -> Work:
        """The same for one layer, or for each of its heads alone."""
        numbers = None if heads is None else tuple(range(self.model.heads))
        return replace(
            self,
            settings=self.settings.model_copy(
                update={"layers": (layer,), "heads": numbers, "map": "head" if heads else self.settings.map}
            ),
        )

    def lengths(self) -> Work:
        """The same at lengths that double up to the chosen one."""
        return replace(self, settings=self.settings.model_copy(update={"lengths": doubling(self.settings.lengths[0])}))


def prepare(choice: Choice, catalog: ModelCatalog) -> Work:
    """Load, check, cut; raises `InputError` with words that a visitor can act on."""
    limits = catalog.limits
    if len(choice.text) > limits.max_characters:
        raise InputError(
            f"expected a text of at most {limits.max_characters:,} characters, got {len(choice.text):,}; "
            "paste a part of it"
        )
    if choice.map not in MAPS:
        raise InputError(f"expected a map among {', '.join(MAPS)}, got {choice.map!r}")
    model = catalog.load(choice.model)
    text = Corpus("pasted", (choice.text,))
    cutter = model.cutter(text)
    there = cutter.tokens + cutter.special_count
    n = min(there, int(choice.length), limits.max_tokens, model.positions)
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
    prepare_model(settings, model, text)  # refused now, not halfway
    note = f"all {there:,} tokens" if n == there else f"the first {n:,} of {there:,} tokens"
    if n < min(there, int(choice.length)):
        most = f"{model.name} has {model.positions:,} positions" if n == model.positions else "the limit of this server"
        note += f" ({most})"
    return Work(replace(choice, length=n), model, text, settings, note)


def numbers(said: str, what: str, most: int = 8) -> tuple[float, ...]:
    """A few positive numbers with commas between them.

    >>> numbers("0.5, 2", "γR²")
    (0.5, 2.0)
    """
    try:
        found = tuple(float(piece) for piece in said.split(","))
    except ValueError:
        found = ()
    if not found or len(found) > most or not all(0 < value < 1e5 for value in found):
        raise InputError(
            f"expected up to {most} positive numbers below 100,000 such as 0.5,2,8 for {what}, got {said[:40]!r}"
        )
    return tuple(dict.fromkeys(found))


def doubling(longest: int) -> tuple[int, ...]:
    """Lengths that double from 8, and the longest itself.

    >>> doubling(50), doubling(64)
    ((8, 16, 32, 50), (8, 16, 32, 64))
    """
    lengths = [longest]
    n = SHORTEST
    while n < longest:
        lengths.append(n)
        n *= 2
    return tuple(sorted(lengths))
