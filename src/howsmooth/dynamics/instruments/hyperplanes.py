"""The hyperplane picture: tokens seen along the leading left eigenvector of V."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from howsmooth.dynamics.instruments.clusters import Clusters, clusters
from howsmooth.errors import InputError

SIMPLE = 1e-9  # eigenvalues closer than this, relative to the largest, count as one


@dataclass(frozen=True, eq=False)
class Hyperplanes:
    """Levels φ₁*z at which tokens gather: each is a hyperplane. `values` are sorted, `sizes` go with them.

    All values may tend to 0, which is one hyperplane; so the tolerance is absolute.
    """

    count: int
    values: tuple[float, ...]
    sizes: tuple[int, ...]
    eigenvalue: float
    functional: Tensor  # φ₁*, (d,), unit norm
    tol: float


def leading_space(V: Tensor) -> tuple[float, Tensor]:
    """The largest real part of V's eigenvalues, and an orthonormal basis (d, m) of the left eigenvectors that have it.

    zᵀ times the basis is what of z grows fastest: m = 1 is the hyperplane picture, 1 < m < d polytope times subspace.

    >>> value, basis = leading_space(torch.diag(torch.tensor([2.0, 1.0])))
    >>> value, basis.abs().tolist()
    (2.0, [[1.0], [0.0]])
    """
    if V.dim() != 2 or V.shape[0] != V.shape[1]:
        raise InputError(f"expected a square V, got shape {tuple(V.shape)}")
    values, vectors = torch.linalg.eig(V.detach().double().mT)
    size = max(float(values.abs().max()), torch.finfo(torch.float64).tiny)
    near = values.real >= float(values.real.max()) - SIMPLE * size
    # A complex pair spans the plane of its real and imaginary parts; a defective eigenvalue has too few.
    spanned = torch.cat([vectors[:, near].real, vectors[:, near].imag], 1)
    basis, sigma, _ = torch.linalg.svd(spanned, full_matrices=False)
    basis = basis[:, sigma > math.sqrt(SIMPLE) * sigma[0]]
    top = basis.gather(0, basis.abs().argmax(0, keepdim=True))
    return float(values.real.max()), basis * torch.sign(top)


def hyperplanes(z: Tensor, V: Tensor, tol: float) -> Hyperplanes:
    """The levels of φ₁*z among tokens z (n, d).

    >>> z = torch.tensor([[1.0, 5.0], [1.0, -3.0], [0.0, 2.0]])
    >>> hyperplanes(z, torch.diag(torch.tensor([2.0, 1.0])), tol=1e-3).values
    (0.0, 1.0)
    """
    value, basis = leading_space(V)
    if basis.shape[1] != 1:
        raise InputError(f"expected a V with one leading direction, got {basis.shape[1]} of them for the eigenvalue "
                         f"{value:.4g}; look at clusters in leading_space(V) instead")
    functional = basis[:, 0]
    found: Clusters = clusters((z.detach().double() @ functional.to(z.device)).unsqueeze(-1), tol)
    order = found.centres[:, 0].argsort()
    return Hyperplanes(count=found.count, values=tuple(found.centres[order, 0].tolist()),
                       sizes=tuple(found.sizes[i] for i in order.tolist()), eigenvalue=value, functional=functional,
                       tol=float(tol))
