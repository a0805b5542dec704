"""What an attack wants to change. Each objective is, to first order, a length in coordinates of its own.

    objective       own unit                       coordinates φ(y)       length of the change
    OutputChange    ‖y' − y‖                       y                      ‖y' − y‖
    NextToken       KL(p ‖ p'), nats               2√p                    √(2 KL)
    Similarity      cosine of two embeddings       e/|e|                  √(2 (1 − cos)), the chord

y is what the map puts out. In all three the length of a change is ‖Δφ‖ to first order (the last one exactly), so that
the best small perturbation is the first right singular vector of D(φ∘f), and length/‖E‖ tends to σ₁ of it: KL and
cosine have no slope at the clean input, their root has.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from howsmooth.errors import InputError


class Objective:
    """`coordinates(y)`; `length(y, clean)`, differentiable off the clean output; `reading(y, clean)` in its unit."""

    name: str
    unit: str
    at_rest: float = 0.0  # the reading where nothing has changed

    def coordinates(self, y: Tensor) -> Tensor:
        raise NotImplementedError

    def length(self, y: Tensor, clean: Tensor) -> Tensor:
        return torch.linalg.vector_norm(self.coordinates(y) - self.coordinates(clean))

    def reading(self, y: Tensor, clean: Tensor) -> float:
        return float(self.length(y, clean))

    def facts(self, y: Tensor, clean: Tensor) -> dict:
        """What else is worth saying about the attacked output."""
        return {}

    def as_record(self) -> dict:
        return {"name": self.name}


@dataclass(frozen=True)
class OutputChange(Objective):
    """‖f(X') − f(X)‖_F: the output of a layer, or the last hidden state of a whole model."""

    name = "output"
    unit = "‖f(X+E) − f(X)‖"

    def coordinates(self, y: Tensor) -> Tensor:
        return y


@dataclass(frozen=True, eq=False)
class NextToken(Objective):
    """The distribution of the next token at a `position` (None: after every token, KL added up), by a language head.

    >>> moved = NextToken(torch.nn.Identity()).facts(torch.tensor([[0.0, 2.0]]), torch.tensor([[1.0, 0.0]]))
    >>> moved["flips"], moved["tokens_before"], moved["tokens_after"]
    (1, [0], [1])
    """

    head: torch.nn.Module = field(repr=False)
    position: int | None = -1

    name = "next-token"
    unit = "KL, nats"

    def coordinates(self, y: Tensor) -> Tensor:
        return 2 * (self._logs(y) / 2).exp()

    def length(self, y: Tensor, clean: Tensor) -> Tensor:
        # KL is second order in the change: below its rounding, the root of it is the length in coordinates.
        kl, chord = self._kl(y, clean), super().length(y, clean)
        return torch.where(kl > 1e3 * torch.finfo(y.dtype).eps, (2 * kl.clamp(min=torch.finfo(y.dtype).tiny)).sqrt(),
                           chord)

    def reading(self, y: Tensor, clean: Tensor) -> float:
        return float(self.length(y, clean)) ** 2 / 2

    def facts(self, y: Tensor, clean: Tensor) -> dict:
        before, after = (self._logs(t).argmax(-1) for t in (clean, y))
        return {"flips": int((before != after).sum()), "positions": len(before), "tokens_before": before.tolist(),
                "tokens_after": after.tolist()}

    def as_record(self) -> dict:
        return {"name": self.name, "position": self.position}

    def _kl(self, y: Tensor, clean: Tensor) -> Tensor:
        p, q = self._logs(clean), self._logs(y)
        return (p.exp() * (p - q)).sum()

    def _logs(self, y: Tensor) -> Tensor:
        n = len(y)
        if self.position is not None and not -n <= self.position < n:
            raise InputError(f"NextToken: expected a position among {n} tokens, got {self.position}")
        chosen = y if self.position is None else y[self.position].unsqueeze(0)
        return torch.log_softmax(self.head(chosen), -1)


@dataclass(frozen=True)
class Similarity(Objective):
    """Cosine similarity with the clean embedding: the mean of all outputs, or output `token` alone."""

    token: int | None = None

    name = "cosine"
    unit = "cosine with the clean embedding"
    at_rest = 1.0

    def coordinates(self, y: Tensor) -> Tensor:
        e = y.mean(-2) if self.token is None else y[..., self.token, :]
        return e / torch.linalg.vector_norm(e)

    def reading(self, y: Tensor, clean: Tensor) -> float:
        return 1 - float(self.length(y, clean)) ** 2 / 2

    def as_record(self) -> dict:
        return {"name": self.name, "token": self.token}
