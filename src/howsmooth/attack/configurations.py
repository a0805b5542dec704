"""Inputs at which attention is rough, by formula: an isolated token that a crowd looks at.

The isolated token always comes first: that is where everybody sees it under a causal mask, and without one places do
not matter. These are points to measure at, or to climb from; none of them is the worst there is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from howsmooth.attack.constraints import check_count, check_seed, check_size
from howsmooth.attention import SelfAttention
from howsmooth.bounds import conditions
from howsmooth.bounds.bound import Refused
from howsmooth.bounds.form import LayerForm, form_of
from howsmooth.bounds.two_points import two_points
from howsmooth.errors import InputError

OTHERS = [2.0**-i for i in range(1, 9)]  # how far out tokens may be that look at a far one, in parts of the radius
SPREAD = 0.5  # how far they are from their middle, in parts of that
ROUNDING = 1e-12  # of ‖A‖: an eigenvalue that may be zero


@dataclass(frozen=True, eq=False)
class Configuration:
    """Tokens made for one purpose, and what that is."""

    tokens: Tensor = field(repr=False)  # (n, d), float64
    kind: str
    radius: float
    head: int | None  # the head it is made for; None for a whole layer
    about: str


def castin(f: SelfAttention | LayerForm, n: int, radius: float, head: int | None = None) -> Configuration:
    """The configuration behind the lower bound of Theorem 1, for one head: u a unit eigenvector of A.

    γ = −λ, λ < 0:   (Ru, −Ru, …, −Ru)
    γ = λ/8, λ > 0:  (Ru, Ru/2, …, Ru/2)

    whichever γ is larger. Where A has no real eigenvalue but zero, those of (A + Aᵀ)/2 take their place; where they are
    zero as well (a rotation by a right angle), it is refused. The sign of u, which is free, goes with the query bias.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> castin(SelfAttention(8 * one, one, one), 3, 1.5).tokens.flatten().abs().tolist()
    [1.5, 0.75, 0.75]

    Reference: castin2024smooth, proof of Theorem 1.
    """
    form = _form(f, n, radius, "castin")
    if head is None and form.heads > 1:
        raise InputError(f"castin: expected one head, got {form.heads}; give head=0 … {form.heads - 1}, or f.head(i)")
    chosen = 0 if head is None else head
    if isinstance(chosen, bool) or not isinstance(chosen, int) or not 0 <= chosen < form.heads:
        raise InputError(f"castin: expected a head from 0 to {form.heads - 1}, got {head!r}")
    size = float(form.score_norm[chosen])
    if size == 0:
        raise Refused("castin", "scores that depend on the tokens", "A = 0", "take far_token or random tokens")
    pairs, of = [pair for pair in form.real_eigenpairs(chosen) if abs(pair[0]) > ROUNDING * size], "A"
    if not pairs:
        values, vectors = form.extreme_pairs
        pairs, of = list(zip(values[chosen].tolist(), vectors[chosen], strict=True)), "(A + Aᵀ)/2"
    (low, u_low), (high, u_high) = pairs[0], pairs[-1]
    if max(-low, high) <= ROUNDING * size:
        raise Refused(
            "castin",
            f"an eigenvalue of A or {of} other than 0",
            f"none, with ‖A‖ = {size:.4g}: (A + Aᵀ)/2 = 0",
            "take two_point, which does not need any",
        )
    opposite = -low >= high / 8
    u, place, gamma = (u_low, -1.0, -low) if opposite else (u_high, 0.5, high / 8)
    if float(_offset(form)[chosen] @ u) < 0:
        u = -u
    return Configuration(
        _crowd(radius * u, place * radius * u, n),
        "castin",
        radius,
        head,
        f"γ = {gamma:.4g} from the {'least' if opposite else 'greatest'} real eigenvalue of {of}",
    )


def two_point(f: SelfAttention | LayerForm, n: int, radius: float, refine: bool = False) -> Configuration:
    """One token at y, all others at z: the best pair in closed form for the whole layer, heads and biases included.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> two_point(SelfAttention(-one, one, one), 5, 1.0).tokens.shape
    torch.Size([5, 1])
    """
    form = _form(f, n, radius, "two_point")
    y, z = two_points(form, n, radius, refine=refine)
    return Configuration(
        _crowd(y.detach(), z.detach(), n),
        "two point",
        radius,
        None,
        f"|y| = {float(y.norm()):.4g}, |z| = {float(z.norm()):.4g}",
    )


def far_token(f: SelfAttention | LayerForm, n: int, radius: float, seed: int = 0) -> Configuration:
    """One token Rw that wins every row it can: all others are where ⟨A_h x_i + c_h, w⟩ > 0, distinct from each other.

    As R grows P tends to a column of ones in each head that it wins, and with all heads won ‖D f‖ to ‖Σ_h W_h V_h‖√n
    (√(n−1) if the far token does not look at itself).

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> far_token(SelfAttention(one, one, one), 4, 10.0).about
    'wins 3 of 3 rows of the others in all heads'

    Reference: castin2024smooth, large radius.
    """
    form = _form(f, n, radius, "far_token")
    check_seed("far_token", seed)
    wk, c = form.repeat_kv(form.wk), _offset(form)
    basis, r = torch.linalg.qr(wk.mT)
    steepest = (basis @ torch.linalg.svd(r @ form.query_factor.mT).U[..., :1]).squeeze(-1)  # of each head's A, (h, d)
    noise = torch.randn(n - 1, form.d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    best = (-1, -math.inf), None
    for w in torch.cat([steepest, -steepest]):
        slopes = form.f.scale * ((wk @ w).unsqueeze(-2) @ form.wq).squeeze(-2)  # A_hᵀ w, (h, d)
        size = torch.linalg.vector_norm(slopes, dim=-1, keepdim=True).clamp(min=1e-300)
        z = torch.linalg.pinv(slopes / size).sum(-1)  # the same angle with all of them, if there is such a direction
        z = z / z.norm().clamp(min=1e-300)
        for distance in OTHERS:
            others = _around(distance * radius * z, noise, slopes, c @ w)
            tokens = torch.cat([radius * w.unsqueeze(0), others])
            wins, margin = _wins(form, tokens)
            if (wins, margin) > best[0]:
                best = (wins, margin), tokens
    (wins, _), tokens = best
    return Configuration(tokens, "far token", radius, None, f"wins {wins} of {n - 1} rows of the others in all heads")


def _around(z: Tensor, noise: Tensor, slopes: Tensor, offset: Tensor) -> Tensor:
    """Tokens around z, no nearer than half way to where a head that likes w at z does not any more."""
    noise = SPREAD * z.norm() * noise / torch.linalg.vector_norm(noise, dim=-1, keepdim=True)
    margins = slopes @ z + offset
    loss = -(noise @ slopes.mT) / margins.abs().clamp(min=1e-300)
    loss = torch.where(margins > 0, 2 * loss, 0)
    return z + noise / loss.amax(-1, keepdim=True).clamp(min=1)


def _wins(form: LayerForm, tokens: Tensor) -> tuple[int, float]:
    """Rows after the first in which token 0 has the largest score in all heads, and the least lead in any."""
    if len(tokens) == 1:
        return 0, 0.0
    x = tokens[1:]
    q = (x @ form.wq.mT) if form.bq is None else x @ form.wq.mT + form.bq.unsqueeze(1)  # (h, n − 1, k)
    scores = form.f.scale * q @ (tokens @ form.repeat_kv(form.wk).mT).mT
    if form.causal:
        hidden = torch.ones_like(scores[0], dtype=torch.bool).triu(2)
        scores = scores.masked_fill(hidden, -torch.inf)
    lead = (scores[..., 0] - scores[..., 1:].amax(-1)).amin(0)
    return int((lead > 0).sum()), float(lead.min())


def _form(f: SelfAttention | LayerForm, n: int, radius: float, name: str) -> LayerForm:
    if not isinstance(f, (SelfAttention, LayerForm)):
        raise InputError(f"{name}: expected a SelfAttention, got {type(f).__name__}")
    check_count(name, "n", n, least=1)
    check_size(name, "radius", radius)
    form = form_of(f)
    conditions.require_no_window(form, name)
    form.require_bilinear_scores(name)
    return form


def _offset(form: LayerForm) -> Tensor:
    """c_h = scale·Kᵀb_q, (h, d)."""
    if form.bq is None:
        return torch.zeros(form.heads, form.d, dtype=torch.float64)
    return form.f.scale * (form.bq.unsqueeze(-2) @ form.repeat_kv(form.wk)).squeeze(-2)


def _crowd(y: Tensor, z: Tensor, n: int) -> Tensor:
    """Y once, z for all others."""
    return torch.cat([y.unsqueeze(0), z.expand(n - 1, -1)])
