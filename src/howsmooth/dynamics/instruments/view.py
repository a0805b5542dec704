"""A plane to look at tokens from: the directions that grow fastest come first."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from howsmooth.dynamics.instruments.hyperplanes import leading_space


@dataclass(frozen=True, eq=False)
class View:
    """Coordinates to draw: tokens (…, d) times `axes` (d, 1 to 3), with a name for each."""

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


def principal_view(tokens: Tensor, count: int = 3) -> View:
    """The orthogonal axes along which tokens (…, d) vary most, at most `count`, named by their share of the variance.

    >>> principal_view(torch.tensor([[0.0, 3.0], [0.0, -3.0], [1.0, 0.0], [-1.0, 0.0]]), 1).names
    ('axis of 90 % of the variance',)
    """
    points = tokens.detach().double().flatten(0, -2)
    centred = points - points.mean(0)
    _, sigma, axes = torch.linalg.svd(centred, full_matrices=False)
    axes = axes[:count]
    # The sign of an axis is free: its largest entry is taken as positive, so that pictures do not flip.
    axes = axes * axes.gather(1, axes.abs().argmax(1, keepdim=True)).sign()
    shares = sigma.square() / sigma.square().sum().clamp(min=torch.finfo(torch.float64).tiny)
    return View(axes.mT, tuple(f"axis of {share:.0%} of the variance".replace("%", " %", 1) for share in
                               shares[:count].tolist()))
