"""How much an attacker may change: in total, per token, in a number of tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from howsmooth.attack.refusals import check_count, check_size
from howsmooth.errors import InputError

NORMS = ("frobenius", "token")


@dataclass(frozen=True)
class Budget:
    """Perturbations E (n, d) with ‖E‖_F ≤ size, or |ε_i| ≤ size for every token, on at most `tokens` tokens.

    >>> Budget(1.0, "token", tokens=1).fill(torch.tensor([[3.0, 4.0], [1.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """

    size: float
    norm: str = "frobenius"
    tokens: int | None = None

    def __post_init__(self):
        check_size("Budget", "size", self.size)
        if self.norm not in NORMS:
            raise InputError(f"Budget: expected norm to be one of {', '.join(NORMS)}, got {self.norm!r}")
        if self.tokens is not None:
            check_count("Budget", "tokens", self.tokens, least=1)

    def __str__(self) -> str:
        what = "‖E‖" if self.norm == "frobenius" else "|ε_i|"
        return f"{what} ≤ {self.size:.4g}" + ("" if self.tokens is None else f" on {self.tokens} tokens")

    def check(self, n: int) -> None:
        """Refuse more tokens than there are."""
        if self.tokens is not None and self.tokens > n:
            raise InputError(f"Budget: expected tokens up to the length n = {n}, got {self.tokens}; touch fewer, or "
                             "leave tokens out to touch all")

    def of(self, e: Tensor) -> float:
        """The size of a perturbation in the budget's norm."""
        rows = torch.linalg.vector_norm(e.detach(), dim=-1, dtype=torch.float64)
        return float(rows.max() if self.norm == "token" else torch.linalg.vector_norm(rows))

    def allows(self, e: Tensor, slack: float = 1e-6) -> bool:
        """Whether a perturbation stays within the budget, but for rounding."""
        return self.of(e) <= self.size * (1 + slack) and (self.tokens is None or touched(e) <= self.tokens)

    def places(self, e: Tensor) -> Tensor | None:
        """The tokens that weigh most in e, as many as may be touched, in order; None for all of them."""
        if self.tokens is None or self.tokens >= len(e):
            return None
        return torch.linalg.vector_norm(e, dim=-1).topk(self.tokens).indices.sort().values

    def scale(self, e: Tensor) -> Tensor:
        """e in its direction, as large as the budget allows, on the tokens that weigh most in it."""
        e = self.sparse(e)
        size = self.of(e)
        return e * (self.size / size) if size > 0 else e

    def fill(self, gradient: Tensor) -> Tensor:
        """The perturbation within the budget with the largest product with a gradient."""
        if self.norm == "frobenius":
            return self.scale(gradient)
        gradient = self.sparse(gradient)
        rows = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True)
        return self.size * gradient / torch.where(rows > 0, rows, 1)

    def project(self, e: Tensor) -> Tensor:
        """The nearest perturbation within the budget."""
        e = self.sparse(e)
        size = torch.linalg.vector_norm(e, dim=-1 if self.norm == "token" else None, keepdim=True)
        return e * (self.size / torch.clamp(size, min=self.size))

    def sparse(self, e: Tensor) -> Tensor:
        places = self.places(e)
        return e if places is None else torch.zeros_like(e).index_copy(0, places, e[places])

    def as_record(self) -> dict:
        return {"size": self.size, "norm": self.norm, "tokens": self.tokens}


def touched(e: Tensor) -> int:
    """How many tokens a perturbation moves.

    >>> touched(torch.tensor([[0.0, 0.0], [0.0, 1.0]]))
    1
    """
    return int((e != 0).any(-1).sum())
