"""LayerNorm and RMSNorm: how far out their outputs can be, how steep they are, and blocks made of them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from howsmooth.attention import Normalisation
from howsmooth.bounds.bound import Bound, Refused, log, log_sum
from howsmooth.bounds.conditions import is_number
from howsmooth.errors import InputError

HALVINGS = 110  # of an interval; more than enough for any two float64
PROOF = "docs/bounds.md, normalisation"


def radius(norm: Normalisation) -> float:
    """The largest |norm(x)| over all x: the exact radius of the ellipsoid {g∘z + b : |z| ≤ √d, Σz = 0 if centred}.

    Its square is the least of λd + |b|² + max_z (Σ(g²−λ)z² + 2⟨g∘b, z⟩) over λ for which that maximum is finite. Each λ
    gives an upper bound; for one quadratic constraint the least of them is exact.

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
    squares, pull = g.square(), g * b
    lowest = _largest_restricted(squares) if norm.centred else float(squares[0])
    dual = _centred_dual if norm.centred else _dual

    # |z|² falls as λ grows; the least of a convex function is where it is d, or at the lowest λ if it is less there.
    step = float(torch.linalg.vector_norm(pull)) / math.sqrt(d)
    low, high = lowest, lowest + step
    for _ in range(HALVINGS if step > 0 else 0):
        middle = lowest + math.sqrt((high - lowest) * max(low - lowest, 1e-20 * step))
        _, length = dual(squares, pull, middle)
        low, high = (middle, high) if length > d else (low, middle)
    values = [dual(squares, pull, at)[0] + at * d for at in (high, low) if at > lowest]
    values = values or [dual(squares, pull, lowest * (1 + 1e-15) + 1e-300)[0] + lowest * d]
    best = min(value for value in values if math.isfinite(value))
    return size * math.sqrt(max(0.0, best + float(b.square().sum())))


def _dual(squares: Tensor, pull: Tensor, at: float) -> tuple[float, float]:
    """max_z (Σ(g²−λ)z² + 2⟨pull, z⟩), and |z|² there."""
    gap = at - squares
    z = torch.where(pull == 0, 0.0, pull / gap)
    return float((pull * z).sum()), float(z.square().sum())


def _centred_dual(squares: Tensor, pull: Tensor, at: float) -> tuple[float, float]:
    """The same over Σz = 0. The largest gain comes first and is kept apart: λ may be on either side of its square."""
    gap, rest, c = at - float(squares[0]), at - squares[1:], float(pull[0])
    s, t = float((1 / rest).sum()), float((pull[1:] / rest).sum())
    u = float((pull[1:].square() / rest).sum())
    bordered = gap * s + 1
    multiplier = (gap * t + c) / bordered
    z = (pull[1:] - multiplier) / rest
    first = (c * s - t) / bordered
    return u + (c * c * s - 2 * t * c - gap * t * t) / bordered, float(z.square().sum()) + first**2


def _largest_restricted(squares: Tensor) -> float:
    """The largest eigenvalue of diag(squares), descending, on Σz = 0: from above."""
    low, high = float(squares[1]), float(squares[0])
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        inside = 1 + (middle - float(squares[0])) * float((1 / (middle - squares[1:])).sum())
        low, high = (low, middle) if inside > 0 else (middle, high)
    return high


def local_norm(norm: Normalisation, x: Tensor) -> Tensor:
    """‖D norm(x)‖₂ of each token, exactly, (…, d) → (…).

    D = (1/s) G (I − 11ᵀ/d − zzᵀ/d), so that s² D Dᵀ = diag(g²) − u₁u₁ᵀ − u₂u₂ᵀ, u₁ = g/√d, u₂ = ((2 − |z|²/d)/d)^½ g∘z;
    without u₁ for RMSNorm. Its largest eigenvalue is found by halving an interval, counting eigenvalues above λ, to
    rounding in units of max g².

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
    norm, x = norm.to(device="cpu", dtype=torch.float64), x.detach().to(device="cpu", dtype=torch.float64)
    if not bool(torch.isfinite(x).all()):
        raise InputError("expected finite tokens, got NaN or ∞; look where they come from")
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
        above = _above(squares, u, middle)
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return size * (high.sqrt() / deviation.flatten()).reshape(x.shape[:-1])


def _above(squares: Tensor, u: list[Tensor], at: Tensor) -> Tensor:
    """Whether diag(squares) − Σ uuᵀ has an eigenvalue above `at` (n,).

    With D = at − squares, D + UUᵀ has as many negative eigenvalues as D has, less those of I + UᵀD⁻¹U (Haynsworth).
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
    """The largest ‖D norm(x)‖ over all x: ‖G (I − 11ᵀ/d)‖/√eps, at a token whose entries are all alike.

    It says nothing about any token that occurs: use `local_norm`.

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
        PROOF,
    )


def _check_norm(norm: Normalisation) -> None:
    if not isinstance(norm, Normalisation):
        raise InputError(
            f"expected a Normalisation, got {type(norm).__name__}; make one of gain, bias and eps, or "
            "take model.normalisation(layer)"
        )


def residual_block(norm: Normalisation, attention: Bound | float, x: Tensor, placement: str = "pre") -> Bound:
    """A bound at X on x + f(norm(x)) ("pre"), or on norm(x + f(x)) ("post"), from one on the attention f.

    Args:
        attention: an upper bound on ‖D f‖ where f is evaluated: a `Bound`, or the `upper` of an estimate.
        x: the tokens that enter the normalisation, (n, d): X itself ("pre"), or X + f(X) ("post").

    pre: 1 + ‖Df‖ max_i ‖D norm(x_i)‖. post: max_i ‖D norm(x_i)‖ (1 + ‖Df‖).

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
        steepness, source = attention.log_value, (f"attention: {attention.name}, {attention.holds}",)
    elif is_number(attention) and 0 <= attention < math.inf:
        steepness, source = log(float(attention)), (f"attention: at most {float(attention):g}",)
    else:
        raise InputError(
            f"expected a finite upper bound on ‖D f‖ from 0 on, got {attention!r}; give a Bound, or the "
            "upper of an estimate"
        )
    if isinstance(x, Tensor) and x.numel() == 0:
        raise InputError(f"expected at least one token, got shape {tuple(x.shape)}; give the (n, d) that enter")
    through = log(float(local_norm(norm, x).max()))
    value = log_sum(0.0, steepness + through) if placement == "pre" else through + log_sum(0.0, steepness)
    return Bound(f"normalisation.residual_block ({placement}-norm)", value, "upper", "at X", source, PROOF)
