"""Edits of a text, and the limits of an attack on tokens.

An edit substitutes a token, inserts one before it, or duplicates it. Positions are those of the original text, with at
most one edit at each, so that edits commute and can be shown next to it. `EditLimits` restrict the number, operations,
positions and tokens of edits. Only tokens that can occur in a text may be written. A second model may check that the
edited text is still similar to the original (`SentenceSimilarity`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from howsmooth.choices import OPERATIONS
from howsmooth.errors import InputError

if TYPE_CHECKING:
    from howsmooth.models.model import Model

DECODING_BATCH = 8192  # tokens of the vocabulary that are decoded at once


@dataclass(frozen=True, order=True)
class Edit:
    """One edit of a text.

    Attributes:
        position: in the original text.
        operation: "substitute", "insert" (before the position) or "duplicate".
        token: the id of the new token; for a duplicate that of the token at the position.
    """

    position: int
    operation: str
    token: int

    def as_record(self) -> dict[str, Any]:
        """Return all fields as plain values."""
        return asdict(self)


def apply(ids: Sequence[int], edits: Iterable[Edit]) -> list[int]:
    """Return the token ids after all edits.

    Args:
        ids: the original token ids.
        edits: at most one for each position.

    Raises:
        InputError: two edits have the same position, or one does not fit the text.

    Example:
        >>> apply([7, 8, 9], [Edit(0, "substitute", 5), Edit(2, "insert", 6)])
        [5, 8, 6, 9]
        >>> apply([7, 8, 9], [Edit(1, "duplicate", 8)])
        [7, 8, 8, 9]
    """
    edited = list(ids)
    for edit in sorted(_checked(ids, edits), reverse=True):
        if edit.operation == "substitute":
            edited[edit.position] = edit.token
        else:
            edited.insert(edit.position, edit.token)
    return edited


def positions_after(n: int, edits: Iterable[Edit]) -> list[int]:
    """Return the position of each of the n original tokens, or of its substitute, after the edits.

    Example:
        >>> positions_after(3, [Edit(1, "insert", 6)])
        [0, 2, 3]
    """
    insertions = sorted(edit.position for edit in edits if edit.operation != "substitute")
    return [i + sum(position <= i for position in insertions) for i in range(n)]


def shared_prefix(edits: Iterable[Edit], n: int) -> int:
    """Return how many leading tokens the edited text shares with the original of n tokens.

    Example:
        >>> shared_prefix([Edit(2, "substitute", 6)], 5), shared_prefix([Edit(2, "duplicate", 6)], 5)
        (2, 3)
    """
    return min((edit.position + (edit.operation == "duplicate") for edit in edits), default=n)


def _checked(ids: Sequence[int], edits: Iterable[Edit]) -> list[Edit]:
    edits = list(edits)
    if len({edit.position for edit in edits}) < len(edits):
        raise InputError("expected at most one edit at each position, got two at one; edit another position")
    for edit in edits:
        if edit.operation not in OPERATIONS or not 0 <= edit.position < len(ids):
            raise InputError(f"expected an edit of {', '.join(OPERATIONS)} within {len(ids)} tokens, got {edit}")
        if edit.operation == "duplicate" and edit.token != ids[edit.position]:
            raise InputError(f"expected a duplicate of token {ids[edit.position]}, got {edit}; insert another one")
    return edits


@dataclass(frozen=True)
class EditLimits:
    """What edits an attack may make.

    Attributes:
        edits: how many at most.
        allow: the operations, of `OPERATIONS`.
        protected: positions that may not be edited, negative ones counted from the end; special tokens never are
            edited. By default it is the last token: with another last token a language model predicts something else.
        similarity: the least cosine between the embeddings of a token and of its substitute (or of the token inserted
            before it); None for no such limit.
        retokenise: whether the edited text must be tokenised to the edited tokens, if this is so for the original.
    """

    edits: int = 1
    allow: tuple[str, ...] = OPERATIONS
    protected: tuple[int, ...] = (-1,)
    similarity: float | None = None
    retokenise: bool = True

    def __post_init__(self) -> None:
        """Check the fields."""
        if isinstance(self.edits, bool) or not isinstance(self.edits, int) or self.edits < 1:
            raise InputError(f"expected an edit budget of at least 1, got {self.edits!r}; allow one edit or more")
        if not self.allow or set(self.allow) - set(OPERATIONS):
            raise InputError(f"expected operations among {', '.join(OPERATIONS)}, got {self.allow!r}")
        if self.similarity is not None and not -1 <= self.similarity <= 1:
            raise InputError(f"expected a cosine similarity from -1 to 1, got {self.similarity!r}")

    def editable_positions(self, special: Sequence[bool], max_length: int | None = None) -> list[int]:
        """Return the positions of a text that may be edited.

        Args:
            special: for each token, whether it is a special one.
            max_length: the largest number of tokens that the model takes; None if there is none.

        Raises:
            InputError: the text is too short for the edit budget, or too long for insertions.
        """
        n = len(special)
        ordinary = n - sum(special)
        if ordinary < 2:
            raise InputError(f"expected a text of at least 2 tokens, got {ordinary}; give a longer text")
        outside = [position for position in self.protected if not -n <= position < n]
        if outside:
            raise InputError(f"expected protected positions within {n} tokens, got {outside[0]}")
        protected = {position % n for position in self.protected}
        editable = [i for i in range(n) if not special[i] and i not in protected]
        if self.edits > len(editable):
            raise InputError(
                f"expected an edit budget of at most {len(editable)} (the tokens that may be edited), got "
                f"{self.edits}; allow fewer edits or give a longer text"
            )
        if max_length is not None and n + self.edits > max_length and set(self.allow) != {"substitute"}:
            raise InputError(
                f"expected a text that can grow by {self.edits} tokens within the model's {max_length} positions, "
                f"got one of {n}; shorten it, or allow substitutions alone"
            )
        return editable

    def as_record(self) -> dict[str, Any]:
        """Return all fields as plain values."""
        return {
            "edits": self.edits,
            "allow": list(self.allow),
            "protected": list(self.protected),
            "similarity": self.similarity,
            "retokenise": self.retokenise,
        }


@dataclass(frozen=True, eq=False)
class SearchSpace:
    """The substitutions and insertions that the limits allow in one text.

    Attributes:
        positions: the positions that may be edited.
        writable: the tokens that may be written, True or False, (vocabulary,).
        matrix: the embedding matrix (vocabulary, d).
        similarity: the least cosine between the embeddings of a token and of its substitute.
    """

    positions: list[int]
    writable: Tensor = field(repr=False)
    matrix: Tensor = field(repr=False)
    similarity: float | None = None

    def allowed_tokens(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Return which tokens may be written at each position, (positions, vocabulary); never the one it has."""
        allowed = self.writable.expand(len(positions), -1).clone()
        if self.similarity is not None:
            current = torch.nn.functional.normalize(self.matrix[ids[positions]], dim=-1)
            allowed &= current @ torch.nn.functional.normalize(self.matrix, dim=-1).T >= self.similarity
        allowed[torch.arange(len(positions)), ids[positions]] = False
        return allowed


def writable_tokens(model: Model) -> Tensor:
    """Return which tokens of the vocabulary may be written, True or False, (vocabulary,).

    These are the tokens that are not special or added, that are printable, and whose text alone is tokenised to the
    token itself. Continuations of words (##ing) and parts of a character are not.
    """
    tokenizer = model.require_tokenizer()
    size = model.network.config.vocab_size
    special = set(tokenizer.all_special_ids) | set(tokenizer.get_added_vocab().values())
    known = [token for token in sorted(set(tokenizer.get_vocab().values())) if token < size and token not in special]
    mask = torch.zeros(size, dtype=torch.bool)
    for start in range(0, len(known), DECODING_BATCH):
        batch = known[start : start + DECODING_BATCH]
        texts = tokenizer.batch_decode([[token] for token in batch])
        encoded = tokenizer(texts, add_special_tokens=False, truncation=False, padding=False, verbose=False)
        for token, text, ids in zip(batch, texts, encoded["input_ids"], strict=True):
            mask[token] = ids == [token] and bool(text.strip()) and text.strip().isprintable()
    if not mask.any():
        raise InputError(
            "expected tokens that re-tokenise to themselves, got none in the vocabulary of "
            f"{model.name!r}; name another tokenizer"
        )
    return mask


def retokenises(tokenizer: Any, ids: Sequence[int], special: Sequence[bool]) -> bool:
    """Return whether the text of these tokens, without the special ones, is tokenised to the same tokens."""
    ordinary = [token for token, is_special in zip(ids, special, strict=True) if not is_special]
    text = tokenizer.decode(ordinary, clean_up_tokenization_spaces=False)
    encoded = tokenizer(text, add_special_tokens=False, truncation=False, padding=False, verbose=False)
    return encoded["input_ids"] == ordinary


@dataclass(frozen=True, eq=False)
class SentenceSimilarity:
    """A limit on the cosine between the embeddings of the edited and the original text.

    Attributes:
        model: the model of the embeddings, which are means over all tokens, special ones included.
        least: the least cosine.
    """

    model: Model
    least: float
    _embed: Callable[[str], Tensor] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Check the least cosine."""
        if not -1 <= self.least <= 1:
            raise InputError(f"expected a cosine similarity from -1 to 1, got {self.least!r}")
        object.__setattr__(self, "_embed", lru_cache(maxsize=64)(self._embedding))

    def similarity(self, text: str, other: str) -> float:
        """Return the cosine of two texts."""
        return float(torch.nn.functional.cosine_similarity(self._embed(text), self._embed(other), dim=0))

    def accepts(self, text: str, other: str) -> bool:
        """Return whether two texts are similar enough."""
        return self.similarity(text, other) >= self.least

    @torch.no_grad()
    def _embedding(self, text: str) -> Tensor:
        ids = self.model.require_tokenizer()(text, truncation=True, max_length=self.model.positions, verbose=False)
        output = self.model.network(input_ids=torch.tensor([ids["input_ids"]], device=self.model.device))
        return output.last_hidden_state[0].mean(0)
