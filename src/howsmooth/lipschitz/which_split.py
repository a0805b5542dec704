"""Which maps split at all: the criterion for any field, densely, and a search for the measure that splits most.

    without end   softmax (A = −1, unequal masses), Sinkhorn (A = −1), sigmoid (A = −1), linear (A turns)
    a lot         L2 (K = −Q): 246.5 found, no limit known
    a little      softmax with A = +1 on the line: up to 1.0050; tied L2 (K = Q): at most 2, and by at most ‖V‖
    never         mean pooling (∂₁G = 0), pointwise networks (D is made of the ∂₁G), linear attention at linearly
                  dependent atoms, sigmoid and linear attention with V = I, A = cI ≻ 0, tied L2 with V = I, QᵀQ = cI

docs/splitting.md has the proofs. Examples are found by `search` and stand on `criterion`, which is two dense Jacobians.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy.optimize import minimize
from torch import Tensor

from howsmooth.attention.atoms import roots
from howsmooth.errors import InputError, NotConverged

_LEAST = -600.0  # log mass
_ZERO = 1e-12  # ‖D‖ below this part of the largest ‖∂₁G‖ counts as none


@dataclass(frozen=True, eq=False)
class Criterion:
    """‖D‖ in L²(μ), ‖∂₁G(x_i, μ)‖ of each atom, and the measure they belong to."""

    norm: float
    own: Tensor  # (n,)
    points: Tensor
    log_masses: Tensor

    @property
    def ratio(self) -> float:
        """max_i ‖∂₁G(x_i, μ)‖ / ‖D‖, infinite where D vanishes; the measure splits above 1."""
        largest = float(self.own.max())
        if self.norm <= _ZERO * largest:
            return math.inf
        return largest / self.norm if largest > 0 else 0.0

    def as_record(self) -> dict:
        return {"norm": self.norm, "own": self.own.tolist(), "ratio": self.ratio, "points": self.points.tolist(),
                "masses": torch.softmax(self.log_masses, -1).tolist()}


def criterion(g: Callable, points: Tensor, log_masses: Tensor | None = None) -> Criterion:
    """The criterion of a few atoms for any G(places, points, log_masses), by dense Jacobians in float64.

    >>> from howsmooth.attention.fields import MeanPooling
    >>> criterion(MeanPooling(torch.eye(1, dtype=torch.float64)), torch.tensor([[1.0], [2.0]])).ratio
    0.0
    """
    x = points.detach().double().requires_grad_()
    z, n = x.detach().clone().requires_grad_(), len(x)
    log_masses = torch.zeros(n, dtype=torch.float64) if log_masses is None else log_masses.detach().double()
    if float(torch.log_softmax(log_masses, -1).min()) < _LEAST:
        raise InputError(f"expected masses of at least e^{_LEAST:g}, got smaller ones, whose roots have no digits left")
    with torch.enable_grad():
        y = g(z, x, log_masses)
        # The derivative in the places, and the one in what they see: the map moves both.
        rows = [torch.autograd.grad(entry, (z, x), retain_graph=True, materialize_grads=True) for entry in y.flatten()
                ] if y.requires_grad else [(torch.zeros_like(x), torch.zeros_like(x))] * y.numel()
    place, seen = (torch.stack(part).unflatten(0, y.shape) for part in zip(*rows, strict=True))  # (n, d_out, n, d)
    own = torch.stack([place[i, :, i] for i in range(n)])
    root = roots(log_masses)[:, 0]
    whole = ((place + seen) * root[:, None, None, None] / root[:, None]).reshape(y.numel(), -1)
    if not torch.isfinite(whole).all():
        raise InputError("expected a finite derivative, got NaN or ∞; take atoms that are nearer, masses less unequal")
    return Criterion(float(torch.linalg.matrix_norm(whole, ord=2)), torch.linalg.matrix_norm(own, ord=2),
                     x.detach(), log_masses)


def search(g: Callable, d: int, atoms: int, *, starts: int = 20, steps: int = 200, radius: float = 4.0,
           masses: bool = True, seed: int = 0) -> Criterion:
    """The measure of so many atoms with the largest ratio that Nelder–Mead finds from random starts.

    Positions, and masses if asked, move freely; `radius` is the size of the starts. A search shows that a map splits;
    that it finds nothing shows nothing.
    """
    if min(d, atoms, starts, steps) < 1:
        raise InputError(f"expected d, atoms, starts and steps of at least 1, got {d}, {atoms}, {starts} and {steps}")
    generator = torch.Generator().manual_seed(seed)

    def measure(flat) -> tuple[Tensor, Tensor]:
        flat = torch.as_tensor(flat, dtype=torch.float64)
        weights = torch.cat([flat.new_zeros(1), flat[atoms * d :]]) if masses else flat.new_zeros(atoms)
        return flat[: atoms * d].view(atoms, d), weights

    def loss(flat) -> float:
        try:
            found = criterion(g, *measure(flat))
        except (InputError, NotConverged):  # too far out for doubles, or a coupling that takes too long
            return math.inf
        largest = float(found.own.max())
        if not (math.isfinite(largest) and math.isfinite(found.norm)) or largest == 0:
            return math.inf
        return math.log(max(found.norm, _ZERO * largest)) - math.log(largest)

    best = None
    for _ in range(starts):
        start = torch.randn(atoms * d + (atoms - 1 if masses else 0), generator=generator, dtype=torch.float64)
        start[: atoms * d] *= radius * float(torch.rand(1, generator=generator))
        run = minimize(loss, start.numpy(), method="Nelder-Mead", options={"maxiter": steps, "xatol": 1e-9,
                                                                          "fatol": 1e-12})
        if best is None or run.fun < best.fun:
            best = run
        if best.fun <= math.log(_ZERO):
            break
    return criterion(g, *measure(best.x))
