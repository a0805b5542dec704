"""From a corpus to pieces of n tokens, by one of three rules.

    consecutive   one long tokenisation, piece s of length n starts where piece s − 1 ends (the paper's rule). Pieces of
                  different lengths are different text, so growth in n is mixed up with text and place.
    documents     piece s is the beginning of the s-th document that has n tokens or more.
    prefixes      piece s is the beginning of one block per sample, the same block for every n: growth in n alone.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

import numpy as np

from howsmooth.errors import InputError
from howsmooth.models import Model
from howsmooth.models.tokens import special_frame
from howsmooth.texts.corpora import Corpus


@dataclass(frozen=True, eq=False)
class Piece:
    """n token numbers as the model will see them, and where in the corpus they start."""

    ids: tuple[int, ...]
    special: tuple[bool, ...]  # put there by the tokenizer, not by the text
    start: int  # the first token's place in the long tokenisation, or in its document
    document: int | None = None

    @property
    def digest(self) -> str:
        return hashlib.sha256(np.asarray(self.ids, dtype=np.int64).tobytes()).hexdigest()[:16]


class Cutter:
    """A corpus, tokenised once for one model, ready to be cut at any length."""

    def __init__(self, model: Model, corpus: Corpus, rule: str, longest: int, special_tokens: bool):
        self.name, self.rule = corpus.name, rule
        if rule == "documents":
            each = [model.tokenize(document) for document in corpus.documents]
            self.ids = np.concatenate([np.asarray(ids, dtype=np.int32) for ids in each])
            self.ends = list(accumulate(len(ids) for ids in each))
        else:
            self.ids = np.asarray(model.tokenize(corpus.content), dtype=np.int32)
            self.ends = [len(self.ids)]
        self.before, self.after = special_frame(model.tokenizer) if special_tokens else ([], [])
        self.framed = len(self.before) + len(self.after)
        self.block = longest - self.framed

    def check(self, n: int, samples: int) -> None:
        """Refuse a length that the corpus is too short for, in terms of what was asked."""
        body = n - self.framed
        if body < 1:
            raise InputError(f"expected lengths of at least {self.framed + 1} (the model adds {self.framed} special "
                             f"tokens), got {n}; ask for longer ones or special_tokens = false")
        if self.rule == "documents":
            found, what = len(self._fitting(body)), f"documents of {body} tokens or more"
            wanted = samples
        else:
            each = body if self.rule == "consecutive" else self.block
            found, wanted = len(self.ids), samples * each
            what = f"tokens of text ({samples} pieces of {each}, {self.rule})"
        if found < wanted:
            raise InputError(f"expected {wanted} {what} in the corpus {self.name} for n = {n}, got {found}; give a "
                             "longer corpus, a smaller n or fewer samples")

    def piece(self, n: int, sample: int) -> Piece:
        body, document = n - self.framed, None
        if self.rule == "documents":
            document = self._fitting(body)[sample]
            start, place = self.ends[document - 1] if document else 0, 0
        else:
            start = place = sample * (body if self.rule == "consecutive" else self.block)
        ids = (*self.before, *self.ids[start : start + body].tolist(), *self.after)
        special = (True,) * len(self.before) + (False,) * body + (True,) * len(self.after)
        return Piece(ids, special, place, document)

    @cache
    def _fitting(self, body: int) -> list[int]:
        return np.flatnonzero(np.diff([0, *self.ends]) >= body).tolist()

