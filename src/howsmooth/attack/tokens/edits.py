"""Edits of a text in tokens, and what an attack may do: how many edits, which, where, and how unlike the original.

An edit substitutes a token, inserts one before it, or duplicates it. Places are those of the original text, one edit at
each at most, so that edits commute and can be shown beside it. Limits say which edits an attack may make; only tokens
that a text can hold may be written; a second model may judge whether two texts still mean the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from howsmooth.errors import InputError

if TYPE_CHECKING:
    from howsmooth.models import Model

KINDS = ("substitute", "insert", "duplicate")
_BLOCK = 8192


@dataclass(frozen=True, order=True)
class Edit:
    """One edit at a `position` of the original text; `token` is what comes in, for a duplicate the token there."""

    position: int
    kind: str
    token: int

    def as_record(self) -> dict:
        return asdict(self)


def apply(ids: Sequence[int], edits: Iterable[Edit]) -> list[int]:
    """The text after all edits.

    >>> apply([7, 8, 9], [Edit(0, "substitute", 5), Edit(2, "insert", 6)])
    [5, 8, 6, 9]
    >>> apply([7, 8, 9], [Edit(1, "duplicate", 8)])
    [7, 8, 8, 9]
    """
    made = list(ids)
    for edit in sorted(_checked(ids, edits), reverse=True):
        if edit.kind == "substitute":
            made[edit.position] = edit.token
        else:
            made.insert(edit.position, edit.token)
    return made


def kept(n: int, edits: Iterable[Edit]) -> list[int]:
    """Where each of the n original tokens, or its substitute, stands after the edits.

    >>> kept(3, [Edit(1, "insert", 6)])
    [0, 2, 3]
    """
    longer = sorted(edit.position for edit in edits if edit.kind != "substitute")
    return [i + sum(position <= i for position in longer) for i in range(n)]


def first_change(edits: Iterable[Edit], n: int) -> int:
    """How many leading tokens the edited text shares with the original; a duplicate differs after its token."""
    return min((edit.position + (edit.kind == "duplicate") for edit in edits), default=n)


def _checked(ids: Sequence[int], edits: Iterable[Edit]) -> list[Edit]:
    edits = list(edits)
    if len({edit.position for edit in edits}) < len(edits):
        raise InputError("expected one edit at each place, got two at one; edit another place")
    for edit in edits:
        if edit.kind not in KINDS or not 0 <= edit.position < len(ids):
            raise InputError(f"expected an edit of {', '.join(KINDS)} within {len(ids)} tokens, got {edit}")
        if edit.kind == "duplicate" and edit.token != ids[edit.position]:
            raise InputError(f"expected a duplicate of token {ids[edit.position]}, got {edit}; insert another one")
    return edits


@dataclass(frozen=True)
class Limits:
    """edits: how many at most. allow: kinds of edits. protected: places that stay as they are, negative ones counted
    from the end; special tokens always do. similarity: least cosine of the embeddings of a token and what takes its
    place (or is put before it). retokenise: whether the edited text has to be read as the same tokens again, where the
    original is.

    By default the last token stays: with it the question to a language model would be another one.
    """

    edits: int = 1
    allow: tuple[str, ...] = KINDS
    protected: tuple[int, ...] = (-1,)
    similarity: float | None = None
    retokenise: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.edits, bool) or not isinstance(self.edits, int) or self.edits < 1:
            raise InputError(f"expected an edit budget of at least 1, got {self.edits!r}; allow one edit or more")
        if not self.allow or set(self.allow) - set(KINDS):
            raise InputError(f"expected kinds of edits among {', '.join(KINDS)}, got {self.allow!r}")
        if self.similarity is not None and not -1 <= self.similarity <= 1:
            raise InputError(f"expected a cosine similarity from -1 to 1, got {self.similarity!r}")

    def places(self, special: list[bool], positions: int) -> list[int]:
        """The places of a text that may be edited; refused if they are fewer than the budget."""
        n = len(special)
        if sum(not s for s in special) < 2:
            raise InputError(
                f"expected a text of at least 2 tokens, got {sum(not s for s in special)}; give a longer text"
            )
        outside = [place for place in self.protected if not -n <= place < n]
        if outside:
            raise InputError(f"expected protected places within {n} tokens, got {outside[0]}")
        held = {place % n for place in self.protected}
        free = [i for i in range(n) if not special[i] and i not in held]
        if self.edits > len(free):
            raise InputError(
                f"expected an edit budget of at most {len(free)} (the tokens that may be edited), got "
                f"{self.edits}; allow fewer edits or give a longer text"
            )
        if n + self.edits > positions and set(self.allow) != {"substitute"}:
            raise InputError(
                f"expected room for {self.edits} more tokens within the model's {positions} positions, "
                f"got a text of {n}; shorten it, or allow substitutions alone"
            )
        return free

    def as_record(self) -> dict:
        return {
            "edits": self.edits,
            "allow": list(self.allow),
            "protected": list(self.protected),
            "similarity": self.similarity,
            "retokenise": self.retokenise,
        }


@dataclass(frozen=True, eq=False)
class Room:
    """What the limits leave of one text: places, and for each the tokens that may come there."""

    places: list[int]
    writable: Tensor = field(repr=False)  # (vocabulary,)
    matrix: Tensor = field(repr=False)  # (vocabulary, d)
    similarity: float | None = None

    def tokens(self, ids: Tensor, places: Tensor) -> Tensor:
        """(len(places), vocabulary): True where a token may come; never the token that is there."""
        open = self.writable.expand(len(places), -1).clone()
        if self.similarity is not None:
            there = torch.nn.functional.normalize(self.matrix[ids[places]], dim=-1)
            open &= there @ torch.nn.functional.normalize(self.matrix, dim=-1).T >= self.similarity
        open[torch.arange(len(places)), ids[places]] = False
        return open


def writable(model) -> Tensor:
    """True (vocabulary,) for tokens that are no special or added ones, that print, and that re-tokenise to themselves.

    A token re-tokenises to itself where the text that it stands for, alone, is read as that token again. Continuations
    of words (##ing) do not; neither do parts of a character.
    """
    tokenizer = model._need_tokenizer()
    size = model.network.config.vocab_size
    special = set(tokenizer.all_special_ids) | set(tokenizer.get_added_vocab().values())
    known = [token for token in sorted(set(tokenizer.get_vocab().values())) if token < size and token not in special]
    mask = torch.zeros(size, dtype=torch.bool)
    for start in range(0, len(known), _BLOCK):
        block = known[start : start + _BLOCK]
        texts = tokenizer.batch_decode([[token] for token in block])
        again = tokenizer(texts, add_special_tokens=False, truncation=False, padding=False, verbose=False)["input_ids"]
        for token, text, ids in zip(block, texts, again, strict=True):
            mask[token] = ids == [token] and bool(text.strip()) and text.strip().isprintable()
    if not mask.any():
        raise InputError(
            "expected tokens that re-tokenise to themselves, got none in the vocabulary of "
            f"{model.name!r}; name another tokenizer"
        )
    return mask


def round_trips(tokenizer, ids: list[int], special: list[bool]) -> bool:
    """Whether the text of these tokens, without the special ones, is read as the same tokens again."""
    body = [token for token, is_special in zip(ids, special, strict=True) if not is_special]
    text = tokenizer.decode(body, clean_up_tokenization_spaces=False)
    again = tokenizer(text, add_special_tokens=False, truncation=False, padding=False, verbose=False)
    return again["input_ids"] == body


@dataclass(frozen=True, eq=False)
class SentenceJudge:
    """Accepts a text whose embedding has at least this cosine with the original's: MiniLM, mean over all tokens."""

    model: Model
    least: float
    _embed: Callable[[str], Tensor] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not -1 <= self.least <= 1:
            raise InputError(f"expected a cosine similarity from -1 to 1, got {self.least!r}")
        object.__setattr__(self, "_embed", lru_cache(maxsize=64)(self._embedding))

    def similarity(self, text: str, other: str) -> float:
        return float(torch.nn.functional.cosine_similarity(self._embed(text), self._embed(other), dim=0))

    def accepts(self, text: str, other: str) -> bool:
        return self.similarity(text, other) >= self.least

    @torch.no_grad()
    def _embedding(self, text: str) -> Tensor:
        ids = self.model._need_tokenizer()(text, truncation=True, max_length=self.model.positions, verbose=False)
        at = self.model.network(input_ids=torch.tensor([ids["input_ids"]], device=self.model.device))
        return at.last_hidden_state[0].mean(0)
