"""Which maps split at all: the criterion for any field, densely.

    without end   softmax (A = −1, unequal masses), Sinkhorn (A = −1), sigmoid (A = −1), linear (A turns)
    a lot         L2 (K = −Q): 246.5 found, no limit known
    a little      softmax with A = +1 on the line: up to 1.0050; tied L2 (K = Q): at most 2, and by at most ‖V‖
    never         mean pooling (∂₁G = 0), pointwise networks (D is made of the ∂₁G), linear attention at linearly
                  dependent atoms, sigmoid and linear attention with V = I, A = cI ≻ 0, tied L2 with V = I, QᵀQ = cI

docs/splitting.md has the proofs. Examples stand on `criterion`, which is two dense Jacobians.

On the line, with V = 1 and score a·x·y, the criterion has a closed form for millions of measures at once. With
P_ij ∝ a_j e^{a x_i x_j}, m_i = Σ_j P_ij x_j and C_i = Σ_j P_ij (x_j − m_i)², in the norm Σ a_i ε_i²:

    D_ij = √(a_i/a_j) P_ij (1 + a x_i (x_j − m_i)) + δ_ij a C_i

Only the sign of a matters in the variable √|a|·x. Signs: a = −1 splits in plain sight, a = +1 far out and barely.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from howsmooth.attention.weighted import root_weights
from howsmooth.errors import InputError

_LEAST = -600.0  # log mass
_ZERO = 1e-12  # ‖D‖ below this part of the largest ‖∂₁G‖ counts as none


@dataclass(frozen=True, eq=False)
class Criterion:
    """‖D‖ in L²(μ), ‖∂₁G(x_i, μ)‖ of each atom, and the measure they belong to."""

    norm: float
    own: Tensor  # (n,)
    points: Tensor
    log_weights: Tensor

    @property
    def ratio(self) -> float:
        """max_i ‖∂₁G(x_i, μ)‖ / ‖D‖, infinite where D vanishes; the measure splits above 1."""
        largest = float(self.own.max())
        if self.norm <= _ZERO * largest:
            return math.inf
        return largest / self.norm if largest > 0 else 0.0

    def as_record(self) -> dict:
        return {
            "norm": self.norm,
            "own": self.own.tolist(),
            "ratio": self.ratio,
            "points": self.points.tolist(),
            "masses": torch.softmax(self.log_weights, -1).tolist(),
        }


def criterion(g: Callable, points: Tensor, log_weights: Tensor | None = None) -> Criterion:
    """The criterion of a few atoms for any G(places, points, log_weights), by dense Jacobians in float64.

    >>> from howsmooth.attention.fields import MeanPooling
    >>> criterion(MeanPooling(torch.eye(1, dtype=torch.float64)), torch.tensor([[1.0], [2.0]])).ratio
    0.0
    """
    x = points.detach().double().requires_grad_()
    z, n = x.detach().clone().requires_grad_(), len(x)
    log_weights = torch.zeros(n, dtype=torch.float64) if log_weights is None else log_weights.detach().double()
    if float(torch.log_softmax(log_weights, -1).min()) < _LEAST:
        raise InputError(f"expected masses of at least e^{_LEAST:g}, got smaller ones, whose roots have no digits left")
    with torch.enable_grad():
        y = g(z, x, log_weights)
        # The derivative in the places, and the one in what they see: the map moves both.
        rows = (
            [torch.autograd.grad(entry, (z, x), retain_graph=True, materialize_grads=True) for entry in y.flatten()]
            if y.requires_grad
            else [(torch.zeros_like(x), torch.zeros_like(x))] * y.numel()
        )
    place, seen = (torch.stack(part).unflatten(0, y.shape) for part in zip(*rows, strict=True))  # (n, d_out, n, d)
    own = torch.stack([place[i, :, i] for i in range(n)])
    root = root_weights(log_weights)[:, 0]
    whole = ((place + seen) * root[:, None, None, None] / root[:, None]).reshape(y.numel(), -1)
    if not torch.isfinite(whole).all():
        raise InputError("expected a finite derivative, got NaN or ∞; take atoms that are nearer, masses less unequal")
    return Criterion(
        float(torch.linalg.matrix_norm(whole, ord=2)), torch.linalg.matrix_norm(own, ord=2), x.detach(), log_weights
    )


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


def picture(
    extent: float = 4.0,
    points: int = 400,
    a: float = -1.0,
    masses: tuple[float, ...] = (1.0, 1.0),
    third: float | None = None,
    *,
    masked: bool = False,
) -> tuple[Tensor, LineSplitting]:
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


@dataclass(frozen=True)
class LinePicture:
    """Where atoms x and y on the line (d = 1, V = 1) split, and a third one that stands still; computed when asked for.

    >>> LinePicture(extent=4.0, points=80, masses=(1.0, 3.0)).record()["masses"]
    [1.0, 3.0]
    """

    extent: float
    points: int
    a: float = -1.0
    masses: tuple[float, ...] | None = None  # equal ones
    third: float | None = None
    masked: bool = False

    @property
    def all_masses(self) -> tuple[float, ...]:
        return (1.0,) * (2 if self.third is None else 3) if self.masses is None else self.masses

    @cached_property
    def found(self) -> tuple[Tensor, LineSplitting]:
        """The axis (points,) and the criterion (points, points)."""
        return picture(self.extent, self.points, self.a, self.all_masses, self.third, masked=self.masked)

    def record(self) -> dict[str, Any]:
        """The share of the square that splits, and the largest ratio with its place."""
        axis, found = self.found
        top = int(found.ratio.argmax())
        return {
            "a": self.a,
            "masses": list(self.all_masses),
            "third": self.third,
            "masked": self.masked,
            "extent": self.extent,
            "points": self.points,
            "share": float(found.splits.double().mean()),
            "ratio": float(found.ratio.max()),
            "x": float(axis[top % self.points]),
            "y": float(axis[top // self.points]),
            "status": "converged",
            "dtype": "float64",
        }
