"""Models: pretrained or random transformers, the tokens entering their attention, and the map itself.

The one package that imports transformers.
"""

from __future__ import annotations

from howsmooth.models.cache import cache_root
from howsmooth.models.embedding import LanguageHead, Prefix, TokenEmbedding
from howsmooth.models.gpt2_file import AttentionFile
from howsmooth.models.hook import register
from howsmooth.models.layers import Chain, layer_chain, replaced
from howsmooth.models.loading import load
from howsmooth.models.locations import EMBEDDED
from howsmooth.models.maps import KINDS, MapAt, OwnMap
from howsmooth.models.model import Model
from howsmooth.texts.cutting import TokenChunk

__all__ = [
    "EMBEDDED",
    "KINDS",
    "AttentionFile",
    "Chain",
    "LanguageHead",
    "MapAt",
    "Model",
    "OwnMap",
    "Prefix",
    "TokenChunk",
    "TokenEmbedding",
    "cache_root",
    "layer_chain",
    "load",
    "register",
    "replaced",
]
