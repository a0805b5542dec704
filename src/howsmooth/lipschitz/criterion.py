"""The splitting criterion of any field by dense Jacobians, and in closed form for softmax attention on the line.

How large the ratio `max_i ‖∂₁G(x_i, μ)‖ / ‖D‖` becomes for the known maps:

    unbounded     softmax (A = −1, unequal masses), Sinkhorn (A = −1), sigmoid (A = −1), linear (A antisymmetric),
                  L2 (K = −Q)
    large         softmax with A ≻ 0 of condition number κ: (1 + κ)/(2√κ) is approached, no bound known
    slightly > 1  softmax with A = +1 on the line: up to 1.0050; tied L2 (K = Q): at most 2, and by at most ‖V‖
    at most 1     mean pooling (∂₁G = 0), pointwise networks (D consists of the ∂₁G), linear attention at linearly
                  dependent atoms, sigmoid and linear attention with V = I, A = cI ≻ 0, tied L2 with V = I, QᵀQ = cI

docs/splitting.md contains the proofs. The examples were computed with `criterion`, which forms two dense Jacobians.

On the line, with V = 1 and score a·x·y, the criterion has a closed form that is fast for millions of measures at once.
With `P_ij ∝ a_j e^{a x_i x_j}`, `m_i = Σ_j P_ij x_j` and `C_i = Σ_j P_ij (x_j − m_i)²`, in the norm `Σ a_i ε_i²`:

    D_ij = √(a_i/a_j) P_ij (1 + a x_i (x_j − m_i)) + δ_ij a C_i

In the variable √|a|·x only the sign of a matters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from howsmooth.attention.weighted import root_weights
from howsmooth.errors import InputError

_MIN_LOG_WEIGHT = -600.0
_ZERO_TOL = 1e-12  # a ‖D‖ below this multiple of the largest ‖∂₁G‖ counts as zero


@dataclass(frozen=True, eq=False)
class Criterion:
    """The two norms of the splitting criterion, and the measure.

    Attributes:
        norm: `‖D‖` in L²(μ).
        own: `‖∂₁G(x_i, μ)‖` of each atom, (n,).
        points: The atoms, (n, d).
        log_weights: Logarithms of the masses, (n,), up to a constant.
    """

    norm: float
    own: Tensor
    points: Tensor
    log_weights: Tensor

    @property
    def ratio(self) -> float:
        """The ratio `max_i ‖∂₁G(x_i, μ)‖ / ‖D‖`, infinite if D = 0; the measure splits iff it is above 1."""
        largest = float(self.own.max())
        if self.norm <= _ZERO_TOL * largest:
            return math.inf
        return largest / self.norm if largest > 0 else 0.0

    def as_record(self) -> dict[str, Any]:
        """Return the numbers as plain Python values."""
        return {
            "norm": self.norm,
            "own": self.own.tolist(),
            "ratio": self.ratio,
            "points": self.points.tolist(),
            "masses": torch.softmax(self.log_weights, -1).tolist(),
        }


def criterion(g: Callable[..., Tensor], points: Tensor, log_weights: Tensor | None = None) -> Criterion:
    """Compute the splitting criterion of a few atoms for any G(x, points, log_weights), by dense Jacobians in float64.

    Args:
        g: The map, such as a field of `howsmooth.attention.fields`.
        points: Atoms (n, d).
        log_weights: Logarithms of the masses, (n,), up to a constant; equal masses by default.

    Raises:
        InputError: If a mass is too small, or a derivative is not finite.

    Example:
        >>> from howsmooth.attention.fields import MeanPooling
        >>> criterion(MeanPooling(torch.eye(1, dtype=torch.float64)), torch.tensor([[1.0], [2.0]])).ratio
        0.0
    """
    x = points.detach().double().requires_grad_()
    z, n = x.detach().clone().requires_grad_(), len(x)
    log_weights = torch.zeros(n, dtype=torch.float64) if log_weights is None else log_weights.detach().double()
    if float(torch.log_softmax(log_weights, -1).min()) < _MIN_LOG_WEIGHT:
        raise InputError(
            f"expected masses of at least e^{_MIN_LOG_WEIGHT:g}, got smaller ones, whose square roots lose their "
            "digits; leave out these atoms"
        )
    with torch.enable_grad():
        y = g(z, x, log_weights)
        # D is the sum of the derivatives in the first argument (z) and in the measure (x).
        rows = (
            [torch.autograd.grad(entry, (z, x), retain_graph=True, materialize_grads=True) for entry in y.flatten()]
            if y.requires_grad
            else [(torch.zeros_like(x), torch.zeros_like(x))] * y.numel()
        )
    in_first, in_measure = (torch.stack(part).unflatten(0, y.shape) for part in zip(*rows, strict=True))
    own = torch.stack([in_first[i, :, i] for i in range(n)])  # in_first and in_measure are (n, d_out, n, d)
    root = root_weights(log_weights)[:, 0]
    whole = ((in_first + in_measure) * root[:, None, None, None] / root[:, None]).reshape(y.numel(), -1)
    if not torch.isfinite(whole).all():
        raise InputError("expected a finite derivative, got NaN or ∞; use closer atoms or less unequal masses")
    return Criterion(
        float(torch.linalg.matrix_norm(whole, ord=2)), torch.linalg.matrix_norm(own, ord=2), x.detach(), log_weights
    )


@dataclass(frozen=True, eq=False)
class LineSplitting:
    """The criterion for a batch of measures on the line.

    Attributes:
        norm: `‖D‖` of each measure, (…).
        own: `|a| C_i` of each atom, (…, m).
    """

    norm: Tensor
    own: Tensor

    @property
    def ratio(self) -> Tensor:
        """The ratio `max_i |a| C_i / ‖D‖`, (…)."""
        return self.own.amax(-1) / self.norm

    @property
    def splits(self) -> Tensor:
        """Whether each measure splits, (…)."""
        return self.ratio > 1


def line_splitting(x: Tensor, a: float = -1.0, masses: Tensor | None = None, *, masked: bool = False) -> LineSplitting:
    """Compute the criterion for atoms on the line, in float64.

    Args:
        x: Atoms (…, m).
        a: Factor of the scores a·x·y.
        masses: Masses (m,) or (…, m), which need not sum to 1; equal by default.
        masked: Whether atom i attends only to atoms up to index i; then pieces have the time of their atom.

    Raises:
        InputError: If the atoms, a or the masses are not finite or have the wrong shape.

    Example:
        >>> found = line_splitting(torch.tensor([0.2, 10.0]), a=1.0)
        >>> [round(float(t), 4) for t in (found.own.max(), found.norm)]
        [10.3937, 10.363]
    """
    if not isinstance(x, Tensor) or x.dim() < 1 or not x.numel() or not torch.isfinite(x).all():
        raise InputError(
            "expected finite atoms as a tensor (…, m) with m ≥ 1, got "
            + (f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__)
        )
    if not math.isfinite(a):
        raise InputError(f"expected a finite a, got {a}")
    x = x.double()
    masses = torch.ones(x.shape[-1], dtype=torch.float64) if masses is None else torch.as_tensor(masses).double()
    if masses.shape[-1:] != x.shape[-1:] or not (masses > 0).all() or not torch.isfinite(masses).all():
        raise InputError(f"expected {x.shape[-1]} positive masses, one for each atom, got {masses.tolist()}")
    scores = a * x.unsqueeze(-1) * x.unsqueeze(-2) + masses.log().unsqueeze(-2)
    if masked:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
    p = torch.softmax(scores, -1)
    centred = x.unsqueeze(-2) - (p * x.unsqueeze(-2)).sum(-1, keepdim=True)  # x_j − m_i
    own = a * (p * centred.square()).sum(-1)
    root = masses.sqrt()
    weights = p * root.unsqueeze(-1) / root.unsqueeze(-2)
    D = weights * (1 + a * x.unsqueeze(-1) * centred) + torch.diag_embed(own)
    return LineSplitting(_spectral_norm(D), own.abs())


def _spectral_norm(D: Tensor) -> Tensor:
    """Return the largest singular values of small matrices (…, m, m)."""
    if D.shape[-1] != 2:
        eigenvalues: Tensor = torch.linalg.eigvalsh(D.mT @ D)
        return eigenvalues[..., -1].clamp_min(0).sqrt()
    # σ₁ ± σ₂ are the norms of (p + s, q − r) and (p − s, q + r), without cancellation.
    (p, q), (r, s) = (D[..., i, :].unbind(-1) for i in range(2))
    return (torch.hypot(p + s, q - r) + torch.hypot(p - s, q + r)) / 2


def line_splitting_grid(
    extent: float = 4.0,
    points: int = 400,
    a: float = -1.0,
    masses: tuple[float, ...] = (1.0, 1.0),
    third: float | None = None,
    *,
    masked: bool = False,
) -> tuple[Tensor, LineSplitting]:
    """Compute the criterion of two atoms (x, y) on a grid of the square [−extent, extent]².

    Args:
        extent: Half the width of the square.
        points: Grid points along each axis.
        a: Factor of the scores a·x·y.
        masses: One mass per atom.
        third: Position of a third, fixed atom.
        masked: Whether an atom attends only to those up to its own index.

    Returns:
        The axis (points,) and the criterion (points, points); x varies along the second axis, y along the first.

    Raises:
        InputError: If the grid is empty, or the number of masses is not the number of atoms.

    Example:
        >>> axis, found = line_splitting_grid(points=80)
        >>> axis.shape, found.ratio.shape
        (torch.Size([80]), torch.Size([80, 80]))
    """
    if not points >= 2 or not extent > 0:
        raise InputError(f"expected at least 2 points and an extent above 0, got {points} and {extent}")
    if len(masses) != (2 if third is None else 3):
        raise InputError(f"expected one mass for each of {2 if third is None else 3} atoms, got {len(masses)}")
    # Centres of cells, so that the share of grid points is a share of the area.
    axis = (torch.arange(points, dtype=torch.float64) + 0.5) * (2 * extent / points) - extent
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    atoms = [x, y] if third is None else [x, y, torch.full_like(x, third)]
    return axis, line_splitting(torch.stack(atoms, -1), a, torch.tensor(masses), masked=masked)
