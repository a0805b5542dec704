"""Spectral norms of batches of matrices; intervals of scores and probabilities, and norms over these intervals.

Steps (2) and (8) of docs/ball.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

UNIT_ROUNDOFF = 2.0**-53
MAX_DENSE_SIZE = 32  # up to this size, all eigenvalues cost no more than a certified bound on one
LANCZOS_STEPS = (10, 30)  # for many small matrices, and for large ones
RELATIVE_MARGIN = (1e-4, 1e-6)  # of a certified eigenvalue above the Lanczos value, likewise
TINY = 1e-300  # keeps divisors positive


def spectral_norm(m: Tensor, certified: bool = False) -> Tensor:
    """Return ‖m‖₂ of each matrix (…, rows, cols), (…).

    It is computed from the smaller Gram matrix. Squaring loses no accuracy at the top of the spectrum.

    Args:
        m: matrices, (…, rows, cols).
        certified: whether to return a certified upper bound within 10⁻⁴ of the norm, which takes less time.
    """
    flat = m.flatten(-2)
    size = torch.maximum(flat.amax(-1), -flat.amin(-1))[..., None, None]
    m = m / torch.where(size > 0, size, 1.0)
    gram = m @ m.mT if m.shape[-2] <= m.shape[-1] else m.mT @ m
    eigenvalue = certified_eigenvalue(gram) if certified else largest_eigenvalue(gram)
    return size[..., 0, 0] * eigenvalue.sqrt()


def largest_eigenvalue(m: Tensor) -> Tensor:
    """Return the largest eigenvalue of each symmetric positive semidefinite matrix."""
    eigenvalues: Tensor = torch.linalg.eigvalsh(m)
    return eigenvalues[..., -1].clamp(min=0)


def certified_eigenvalue(m: Tensor) -> Tensor:
    """Return an upper bound on the largest eigenvalue of each symmetric positive semidefinite matrix (…, a, a).

    Lanczos' method gives a lower bound. If μI − M has a Cholesky factor for a slightly larger μ, then μ is certified as
    an upper bound; otherwise all eigenvalues are computed. μ is within RELATIVE_MARGIN of the Lanczos value.

    Example:
        >>> m = torch.diag(torch.arange(40.0, dtype=torch.float64))
        >>> 39 <= certified_eigenvalue(m) <= 39 * (1 + 1e-4)
        tensor(True)
    """
    size, large = m.shape[-1], m.shape[-1] > 4 * MAX_DENSE_SIZE
    if size <= MAX_DENSE_SIZE:
        return largest_eigenvalue(m)
    bound = lanczos_eigenvalue(m, LANCZOS_STEPS[large]) * (1 + RELATIVE_MARGIN[large])
    shifted = -m
    shifted.diagonal(dim1=-2, dim2=-1).add_(bound.unsqueeze(-1))
    failed = torch.linalg.cholesky_ex(shifted).info != 0
    bound = bound * (1 + 4 * size**2 * UNIT_ROUNDOFF)  # rounding errors of the factorisation
    if bool(failed.any()):
        bound[failed] = largest_eigenvalue(m[failed])
    return bound


def lanczos_eigenvalue(m: Tensor, steps: int) -> Tensor:
    """Return the largest Ritz value of each symmetric matrix (…, a, a), a lower bound on its largest eigenvalue."""
    # Vectors are rows: uᵀM is several times faster than M u for a batch of matrices.
    u = torch.randn(1, m.shape[-1], dtype=m.dtype, generator=torch.Generator().manual_seed(0))
    u = (u / u.norm()).expand(*m.shape[:-2], 1, -1).contiguous()
    t = m.new_zeros(*m.shape[:-2], steps, steps)
    previous, beta = torch.zeros_like(u), m.new_zeros(*m.shape[:-2], 1, 1)
    for step in range(steps):
        r = u @ m
        alpha = (r * u).sum(-1, keepdim=True)
        r = r.sub_(alpha * u).sub_(beta * previous)
        beta = torch.linalg.vector_norm(r, dim=-1, keepdim=True)
        t[..., step, step] = alpha[..., 0, 0]
        if step + 1 < steps:
            t[..., step + 1, step] = beta[..., 0, 0]
        previous, u = u, r / beta.clamp(min=TINY)
    return largest_eigenvalue(t)


@dataclass(frozen=True)
class Interval:
    """Entrywise intervals around values at the centre of a ball, (rows, keys) each.

    Attributes:
        low: lower ends.
        centre: values at the centre of the ball.
        high: upper ends.
    """

    low: Tensor
    centre: Tensor
    high: Tensor

    @property
    def change(self) -> Tensor:
        """The largest distance of an entry from its value at the centre, rounded up."""
        gap = torch.maximum(self.high - self.centre, self.centre - self.low).clamp(min=0)
        return gap + 4 * UNIT_ROUNDOFF * self.high

    def times(self, other: Interval) -> Interval:
        """Return the products with intervals of non-negative numbers."""
        return Interval(self.low * other.low, self.centre * other.centre, self.high * other.high)


def softmax_interval(s: Interval) -> Interval:
    """Return the probabilities of rows whose scores lie in these intervals, step (2).

    Scores count up to a constant per row; keys with a score of −∞ are masked.

    Example:
        >>> s = torch.tensor([[0.0, 0.0]], dtype=torch.float64)
        >>> p = softmax_interval(Interval(s - 0.5, s, s + 0.5))
        >>> torch.allclose(p.high, torch.sigmoid(torch.ones(1, 2, dtype=torch.float64)))
        True
    """
    visible = s.centre > -torch.inf
    top = s.high.amax(-1, keepdim=True).nan_to_num(neginf=0.0)
    high, low = (s.high - top).exp(), (s.low - top).exp()
    # The sum over the other keys is the sum over all less the entry itself; its rounding error widens the interval.
    margin = 4 * s.centre.shape[-1] * UNIT_ROUNDOFF
    all_high, all_low = high.sum(-1, keepdim=True), low.sum(-1, keepdim=True)
    others_high = (all_high - high).clamp(min=0) + margin * all_high
    others_low = (all_low - low - margin * all_low).clamp(min=0)
    p = torch.softmax(s.centre, -1).nan_to_num(nan=0.0)
    p_high = torch.where(visible, (high + TINY) / (high + TINY + others_low), 0.0)
    return Interval(torch.minimum(low / (low + others_high + TINY), p), p, torch.maximum(p_high, p))


def softcap_interval(s: Tensor, change: Tensor, cap: float) -> tuple[Interval, Interval]:
    """Return the scores s ± change after a soft cap, and the derivative of the cap there."""

    def derivative(t: Tensor) -> Tensor:
        return torch.cosh((t / cap).clamp(max=300.0)).pow(-2)

    scores = Interval(*(cap * torch.tanh(t / cap) for t in (s - change, s, s + change)))
    size = s.abs()
    return scores, Interval(derivative(size + change), derivative(size), derivative((size - change).clamp(min=0)))


def largest_concentration(p: Interval) -> Tensor:
    """Return per row the largest g₁(p) = p₍₁₎(1 − p₍₁₎ + p₍₂₎) over the probabilities in the intervals, step (8)."""
    first, second = torch.nn.functional.pad(p.high, (0, 1)).topk(2, -1).values.unbind(-1)
    least = p.low.amax(-1)
    corners = (least, first, second, torch.full_like(first, 0.5), 1 - second, (1 + second) / 2)
    at = torch.stack([torch.minimum(torch.maximum(c, least), first) for c in corners])
    g = at * (1 - at + torch.minimum(second, torch.minimum(at, 1 - at)))
    return g.amax(0)


class SecondMoments:
    """Second moments Σ_j w_ij t_j t_jᵀ of vectors t (keys, c), for many rows of weights.

    The products t_j t_jᵀ are computed once; only their lower triangles are stored.
    """

    def __init__(self, t: Tensor):
        """Store the vectors t, (keys, c)."""
        self.t, self.squares = t, t.square().sum(-1)

    @cached_property
    def triangles(self) -> tuple[Tensor, Tensor]:
        """The products (keys, c(c+1)/2), and the index among them of each entry of a c × c matrix."""
        row, col = torch.tril_indices(*2 * self.t.shape[1:]).unbind()
        index = torch.empty(*2 * self.t.shape[1:], dtype=torch.long)
        index[row, col] = index[col, row] = torch.arange(len(row))
        return self.t[:, row] * self.t[:, col], index

    def about(self, weights: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
        """Return the second moments about points, and a bound on their error by cancellation.

        Args:
            weights: w_ij ≥ 0, (rows, keys).
            centre: z_i, (rows, c).

        Returns:
            Σ_j w_ij (t_j − z_i)(t_j − z_i)ᵀ, (rows, c, c), and the bound on its error, (rows,).
        """
        weights = weights[:, : visible_key_count(weights)]
        products, index = self.triangles
        t, products, squares = (of[: weights.shape[1]] for of in (self.t, products, self.squares))
        gram = torch.unflatten((weights @ products).index_select(1, index.flatten()), 1, index.shape)
        total = weights.sum(-1, keepdim=True)
        # −(Σ w t) zᵀ − z (Σ w t)ᵀ + (Σ w) z zᵀ, as a matrix and its transpose
        half = (weights @ t - total / 2 * centre).unsqueeze(-1) * centre.unsqueeze(-2)
        size = weights @ squares + total[:, 0] * centre.square().sum(-1)
        return gram.sub_(half).sub_(half.mT), 8 * UNIT_ROUNDOFF * len(self.t) ** 0.5 * size


def visible_key_count(weights: Tensor) -> int:
    """Return the number of keys up to the last one with a weight in any row; under a causal mask the rest is zero."""
    visible = (weights != 0).any(0).nonzero()
    return int(visible[-1]) + 1 if len(visible) else 0


def norm_from_gram(gram: Tensor, error: Tensor) -> Tensor:
    """Return an upper bound on the norms of matrices from their Gram matrices, known up to an error."""
    return (certified_eigenvalue(gram) + error).sqrt()


def pairwise_distances(left: Tensor, right: Tensor) -> Tensor:
    """Return |left_i − right_j|, computed from the differences themselves."""
    return torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist")


def smaller_norm(known: float, block: Tensor) -> float:
    """Return the smaller of a known bound and ‖block‖; the norm is computed only where it can be the smaller one."""
    if float(block.norm(dim=-1).max()) >= known or float(block.norm(dim=-2).max()) >= known:
        return known
    return min(known, norm_of_nonnegative(block))


def norm_of_nonnegative(m: Tensor, steps: int = 60, tol: float = 1e-10) -> float:
    """Return an upper bound on ‖m‖₂ for a matrix with entries ≥ 0.

    By Collatz and Wielandt, ‖m‖² ≤ max_j (mᵀm u)_j/u_j for every u > 0. A power iteration finds u.

    Example:
        >>> norm_of_nonnegative(torch.ones(3, 3, dtype=torch.float64))
        3.0
    """
    m = m[:, m.amax(0) > 0]
    if m.numel() == 0:
        return 0.0
    size = m.max()
    m = m / size
    u = torch.ones(m.shape[1], dtype=m.dtype)
    for _ in range(steps):
        image = m.mT @ (m @ u)
        ratio = image / u
        if float(ratio.max()) <= (1 + tol) * float(ratio.min()):
            return float(size * ratio.max().sqrt())
        u = image / image.max()
        if float(u.min()) < 1e-200:
            break
    return float(size * spectral_norm(m))
