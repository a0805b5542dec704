"""From a text to chunks of n tokens, by one of three rules: the only cutter there is.

    consecutive   one long tokenisation; chunk s of length n starts where chunk s − 1 ends (the paper's rule). Chunks of
                  different lengths are different text, so growth in n is mixed up with text and place.
    documents     chunk s is the beginning of the s-th document that has n tokens or more.
    prefixes      chunk s is the beginning of one block per sample, the same block for every n: growth in n alone.

Special tokens are those that the model's tokenizer puts around one text; they count among the n.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from howsmooth.errors import InputError
from howsmooth.texts.corpora import Corpus

CUTTINGS = ("consecutive", "documents", "prefixes")


@dataclass(frozen=True, eq=False)
class TokenChunk:
    """`n` tokens of a text, as the model sees them.

    ids: (n,) token numbers; special: (n,) True where the tokenizer, not the text, put the token; words: n readable
    strings; start: the place of the first token in the tokenised text, or in its document.
    """

    ids: Tensor
    special: Tensor
    words: Sequence[str]
    start: int = 0
    document: int | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def digest(self) -> str:
        """A hash of the token numbers, to recognise the same chunk in another run."""
        return hashlib.sha256(self.ids.numpy().astype(np.int64).tobytes()).hexdigest()[:16]

    @classmethod
    def drawn(cls, n: int) -> TokenChunk:
        """Return a chunk for n tokens that are drawn at random, not read: they have no numbers and no words."""
        return cls(torch.full((n,), -1), torch.zeros(n, dtype=torch.bool), ("drawn",) * n)


class Words(Sequence):
    """The tokens of a chunk as readable strings, decoded when they are looked at."""

    def __init__(self, tokenizer: Any, ids: Sequence[int]):
        self._tokenizer, self._ids = tokenizer, ids

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [word(self._tokenizer, i) for i in self._ids[at]]
        return word(self._tokenizer, self._ids[at])


class Cutter:
    """A corpus, tokenised once by one tokenizer, ready to be cut at any length."""

    def __init__(
        self,
        tokenizer: Any,
        corpus: Corpus,
        rule: str = "consecutive",
        *,
        longest: int = 0,
        special_tokens: bool = True,
    ):
        """Tokenise the corpus; `longest` is the length of the blocks of "prefixes"."""
        self.tokenizer, self.corpus, self.rule = tokenizer, corpus, rule
        self.before, self.after = special_frame(tokenizer) if special_tokens else ([], [])
        self.framed = len(self.before) + len(self.after)
        self.block = longest - self.framed

    @cached_property
    def _tokenised(self) -> tuple[np.ndarray, list[int]]:
        """All token numbers, and where each document ends; one document unless the rule is about documents."""
        texts = self.corpus.documents if self.rule == "documents" else (self.corpus.content,)
        each = [np.asarray(tokenize(self.tokenizer, text), dtype=np.int64) for text in texts]
        return np.concatenate(each), list(accumulate(len(ids) for ids in each))

    @property
    def tokens(self) -> int:
        """How many tokens the corpus has, special tokens not counted."""
        return len(self._tokenised[0])

    def check(self, n: int, samples: int) -> None:
        """Refuse a length that the corpus is too short for, or that special tokens fill."""
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise InputError(f"expected a length n >= 1, got n = {n!r}; ask for at least one token")
        if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
            raise InputError(f"expected samples >= 1, got {samples!r}; ask for at least one sample")
        body = n - self.framed
        if body < 1:
            raise InputError(
                f"expected n >= {self.framed + 1} (the model adds {self.framed} special tokens), got n = "
                f"{n}; ask for a larger n, or for none of them (special_tokens=False; --special-tokens "
                "none)"
            )
        if self.rule == "documents":
            found, wanted, what = len(self._fitting(body)), samples, f"documents of {body} tokens or more"
        else:
            each = body if self.rule == "consecutive" else self.block
            found, wanted = self.tokens, samples * each
            what = f"tokens of text ({samples} × {each}, {self.rule})"
        if found < wanted:
            framed = f" ({self.framed} of each n are special)" if self.framed else ""
            raise InputError(
                f"expected {wanted} {what} in {self.corpus.name} for n = {n}{framed}, got {found}; give a "
                "longer text, a smaller n or fewer samples"
            )

    def fit(self, n: int) -> int:
        """How many chunks of n tokens there are, at least one or an error."""
        self.check(n, 1)
        if self.rule == "documents":
            return len(self._fitting(n - self.framed))
        return self.tokens // (n - self.framed if self.rule == "consecutive" else self.block)

    def chunk(self, n: int, sample: int) -> TokenChunk:
        """Return the chunk of one sample."""
        ids, ends = self._tokenised
        body, document = n - self.framed, None
        if self.rule == "documents":
            document = self._fitting(body)[sample]
            start, place = ends[document - 1] if document else 0, 0
        else:
            start = place = sample * (body if self.rule == "consecutive" else self.block)
        whole = np.concatenate([self.before, ids[start : start + body], self.after]).astype(np.int64)
        special = torch.zeros(len(whole), dtype=torch.bool)
        special[: len(self.before)] = True
        special[len(whole) - len(self.after) :] = True
        return TokenChunk(torch.from_numpy(whole), special, Words(self.tokenizer, whole.tolist()), place, document)

    def chunks(self, n: int, samples: int | None = None) -> list[TokenChunk]:
        """Return the chunks of the first `samples` samples, all that there are if None."""
        if samples is not None:
            self.check(n, samples)
        return [self.chunk(n, sample) for sample in range(self.fit(n) if samples is None else samples)]

    def _fitting(self, body: int) -> list[int]:
        """Documents of at least so many tokens."""
        return np.flatnonzero(np.diff([0, *self._tokenised[1]]) >= body).tolist()


def tokenize(tokenizer: Any, text: str) -> list[int]:
    """Return the token numbers of a text, without special tokens and without any cut."""
    if not isinstance(text, str):
        raise InputError(f"expected a text (str), got {type(text).__name__}; decode or join it first")
    if not text.strip():
        raise InputError("expected a text, got an empty one; give a text with words in it")
    encoded = tokenizer(text, add_special_tokens=False, truncation=False, padding=False, verbose=False)
    ids = encoded["input_ids"]
    if not ids:
        raise InputError("expected a text, got one without a single token of this model; give another text")
    return list(ids)


def special_frame(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return the special tokens that the tokenizer puts before and after one text."""
    probe = tokenizer("a", return_special_tokens_mask=True, truncation=False, padding=False, verbose=False)
    ids, special = probe["input_ids"], probe["special_tokens_mask"]
    if not any(special):
        return [], []
    start = special.index(0)
    stop = len(special) - special[::-1].index(0)
    return ids[:start], ids[stop:]


def word(tokenizer: Any, token: int) -> str:
    """Return a token as a reader would write it: no byte-level marks, blanks made visible."""
    text = tokenizer.decode([token])
    if "\ufffd" in text:  # part of a character: only the vocabulary's own spelling can name it
        return tokenizer.convert_ids_to_tokens(token)
    return text.strip() or repr(text)[1:-1]
