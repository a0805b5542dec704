"""The maps that can be asked about, by name: the only list of them, for Python, commands, studies, tables and docs.

Some names take an argument after a colon: `weights:q`, `chain:3..7`. `parse_map` reads them, for everyone. Nothing here
imports torch, so that options are checked quickly. `howsmooth.models.maps` says what each map is for pre-norm and
post-norm families.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from howsmooth.errors import InputError

# Raise it when the same configuration gives another number; a test asks whenever the code that computes numbers changes
# (tests/studies/test_map_version.py).
MAP_VERSION = 7


@dataclass(frozen=True)
class MapType:
    """A map of a model.

    Attributes:
        about: What it is, for the help of commands.
        plural: What several of them are called in a title.
        take: "module:name" of the function that takes it from a layer, or from the model.
        by_weights: Whether it is a `SelfAttention`, with an exact derivative, in a family with an adapter.
        enters: Whose input it takes: "attention", "norm" or "layer".
        own_tokens: Whether queries, keys and values have to come from the same tokens.
        per_layer: Whether each layer has one; otherwise it is a map of the whole model.
        attends: Whether it is attention in one layer, alone or with what surrounds it: what splitting is about.
        arguments: What may follow the name after a colon; the first is the default.
        of_tokens: Whether its input is the tokens of the sequence, one row for each.
        takes_layers: Whether a range of layers may follow the name after a colon.
        version: Part of the key of every record of the map; raised when its numbers change.
    """

    about: str
    plural: str
    take: str
    by_weights: bool = False
    enters: str = "layer"
    own_tokens: bool = True
    per_layer: bool = True
    attends: bool = False
    arguments: tuple[str, ...] = ()
    takes_layers: bool = False
    of_tokens: bool = True
    version: int = MAP_VERSION

    @property
    def syntax(self) -> str:
        """What follows the name: "", or the choice of arguments."""
        return f":{'|'.join(self.arguments)}" if self.arguments else "[:FIRST..LAST]" if self.takes_layers else ""


_TAKE, _TAKE_MODEL = "howsmooth.models.maps:", "howsmooth.models.model_maps:"
_TAKE_ARGUMENT = "howsmooth.models.argument_maps:"

MAPS = {
    "attention": MapType(
        "attention", "attention layers", f"{_TAKE}attention_map", by_weights=True, enters="attention", attends=True
    ),
    "head": MapType(
        "each head alone", "attention heads", f"{_TAKE}attention_map", by_weights=True, enters="attention", attends=True
    ),
    "normed": MapType("with the normalisation", "normed attention", f"{_TAKE}normed_map", enters="norm", attends=True),
    "block": MapType("with the residual", "attention blocks", f"{_TAKE}block_map", attends=True),
    "layer": MapType(
        "the whole Transformer layer", "Transformer layers", f"{_TAKE}layer_map", own_tokens=False, attends=True
    ),
    "model": MapType(
        "the whole model", "layers together", f"{_TAKE_MODEL}network_map", own_tokens=False, per_layer=False
    ),
    "norm": MapType("the normalisation alone", "normalisations", f"{_TAKE}norm_map", own_tokens=False),
    "mlp": MapType("the MLP alone", "MLPs", f"{_TAKE}mlp_map", own_tokens=False),
    "mixer": MapType("what mixes the tokens", "token mixers", f"{_TAKE}mixer_map", enters="attention"),
    "chain": MapType(
        "layers in a row",
        "layers in a row",
        f"{_TAKE_MODEL}chain_map",
        own_tokens=False,
        per_layer=False,
        takes_layers=True,
    ),
    "logits": MapType(
        "from the embedding to the logits",
        "embeddings to logits",
        f"{_TAKE_MODEL}logits_map",
        own_tokens=False,
        per_layer=False,
    ),
    "cross": MapType(
        "cross attention",
        "cross attentions",
        f"{_TAKE_ARGUMENT}cross_map",
        own_tokens=False,
        arguments=("both", "queries", "memory"),
        of_tokens=False,
    ),
    "weights": MapType(
        "attention as a function of its weights",
        "attention layers in their weights",
        f"{_TAKE_ARGUMENT}weights_map",
        enters="attention",
        arguments=("all", "q", "k", "v", "o"),
        of_tokens=False,
    ),
    "cache": MapType(
        "attention as a function of its keys and values",
        "attention layers in their cache",
        f"{_TAKE_ARGUMENT}cache_map",
        enters="attention",
        arguments=("both", "keys", "values"),
    ),
}


class MapChoice(NamedTuple):
    """A map and its argument, "" without one. `str` writes them as they were read."""

    name: str
    argument: str = ""

    @property
    def type(self) -> MapType:
        """The entry of the map in `MAPS`."""
        return MAPS[self.name]

    @property
    def layers(self) -> tuple[int, int] | None:
        """The first and the last layer of a range; None for all of them."""
        found = _RANGE.fullmatch(self.argument)
        return (int(found[1]), int(found[2])) if found else None

    def __str__(self) -> str:
        """Return "name" or "name:argument"."""
        return f"{self.name}:{self.argument}" if self.argument else self.name


_RANGE = re.compile(r"(\d{1,6})\.\.(\d{1,6})")


def parse_map(text: object, among: Iterable[str] = MAPS) -> MapChoice:
    """Return the map that a name means.

    Args:
        text: A key of `MAPS`, and an argument after a colon if the map takes one.
        among: The maps that are allowed.

    Raises:
        InputError: There is no such map, or it takes no such argument.

    Example:
        >>> str(parse_map("block"))
        'block'
        >>> parse_map("atention", ("attention", "head"))
        Traceback (most recent call last):
        ...
        howsmooth.errors.InputError: expected a map among attention, head, got 'atention'; did you mean 'attention'?
    """
    among = tuple(among)
    given = text if isinstance(text, str) else ""
    name, colon, argument = given.partition(":")
    if name not in among:
        near = difflib.get_close_matches(name, among, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InputError(f"expected a map among {', '.join(among)}, got {_shown(text)}{hint}")
    found = MAPS[name]
    if not colon:
        return MapChoice(name, found.arguments[0] if found.arguments else "")
    choice = MapChoice(name, argument)
    if found.takes_layers and choice.layers is not None and choice.layers[0] <= choice.layers[1]:
        return choice
    if argument not in found.arguments:
        near = difflib.get_close_matches(argument, found.arguments, n=1, cutoff=0.5)
        if found.takes_layers:
            expected = f"{name} or {name}:FIRST..LAST, such as {name}:0..3"
        elif found.arguments:
            expected = " or ".join(f"{name}:{one}" for one in found.arguments)
        else:
            expected = f"{name} without an argument"
        hint = f"; did you mean '{name}:{near[0]}'?" if near else ""
        raise InputError(f"expected {expected}, got {_shown(text)}{hint}")
    return choice


def check_layers(choice: MapChoice, layers: int, model: str) -> None:
    """Raise InputError if a model does not have the layers of a chain."""
    if choice.layers is not None and choice.layers[1] >= layers:
        raise InputError(f"expected layers from 0 to {layers - 1} of {model}, got {choice}; choose among them")


def map_choices(names: Iterable[str] = MAPS) -> tuple[str, ...]:
    """Return what a form offers: each name, with each of its arguments where it takes some.

    Example:
        >>> map_choices(("mlp", "cache"))
        ('mlp', 'cache:both', 'cache:keys', 'cache:values')
    """
    return tuple(str(MapChoice(name, argument)) for name in names for argument in MAPS[name].arguments or ("",))


def _shown(text: object) -> str:
    return repr(text[:60]) if isinstance(text, str) else repr(text)[:60]


def is_map(text: str) -> bool:
    """Return whether a text is the name of a map; records of other tools may have any."""
    try:
        parse_map(text)
    except InputError:
        return False
    return True
