"""Copies as consecutive positions: a causal model fed x_1 … x_1 x_2 … x_2 …, each token k times in a row.

Here no formula holds. Copy s of token i sees only s of its k copies, means do not separate, and the norm may go down.
As k → ∞ it ends up at least as large as

    max( 2‖Σ_h W_h V_h‖ , sup_{i, 0 < σ ≤ 1} ‖Σ_h W_h V_h C_i^{h,σ} A_h‖ )

C_i^σ with the weight of token i itself multiplied by σ. The first, since the copies of x_1 alone give the running mean,
whose norm tends to 2 (Hardy); the second, since away from the start the limit operator is multiplication by V C^σ A
plus a Hilbert–Schmidt part. So one token alone "splits" from ‖V‖ to 2‖V‖.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from howsmooth.attention import SelfAttention, blockwise
from howsmooth.attention.op import pattern_of
from howsmooth.attention.query_derivative import QueryDerivative
from howsmooth.errors import InputError
from howsmooth.lipschitz.estimate import Estimate
from howsmooth.lipschitz.gains import own_norms
from howsmooth.lipschitz.local import local_lipschitz

_LEVELS = 48  # values of log σ that are tried for all tokens at once


@dataclass(frozen=True)
class ConsecutiveLimit:
    """A lower bound on what ‖D‖ tends to when every token is repeated k → ∞ times in a row.

    running_mean: 2‖Σ W V‖. own: sup over tokens and σ of ‖∂₁G‖ with the token's own weight times σ, reached at `token`
    with `share` σ (a supremum over a grid, refined at its best token: attained, so a lower bound it is).
    """

    running_mean: float
    own: float
    token: int
    share: float

    @property
    def value(self) -> float:
        return max(self.running_mean, self.own)


def consecutive_copies(f: SelfAttention, x: Tensor, k: int, **options) -> Estimate:
    """‖D‖ of a causal layer at x (n, d) with every token k times in a row; positions move on with each copy.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> f = SelfAttention(-one, one, one, causal=True)
    >>> x = torch.tensor([[-3.0], [0.3]], dtype=torch.float64)
    >>> [round(consecutive_copies(f, x, k).value, 3) for k in (1, 2, 8)]
    [2.315, 2.261, 2.202]
    """
    _refuse_unmasked(f)
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise InputError(f"expected a number of copies k ≥ 1, got {k!r}")
    _refuse_other_than_tokens(f, x)
    return local_lipschitz(f, x.repeat_interleave(k, -2), **options)


def consecutive_limit(f: SelfAttention, x: Tensor) -> ConsecutiveLimit:
    """A lower bound on the limit k → ∞, for a causal layer without places (rotary positions would never end)."""
    _refuse_unmasked(f)
    for trait, there in (("rotary positions", f.rotary), ("a window", f.window), ("a score_bias", f.score_bias)):
        if there is not None:
            raise InputError(
                f"expected a causal layer without places for endless copies, got one with {trait}; use "
                "consecutive_copies with a k"
            )
    _refuse_other_than_tokens(f, x)
    f, x = f.converted(dtype=torch.float64), x.double()

    def norms(log_share: float) -> Tensor:
        layer = f.replaced(score_bias=lambda i, j: torch.where(i == j, log_share, 0.0))
        return own_norms(QueryDerivative(layer, x), tol=1e-4).value

    levels = torch.linspace(0, -_margin(f, x), _LEVELS, dtype=torch.float64)
    found = torch.stack([norms(float(level)) for level in levels])  # (levels, n)
    best, token = divmod(int(found.argmax()), len(x))
    around = levels[min(best + 1, _LEVELS - 1)], levels[max(best - 1, 0)]
    refined = minimize_scalar(
        lambda level: -float(norms(level)[token]),
        bounds=tuple(map(float, around)),
        method="bounded",
        options={"xatol": 1e-6, "maxiter": 30},
    )
    own, level = max((float(found[best, token]), float(levels[best])), (-float(refined.fun), float(refined.x)))
    return ConsecutiveLimit(2 * _value_norm(f), own, token, math.exp(level))


def _margin(f: SelfAttention, x: Tensor) -> float:
    """So far down in log σ every token that others are seen by gives way to them, with six units to spare."""
    q, k, v = (t.unsqueeze(0) for t in f.project(x))
    others = pattern_of(q, k, v, **{**f.pattern(), "score_bias": lambda i, j: torch.where(i == j, -torch.inf, 0.0)})
    normaliser = blockwise.forward(q, k, v, others)[1]
    keys = k.repeat_interleave(f.heads // f.kv_heads, 1)
    raw = f.scale * (q * keys).sum(-1)
    ahead = (raw if f.softcap is None else f.softcap * torch.tanh(raw / f.softcap)) - normaliser.sum(-1)
    ahead = ahead[torch.isfinite(ahead)]  # the first token sees no other
    return max(0.0, float(ahead.max()) if len(ahead) else 0.0) + 6.0


def _value_norm(f: SelfAttention) -> float:
    values = f.wv.unflatten(0, (f.kv_heads, -1)).repeat_interleave(f.heads // f.kv_heads, 0).flatten(0, 1)
    return float(torch.linalg.matrix_norm(values if f.wo is None else f.wo @ values, ord=2))


def _refuse_other_than_tokens(f: SelfAttention, x: Tensor) -> None:
    if not isinstance(x, Tensor) or x.dim() != 2:
        got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"expected the tokens of one sequence as a tensor (n, {f.d}), got {got}")
    f.check_tokens(x.to(f.dtype), None)


def _refuse_unmasked(f) -> None:
    if not isinstance(f, SelfAttention) or not f.causal:
        raise InputError(
            f"expected a causal SelfAttention, got {f!r}; unmasked layers do not see the order of copies: use splits"
        )
