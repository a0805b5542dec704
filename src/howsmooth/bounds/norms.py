"""Norms of matrices, many at once; intervals of scores and probabilities, and norms of what they dominate.

Steps (2) and (8) of docs/ball.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

UNIT = 2.0**-53
SMALL = 32  # size up to which all eigenvalues cost no more than a proof about one
STEPS = (10, 30)  # of Lanczos' method, for many small matrices and for large ones
SLACK = (1e-4, 1e-6)  # by how much a proven eigenvalue may be above the true one
TINY = 1e-300


def top_value(m: Tensor, proven: bool = False) -> Tensor:
    """‖m‖₂ of each matrix (…, rows, cols), from its smaller Gram matrix: squares cost nothing at the top of a spectrum.

    Or, if `proven`, an upper bound within 10⁻⁴ of it that takes less time.
    """
    flat = m.flatten(-2)
    size = torch.maximum(flat.amax(-1), -flat.amin(-1))[..., None, None]
    m = m / torch.where(size > 0, size, 1.0)
    gram = m @ m.mT if m.shape[-2] <= m.shape[-1] else m.mT @ m
    return size[..., 0, 0] * (proven_eigenvalue if proven else top_eigenvalue)(gram).sqrt()


def top_eigenvalue(m: Tensor) -> Tensor:
    """The largest eigenvalue of each symmetric positive matrix."""
    return torch.linalg.eigvalsh(m)[..., -1].clamp(min=0)


def proven_eigenvalue(m: Tensor) -> Tensor:
    """An upper bound on the largest eigenvalue of each symmetric positive matrix (…, a, a), within SLACK of it.

    Lanczos' method guesses it, from below. That μI − M has a Cholesky factor for a slightly larger μ is the proof;
    where it has none, all eigenvalues are computed.

    >>> m = torch.diag(torch.arange(40.0, dtype=torch.float64))
    >>> 39 <= proven_eigenvalue(m) <= 39 * (1 + 1e-4)
    tensor(True)
    """
    size, large = m.shape[-1], m.shape[-1] > 4 * SMALL
    if size <= SMALL:
        return top_eigenvalue(m)
    bound = lanczos(m, STEPS[large]) * (1 + SLACK[large])
    gap = -m
    gap.diagonal(dim1=-2, dim2=-1).add_(bound.unsqueeze(-1))
    unproven = torch.linalg.cholesky_ex(gap).info != 0
    bound = bound * (1 + 4 * size**2 * UNIT)  # what rounding can do to the factor
    if bool(unproven.any()):
        bound[unproven] = top_eigenvalue(m[unproven])
    return bound


def lanczos(m: Tensor, steps: int) -> Tensor:
    """The largest Ritz value of each symmetric matrix (…, a, a) after so many steps: at most its largest eigenvalue."""
    # Vectors are rows: M u for M's own transpose, uᵀM, is several times faster for many matrices.
    u = torch.randn(1, m.shape[-1], dtype=m.dtype, generator=torch.Generator().manual_seed(0))
    u = (u / u.norm()).expand(*m.shape[:-2], 1, -1).contiguous()
    t = m.new_zeros(*m.shape[:-2], steps, steps)
    before, beta = torch.zeros_like(u), m.new_zeros(*m.shape[:-2], 1, 1)
    for step in range(steps):
        r = u @ m
        alpha = (r * u).sum(-1, keepdim=True)
        r = r.sub_(alpha * u).sub_(beta * before)
        beta = torch.linalg.vector_norm(r, dim=-1, keepdim=True)
        t[..., step, step] = alpha[..., 0, 0]
        if step + 1 < steps:
            t[..., step + 1, step] = beta[..., 0, 0]
        before, u = u, r / beta.clamp(min=1e-300)
    return top_eigenvalue(t)


@dataclass(frozen=True)
class Within:
    """Entrywise intervals, (rows, keys)."""

    low: Tensor
    at: Tensor
    high: Tensor

    @property
    def change(self) -> Tensor:
        """By how much an entry can leave its value at the centre; differences are rounded up."""
        gap = torch.maximum(self.high - self.at, self.at - self.low).clamp(min=0)
        return gap + 4 * UNIT * self.high

    def times(self, other: Within) -> Within:
        return Within(self.low * other.low, self.at * other.at, self.high * other.high)


def softmax_within(s: Within) -> Within:
    """(2) Probabilities of rows whose scores, up to a constant per row, lie in these intervals; −∞ is hidden.

    >>> s = torch.tensor([[0.0, 0.0]], dtype=torch.float64)
    >>> p = softmax_within(Within(s - 0.5, s, s + 0.5))
    >>> torch.allclose(p.high, torch.sigmoid(torch.ones(1, 2, dtype=torch.float64)))
    True
    """
    seen = s.at > -torch.inf
    top = s.high.amax(-1, keepdim=True).nan_to_num(neginf=0.0)
    high, low = (s.high - top).exp(), (s.low - top).exp()
    # The others: all less the entry itself, with the rounding of that difference taken to the safe side.
    slack = 4 * s.at.shape[-1] * UNIT
    all_high, all_low = high.sum(-1, keepdim=True), low.sum(-1, keepdim=True)
    others_high = (all_high - high).clamp(min=0) + slack * all_high
    others_low = (all_low - low - slack * all_low).clamp(min=0)
    p = torch.softmax(s.at, -1).nan_to_num(nan=0.0)
    p_high = torch.where(seen, (high + TINY) / (high + TINY + others_low), 0.0)
    return Within(torch.minimum(low / (low + others_high + TINY), p), p, torch.maximum(p_high, p))


def capped(s: Tensor, change: Tensor, cap: float) -> tuple[Within, Within]:
    """Scores under a soft cap, and the slopes of the cap there."""

    def slope(t: Tensor) -> Tensor:
        return torch.cosh((t / cap).clamp(max=300.0)).pow(-2)

    scores = Within(*(cap * torch.tanh(t / cap) for t in (s - change, s, s + change)))
    return scores, Within(slope(s.abs() + change), slope(s.abs()), slope((s.abs() - change).clamp(min=0)))


def largest_concentration(p: Within) -> Tensor:
    """(8) per row, the largest g₁(p) = p₍₁₎(1 − p₍₁₎ + p₍₂₎) over the probabilities in the intervals."""
    first, second = torch.nn.functional.pad(p.high, (0, 1)).topk(2, -1).values.unbind(-1)
    least = p.low.amax(-1)
    corners = (least, first, second, torch.full_like(first, 0.5), 1 - second, (1 + second) / 2)
    at = torch.stack([torch.minimum(torch.maximum(c, least), first) for c in corners])
    g = at * (1 - at + torch.minimum(second, torch.minimum(at, 1 - at)))
    return g.amax(0)


class Outers:
    """Σ_j weights_ij t_j t_jᵀ for t (keys, c) and many weights: the products t_j t_jᵀ are made once, half of them."""

    def __init__(self, t: Tensor):
        self.t, self.sizes = t, t.square().sum(-1)

    @cached_property
    def half(self) -> tuple[Tensor, Tensor]:
        """The products (keys, c(c+1)/2), and the place of each entry of a c × c matrix among them."""
        row, col = torch.tril_indices(*2 * self.t.shape[1:]).unbind()
        place = torch.empty(*2 * self.t.shape[1:], dtype=torch.long)
        place[row, col] = place[col, row] = torch.arange(len(row))
        return self.t[:, row] * self.t[:, col], place

    def about(self, weights: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
        """Σ_j weights_ij (t_j − z_i)(t_j − z_i)ᵀ, (rows, c, c), and what cancellation may have left in it."""
        weights = weights[:, : last_seen(weights)]
        products, place = self.half
        t, products, sizes = (of[: weights.shape[1]] for of in (self.t, products, self.sizes))
        gram = (weights @ products).index_select(1, place.flatten()).unflatten(1, place.shape)
        total = weights.sum(-1, keepdim=True)
        # −(Σ w t) zᵀ − z (Σ w t)ᵀ + (Σ w) z zᵀ
        inside = (weights @ t - total / 2 * centre).unsqueeze(-1) * centre.unsqueeze(-2)
        size = weights @ sizes + total[:, 0] * centre.square().sum(-1)
        return gram.sub_(inside).sub_(inside.mT), 8 * UNIT * len(self.t) ** 0.5 * size


def last_seen(weights: Tensor) -> int:
    """How many keys there are up to the last that some row gives weight to: a mask leaves nothing beyond."""
    seen = (weights != 0).any(0).nonzero()
    return int(seen[-1]) + 1 if len(seen) else 0


def root_of_top(gram: Tensor, slack: Tensor) -> Tensor:
    return (proven_eigenvalue(gram) + slack).sqrt()


def distance(left: Tensor, right: Tensor) -> Tensor:
    """|left_i − right_j|, from the differences themselves."""
    return torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist")


def least_norm(known: float, block: Tensor) -> float:
    """The smaller of a known bound and ‖block‖; the norm is computed only where it can be the smaller."""
    if float(block.norm(dim=-1).max()) >= known or float(block.norm(dim=-2).max()) >= known:
        return known
    return min(known, norm_of_nonnegative(block))


def norm_of_nonnegative(m: Tensor, steps: int = 60, tol: float = 1e-10) -> float:
    """‖m‖ for entries ≥ 0, from above: ‖m‖² ≤ max_j (mᵀm u)_j/u_j for every u > 0 (Collatz–Wielandt).

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
    return float(size * top_value(m))
