"""What an attack on tokens may do: how many edits, of which kinds, where, and how unlike the original."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from howsmooth.attack.tokens.edits import KINDS
from howsmooth.errors import InputError


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
            raise InputError(f"expected a text of at least 2 tokens, got {sum(not s for s in special)}; give a longer "
                             "text")
        outside = [place for place in self.protected if not -n <= place < n]
        if outside:
            raise InputError(f"expected protected places within {n} tokens, got {outside[0]}")
        held = {place % n for place in self.protected}
        free = [i for i in range(n) if not special[i] and i not in held]
        if self.edits > len(free):
            raise InputError(f"expected an edit budget of at most {len(free)} (the tokens that may be edited), got "
                             f"{self.edits}; allow fewer edits or give a longer text")
        if n + self.edits > positions and set(self.allow) != {"substitute"}:
            raise InputError(f"expected room for {self.edits} more tokens within the model's {positions} positions, "
                             f"got a text of {n}; shorten it, or allow substitutions alone")
        return free

    def as_record(self) -> dict:
        return {"edits": self.edits, "allow": list(self.allow), "protected": list(self.protected),
                "similarity": self.similarity, "retokenise": self.retokenise}


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
