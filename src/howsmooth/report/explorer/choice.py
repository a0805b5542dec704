"""What a visitor asks for, made into the settings that the command line would have."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace

from howsmooth.errors import InputError
from howsmooth.models import Model
from howsmooth.models.tokens import special_frame
from howsmooth.report.explorer.shelf import Shelf
from howsmooth.studies import Settings, Text, memory_plan, resolve
from howsmooth.studies.measuring import KINDS

MAPS = ("attention", *KINDS)
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
        words = ["howsmooth", "measure", self.model, "--text", "text.txt", "--layers", self.layers.replace(" ", ""),
                 "--lengths", str(self.length), "--samples", "1"]
        words += [] if self.map == "attention" else ["--map", self.map]
        words += [] if self.tokens == "all" else ["--tokens", self.tokens]
        return shlex.join(words)


@dataclass(frozen=True)
class Work:
    """A choice that can be computed: checked against the model, the text and the limits, cut where it is too long."""

    choice: Choice
    model: Model
    text: Text
    settings: Settings
    note: str

    def layer(self, layer: int, heads: str | None = None) -> Work:
        """The same for one layer, or for each of its heads alone."""
        heads = None if heads is None else tuple(range(self.model.heads))
        return replace(self, settings=replace(self.settings, layers=(layer,), heads=heads, kind=None if heads else
                                              self.settings.kind))

    def lengths(self) -> Work:
        """The same at lengths that double up to the chosen one."""
        return replace(self, settings=replace(self.settings, lengths=doubling(self.settings.lengths[0])))


def prepare(choice: Choice, shelf: Shelf) -> Work:
    """Load, check, cut; raises `InputError` with words that a visitor can act on."""
    limits = shelf.limits
    if len(choice.text) > limits.max_characters:
        raise InputError(f"expected a text of at most {limits.max_characters:,} characters, got {len(choice.text):,}; "
                         "paste a part of it")
    if choice.map not in MAPS:
        raise InputError(f"expected a map among {', '.join(MAPS)}, got {choice.map!r}")
    layers = whole_numbers(choice.layers, "layers")
    model = shelf.load(choice.model)
    there = len(model.tokenize(choice.text))
    there += sum(map(len, special_frame(model.tokenizer)))
    n = min(there, int(choice.length), limits.max_tokens, model.positions)
    text = Text("pasted", choice.text)
    settings = resolve(model, text, layers=layers, kind=None if choice.map == "attention" else choice.map,
                       lengths=(n,), samples=1, tokens=choice.tokens, max_memory=limits.max_memory)
    memory_plan(model, text, settings)  # refused now, not halfway
    note = f"all {there:,} tokens" if n == there else f"the first {n:,} of {there:,} tokens"
    if n < min(there, int(choice.length)):
        most = f"{model.name} has {model.positions:,} positions" if n == model.positions else "the limit of this server"
        note += f" ({most})"
    return Work(replace(choice, length=n), model, text, settings, note)


def whole_numbers(said: str, what: str) -> tuple[int, ...] | str:
    """Numbers from 0 with commas between them, or the word all.

    >>> whole_numbers("0, 2,5", "layers"), whole_numbers("all", "layers")
    ((0, 2, 5), 'all')
    """
    said = (said or "").strip().lower()
    if said == "all":
        return said
    if not re.fullmatch(r"\d{1,4}(\s*,\s*\d{1,4})*", said, flags=re.ASCII):
        raise InputError(f"expected {what} such as 0,2,5 or the word all, got {said[:40]!r}")
    return tuple(dict.fromkeys(int(piece) for piece in said.split(",")))


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
        raise InputError(f"expected up to {most} positive numbers below 100,000 such as 0.5,2,8 for {what}, got "
                         f"{said[:40]!r}")
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
