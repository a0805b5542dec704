"""Models: pretrained or random transformers, the maps of their layers, and the tokens that enter them.

The only package that imports transformers, and only when a name that needs it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from howsmooth.lazy import attach

if TYPE_CHECKING:
    from howsmooth.models.cache import cache_root
    from howsmooth.models.embedded import EMBEDDED
    from howsmooth.models.embedding import LanguageHead, PrefixCache, TokenEmbedding
    from howsmooth.models.gpt2_file import AttentionFile
    from howsmooth.models.hook import register
    from howsmooth.models.layers import Chain, layer_chain, replace_attention
    from howsmooth.models.loading import load
    from howsmooth.models.map_types import MAPS
    from howsmooth.models.maps import MapAt, OwnTokenMap
    from howsmooth.models.model import Model

__getattr__, __dir__ = attach(
    __name__,
    {
        "load": "howsmooth.models.loading",
        "Model": "howsmooth.models.model",
        "MapAt": "howsmooth.models.maps",
        "MAPS": "howsmooth.models.map_types",
        "register": "howsmooth.models.hook",
        "layer_chain": "howsmooth.models.layers",
        "Chain": "howsmooth.models.layers",
        "replace_attention": "howsmooth.models.layers",
        "OwnTokenMap": "howsmooth.models.maps",
        "TokenEmbedding": "howsmooth.models.embedding",
        "PrefixCache": "howsmooth.models.embedding",
        "LanguageHead": "howsmooth.models.embedding",
        "AttentionFile": "howsmooth.models.gpt2_file",
        "EMBEDDED": "howsmooth.models.embedded",
        "cache_root": "howsmooth.models.cache",
    },
)

__all__ = [
    "load",
    "Model",
    "MapAt",
    "MAPS",
    "register",
    "layer_chain",
    "Chain",
    "replace_attention",
    "OwnTokenMap",
    "TokenEmbedding",
    "PrefixCache",
    "LanguageHead",
    "AttentionFile",
    "EMBEDDED",
    "cache_root",
]
