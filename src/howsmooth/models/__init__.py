"""Models: pretrained or random transformers, the maps of their layers, and the tokens that enter them.

The only package that imports transformers.
"""

from __future__ import annotations

from howsmooth.models.cache import cache_root
from howsmooth.models.embedding import LanguageHead, PrefixCache, TokenEmbedding
from howsmooth.models.gpt2_file import AttentionFile
from howsmooth.models.hook import register
from howsmooth.models.layers import Chain, layer_chain, replace_attention
from howsmooth.models.loading import load
from howsmooth.models.locations import EMBEDDED
from howsmooth.models.maps import KINDS, MapAt, OwnTokenMap
from howsmooth.models.model import Model

__all__ = [
    "load",
    "Model",
    "MapAt",
    "KINDS",
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
