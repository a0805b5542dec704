"""Texts: corpora from files, folders and datasets, and their division into chunks of n tokens.

Names are imported when they are first used: reading a corpus does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from howsmooth.lazy import attach

if TYPE_CHECKING:
    from howsmooth.texts.corpora import Corpus, default_text, read_corpus
    from howsmooth.texts.cutting import CUTTINGS, Cutter, TokenChunk, surrounding_special_tokens, tokenize, word
    from howsmooth.texts.generated import generated_text

__getattr__, __dir__ = attach(
    __name__,
    {
        "read_corpus": "howsmooth.texts.corpora",
        "Corpus": "howsmooth.texts.corpora",
        "default_text": "howsmooth.texts.corpora",
        "generated_text": "howsmooth.texts.generated",
        "Cutter": "howsmooth.texts.cutting",
        "TokenChunk": "howsmooth.texts.cutting",
        "CUTTINGS": "howsmooth.texts.cutting",
        "tokenize": "howsmooth.texts.cutting",
        "surrounding_special_tokens": "howsmooth.texts.cutting",
        "word": "howsmooth.texts.cutting",
    },
)

__all__ = [
    "read_corpus",
    "Corpus",
    "default_text",
    "generated_text",
    "Cutter",
    "TokenChunk",
    "CUTTINGS",
    "tokenize",
    "surrounding_special_tokens",
    "word",
]
