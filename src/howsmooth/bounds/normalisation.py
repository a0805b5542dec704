"""LayerNorm and RMSNorm: the radius of their image, the norm of their derivative, and blocks that contain them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from howsmooth.attention.heads import SelfAttention
from howsmooth.attention.normalisation import Normalisation
from howsmooth.bounds.bound import Bound, Refused, log, log_sum
from howsmooth.bounds.conditions import is_number
from howsmooth.errors import InputError

BISECTION_STEPS = 110  # enough for any interval of float64 numbers
REFERENCE = "docs/bounds.md, normalisation"


def radius(norm: Normalisation) -> float:
    """Return the largest Euclidean norm |norm(x)| over all x, exactly.

    It is the radius of the ellipsoid {g∘z + b : |z| ≤ √d, Σz = 0 if centred}. Its square is the minimum over λ of

        λd + |b|² + max_z (Σ(g²−λ)z² + 2⟨g∘b, z⟩)

    where that maximum is finite. Each λ gives an upper bound; for a single quadratic constraint the minimum is exact.

    Args:
        norm: the normalisation, with gain g and bias b.

    Returns:
        The radius.

    Raises:
        InputError: if norm is not a `Normalisation`.

    Reference:
        docs/bounds.md, normalisation.

    Example:
        >>> norm = Normalisation(torch.tensor([3.0, 1.0, 1.0, 1.0]), torch.tensor([1.0, 0, 0, 0]), centred=False)
        >>> round(radius(norm), 9)  # 3·√4 + 1
        7.0
    """
    _check_norm(norm)
    g, d = norm.gain.detach().double().cpu(), norm.d
    b = torch.zeros(d, dtype=torch.float64) if norm.bias is None else norm.bias.detach().double().cpu()
    size = float(g.abs().max())  # in units of the largest gain, nothing overflows
    if size == 0 or (norm.centred and d == 1):
        return float(torch.linalg.vector_norm(b))
    order = (g.abs() / size).argsort(descending=True)
    g, b = (g / size)[order], (b / size)[order]
    squares, linear = g.square(), g * b
    lowest = _largest_centred_eigenvalue(squares) if norm.centred else float(squares[0])
    maximum = _centred_maximum if norm.centred else _unconstrained_maximum

    # |z|² decreases in λ. The minimum of the convex dual is where |z|² = d, or at the lowest λ if |z|² < d there.
    step = float(torch.linalg.vector_norm(linear)) / math.sqrt(d)
    low, high = lowest, lowest + step
    for _ in range(BISECTION_STEPS if step > 0 else 0):
        middle = lowest + math.sqrt((high - lowest) * max(low - lowest, 1e-20 * step))
        _, length = maximum(squares, linear, middle)
        low, high = (middle, high) if length > d else (low, middle)
    values = [maximum(squares, linear, at)[0] + at * d for at in (high, low) if at > lowest]
    values = values or [maximum(squares, linear, lowest * (1 + 1e-15) + 1e-300)[0] + lowest * d]
    best = min(value for value in values if math.isfinite(value))
    return size * math.sqrt(max(0.0, best + float(b.square().sum())))


def in_coordinates(f: SelfAttention, norm: Normalisation) -> SelfAttention:
    """Return z ↦ f(g∘z + b) as a layer in float64 on the CPU, for z with Σz = 0 if the normalisation is centred.

    Gain, bias and centring become part of the weights.

    Args:
        f: the layer.
        norm: the normalisation, with gain g and bias b.

    Example:
        >>> eye = torch.eye(2)
        >>> f = in_coordinates(SelfAttention(eye, eye, eye), Normalisation(torch.tensor([3.0, 1.0]), centred=False))
        >>> f.wv.diagonal().tolist()
        [3.0, 1.0]
    """
    f = f.converted(device="cpu", dtype=torch.float64)
    gain = norm.gain.detach().double().cpu()
    shift = torch.zeros_like(gain) if norm.bias is None else norm.bias.detach().double().cpu()

    def weight(w: Tensor) -> Tensor:
        w = w * gain
        return w - w.mean(-1, keepdim=True) if norm.centred else w

    def offset(w: Tensor, b: Tensor | None) -> Tensor:
        return w @ shift if b is None else w @ shift + b

    return f.replaced(
        wq=weight(f.wq),
        wk=weight(f.wk),
        wv=weight(f.wv),
        bq=offset(f.wq, f.bq),
        bk=offset(f.wk, f.bk),
        bv=offset(f.wv, f.bv),
    )


def _unconstrained_maximum(squares: Tensor, linear: Tensor, at: float) -> tuple[float, float]:
    """Return max_z (Σ(g²−λ)z² + 2⟨linear, z⟩) at λ = `at`, and |z|² at the maximum."""
    gap = at - squares
    z = torch.where(linear == 0, 0.0, linear / gap)
    return float((linear * z).sum()), float(z.square().sum())


def _centred_maximum(squares: Tensor, linear: Tensor, at: float) -> tuple[float, float]:
    """Return the same over Σz = 0. The first entry, with the largest gain, is separate: λ may be below its square."""
    gap, rest, c = at - float(squares[0]), at - squares[1:], float(linear[0])
    s, t = float((1 / rest).sum()), float((linear[1:] / rest).sum())
    u = float((linear[1:].square() / rest).sum())
    bordered = gap * s + 1
    multiplier = (gap * t + c) / bordered
    z = (linear[1:] - multiplier) / rest
    first = (c * s - t) / bordered
    return u + (c * c * s - 2 * t * c - gap * t * t) / bordered, float(z.square().sum()) + first**2


def _largest_centred_eigenvalue(squares: Tensor) -> float:
    """Return the largest eigenvalue of diag(squares), descending, on Σz = 0, from above."""
    low, high = float(squares[1]), float(squares[0])
    for _ in range(BISECTION_STEPS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        secular = 1 + (middle - float(squares[0])) * float((1 / (middle - squares[1:])).sum())
        low, high = (low, middle) if secular > 0 else (middle, high)
    return high


def local_norm(norm: Normalisation, x: Tensor) -> Tensor:
    """Return ‖D norm(x)‖₂ of each token, exactly.

    D = (1/s) G (I − 11ᵀ/d − zzᵀ/d), without 11ᵀ/d for RMSNorm, so that

        s² D Dᵀ = diag(g²) − u₁u₁ᵀ − u₂u₂ᵀ,    u₁ = g/√d,    u₂ = ((2 − |z|²/d)/d)^½ g∘z

    Its largest eigenvalue is found by bisection, counting eigenvalues above λ, up to rounding in units of max g².

    Args:
        norm: the normalisation.
        x: tokens that enter it, (…, d).

    Returns:
        The norms, (…), in float64.

    Raises:
        InputError: if tokens are not finite, or constant with eps = 0.

    Reference:
        docs/bounds.md, normalisation.

    Example:
        >>> local_norm(Normalisation(torch.ones(4), eps=0.0), torch.tensor([2.0, 2.0, -2.0, -2.0])).item()  # 1/s
        0.5
    """
    _check_norm(norm)
    if not isinstance(x, Tensor) or x.shape[-1:] != (norm.d,):
        raise InputError(
            f"expected tokens (…, {norm.d}) as a tensor, got "
            + (f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__)
            + "; give what enters the normalisation"
        )
    norm, x = norm.converted(device="cpu", dtype=torch.float64), x.detach().to(device="cpu", dtype=torch.float64)
    if not bool(torch.isfinite(x).all()):
        raise InputError("expected finite tokens, got NaN or ∞; check what enters the normalisation")
    z, deviation = norm.standardise(x)
    if not bool((deviation > 0).all()):
        raise InputError(
            "expected eps > 0 or tokens with a deviation, got a constant token and eps = 0; there the map "
            "has no derivative: leave that token out"
        )
    if not bool(torch.isfinite(deviation).all()):
        raise InputError("expected tokens whose squares fit into float64, got larger ones; divide them by a number")
    size = float(norm.gain.abs().max())
    if size == 0:
        return torch.zeros(x.shape[:-1], dtype=torch.float64)
    g, d = norm.gain / size, norm.d
    z = z.reshape(-1, d)
    u = [((2 - z.square().sum(-1, keepdim=True) / d) / d).sqrt() * g * z]
    if norm.centred:
        u.append((g / math.sqrt(d)).expand_as(z))
    squares = g.square()
    high = torch.full(z.shape[:1], float(squares.max()), dtype=torch.float64)
    low = torch.zeros_like(high)
    for _ in range(60):
        middle = (low + high) / 2
        above = _has_eigenvalue_above(squares, u, middle)
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return size * (high.sqrt() / deviation.flatten()).reshape(x.shape[:-1])


def _has_eigenvalue_above(squares: Tensor, u: list[Tensor], at: Tensor) -> Tensor:
    """Return whether diag(squares) − Σ uuᵀ has an eigenvalue above `at` (n,).

    With D = at − squares, D + UUᵀ has as many negative eigenvalues as D, less those of I + UᵀD⁻¹U (Haynsworth).
    """
    gap = at.unsqueeze(-1) - squares
    gap = torch.where(gap.abs() < 1e-18, 1e-18, gap)
    negative = (gap < 0).sum(-1)
    inner = [[(i == j) + (a * b / gap).sum(-1) for j, b in enumerate(u)] for i, a in enumerate(u)]
    if len(u) == 1:
        return negative > (inner[0][0] < 0).long()
    determinant = inner[0][0] * inner[1][1] - inner[0][1] ** 2
    both = (inner[0][0] + inner[1][1] < 0).long() * 2
    return negative > torch.where(determinant < 0, 1, both)


def global_norm(norm: Normalisation) -> Bound:
    """Return the largest ‖D norm(x)‖ over all x.

        ‖G (I − 11ᵀ/d)‖/√eps

    It is attained only at tokens whose entries are all equal, which do not occur in practice: use `local_norm`.

    Args:
        norm: the normalisation, with eps > 0.

    Returns:
        The bound, valid everywhere.

    Raises:
        Refused: if eps = 0, where the map is not Lipschitz.

    Reference:
        docs/bounds.md, normalisation.

    Example:
        >>> round(global_norm(Normalisation(torch.ones(4), eps=1e-4)).value, 6)
        100.0
    """
    _check_norm(norm)
    name = "normalisation.global_norm"
    if norm.eps == 0:
        raise Refused(name, "eps > 0", "eps = 0", "without it the map is not Lipschitz; use local_norm at a token")
    value = float(local_norm(norm, torch.zeros(norm.d)))
    return Bound(
        name,
        log(value),
        "upper",
        "everywhere",
        ("vacuous in practice: attained at constant tokens alone, of the size of max|g|/√eps",),
        REFERENCE,
    )


def _check_norm(norm: Normalisation) -> None:
    if not isinstance(norm, Normalisation):
        raise InputError(
            f"expected a Normalisation, got {type(norm).__name__}; make one of gain, bias and eps, or "
            "take model.normalisation(layer)"
        )


def residual_block(norm: Normalisation, attention: Bound | float, x: Tensor, placement: str = "pre") -> Bound:
    """Return an upper bound at X on a residual attention block, from one on the attention f.

        1 + ‖Df‖ max_i ‖D norm(x_i)‖       for x + f(norm(x)), placement "pre"
        max_i ‖D norm(x_i)‖ (1 + ‖Df‖)     for norm(x + f(x)), placement "post"

    Args:
        norm: the normalisation.
        attention: an upper bound on ‖D f‖ where f is evaluated: a `Bound`, or the `upper` of an estimate.
        x: the tokens that enter the normalisation, (n, d): X itself ("pre"), or X + f(X) ("post").
        placement: "pre" or "post".

    Returns:
        The bound, valid at X.

    Raises:
        InputError: if an argument is invalid, or `attention` is not an upper bound in the 2-norm.

    Reference:
        docs/bounds.md, normalisation.

    Example:
        >>> norm = Normalisation(torch.ones(2), eps=1.0, centred=False)
        >>> residual_block(norm, 3.0, torch.zeros(5, 2)).value
        4.0
    """
    if placement not in ("pre", "post"):
        raise InputError(f'expected placement "pre" or "post", got {placement!r}')
    if isinstance(attention, Bound):
        if attention.side != "upper" or attention.norm != "2":
            raise InputError(
                "expected an upper bound in the 2-norm, got the "
                f"{attention.side} bound {attention.name} in the {attention.norm}-norm"
            )
        log_attention, source = attention.log_value, (f"attention: {attention.name}, {attention.holds}",)
    elif is_number(attention) and 0 <= attention < math.inf:
        log_attention, source = log(float(attention)), (f"attention: at most {float(attention):g}",)
    else:
        raise InputError(
            f"expected a finite upper bound on ‖D f‖ from 0 on, got {attention!r}; give a Bound, or the "
            "upper of an estimate"
        )
    if isinstance(x, Tensor) and x.numel() == 0:
        raise InputError(f"expected at least one token, got shape {tuple(x.shape)}; give the (n, d) that enter")
    log_norm = log(float(local_norm(norm, x).max()))
    value = log_sum(0.0, log_attention + log_norm) if placement == "pre" else log_norm + log_sum(0.0, log_attention)
    return Bound(f"normalisation.residual_block ({placement}-norm)", value, "upper", "at X", source, REFERENCE)
