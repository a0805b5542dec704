"""Cutting a tokenised text into chunks of n tokens, by one of three rules.

    consecutive   The whole text is tokenised; chunk s of length n starts where chunk s − 1 ends (the paper's rule).
                  Chunks of different lengths contain different text, so growth with n is confounded with the text.
    documents     Chunk s is the beginning of the s-th document that has n tokens or more.
    prefixes      Chunk s is the beginning of block s, and the blocks are the same for every n: only n changes.

Special tokens are those that the model's tokenizer adds to one text; they count among the n.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from torch import Tensor

from howsmooth.errors import InputError

if TYPE_CHECKING:
    from howsmooth.texts.corpora import Corpus


LONGEST_WORD = 1_000_000  # characters without white space: tokenizers need time and memory for each such word at once
MOST_CHARACTERS = 50_000  # of a token on average; a text with fewer tokens is hundreds of megabytes of a few words
_OVERLAP = 64  # tokens after those that are asked for: where a text is cut has no effect so far before the cut
_CHARACTERS = 8  # of one token, more than in most texts
_SEARCHED = 1024  # characters before a cut that are searched for the end of a word


@dataclass(frozen=True, eq=False)
class TokenChunk:
    """A chunk of n tokens, as a model takes it.

    Attributes:
        ids: Token numbers, (n,).
        special: True for tokens that the tokenizer added to the text, (n,).
        words: The n tokens as readable strings.
        start: The position of the first token in the tokenised text, or in its document.
        document: The index of the document, with the rule "documents".
    """

    ids: Tensor
    special: Tensor
    words: Sequence[str]
    start: int = 0
    document: int | None = None

    def __len__(self) -> int:
        """Return n."""
        return len(self.ids)

    @property
    def digest(self) -> str:
        """A hash of the token numbers, which identifies the chunk in other runs."""
        return hashlib.sha256(self.ids.numpy().astype(np.int64).tobytes()).hexdigest()[:16]

    @classmethod
    def placeholder(cls, n: int, word: str = "drawn") -> TokenChunk:
        """Return a chunk for n vectors that have no token numbers (-1); `word` stands for each of them."""
        return cls(torch.full((n,), -1), torch.zeros(n, dtype=torch.bool), (word,) * n)


class _DecodedTokens(Sequence[str]):
    """The tokens of a chunk as readable strings, decoded on access."""

    def __init__(self, tokenizer: Any, ids: Sequence[int]) -> None:
        self._tokenizer, self._ids = tokenizer, ids

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [word(self._tokenizer, token) for token in self._ids[index]]
        return word(self._tokenizer, self._ids[index])


class Cutter:
    """A corpus and a tokenizer: cuts chunks of any length. The corpus is tokenised as far as chunks were asked for.

    Attributes:
        tokenizer: The tokenizer of a transformers model.
        corpus: The corpus.
        rule: One of `CUTTINGS`.
        prefix: Special tokens at the start of each chunk.
        suffix: Special tokens at its end.
        special_count: How many special tokens a chunk has.
        block: With the rule "prefixes", the tokens of text in one block.

    Example:
        >>> import howsmooth
        >>> from howsmooth.texts import Corpus
        >>> model = howsmooth.load("minilm")
        >>> cutter = Cutter(model.tokenizer, Corpus("rain", ("It rained all day, and the river rose.",)))
        >>> [list(chunk.words) for chunk in cutter.chunks(5, 2)]
        [['[CLS]', 'it', 'rained', 'all', '[SEP]'], ['[CLS]', 'day', ',', 'and', '[SEP]']]
    """

    def __init__(
        self,
        tokenizer: Any,
        corpus: Corpus,
        rule: str = "consecutive",
        *,
        longest: int = 0,
        special_tokens: bool = True,
    ) -> None:
        """Take a tokenizer and a corpus.

        Args:
            tokenizer: The tokenizer of a transformers model.
            corpus: The corpus.
            rule: One of `CUTTINGS`.
            longest: With the rule "prefixes", the largest n that will be cut: the length of a block.
            special_tokens: Whether chunks include the tokenizer's special tokens.
        """
        self.tokenizer, self.corpus, self.rule = tokenizer, corpus, rule
        self.prefix, self.suffix = surrounding_special_tokens(tokenizer) if special_tokens else ([], [])
        self.special_count = len(self.prefix) + len(self.suffix)
        self.block = longest - self.special_count
        self._known: dict[int, np.ndarray] = {}  # the first token numbers of each text
        self._complete: set[int] = set()  # the texts of which all are known

    @cached_property
    def _texts(self) -> tuple[str, ...]:
        """The documents with the rule "documents", else one text."""
        return self.corpus.documents if self.rule == "documents" else (self.corpus.content,)

    def _ids(self, text: int, count: int | None = None) -> np.ndarray:
        """Return the first `count` token numbers of a text, or more; all if it has fewer, or without a count."""
        known = self._known.get(text, np.empty(0, dtype=np.int64))
        if text in self._complete or (count is not None and len(known) >= count):
            return known
        if count is not None:
            count = max(count, 2 * len(known))  # lengths that grow slowly do not start again each time
        ids = _beginning(self.tokenizer, self._texts[text], count)
        if ids is None:
            ids = tokenize(self.tokenizer, self._texts[text])
            self._complete.add(text)
        self._known[text] = np.asarray(ids, dtype=np.int64)
        return self._known[text]

    @property
    def tokens(self) -> int:
        """The number of tokens of the corpus, without special tokens; all of it is tokenised for that."""
        return sum(len(self._ids(text)) for text in range(len(self._texts)))

    def tokens_up_to(self, limit: int) -> int:
        """Return the number of tokens of the first text, or `limit` if it has more: the rest is not tokenised."""
        return min(limit, len(self._ids(0, limit)))

    def check(self, n: int, samples: int) -> None:
        """Check that the corpus has enough text for `samples` chunks of n tokens.

        Raises:
            InputError: n or samples is not a positive integer, n leaves no room for text, or the
                corpus is too short.
        """
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise InputError(f"expected a length n >= 1, got n = {n!r}; ask for at least one token")
        if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
            raise InputError(f"expected samples >= 1, got {samples!r}; ask for at least one sample")
        body = n - self.special_count
        if body < 1:
            raise InputError(
                f"expected n >= {self.special_count + 1} (the model adds {self.special_count} special tokens), got n = "
                f"{n}; ask for a larger n, or for none of them (special_tokens=False; --special-tokens "
                "none)"
            )
        if self.rule == "documents":
            found, wanted = len(self._long_documents(body, samples)), samples
            what = f"documents of {body} tokens or more"
        else:
            each = body if self.rule == "consecutive" else self.block
            wanted = samples * each
            found = self.tokens_up_to(wanted)
            what = f"tokens of text ({samples} × {each}, {self.rule})"
        if found < wanted:
            note = f" ({self.special_count} of each n are special)" if self.special_count else ""
            longer = " (--text generated has any length)" if self.corpus.name == "embedded" else ""
            raise InputError(
                f"expected {wanted} {what} in {self.corpus.name} for n = {n}{note}, got {found}; give a "
                f"longer text{longer}, a smaller n or fewer samples"
            )

    def count(self, n: int) -> int:
        """Return how many chunks of n tokens the corpus has; raise InputError if it has none."""
        self.check(n, 1)
        if self.rule == "documents":
            return len(self._long_documents(n - self.special_count))
        return self.tokens // (n - self.special_count if self.rule == "consecutive" else self.block)

    def chunk(self, n: int, sample: int) -> TokenChunk:
        """Return chunk number `sample` of n tokens; call `check` first."""
        body, document, start = n - self.special_count, None, 0
        if self.rule == "documents":
            document = self._long_documents(body, sample + 1)[sample]
        else:
            start = sample * (body if self.rule == "consecutive" else self.block)
        ids = self._ids(document or 0, start + body)
        whole = np.concatenate([self.prefix, ids[start : start + body], self.suffix]).astype(np.int64)
        special = torch.zeros(len(whole), dtype=torch.bool)
        special[: len(self.prefix)] = True
        special[len(whole) - len(self.suffix) :] = True
        return TokenChunk(
            torch.from_numpy(whole), special, _DecodedTokens(self.tokenizer, whole.tolist()), start, document
        )

    def chunks(self, n: int, samples: int | None = None) -> list[TokenChunk]:
        """Return the first `samples` chunks of n tokens, or all of them."""
        if samples is not None:
            self.check(n, samples)
        return [self.chunk(n, sample) for sample in range(self.count(n) if samples is None else samples)]

    def _long_documents(self, body: int, count: int | None = None) -> list[int]:
        """Return the indices of the first `count` documents with at least `body` tokens, or of all."""
        long = (text for text in range(len(self._texts)) if len(self._ids(text, body)) >= body)
        return list(islice(long, count))


def tokenize(tokenizer: Any, text: str) -> list[int]:
    """Return the token numbers of a text, without special tokens and without truncation."""
    if not isinstance(text, str):
        raise InputError(f"expected a text (str), got {type(text).__name__}; decode or join it first")
    if not text.strip():
        raise InputError("expected a text, got an empty one; give a text with words in it")
    ids = _encode(tokenizer, text)
    if not ids:
        raise InputError("expected a text, got one without a single token of this model; give another text")
    return ids


def first_tokens(tokenizer: Any, text: str, count: int | None) -> list[int]:
    """Return the first `count` token numbers of a text, as if all of it were tokenised; all if it has fewer.

    Only a beginning of the text is tokenised, and a second one of twice the length. Where a tokenizer can be cut is not
    known in general, so both must agree in the tokens that are asked for, and have many more; otherwise longer ones are
    tokenised, in the end the whole text.

    Args:
        tokenizer: The tokenizer of a transformers model.
        text: The text.
        count: How many tokens; None for all.

    Raises:
        InputError: The text has no token, a word that is too long, or hardly any token in very many characters.
    """
    found = _beginning(tokenizer, text, count)
    return tokenize(tokenizer, text)[:count] if found is None else found


def _beginning(tokenizer: Any, text: str, count: int | None) -> list[int] | None:
    """Return the first `count` tokens as `first_tokens` does; None if the whole text has to be tokenised for them."""
    if count is None or not isinstance(text, str):
        return None
    end, shorter = _CHARACTERS * (count + _OVERLAP), None
    while 2 * end < len(text):
        longer = _encode(tokenizer, text[: _word_end(text, end)])
        if shorter is not None and len(shorter) >= count + _OVERLAP and longer[:count] == shorter[:count]:
            return longer[:count]
        if len(longer) < count + _OVERLAP and end > MOST_CHARACTERS * (count + _OVERLAP):
            raise InputError(
                f"expected a token in {MOST_CHARACTERS:,} characters of the text, got {len(longer)} in the first "
                f"{end:,}; shorten its words or its white space"
            )
        shorter, end = longer, 2 * end
    return None


def _word_end(text: str, end: int) -> int:
    """Return where to cut a text: the last end of a word before `end`, or `end` if there is none near it."""
    found = [match.start() for match in re.finditer(r"(?<=\S)\s", text[max(0, end - _SEARCHED) : end])]
    return max(0, end - _SEARCHED) + found[-1] if found else end


def _encode(tokenizer: Any, text: str) -> list[int]:
    """Return the token numbers of a text, without special tokens; raise InputError for a word that is too long."""
    if re.search(rf"(?<!\S)\S{{{LONGEST_WORD + 1}}}", text):
        raise InputError(
            f"expected words of at most {LONGEST_WORD:,} characters, got a longer one; put white space into the text"
        )
    encoded = tokenizer(text, add_special_tokens=False, truncation=False, padding=False, verbose=False)
    return list(encoded["input_ids"])


def surrounding_special_tokens(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return the special tokens that the tokenizer adds before and after one text."""
    probe = tokenizer("a", return_special_tokens_mask=True, truncation=False, padding=False, verbose=False)
    ids, special = probe["input_ids"], probe["special_tokens_mask"]
    if not any(special):
        return [], []
    start = special.index(0)
    stop = len(special) - special[::-1].index(0)
    return ids[:start], ids[stop:]


def word(tokenizer: Any, token: int) -> str:
    """Return a token as readable text: no byte-level marks; white space is escaped. Without a tokenizer, its number."""
    if tokenizer is None:
        return f"#{token}"
    text = tokenizer.decode([token])
    if "\ufffd" in text:  # part of a character, which cannot be decoded alone
        return tokenizer.convert_ids_to_tokens(token)
    return text.strip() or repr(text)[1:-1]
