"""Where tokens come from: a text through a model, or numbers drawn at random through a layer's own normalisation.

Both answer the same questions, so that the measuring loop need not know which it has.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from howsmooth.errors import InputError
from howsmooth.texts import default_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from howsmooth.models import Model, TokenChunk
    from howsmooth.models.gpt2_file import AttentionFile

INPUTS = ("text", "normalised")
ROWS_AT_ONCE = 1024  # tokens drawn at once; part of what a seed means


@dataclass(frozen=True)
class Text:
    """A text with the name it goes by in records."""

    name: str
    content: str

    @classmethod
    def embedded(cls) -> Text:
        """The text that ships with the package."""
        return cls("embedded", default_text())

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.content.encode("utf-8")).hexdigest()

    def check(self, model: Model, longest: int) -> None:
        if longest > model.positions:
            raise InputError(
                f"expected lengths of at most {model.positions} tokens, the positions of {model.name}, "
                f"got {longest}; ask for shorter lengths, or for tokens without a text (--inputs normalised)"
            )
        if not self.content.strip():
            raise InputError(
                f"expected some text, got nothing but white space in {self.name}; give a longer text"
            )

    def pieces(self, model: Model, n: int, samples: int, special_tokens: bool = True) -> list[TokenChunk]:
        return model.chunks(self.content, n, samples, special_tokens=special_tokens)

    def tokens(self, model: Model, piece: TokenChunk, layers: Iterable[int]) -> dict[int, Tensor]:
        """What enters attention at each layer, from one forward pass."""
        return model.activations(piece, layers)

    def attention(self, model: Model, layer: int, n: int) -> Any:
        return model.attention(layer, n)

    def facts(self, model: Model, n: int) -> dict[str, Any]:
        return {}

    def run_facts(self) -> dict[str, Any]:
        return {"inputs": "text", "text": self.name, "text_sha256": self.sha256}


@dataclass(frozen=True, eq=False)
class Drawn:
    """n tokens yet to be drawn; stands where a `TokenChunk` stands."""

    n: int
    sample: int

    @property
    def special(self) -> Tensor:
        return torch.zeros(self.n, dtype=torch.bool)

    @property
    def words(self) -> tuple[str, ...]:
        return ("drawn",) * self.n

    def __len__(self) -> int:
        return self.n


@dataclass(frozen=True)
class Normalised:
    """Standard normal tokens, layer-normalised by each layer's own gain and bias: any length, no text, no positions.

    They are drawn on the CPU whatever the device, and the first n of a longer draw are those of a shorter one: growth
    with n is then growth of one sequence, and under a causal mask the constant cannot fall.
    """

    seed: int = 0
    name: str = "random normalised tokens"

    def check(self, model: Model | AttentionFile, longest: int) -> None:
        """Nothing to refuse: the memory plan knows what is too long."""

    def pieces(self, model: Model | AttentionFile, n: int, samples: int, special_tokens: bool = True) -> list[Drawn]:
        return [Drawn(n, sample) for sample in range(samples)]

    def tokens(self, model: Model | AttentionFile, piece: Drawn, layers: Iterable[int]) -> dict[int, Tensor]:
        return {layer: self.drawn(model, piece, layer) for layer in layers}

    def drawn(self, model: Model | AttentionFile, piece: Drawn, layer: int) -> Tensor:
        """(n, d) on the model's device and in its dtype, made in blocks: nothing else of this size is held."""
        norm = model.normalisation(layer).to(device=model.device, dtype=torch.float32)
        x = torch.empty(piece.n, norm.d, device=model.device, dtype=model.dtype)
        generator = torch.Generator().manual_seed((1_000_003 * self.seed + piece.sample) % 2**63)
        for first in range(0, piece.n, ROWS_AT_ONCE):
            block = x[first : first + ROWS_AT_ONCE]
            # Always a whole block: how the last numbers of a draw come about depends on its size.
            z = torch.randn(ROWS_AT_ONCE, norm.d, generator=generator)[: len(block)]
            block.copy_(norm(z.to(model.device)))
        return x

    def attention(self, model: Model | AttentionFile, layer: int, n: int) -> Any:
        return model.attention(layer, n, beyond=True)

    def facts(self, model: Model | AttentionFile, n: int) -> dict[str, Any]:
        """Whether this length is one that the model was made for."""
        return {"extrapolated": model.positions is not None and n > model.positions}

    def run_facts(self) -> dict[str, Any]:
        return {
            "inputs": "normalised",
            "special_tokens": "none",
            "text": self.name,
            "text_sha256": None,
            "drawn": f"standard normal in float32 on the CPU, {ROWS_AT_ONCE} tokens at a time, seed {self.seed}, then "
            "the layer's own normalisation",
        }


Inputs = Text | Normalised
