"""Golub–Kahan–Lanczos bidiagonalisation of a batch of operators, and the basis it stores.

    J v_j = α_j u_j + β_{j−1} u_{j−1}        Jᵀ u_j = α_j v_j + β_j v_{j+1}

so that T = BᵀB, with B the bidiagonal matrix of the α and β, is the projection of M = JᵀJ on the v's, and
M v_j leaves the basis by β̂_j = α_j β_j. The v's are orthogonalised against all that are stored. The
u's are not kept: where they lose orthogonality the relation for M errs by α_j times that loss, which is
rounding, since the loss is rounding divided by α_j.

Reference: Golub and Kahan 1965; Simon and Zha 2000 for the one-sided orthogonalisation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.linalg import eigh_tridiagonal

from howsmooth.spectral.products import Products, scaled

if TYPE_CHECKING:
    from jaxtyping import Float
    from numpy.typing import NDArray
    from torch import Tensor

LARGEST_CHUNK = 8  # vectors that room is made for at once: at a million tokens each has 3 GiB
MUCH = 0.7  # of a vector's norm that is left after one orthogonalisation
NEGLIGIBLE = 4  # units of rounding of λ₁ under which a computed β̂ says no more than that it is small


class Basis:
    """Orthonormal vectors (b, count, cols) of which at most `limit` are stored, in chunks that grow."""

    def __init__(self, limit: int):
        self.limit, self.count, self.chunks = limit, 0, []

    def append(self, v: Float[Tensor, "b cols"]) -> bool:
        """Store v if there is room; says whether it did."""
        if self.count == self.limit:
            return False
        room = sum(chunk.shape[1] for chunk in self.chunks) - self.count
        if room == 0:
            size = min(LARGEST_CHUNK, max(4, self.count), self.limit - self.count)
            self.chunks.append(v.new_empty(v.shape[0], size, v.shape[1]))
            room = size
        self.chunks[-1][:, -room] = v
        self.count += 1
        return True

    def _filled(self):
        start = 0
        for chunk in self.chunks:
            size = min(chunk.shape[1], self.count - start)
            yield start, chunk[:, :size]
            start += size

    def remove_from(self, w: Float[Tensor, "b cols"]) -> None:
        """Subtract from w, in place, its part in the stored span."""
        for _, chunk in self._filled():
            w.sub_((chunk.mT @ (chunk @ w.unsqueeze(-1))).squeeze(-1))

    def combine(self, weights: Float[Tensor, "b count"]) -> Float[Tensor, "b cols"]:
        """Σ_j weights_j v_j over the first stored vectors, as many as there are weights."""
        total = 0
        for start, chunk in self._filled():
            part = weights[:, start : start + chunk.shape[1], None]
            total = total + (chunk[:, : part.shape[1]].mT @ part).squeeze(-1)
        return total


@dataclass(frozen=True)
class Ritz:
    """Eigenpairs of T_q: values (b, q) ascending, the vectors' last entries (b, q), the top vector (b, q)."""

    values: NDArray[np.float64]
    last: NDArray[np.float64]
    top_vector: NDArray[np.float64]

    @property
    def top(self) -> NDArray[np.float64]:
        return self.values[:, -1]


class Bidiagonalisation:
    """The process itself: call `step` until satisfied, `ritz` to look, `vector` for the top Ritz vector.

    `found` (b, i, cols) are orthonormal right vectors that are deflated: the operator is then J (I − FᵀF).
    `broken` marks the members that cannot go on: their β̂ is exactly zero, or there is no further dimension. A β̂
    that is merely rounding is no such end. A top eigenvector at a small distance τ from the other eigenvalues,
    with a small component b of the start, couples by τ b: what looks invariant may have missed it.
    """

    def __init__(self, products: Products, start: Float[Tensor, "b cols"], stored: int, found: Tensor | None = None):
        self.products = products
        self.found = found
        self.basis = Basis(stored)
        self.alphas: list[NDArray[np.float64]] = []
        self.betas: list[NDArray[np.float64]] = []
        members, (rows, cols) = products.members, products.operator.shape
        # Not rows + 1, at which exact arithmetic would end: where singular values lie close together rounding has
        # hidden some of them by then, and only a basis of the whole space is sure to hold all.
        self.deepest = cols - (0 if found is None else found.shape[1])
        self.epsilon = torch.finfo(start.dtype).eps
        self.broken = np.zeros(members, dtype=bool)
        self.scale = np.zeros(members)  # a lower estimate of λ₁
        start = start.clone()
        self.deflate(start)
        self.deflate(start)
        self.start_norm = products.norm(start, "the start")
        self.start = self.v = scaled(start, self.start_norm)
        self.first_image: Tensor | None = None  # Jᵀu_1, of which α_1 times is M v_1
        self.u = start.new_zeros(members, rows)
        self.basis.append(self.v)
        self._resume = (self.v, self.u, np.zeros(members))

    @property
    def steps(self) -> int:
        return len(self.alphas)

    @property
    def complete(self) -> bool:
        """Whether every vector so far is stored."""
        return self.basis.count >= self.steps

    def deflate(self, w: Tensor) -> None:
        """Remove from w, in place, its part in the deflated vectors."""
        if self.found is not None:
            found = self.found.to(w.dtype)
            w.sub_((found.mT @ (found @ w.unsqueeze(-1))).squeeze(-1))

    def _orthogonalise(self, w: Tensor) -> None:
        """Remove the deflated and the stored vectors from w, in place; again where that took away much of it.

        What is left of them after one pass is rounding of what was removed, so a second pass is for cancellation.
        """
        for _ in range(2):
            before = torch.linalg.vector_norm(w, dim=-1, dtype=torch.float64)
            self.deflate(w)
            self.basis.remove_from(w)
            if (torch.linalg.vector_norm(w, dim=-1, dtype=torch.float64) >= MUCH * before).all():
                break

    def _advance(self, v: Tensor, u: Tensor, beta: NDArray[np.float64], stored: bool):
        """From v_j (stored or not), u_{j−1}, β_{j−1}: α_j, u_j, β_j and w = β_j v_{j+1}."""
        products = self.products
        w = products.forward(v)
        w = w - torch.from_numpy(beta).to(w)[:, None] * u
        alpha = products.norm(w, "J v")
        u = scaled(w, alpha)
        w = products.adjoint(u)
        if self.first_image is None:
            self.first_image = w
        w = w - torch.from_numpy(alpha).to(w)[:, None] * v
        if not stored:
            w.sub_((w * v).sum(dim=-1, keepdim=True) * v)
        self._orthogonalise(w)
        return alpha, u, products.norm(w, "Jᵀ u"), w

    def step(self) -> None:
        """Advance every member by one step."""
        complete = self.basis.count == self.steps + 1
        before = self.betas[-1] if self.betas else np.zeros(len(self.v))
        if complete:
            self._resume = (self.v, self.u, before)
        alpha, u, beta, w = self._advance(self.v, self.u, before, complete)

        alpha, beta = np.where(self.broken, 0.0, alpha), np.where(self.broken, 0.0, beta)
        self.scale = np.maximum(self.scale, alpha**2 + before**2)
        self.broken |= alpha * beta == 0
        if complete and self.steps + 1 >= self.deepest:
            self.broken[:] = True  # there is no further direction: what is left is rounding
        beta = np.where(self.broken, 0.0, beta)
        self.alphas.append(alpha)
        self.betas.append(beta)
        self.v, self.u = scaled(w, beta), u
        if complete and self.steps < self.deepest:
            self.basis.append(self.v)

    def coupling(self) -> NDArray[np.float64]:
        """β̂_1 … β̂_q, (b, q): by how much M leaves the basis at each step."""
        return np.stack(self.alphas, axis=1) * np.stack(self.betas, axis=1)

    def sure_coupling(self, top: NDArray[np.float64]) -> NDArray[np.float64]:
        """`coupling` (b, q) for a certificate: never less than its rounding, as a larger one only weakens the bound."""
        return np.maximum(self.coupling(), NEGLIGIBLE * self.epsilon * top[:, None])

    def ritz(self) -> Ritz:
        """Eigenpairs of T = BᵀB, which is formed in units of its largest entry."""
        coupling = self.coupling()
        before = np.pad(np.stack(self.betas, axis=1)[:, :-1], ((0, 0), (1, 0)))
        unit = np.where(self.scale > 0, self.scale, 1.0)[:, None]
        diagonal = (np.stack(self.alphas, axis=1) ** 2 + before**2) / unit
        # One by one: a threaded dense solver takes far longer for matrices as small as these.
        pairs = [eigh_tridiagonal(*T) for T in zip(diagonal, (coupling / unit)[:, :-1])]
        values, vectors = (np.stack(parts) for parts in zip(*pairs))
        return Ritz(np.maximum(values, 0) * unit, vectors[:, -1, :], vectors[:, :, -1])

    def vector(self, weights: NDArray[np.float64]) -> Float[Tensor, "b cols"]:
        """Σ_j weights_j v_j of norm one; vectors that were not stored are made again by a second pass."""
        weights = torch.from_numpy(weights).to(self.start)
        stored = min(self.basis.count, self.steps)
        total = self.basis.combine(weights[:, :stored])
        v, u, beta = self._resume
        for j in range(stored, self.steps):
            _, u, _, w = self._advance(v, u, beta, stored=j == stored)
            beta = self.betas[j - 1]
            v = scaled(w, beta)
            total += weights[:, j, None] * v
        return scaled(total, self.products.norm(total, "a Ritz vector"))
