"""Golub–Kahan–Lanczos bidiagonalisation of a batch of operators, and the basis it stores.

    J v_j = α_j u_j + β_{j−1} u_{j−1}        Jᵀ u_j = α_j v_j + β_j v_{j+1}

T = BᵀB, with B the bidiagonal matrix of the α and β, is the projection of M = JᵀJ on the span of the v_j. M v_j has
the component β̂_j = α_j β_j outside that span. Each v_j is orthogonalised against all stored ones. The u_j are not
kept: a loss of orthogonality among them perturbs the relation for M by α_j times that loss. This is of the size of
rounding, since the loss is rounding divided by α_j.

An operator with a product M v of its own (`has_gram`) gives the same T by the three-term recurrence

    M v_j = β̂_{j−1} v_{j−1} + α̂_j v_j + β̂_j v_{j+1}

for less. Rounding then moves T by units of λ₁, which is harmless for the largest value alone. A smaller one may drown
in it, so that with deflated vectors, where the largest value is gone, the process has the form above.

Reference: Golub and Kahan 1965; Simon and Zha 2000 for the one-sided orthogonalisation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from scipy.linalg import eigh_tridiagonal

from howsmooth.spectral.certificate import smallest_bound
from howsmooth.spectral.products import Products, column, safe_divide

if TYPE_CHECKING:
    from jaxtyping import Float
    from numpy.typing import NDArray
    from torch import Tensor

MAX_CHUNK_VECTORS = 8  # vectors allocated at once: at a million tokens each has 3 GiB
REORTHOGONALISATION_THRESHOLD = 0.7  # orthogonalise again if less than this part of the norm is left
CHECK_EVERY_STEP_UNTIL = 40  # steps; after q > 40 steps the interval is computed at every ⌈q/40⌉-th
COUPLING_FLOOR = 4  # in units of rounding of λ₁; a smaller computed β̂ is not distinguishable from zero


def is_check_due(step: int) -> bool:
    """Return whether Ritz values and bounds are to be computed at this step."""
    return step % math.ceil(step / CHECK_EVERY_STEP_UNTIL) == 0


class Basis:
    """Orthonormal vectors (b, count, cols), stored in chunks that are allocated as needed.

    Args:
        capacity: Largest number of vectors to store.
    """

    def __init__(self, capacity: int) -> None:
        """Start with no vectors."""
        self.capacity, self.count = capacity, 0
        self.chunks: list[Tensor] = []

    def append(self, v: Float[Tensor, "b cols"]) -> Float[Tensor, "b cols"]:
        """Store v unless the basis is full; return v, where it is stored as a part of the basis instead of a copy."""
        if self.count == self.capacity:
            return v
        free = sum(chunk.shape[1] for chunk in self.chunks) - self.count
        if free == 0:
            free = min(MAX_CHUNK_VECTORS, max(4, self.count), self.capacity - self.count)
            self.chunks.append(v.new_empty(v.shape[0], free, v.shape[1]))
        stored = self.chunks[-1][:, -free]
        stored.copy_(v)
        self.count += 1
        return stored

    def _filled_chunks(self) -> Iterator[tuple[int, Tensor]]:
        start = 0
        for chunk in self.chunks:
            size = min(chunk.shape[1], self.count - start)
            yield start, chunk[:, :size]
            start += size

    def project_out(self, w: Float[Tensor, "b cols"]) -> None:
        """Subtract from w, in place, its projection on the stored vectors."""
        for _, chunk in self._filled_chunks():
            w.unsqueeze(-1).baddbmm_(chunk.mT, chunk @ w.unsqueeze(-1), alpha=-1)

    def combine(self, weights: Float[Tensor, "b count"]) -> Float[Tensor, "b cols"]:
        """Return Σ_j weights_j v_j over the first stored vectors, as many as there are weights."""
        total = weights.new_zeros(weights.shape[0], self.chunks[0].shape[2])
        for start, chunk in self._filled_chunks():
            part = weights[:, start : start + chunk.shape[1], None]
            total += (chunk[:, : part.shape[1]].mT @ part).squeeze(-1)
        return total


@dataclass(frozen=True)
class Ritz:
    """Eigenpairs of T_q for each batch member.

    Attributes:
        values: Ritz values (b, q), ascending.
        last_entries: The last entry of each eigenvector, (b, q).
        vectors: The eigenvectors as columns, (b, q, q).
    """

    values: NDArray[np.float64]
    last_entries: NDArray[np.float64]
    vectors: NDArray[np.float64]

    @property
    def top(self) -> NDArray[np.float64]:
        """The largest Ritz value of each member, (b,)."""
        return self.values[:, -1]

    def largest_vectors(self, count: int) -> list[NDArray[np.float64]]:
        """Return the eigenvectors (b, q) of the `count` largest values, or of all if there are fewer."""
        return [self.vectors[:, :, -1 - j] for j in range(min(count, self.vectors.shape[2]))]


class State(NamedTuple):
    """What the recurrence needs to go on from v_j.

    Attributes:
        v: v_j, (b, cols).
        previous: u_{j−1}, (b, rows), or v_{j−1}, (b, cols), in the three-term recurrence.
        coefficient: β_{j−1} or β̂_{j−1}, the factor of `previous`, (b,).
    """

    v: Tensor
    previous: Tensor
    coefficient: NDArray[np.float64]


class Step(NamedTuple):
    """What one step computes from a `State`.

    Attributes:
        diagonal: Entry α̂_j of T, (b,).
        coupling: Entry β̂_j of T, (b,).
        w: A multiple of v_{j+1}, (b, cols).
        norm: Its norm, (b,).
        previous: The next `State.previous`.
        coefficient: The next `State.coefficient`.
    """

    diagonal: NDArray[np.float64]
    coupling: NDArray[np.float64]
    w: Tensor
    norm: NDArray[np.float64]
    previous: Tensor
    coefficient: NDArray[np.float64]

    @property
    def following(self) -> State:
        """The state after the step."""
        return State(safe_divide(self.w, self.norm), self.previous, self.coefficient)


class Bidiagonalisation:
    """The Golub–Kahan–Lanczos process: `step` advances it, `ritz` gives Ritz pairs, `vector` a Ritz vector.

    `terminated` marks the members that cannot continue: their β̂ is exactly zero, or the basis spans the whole space.
    A β̂ of the size of rounding does not terminate the process. A top eigenvector at a small distance τ from the
    other eigenvalues, with a small component b of the start, couples by τ b: a space that looks invariant may have
    missed it.

    Args:
        products: Products with the operators.
        start: Start vectors (b, cols), of any norm.
        stored: Largest number of basis vectors to store.
        deflated: Orthonormal right vectors (b, i, cols); the process runs on J (I − FᵀF), F being these rows.
    """

    def __init__(
        self, products: Products, start: Float[Tensor, "b cols"], stored: int, deflated: Tensor | None = None
    ) -> None:
        """Deflate and normalise the start."""
        self.products = products
        self.deflated = deflated
        self.basis = Basis(stored)
        self.is_gram_fused = deflated is None and products.operator.has_gram
        self.diagonal: list[NDArray[np.float64]] = []  # α̂_j
        self.couplings: list[NDArray[np.float64]] = []  # β̂_j
        self.coefficients: list[NDArray[np.float64]] = []  # of the states after each step
        members, (rows, cols) = products.members, products.operator.shape
        # Not rows + 1, where exact arithmetic would terminate: with clustered singular values rounding has hidden
        # some of them by then, and only a basis of the whole space is certain to contain all.
        self.max_dimension = cols - (0 if deflated is None else deflated.shape[1])
        self.epsilon = torch.finfo(start.dtype).eps
        self.terminated = np.zeros(members, dtype=bool)
        self.scale = np.zeros(members)  # a lower estimate of λ₁
        start = start.clone()
        self.deflate(start)
        self.deflate(start)
        self.start_norm = products.norm(start, "the start")
        self.start = self.basis.append(safe_divide(start, self.start_norm))
        self.first_product: tuple[Tensor, NDArray[np.float64]] | None = None  # M v_1, as a vector and a factor
        zero = start.new_zeros(members, cols if self.is_gram_fused else rows)
        self.state = self._last_stored_state = State(self.start, zero, np.zeros(members))

    @property
    def steps(self) -> int:
        """Number of steps so far."""
        return len(self.diagonal)

    @property
    def is_fully_stored(self) -> bool:
        """Whether every basis vector so far is stored."""
        return self.basis.count >= self.steps

    def deflate(self, w: Tensor) -> None:
        """Subtract from w, in place, its projection on the deflated vectors."""
        if self.deflated is not None:
            deflated = self.deflated.to(w.dtype)
            w.sub_((deflated.mT @ (deflated @ w.unsqueeze(-1))).squeeze(-1))

    def _orthogonalise(self, w: Tensor, v: Tensor, is_v_stored: bool) -> NDArray[np.float64]:
        """Project v, the deflated and the stored vectors out of w, in place, and return its norm.

        After one pass their remaining part is rounding of what was removed. It matters only where most of w was
        removed: then a second pass follows.
        """
        if not is_v_stored:
            w.sub_((w * v).sum(dim=-1, keepdim=True) * v)
        for _ in range(2):
            before = torch.linalg.vector_norm(w, dim=-1)
            self.deflate(w)
            self.basis.project_out(w)
            norm = self.products.norm(w, "JᵀJ v" if self.is_gram_fused else "Jᵀ u")
            if (norm >= REORTHOGONALISATION_THRESHOLD * before.cpu().numpy()).all():
                break
        return norm

    def _advance(self, state: State, is_v_stored: bool) -> Step:
        """Return the step from v_j."""
        return (self._advance_by_gram if self.is_gram_fused else self._advance_by_factors)(state, is_v_stored)

    def _advance_by_factors(self, state: State, is_v_stored: bool) -> Step:
        """Return the step from v_j by a product with J and one with Jᵀ."""
        products, (v, u, beta) = self.products, state
        image = products.forward(v)
        w = torch.addcmul(image, u, column(beta, image), value=-1)
        alpha = products.norm(w, "J v")
        u = safe_divide(w, alpha)
        image = products.adjoint(u)
        if self.first_product is None:
            self.first_product = image, alpha
        w = torch.addcmul(image, v, column(alpha, image), value=-1)
        norm = self._orthogonalise(w, v, is_v_stored)
        return Step(alpha**2 + beta**2, alpha * norm, w, norm, u, norm)

    def _advance_by_gram(self, state: State, is_v_stored: bool) -> Step:
        """Return the step from v_j by a product with M, in units of its factor, in which nothing overflows."""
        v, previous, beta = state
        image, factor = self.products.gram(v, fused=True)
        if self.first_product is None:
            self.first_product = image, factor
        unit = np.where(factor > 0, factor, 1.0)
        alpha = (image * v).sum(dim=-1, dtype=torch.float64).cpu().numpy()
        w = torch.addcmul(image, v, column(alpha, image), value=-1)
        w.addcmul_(previous, column(beta / unit, image), value=-1)
        norm = self._orthogonalise(w, v, is_v_stored)
        return Step(np.maximum(alpha, 0) * factor, norm * factor, w, norm, v, norm * factor)

    def step(self) -> None:
        """Advance every member by one step."""
        is_v_stored = self.basis.count == self.steps + 1
        if is_v_stored:
            self._last_stored_state = self.state
        done = self._advance(self.state, is_v_stored)
        diagonal = np.where(self.terminated, 0.0, done.diagonal)
        self.scale = np.maximum(self.scale, diagonal)
        self.terminated |= done.coupling == 0
        if is_v_stored and self.steps + 1 >= self.max_dimension:
            self.terminated[:] = True  # the basis spans the whole space: what is left of w is rounding
        coupling, norm, coefficient = (
            np.where(self.terminated, 0.0, numbers) for numbers in (done.coupling, done.norm, done.coefficient)
        )
        self.diagonal.append(diagonal)
        self.couplings.append(coupling)
        self.coefficients.append(coefficient)
        self.state = done._replace(norm=norm, coefficient=coefficient).following
        if is_v_stored and self.steps < self.max_dimension:
            self.state = self.state._replace(v=self.basis.append(self.state.v))

    def coupling(self) -> NDArray[np.float64]:
        """Return β̂_1 … β̂_q, (b, q): the norm of the component of M v_j outside the first j basis vectors."""
        return np.array(self.couplings).T

    def floored_coupling(self, top: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return `coupling` (b, q), raised to its rounding: in a certificate a larger β̂ only weakens the bound."""
        return np.maximum(self.coupling(), COUPLING_FLOOR * self.epsilon * top[:, None])

    def ritz(self) -> Ritz:
        """Return the eigenpairs of T = BᵀB."""
        unit = np.where(self.scale > 0, self.scale, 1.0)[:, None]  # T is formed in units of its largest entry
        diagonal = np.array(self.diagonal).T / unit
        off_diagonal = self.coupling()[:, :-1] / unit
        # One by one: a threaded dense solver takes far longer for matrices as small as these.
        pairs = [eigh_tridiagonal(*entries) for entries in zip(diagonal, off_diagonal, strict=True)]
        values, vectors = (np.stack(parts) for parts in zip(*pairs, strict=True))
        return Ritz(np.maximum(values, 0) * unit, vectors[:, -1, :], vectors)

    def eigenvalue_bound(self, ritz: Ritz, delta: float, done: NDArray[np.bool_] | None = None) -> NDArray[np.float64]:
        """Return upper bounds (b,) on λ₁ of the operator as applied, on the complement of the deflated vectors.

        Where the process terminated, the Krylov space is invariant and contains λ₁ up to rounding with probability
        one. Elsewhere, however small β̂ is, the bound is that of the certificate.

        Args:
            ritz: The current Ritz pairs.
            delta: Failure probability.
            done: Members whose bound is not needed; it is infinite for them.
        """
        bound = np.where(self.terminated, ritz.top * (1 + COUPLING_FLOOR * self.epsilon), np.inf)
        pending = np.flatnonzero(~self.terminated if done is None else ~self.terminated & ~done)
        if len(pending):
            ratio = smallest_bound(
                ritz.values[pending],
                ritz.last_entries[pending],
                self.floored_coupling(ritz.top)[pending],
                self.products.operator.shape[1],
                delta,
                orthogonal=self.is_fully_stored,
            )
            bound[pending] = ritz.top[pending] * ratio
        return bound

    def vector(self, weights: NDArray[np.float64]) -> Float[Tensor, "b cols"]:
        """Return Σ_j weights_j v_j, normalised; a second pass recomputes the vectors that were not stored."""
        coefficients = torch.from_numpy(weights).to(self.start)
        stored = min(self.basis.count, self.steps)
        total = self.basis.combine(coefficients[:, :stored])
        state = self._last_stored_state
        for j in range(stored, self.steps):
            done = self._advance(state, is_v_stored=j == stored)
            beta = self.coefficients[j - 1]  # zero where the first pass terminated
            state = done._replace(norm=np.where(beta > 0, done.norm, 0.0), coefficient=beta).following
            total += coefficients[:, j, None] * state.v
        return safe_divide(total, self.products.norm(total, "a Ritz vector"))
