"""The maps that can be asked about, by name: the only list of them, for Python, commands, studies, tables and docs.

Nothing here imports torch, so that options are checked quickly. `howsmooth.models.maps` says what each map is for
pre-norm and post-norm families.
"""

from __future__ import annotations

from dataclasses import dataclass

# Raise it when the same configuration gives another number; a test asks whenever the code that computes numbers changes
# (tests/studies/test_map_version.py).
MAP_VERSION = 7


@dataclass(frozen=True)
class MapType:
    """A map of a model.

    Attributes:
        about: What it is, for the help of commands.
        plural: What several of them are called in a title.
        take: "module:name" of the function that takes it from a layer; None for the whole model.
        by_weights: Whether it is a `SelfAttention`, with an exact derivative, in a family with an adapter.
        enters: Whose input it takes: "attention", "norm" or "layer".
        own_tokens: Whether queries, keys and values have to come from the same tokens.
        version: Part of the key of every record of the map; raised when its numbers change.
    """

    about: str
    plural: str
    take: str | None
    by_weights: bool = False
    enters: str = "layer"
    own_tokens: bool = True
    version: int = MAP_VERSION


MAPS = {
    "attention": MapType(
        "attention", "attention layers", "howsmooth.models.maps:attention_map", by_weights=True, enters="attention"
    ),
    "head": MapType(
        "each head alone", "attention heads", "howsmooth.models.maps:attention_map", by_weights=True, enters="attention"
    ),
    "normed": MapType("with the normalisation", "normed attention", "howsmooth.models.maps:normed_map", enters="norm"),
    "block": MapType("with the residual", "attention blocks", "howsmooth.models.maps:block_map"),
    "layer": MapType(
        "the whole Transformer layer", "Transformer layers", "howsmooth.models.maps:layer_map", own_tokens=False
    ),
    "model": MapType("the whole model", "layers together", None, own_tokens=False),
}
