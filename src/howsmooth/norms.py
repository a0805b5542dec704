"""The norms of perturbations that a budget can be in: the only list of them, for Python, commands and studies.

Nothing here imports torch, so that options are checked quickly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Norm:
    """A norm of perturbations E (n, d), made of the Euclidean norms |ε_i| of its rows.

    Attributes:
        symbol: Its symbol in inequalities.
        about: Whom the budget is for, in the help of commands.
        each_token: Whether it is the largest |ε_i|, a budget for each token, and not their root of sum of squares.
    """

    symbol: str
    about: str
    each_token: bool

    def size(self, e: Tensor) -> float:
        """Return the norm of a perturbation."""
        import torch

        rows = torch.linalg.vector_norm(e.detach(), dim=-1, dtype=torch.float64)
        return float(rows.max() if self.each_token else torch.linalg.vector_norm(rows))

    def project(self, e: Tensor, size: float) -> Tensor:
        """Return the nearest perturbation of at most a size, for each of a batch (…, n, d)."""
        import torch

        norms = torch.linalg.vector_norm(e, dim=-1 if self.each_token else (-2, -1), keepdim=True)
        return e * (size / torch.clamp(norms, min=size))

    def maximise(self, gradient: Tensor, size: float) -> Tensor:
        """Return the perturbation of a size with the largest inner product with a gradient."""
        import torch

        if not self.each_token:
            return self.rescale(gradient, size)
        rows = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True)
        return size * gradient / torch.where(rows > 0, rows, 1)

    def rescale(self, e: Tensor, size: float) -> Tensor:
        """Return the multiple of a perturbation that has a size; zero stays zero."""
        found = self.size(e)
        return e * (size / found) if found > 0 else e

    def unit(self, norm: float, n: int) -> float:
        """Return what a budget is a share of, for n tokens X of a norm ‖X‖: it, or ‖X‖/√n for each token."""
        return norm / n**0.5 if self.each_token else norm


NORMS = {
    "frobenius": Norm("‖E‖", "all tokens together", each_token=False),
    "token": Norm("|ε_i|", "each token", each_token=True),
}
