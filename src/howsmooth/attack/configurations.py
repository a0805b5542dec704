"""Closed-form inputs with a large Lipschitz constant: one or two isolated tokens that all the others attend to.

The isolated tokens always come first: there every token sees them under a causal mask, and without a mask the order
does not matter. These inputs are points to measure at, or starting points of an ascent; none of them is a maximiser.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from howsmooth.attack.checks import check_count, check_seed, check_size, single_estimate
from howsmooth.attention.heads import SelfAttention
from howsmooth.bounds import conditions, three_points
from howsmooth.bounds.bound import Refused
from howsmooth.bounds.form import LayerForm, form_of
from howsmooth.bounds.two_points import two_points
from howsmooth.errors import InputError
from howsmooth.lipschitz.estimate import Estimate
from howsmooth.lipschitz.local import local_lipschitz

SIGN_TOLERANCE = 1e-2  # relative width of the intervals by which `castin` compares both signs
GROUP_DISTANCES = [2.0**-i for i in range(1, 9)]  # of the group that attends to a far token, relative to the radius
GROUP_SPREAD = 0.5  # distance of its tokens from their centre, relative to the centre's norm
EIGENVALUE_TOLERANCE = 1e-12  # relative to ‖A‖: a smaller eigenvalue may be zero


@dataclass(frozen=True, eq=False)
class Configuration:
    """Tokens constructed for a large Lipschitz constant.

    Attributes:
        tokens: (n, d), float64.
        name: the name of the construction.
        radius: the largest norm of a token that was allowed.
        head: the head for which it is constructed; None for a whole layer.
        about: the numbers behind the construction, in words.
        sign: 1 or −1 where the construction leaves a sign free (`castin`); None elsewhere.
        estimate: the constant of the whole layer at the tokens, where it was computed to choose the sign; else None.
        other: the configuration with the other sign, with its own estimate; None where the sign was given.
    """

    tokens: Tensor = field(repr=False)
    name: str
    radius: float
    head: int | None
    about: str
    sign: int | None = None
    estimate: Estimate | None = field(default=None, repr=False)
    other: Configuration | None = field(default=None, repr=False)


def castin(
    f: SelfAttention | LayerForm, n: int, radius: float, head: int | None = None, *, sign: int | None = None
) -> Configuration:
    """Return the configuration behind the lower bound of Theorem 1, for one head.

    With u a unit eigenvector of A for the eigenvalue λ:

        γ = −λ, λ < 0:   (Ru, −Ru, …, −Ru)
        γ = λ/8, λ > 0:  (Ru, Ru/2, …, Ru/2)

    whichever γ is larger. Where A has no real eigenvalue other than zero, those of (A + Aᵀ)/2 are used.

    The sign of u is free. Without a query bias both signs have the same constant. With one they differ, for the head
    and even more for the whole layer, whose other heads see the same tokens. By default the constant of f is computed
    for both, and the configuration with the larger one is returned, with the other as its attribute `other`. Which one
    is larger may depend on n: a curve over n needs a fixed sign, and a statement about growth needs both.

    Args:
        f: the attention layer, or its `LayerForm`.
        n: the number of tokens.
        radius: the radius R.
        head: the head; may be left out if the layer has only one.
        sign: 1 for the u with ⟨c, u⟩ ≥ 0, where the head has the scores ⟨Ax + c, y⟩; −1 for the opposite. Nothing is
            solved then. None for the sign with the larger constant of f.

    Returns:
        The configuration, tokens (n, d).

    Raises:
        InputError: an argument is invalid, or a layer of several heads is given without `head`.
        Refused: the scores are not ⟨Ax + c, y⟩ with one A, or A and (A + Aᵀ)/2 have no eigenvalue other than zero.

    Reference:
        castin2024smooth, proof of Theorem 1.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> castin(SelfAttention(8 * one, one, one), 3, 1.5).tokens.flatten().abs().tolist()
        [1.5, 0.75, 0.75]
        >>> f = SelfAttention(-one, one, one, bq=2 * one[0])
        >>> found = castin(f, 3, 1.5)
        >>> found.estimate.value > found.other.estimate.value, found.sign, found.other.sign
        (True, 1, -1)
    """
    form = _form(f, n, radius, "castin")
    if sign is not None and (isinstance(sign, bool) or sign not in (1, -1)):
        raise InputError(f"castin: expected sign as 1, -1 or None, got {sign!r}; None takes the larger constant")
    if head is None and form.heads > 1:
        raise InputError(f"castin: expected one head, got {form.heads}; give head=0 … {form.heads - 1}, or f.head(i)")
    chosen = 0 if head is None else head
    if isinstance(chosen, bool) or not isinstance(chosen, int) or not 0 <= chosen < form.heads:
        raise InputError(f"castin: expected a head from 0 to {form.heads - 1}, got {head!r}")
    size = float(form.score_norm[chosen])
    if size == 0:
        raise Refused("castin", "scores that depend on the tokens", "A = 0", "use far_token or random tokens")
    pairs, of = [pair for pair in form.real_eigenpairs(chosen) if abs(pair[0]) > EIGENVALUE_TOLERANCE * size], "A"
    if not pairs:
        values, vectors = form.extreme_pairs
        pairs, of = list(zip(values[chosen].tolist(), vectors[chosen], strict=True)), "(A + Aᵀ)/2"
    (low, u_low), (high, u_high) = pairs[0], pairs[-1]
    if max(-low, high) <= EIGENVALUE_TOLERANCE * size:
        raise Refused(
            "castin",
            f"an eigenvalue of A or {of} other than 0",
            f"none, with ‖A‖ = {size:.4g}: (A + Aᵀ)/2 = 0",
            "use two_point, which does not need one",
        )
    opposite = -low >= high / 8
    u, factor, gamma = (u_low, -1.0, -low) if opposite else (u_high, 0.5, high / 8)
    if float(_offset(form)[chosen] @ u) < 0:
        u = -u
    one = Configuration(
        _one_and_rest(radius * u, factor * radius * u, n),
        "castin",
        radius,
        head,
        f"γ = {gamma:.4g} from the {'least' if opposite else 'greatest'} real eigenvalue of {of}",
        sign=1,
    )
    other = replace(one, tokens=-one.tokens, sign=-1)
    return _larger(form, one, other) if sign is None else (one if sign == 1 else other)


def _larger(form: LayerForm, one: Configuration, other: Configuration) -> Configuration:
    """Return the configuration with the larger certified constant of the layer; the other one is its attribute."""
    layer = form.f.converted(device="cpu", dtype=torch.float64)

    def estimate(tokens: Tensor) -> Estimate:
        return single_estimate(local_lipschitz(layer, tokens, tol=SIGN_TOLERANCE, strict=False))

    first = estimate(one.tokens)
    # Without a query bias f(−X) = −f(X) up to a constant, so the derivatives at X and −X are the same.
    second = estimate(other.tokens) if has_query_bias(form) else first
    one, other = replace(one, estimate=first), replace(other, estimate=second)
    return replace(one, other=other) if first.value >= second.value else replace(other, other=one)


def two_point(f: SelfAttention | LayerForm, n: int, radius: float, refine: bool = False) -> Configuration:
    """Return one token at y and all others at z, for a whole layer with its heads and biases.

    Args:
        f: the attention layer, or its `LayerForm`.
        n: the number of tokens.
        radius: the largest norm of y and z.
        refine: improve the best pair in closed form by gradient ascent.

    Returns:
        The configuration, tokens (n, d).

    Raises:
        InputError: an argument is invalid.
        Refused: the scores are not ⟨Ax + c, y⟩ with one A for each head.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> two_point(SelfAttention(-one, one, one), 5, 1.0).tokens.shape
        torch.Size([5, 1])
    """
    form = _form(f, n, radius, "two_point")
    y, z = two_points(form, n, radius, refine=refine)
    return Configuration(
        _one_and_rest(y.detach(), z.detach(), n),
        "two point",
        radius,
        None,
        f"|y| = {float(y.norm()):.4g}, |z| = {float(z.norm()):.4g}",
    )


def three_point(f: SelfAttention | LayerForm, n: int, radius: float) -> Configuration:
    """Return two tokens at y and y' that all others, z_i, attend to by halves, for a layer of any kind.

    Args:
        f: the attention layer, or its `LayerForm`.
        n: the number of tokens, 3 to 1024.
        radius: the largest norm of a token.

    Returns:
        The configuration, tokens (n, d).

    Raises:
        InputError: an argument is invalid.
        Refused: n is not from 3 to 1024, or a window is shorter than 3.

    Reference:
        docs/bounds.md, proof 8.

    Example:
        >>> one = torch.eye(2, dtype=torch.float64)
        >>> three_point(SelfAttention(one.flip(0), one, one), 5, 1.0).tokens.shape
        torch.Size([5, 2])
    """
    form = _checked_form(f, n, radius, "three_point")
    tokens = three_points.tokens(form, n, radius)
    first, second = tokens[:2]
    about = f"|y − y'| = {float((first - second).norm()):.4g}"
    return Configuration(tokens, "three point", radius, None, about)


def far_token(f: SelfAttention | LayerForm, n: int, radius: float, seed: int = 0) -> Configuration:
    """Return one token Rw that gets the largest score from as many of the other, distinct tokens as possible.

    The other tokens are where ⟨A_h x_i + c_h, w⟩ > 0. As R grows, P tends to a column of ones in each head in which
    this holds for all of them. If it holds in all heads, ‖D f‖ tends to ‖Σ_h W_h V_h‖√n, or ‖Σ_h W_h V_h‖√(n−1) if the
    far token does not attend to itself.

    Args:
        f: the attention layer, or its `LayerForm`.
        n: the number of tokens.
        radius: the norm R of the far token.
        seed: seed of the directions in which the other tokens are spread.

    Returns:
        The configuration, tokens (n, d).

    Raises:
        InputError: an argument is invalid.
        Refused: the scores are not ⟨Ax + c, y⟩ with one A for each head.

    Reference:
        castin2024smooth, large radius.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> far_token(SelfAttention(one, one, one), 4, 10.0).about
        'largest score of 3 of the 3 other tokens in all heads'
    """
    form = _form(f, n, radius, "far_token")
    check_seed("far_token", seed)
    wk, c = form.repeat_kv(form.wk), _offset(form)
    basis, r = torch.linalg.qr(wk.mT)
    leading = (basis @ torch.linalg.svd(r @ form.query_factor.mT).U[..., :1]).squeeze(-1)  # of each head's A, (h, d)
    noise = torch.randn(n - 1, form.d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    best, tokens = (-1, -math.inf), torch.empty(0, form.d, dtype=torch.float64)
    for w in torch.cat([leading, -leading]):
        slopes = form.f.scale * ((wk @ w).unsqueeze(-2) @ form.wq).squeeze(-2)  # A_hᵀ w, (h, d)
        norms = torch.linalg.vector_norm(slopes, dim=-1, keepdim=True).clamp(min=1e-300)
        z = torch.linalg.pinv(slopes / norms).sum(-1)  # at the same angle to all of them, if such a direction exists
        z = z / z.norm().clamp(min=1e-300)
        for distance in GROUP_DISTANCES:
            others = _spread(distance * radius * z, noise, slopes, c @ w)
            trial = torch.cat([radius * w.unsqueeze(0), others])
            if (quality := _rows_led(form, trial)) > best:
                best, tokens = quality, trial
    about = f"largest score of {best[0]} of the {n - 1} other tokens in all heads"
    return Configuration(tokens, "far token", radius, None, about)


def _spread(z: Tensor, noise: Tensor, slopes: Tensor, offset: Tensor) -> Tensor:
    """Return distinct tokens around z whose score margins for w are at least half of those at z.

    A head whose margin at z is not positive is ignored.
    """
    noise = GROUP_SPREAD * z.norm() * noise / torch.linalg.vector_norm(noise, dim=-1, keepdim=True)
    margins = slopes @ z + offset
    loss = -(noise @ slopes.mT) / margins.abs().clamp(min=1e-300)
    loss = torch.where(margins > 0, 2 * loss, 0)
    return z + noise / loss.amax(-1, keepdim=True).clamp(min=1)


def _rows_led(form: LayerForm, tokens: Tensor) -> tuple[int, float]:
    """Return in how many rows after the first token 0 has the largest score in all heads, and the least margin."""
    if len(tokens) == 1:
        return 0, 0.0
    x = tokens[1:]
    q = (x @ form.wq.mT) if form.bq is None else x @ form.wq.mT + form.bq.unsqueeze(1)  # (h, n − 1, k)
    scores = form.f.scale * q @ (tokens @ form.repeat_kv(form.wk).mT).mT
    if form.causal:
        hidden = torch.ones_like(scores[0], dtype=torch.bool).triu(2)
        scores = scores.masked_fill(hidden, -torch.inf)
    margin = (scores[..., 0] - scores[..., 1:].amax(-1)).amin(0)
    return int((margin > 0).sum()), float(margin.min())


def _checked_form(f: SelfAttention | LayerForm, n: int, radius: float, name: str) -> LayerForm:
    """Check the arguments and return the layer's form."""
    if not isinstance(f, (SelfAttention, LayerForm)):
        raise InputError(f"{name}: expected a SelfAttention, got {type(f).__name__}")
    check_count(name, "n", n, least=1)
    check_size(name, "radius", radius)
    return form_of(f)


def _form(f: SelfAttention | LayerForm, n: int, radius: float, name: str) -> LayerForm:
    """Check the arguments and return the layer's form; refuse scores that are not ⟨Ax + c, y⟩."""
    form = _checked_form(f, n, radius, name)
    conditions.require_no_window(form, name)
    form.require_bilinear_scores(name)
    return form


def has_query_bias(f: SelfAttention | LayerForm) -> bool:
    """Return whether the constant at −X can differ from that at X."""
    return f.bq is not None and bool(f.bq.any())


def _offset(form: LayerForm) -> Tensor:
    """Return c_h = scale·Kᵀb_q, (h, d)."""
    if form.bq is None:
        return torch.zeros(form.heads, form.d, dtype=torch.float64)
    return form.f.scale * (form.bq.unsqueeze(-2) @ form.repeat_kv(form.wk)).squeeze(-2)


def _one_and_rest(y: Tensor, z: Tensor, n: int) -> Tensor:
    """Return n tokens (n, d): y first, then n − 1 copies of z."""
    return torch.cat([y.unsqueeze(0), z.expand(n - 1, -1)])
