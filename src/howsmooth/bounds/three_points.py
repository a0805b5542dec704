"""The three-point configuration: two isolated tokens y and y', between which all others are undecided.

For one head with A_ij (the same for all pairs without rotary positions) and B = W V, the tokens z_i at rows i ≥ 3 see

    y, y' = R(cos θ · e ± sin θ · w)      w orthogonal to all ∂s_ij/∂x_j, so that ⟨A_ij z_i, y⟩ = ⟨A_ij z_i, y'⟩
    z_i = R A_i1ᵀe/|A_i1ᵀe|               less its part along (A_i1 − A_i2)ᵀe, for the same reason

with the same score, and θ is chosen such that it is above all others: each row has P = ½, ½. Moving y by e and y' by −e
changes every row by about R sin θ |A_i1ᵀe| R B w, so that the constant is at least about ‖A‖‖B‖R²(n/2)^½ for one head:
the leading term of the upper bound. The two-point configuration cannot exceed half of that times √2.

The bound is ‖J E‖/‖E‖ at these tokens, with E from a few power iterations. Every E gives a valid lower bound, whatever
the other heads do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from howsmooth.attention.heads import SelfAttention
from howsmooth.attention.rotary import Rotary
from howsmooth.bounds.bound import Bound, Refused, log
from howsmooth.bounds.conditions import check_n, check_radius
from howsmooth.bounds.form import LayerForm, form_of
from howsmooth.errors import InputError

REFERENCE = "docs/bounds.md, proof 8"
MAX_TOKENS = 1024  # the derivative is applied to all tokens
EVALUATED = 2  # candidates whose derivative is applied; the others are compared by the closed form
POWER_STEPS = 5  # from each of two starts
RANK_TOLERANCE = 1e-9
MAX_COSINE = 0.9  # y and y' stay apart even where this gives other tokens a larger score


def lower(f: SelfAttention | LayerForm, n: int, radius: float) -> Bound:
    """Return a lower bound on B_R^n from two isolated tokens that all others attend to by halves.

    For every layer of width 2 or more, with 3 to 1024 tokens. Under a soft cap or with offsets it may be weak.

    Args:
        f: the layer, or its `LayerForm`.
        n: number of tokens.
        radius: R, the largest Euclidean norm of a token.

    Returns:
        The bound, valid on B_R^n.

    Raises:
        Refused: for fewer than 3 or more than 1024 tokens, a window of less than 3, or scores beyond float64.

    Reference:
        docs/bounds.md, proof 8.

    Example:
        >>> eye = torch.eye(4, dtype=torch.float64)
        >>> turn = eye.roll(1, 0)  # A x is orthogonal to x for the best x
        >>> f = SelfAttention(turn, eye, eye, scale=1.0)
        >>> from howsmooth.bounds import this_project
        >>> round(this_project.upper(f, 64, 20.0).value / lower(f, 64, 20.0).value, 2)
        1.26
    """
    form = form_of(f)
    _, value = best_three_points(form, n, radius, "three_points.lower")
    return Bound(
        "three_points.lower", log(value), "lower", "on B_R^n", ("3 to 1024 tokens", "width 2 or more"), REFERENCE
    )


def tokens(f: SelfAttention | LayerForm, n: int, radius: float) -> Tensor:
    """Return tokens (n, d) in the ball at which attention is steep: y, y' and n − 2 tokens z_i.

    Args:
        f: the layer, or its `LayerForm`.
        n: number of tokens.
        radius: R, the largest Euclidean norm of a token.

    Returns:
        The tokens, (n, d), in float64.

    Raises:
        Refused: for fewer than 3 or more than 1024 tokens, a window of less than 3, or scores beyond float64.

    Example:
        >>> eye = torch.eye(2, dtype=torch.float64)
        >>> tokens(SelfAttention(eye.flip(0), eye, eye), 5, 1.0).shape
        torch.Size([5, 2])
    """
    found, _ = best_three_points(form_of(f), n, radius, "three_points.tokens")
    return found


def best_three_points(form: LayerForm, n: int, radius: float, name: str) -> tuple[Tensor, float]:
    """Return the best tokens (n, d) that were found, and ‖J E‖/‖E‖ at them; refusals are in the given name."""
    check_n(n)
    check_radius(radius)
    if not 3 <= n <= MAX_TOKENS:
        raise Refused(name, f"3 to {MAX_TOKENS} tokens", f"n = {n}", "take this_project.two_point_lower")
    if form.d < 2:
        raise Refused(name, "tokens of width 2 or more", "width 1", "take this_project.two_point_lower")
    if form.f.window is not None and form.f.window < 3:
        raise Refused(name, "a window of 3 or more", f"a window of {form.f.window}", "take a longer window")
    with torch.no_grad():
        layer = form.f.converted(device="cpu", dtype=torch.float64)
        # Without biases in the scores, the derivatives at X and −X are the same.
        signs = (1.0, -1.0) if form.has_bias_in_scores else (1.0,)
        found = [_candidate(form, layer, h, n, radius, sign) for h in range(form.heads) for sign in signs]
        found = sorted(found, key=lambda candidate: candidate.estimate, reverse=True)[:EVALUATED]
        try:
            values = [_steepness(layer, candidate) for candidate in found]
        except InputError as error:
            expected, got = "scores with correct digits in float64", f"a radius of {radius:.4g}"
            raise Refused(name, expected, got, "take this_project.two_point_lower, or a smaller radius") from error
    best = max(range(len(found)), key=values.__getitem__)
    return found[best].tokens, values[best]


@dataclass(frozen=True)
class _Candidate:
    """Tokens of one head (n, d), the perturbation E (n, d), and the estimate of ‖J E‖/‖E‖ for this head alone."""

    tokens: Tensor
    moved: Tensor
    estimate: float


def _candidate(form: LayerForm, layer: SelfAttention, head: int, n: int, radius: float, sign: float) -> _Candidate:
    """Return the configuration of one head."""
    wq, wk = form.wq[head], form.wk[head // form.groups]
    turn = _Turns(layer.rotary, n)
    reach = slice(2, n if form.f.window is None else min(n, form.f.window))  # rows that see both tokens

    # e is the unit vector with the largest Σ_i |A_i1ᵀe|², A_i1ᵀe = scale·Q_hᵀ R_iᵀ R_1 K_h e.
    factor = torch.linalg.qr(wk.mT)
    seen = turn.relative(wk.shape[0])[reach]
    core = (seen @ (wq @ wq.mT) @ seen.mT).sum(0)
    e = sign * factor.Q @ torch.linalg.eigh(factor.R @ core @ factor.R.mT).eigenvectors[:, -1]
    first, second = (form.scale * turn.back((wk @ e).expand(n, -1), at) @ wq for at in (0, 1))
    across = _unit(first - second) * (_size(first - second) > RANK_TOLERANCE * _size(first))
    z = radius * _unit(first - (first * across).sum(-1, keepdim=True) * across)

    q = z @ wq.mT if form.bq is None else z @ wq.mT + form.bq[head]
    slopes = torch.cat([form.scale * turn.slopes(q, at)[reach] @ wk for at in (0, 1)])  # ∂s_ij/∂x_j, j = 1, 2
    values = form.wv[head // form.groups]
    out = (
        values if form.wo is None else form.out_factor[head] @ values
    )  # W = U R: the norms of W V w are those of R V w
    w = _leading_outside(out, e, slopes)

    # The least height cos θ at which the score of y is above that of all z by log n + 2 in each row.
    scores = form.scale * turn(q)[reach] @ turn(z @ wk.mT).mT
    along = slopes[: len(slopes) // 2] @ e
    others = scores[:, 2:].amax(-1) + math.log(n) + 2
    cosine = float((others / (radius * along).clamp(min=1e-300)).max().clamp(-MAX_COSINE, MAX_COSINE))
    sine = math.sqrt(1 - cosine**2)
    tokens, moved = z.clone(), torch.zeros_like(z)
    tokens[0], tokens[1] = radius * (cosine * e + sine * w), radius * (cosine * e - sine * w)
    tokens = tokens * (radius / _size(tokens).clamp(min=1e-300)).clamp(max=1.0)  # rounding
    moved[0], moved[1] = e, -e
    estimate = radius * sine * _scaled_norm(out @ w) * _scaled_norm(along) / math.sqrt(2)
    return _Candidate(tokens, moved, estimate)


class _Turns:
    """Rotations by position; identities without rotary positions."""

    def __init__(self, rotary: Rotary | None, n: int):
        """Take the table of a layer for n tokens."""
        self.rotary, self.n = rotary, n

    def __call__(self, t: Tensor) -> Tensor:
        """Return R_i t_i for t (n, k)."""
        return t if self.rotary is None else self.rotary(t)

    def _fixed(self, at: int) -> Rotary:
        """Return a table with one position for all tokens."""
        assert self.rotary is not None
        cos, sin = (t[at : at + 1].expand(self.n, -1) for t in (self.rotary.cos, self.rotary.sin))
        return Rotary(cos, sin, self.rotary.interleaved)

    def back(self, t: Tensor, at: int) -> Tensor:
        """Return R_iᵀ R_at t_i, with a query at i and a key at `at`."""
        return t if self.rotary is None else self.rotary.transpose(self._fixed(at)(t))

    def slopes(self, q: Tensor, at: int) -> Tensor:
        """Return R_atᵀ R_i q_i."""
        return q if self.rotary is None else self._fixed(at).transpose(self.rotary(q))

    def relative(self, width: int) -> Tensor:
        """Return R_1ᵀ R_i as matrices, (n, k, k)."""
        identity = torch.eye(width, dtype=torch.float64).expand(self.n, width, width).transpose(0, 1)  # (k, n, k)
        return self.slopes(identity, 0).permute(1, 2, 0)


def _leading_outside(m: Tensor, e: Tensor, excluded: Tensor) -> Tensor:
    """Return the unit vector with the longest image, among those orthogonal to e and, if any is left, to `excluded`."""
    _, sizes, basis = torch.linalg.svd(torch.cat([e.unsqueeze(0), _unit(excluded)]), full_matrices=False)
    basis = basis[sizes > RANK_TOLERANCE * sizes[0]]
    if len(basis) == len(e):
        basis = e.unsqueeze(0)
    rest = m - (m @ basis.mT) @ basis
    w = torch.linalg.svd(rest, full_matrices=False).Vh[0]
    return _unit(w - basis.mT @ (basis @ w))


def _steepness(layer: SelfAttention, candidate: _Candidate) -> float:
    """Return ‖J E‖/‖E‖ at the tokens, after a few power iterations from the perturbation of the candidate."""
    jacobian, best = layer.jacobian(candidate.tokens), 0.0
    # Where scores hardly matter, the singular vector is orthogonal to E: all tokens move together.
    for e in (candidate.moved, torch.ones_like(candidate.moved)):
        e = _unit(e.flatten())
        for _ in range(POWER_STEPS):
            image = jacobian.matvec(e)
            best = max(best, size := _scaled_norm(image))
            e = _unit(jacobian.rmatvec(image / max(size, 1e-300)))
    return best


def _size(t: Tensor) -> Tensor:
    """Return norms along the last axis, kept as an axis of length one; no square overflows."""
    top = t.abs().amax(-1, keepdim=True).clamp(min=1e-300)
    norms: Tensor = top * torch.linalg.vector_norm(t / top, dim=-1, keepdim=True)
    return norms


def _unit(t: Tensor) -> Tensor:
    """Return unit vectors along the last axis; zeros stay zero."""
    return t / _size(t).clamp(min=1e-300)


def _scaled_norm(t: Tensor) -> float:
    """Return the norm of all entries."""
    return float(_size(t.flatten()))
