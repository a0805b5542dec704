from howsmooth.texts.corpora import read_corpus as read_corpus, Corpus as Corpus, default_text as default_text
from howsmooth.texts.corpora import generated_text as generated_text
from howsmooth.choices import CUTTINGS as CUTTINGS
from howsmooth.texts.cutting import (
    Cutter as Cutter,
    TokenChunk as TokenChunk,
    tokenize as tokenize,
    surrounding_special_tokens as surrounding_special_tokens,
    word as word,
)
