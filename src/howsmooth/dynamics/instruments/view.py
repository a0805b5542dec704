"""A plane to look at tokens from: the directions that grow fastest come first."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from howsmooth.dynamics.instruments.hyperplanes import leading_space


@dataclass(frozen=True, eq=False)
class View:
    """Coordinates to draw: tokens (…, d) times `axes` (d, 1 or 2), with a name for each."""

    axes: Tensor
    names: tuple[str, ...]

    def __call__(self, tokens: Tensor) -> Tensor:
        return tokens.double() @ self.axes.to(tokens.device)


def view(d: int, V: Tensor | None = None) -> View:
    """The plane for tokens of width d: themselves up to d = 2, else V's leading directions first.

    >>> view(3, torch.diag(torch.tensor([0.1, 2.0, 0.5]))).names
    ('along the leading eigenvector  φ₁*z', 'coordinate 1')
    """
    eye = torch.eye(d, dtype=torch.float64)
    names = tuple(f"coordinate {i + 1}" for i in range(d))
    if d <= 2:
        return View(eye, names)
    basis = leading_space(V)[1] if V is not None else eye
    if basis.shape[1] == d:
        return View(eye[:, :2], names[:2])
    if basis.shape[1] > 1:
        return View(basis[:, :2], ("first leading direction", "second leading direction"))
    # The coordinate that has least to do with the leading direction.
    other = int(basis[:, 0].abs().argmin())
    return View(torch.cat([basis, eye[:, other : other + 1]], 1), ("along the leading eigenvector  φ₁*z", names[other]))
