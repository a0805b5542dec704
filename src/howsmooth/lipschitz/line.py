"""Splitting on the line: d = 1, V = 1, score a·x·y, in closed form and for millions of measures at once.

With P_ij ∝ a_j e^{a x_i x_j}, m_i = Σ_j P_ij x_j and C_i = Σ_j P_ij (x_j − m_i)², in the norm Σ a_i ε_i²:

    D_ij = √(a_i/a_j) P_ij (1 + a x_i (x_j − m_i)) + δ_ij a C_i

Only the sign of a matters in the variable √|a|·x. Signs: a = −1 splits in plain sight, a = +1 far out and barely.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from howsmooth.errors import InputError


@dataclass(frozen=True, eq=False)
class LineSplitting:
    """For each measure of a batch: ‖D‖, |a| C_i of each atom, and their ratio max_i |a| C_i / ‖D‖."""

    norm: Tensor  # (…)
    own: Tensor  # (…, m)

    @property
    def ratio(self) -> Tensor:
        return self.own.amax(-1) / self.norm

    @property
    def splits(self) -> Tensor:
        return self.ratio > 1


def line_splitting(x: Tensor, a: float = -1.0, masses: Tensor | None = None, *, masked: bool = False) -> LineSplitting:
    """The criterion for atoms x (…, m) on the line, with masses (m) or (…, m) that need not sum to 1; float64.

    masked: atom i sees those up to its own place in x alone, and copies have the time of their atom.

    >>> found = line_splitting(torch.tensor([0.2, 10.0]), a=1.0)
    >>> [round(float(t), 4) for t in (found.own.max(), found.norm)]
    [10.3937, 10.363]
    """
    if not isinstance(x, Tensor) or x.dim() < 1 or not x.numel() or not torch.isfinite(x).all():
        raise InputError("expected finite atoms as a tensor (…, m) with m ≥ 1, got "
                         + (f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__))
    x = x.double()
    masses = torch.ones(x.shape[-1], dtype=torch.float64) if masses is None else torch.as_tensor(masses).double()
    if masses.shape[-1:] != x.shape[-1:] or not (masses > 0).all() or not torch.isfinite(masses).all():
        raise InputError(f"expected {x.shape[-1]} positive masses, one for each atom, got {masses.tolist()}")
    scores = a * x.unsqueeze(-1) * x.unsqueeze(-2) + masses.log().unsqueeze(-2)
    if masked:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
    p = torch.softmax(scores, -1)
    spread = x.unsqueeze(-2) - (p * x.unsqueeze(-2)).sum(-1, keepdim=True)  # x_j − m_i
    own = a * (p * spread.square()).sum(-1)
    root = masses.sqrt()
    weights = p * root.unsqueeze(-1) / root.unsqueeze(-2)
    d = weights * (1 + a * x.unsqueeze(-1) * spread) + torch.diag_embed(own)
    return LineSplitting(_norm(d), own.abs())


def _norm(d: Tensor) -> Tensor:
    """The largest singular value of small matrices (…, m, m)."""
    if d.shape[-1] != 2:
        return torch.linalg.eigvalsh(d.mT @ d)[..., -1].clamp_min(0).sqrt()
    # σ₁ ± σ₂ are the lengths of (p + s, q − r) and (p − s, q + r): nothing cancels.
    (p, q), (r, s) = (d[..., i, :].unbind(-1) for i in range(2))
    return (torch.hypot(p + s, q - r) + torch.hypot(p - s, q + r)) / 2


def picture(extent: float = 4.0, points: int = 400, a: float = -1.0, masses: tuple[float, ...] = (1.0, 1.0),
            third: float | None = None, *, masked: bool = False) -> tuple[Tensor, LineSplitting]:
    """The criterion on the square [−extent, extent]²: the first atom along the second axis, the second along the first.

    third: where a third atom stands. Returns the axis (points,) and the criterion (points, points).

    >>> axis, found = picture(points=80)
    >>> axis.shape, found.ratio.shape
    (torch.Size([80]), torch.Size([80, 80]))
    """
    if not points >= 2 or not extent > 0:
        raise InputError(f"expected at least 2 points and an extent above 0, got {points} and {extent}")
    if len(masses) != (2 if third is None else 3):
        raise InputError(f"expected one mass for each of {2 if third is None else 3} atoms, got {len(masses)}")
    # Centres of cells, so that shares of the picture are shares of its area.
    axis = (torch.arange(points, dtype=torch.float64) + 0.5) * (2 * extent / points) - extent
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    atoms = [x, y] if third is None else [x, y, torch.full_like(x, third)]
    return axis, line_splitting(torch.stack(atoms, -1), a, torch.tensor(masses), masked=masked)
