"""A second model that says whether two texts still mean the same: a limit for attacks, by sentence embeddings."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from howsmooth.errors import InputError

if TYPE_CHECKING:
    from howsmooth.models import Model


@dataclass(frozen=True, eq=False)
class SentenceJudge:
    """Accepts a text whose embedding has at least this cosine with the original's: MiniLM, mean over all tokens."""

    model: Model
    least: float
    _embed: object = field(init=False, repr=False)

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
